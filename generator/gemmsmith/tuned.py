"""What a tuned table holds: which kernel won at which shape, as measured on one GPU."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import MISSING, dataclass, fields, replace
from functools import cache
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, model_validator

from gemmsmith.arch import parse_architecture
from gemmsmith.buckets import bucket_of
from gemmsmith.choose import Choice, Tuning, unsuited
from gemmsmith.dtypes import BF16, FP16, FP32
from gemmsmith.errors import UnknownArchitectureError
from gemmsmith.problem import GemmProblem
from gemmsmith.spec import KernelSpec
from gemmsmith.spec_dict import spec_to_dict
from gemmsmith.tuned_values import (
    PLAIN,
    Bucket,
    Epilogue,
    Input,
    LayoutWord,
    Output,
    Positive,
    Raster,
    Splits,
    Swizzle,
    epilogue_word,
    knobs_fault,
    wrong,
)

FORMAT = 1
"""Of the files; tables of another format are not used."""
TORCH = "torch"
"""Stands for torch's own GEMM where a kernel could be named."""
FAIR = 0.995
"""torch's time over a kernel's below which torch is taken where it may be: within half a percent
two runs disagree on who wins, and an own kernel fuses what follows."""


@dataclass(frozen=True, kw_only=True)
class Key:
    """What an entry is found by."""

    n: int
    k: int
    m: int
    """The bucket of M."""
    a: str
    """Name of the element type of A and B."""
    d: str
    """Name of the element type of D."""
    layout: str
    epilogue: str

    def __str__(self) -> str:
        types = self.a if self.a == self.d else f"{self.a} -> {self.d}"
        return f"{self.m}x{self.n}x{self.k} {types} {self.layout} {self.epilogue}"


class _Block(BaseModel):
    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True
    )


class Made(_Block):
    """The head of a table: what its numbers hold for."""

    format: int
    """:data:`FORMAT` of the file."""
    gpu: str
    """The GPU's name, for example ``NVIDIA H200``."""
    sm_count: int
    """Its multiprocessors."""
    arch: str
    """Architecture of the kernels."""
    cutlass: str
    nvcc: str
    """Release of the toolkit that compiled the kernels."""
    driver: str
    torch: str
    gemmsmith: str

    def differences(self, here: Made) -> dict[str, tuple[str, str]]:
        """Return the fields that differ from ``here``: name -> (the table's, here)."""
        pairs = {name: (str(getattr(self, name)), str(getattr(here, name))) for name in SOFTWARE}
        return {name: pair for name, pair in pairs.items() if pair[1] and pair[0] != pair[1]}


SOFTWARE = ("cutlass", "nvcc", "driver", "torch", "gemmsmith")
"""Fields in which a table may differ from the machine that uses it, which is then told."""


class Timing(_Block):
    """One kernel at one shape."""

    kernel: str
    """Name and :func:`content` of the kernel, joined by ``@``."""
    raster: Raster = 0
    swizzle: Swizzle = 0
    splits: Splits = 0
    us: Positive
    """Time of one call: torch's over the ratio."""
    ratio: Positive
    """torch's time over the kernel's, the median of interleaved rounds."""
    low: Positive | None = None
    """Lower end of the ratio's 95 % interval; absent where there were fewer than 6 rounds."""
    high: Positive | None = None

    @model_validator(mode="after")
    def _is_one_timing(self) -> Timing:
        if fault := knobs_fault(
            self.kernel, raster=self.raster, swizzle=self.swizzle, splits=self.splits
        ):
            raise wrong(fault)
        if self.low is not None and self.low > self.ratio:
            raise wrong(f"low: {self.low} is above the ratio, {self.ratio}")
        if self.high is not None and self.high < self.ratio:
            raise wrong(f"high: {self.high} is below the ratio, {self.ratio}")
        return self

    @property
    def name(self) -> str:
        """The kernel's name."""
        return self.kernel.partition("@")[0]

    @property
    def tuning(self) -> Tuning:
        """The run-time knobs that it was timed with."""
        return Tuning(raster=self.raster, swizzle=self.swizzle, splits=self.splits)


class Entry(_Block):
    """What was measured for one weight shape at one bucket of M."""

    n: Annotated[int, Field(gt=0)]
    k: Annotated[int, Field(gt=0)]
    m: Bucket
    a: Input
    d: Output
    layout: LayoutWord
    epilogue: Epilogue
    winner: str
    """``torch``, or the kernel of one of the timings."""
    torch: Positive
    """µs of torch's way, extra kernels included."""
    timings: tuple[Timing, ...] = ()
    """Each kernel that was timed, with its best knobs, the fastest first."""
    wrong: tuple[str, ...] = ()
    """Kernels whose result was wrong: they were not timed."""

    @model_validator(mode="after")
    def _winner_was_timed(self) -> Entry:
        if self.winner != TORCH and all(each.kernel != self.winner for each in self.timings):
            text = "is neither torch nor a kernel of the entry's timings"
            raise wrong(f"winner: {self.winner!r} {text}")
        return self

    @property
    def key(self) -> Key:
        """What the entry is found by."""
        return Key(
            n=self.n,
            k=self.k,
            m=self.m,
            a=self.a,
            d=self.d,
            layout=self.layout,
            epilogue=self.epilogue,
        )

    def order(self) -> list[Timing]:
        """Return the timings, the winner first and then by speed."""
        return sorted(self.timings, key=lambda each: (each.kernel != self.winner, -each.ratio))


class Table(_Block):
    """A file of entries."""

    made: Made
    entries: tuple[Entry, ...] = ()


def winner_of(timings: Sequence[Timing]) -> str:
    """Return who wins an entry: the first of ``timings``, the fastest first, or torch.

    torch wins where that kernel is slower than it by more than :data:`FAIR` allows.
    """
    return timings[0].kernel if timings and timings[0].ratio >= FAIR else TORCH


def content(spec: KernelSpec) -> str:
    """Return a digest of the fields of ``spec``, so that an edited kernel is another one.

    Fields that hold their default do not count: a field that a later version adds changes nothing.
    """
    usual: dict[str, object] = {}
    for field in fields(spec):
        if field.default_factory is not MISSING:
            usual[field.name] = field.default_factory()
        elif field.default is not MISSING:
            usual[field.name] = field.default
    told = {
        name: value
        for name, value in spec_to_dict(spec).items()
        if name not in usual or getattr(spec, name) != usual[name]
    }
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:8]


@cache
def identified(spec: KernelSpec) -> str:
    """Return name and content of ``spec``, as tables write them."""
    return f"{spec.name}@{content(spec)}"


@cache
def timed_as(spec: KernelSpec, a: str) -> str:
    """Return the kernel that stands for ``spec`` in an entry of element type ``a``.

    bf16's timings stand for fp16's: tiles, bytes and instructions are the same, and the rates too
    (within 2 %, which ``gemmsmith bench --grid llm`` measures).
    """
    if a == BF16.name and spec.a == spec.b == spec.d == FP16 and spec.acc == FP32:
        return identified(replace(spec, a=BF16, b=BF16, d=BF16))
    return identified(spec)


def key_of(problem: GemmProblem) -> Key:
    """Return what the entry for ``problem`` is found by."""
    return Key(
        n=problem.n,
        k=problem.k,
        m=bucket_of(problem.m),
        a=problem.a.name,
        d=problem.d.name,
        layout=problem.layout,
        epilogue=epilogue_of(problem),
    )


def epilogue_of(problem: GemmProblem) -> str:
    """Return what the epilogue does, in a word: ``plain``, or words joined by ``+``.

    ``constant`` is no part of it, but makes other kernels fit: the promise that nothing writes B. A
    bias costs nothing measurable, and which function it is little, so neither counts.
    """
    asked = {
        "scaled": problem.scaled,
        "zero_point": problem.zero_point,
        "activation": problem.activation != "none",
        "gate": problem.gate != "none",
        "residual": problem.residual,
        "constant": problem.constant_b,
    }
    return epilogue_word(word for word, there in asked.items() if there)


def torch_can(problem: GemmProblem) -> bool:
    """Whether torch's own GEMM does the whole call, so that "use torch here" means what was timed.

    A bias and all else is added by gemmsmith in fp32 where torch computes, which costs far more.
    """
    plain = epilogue_of(replace(problem, constant_b=False)) == PLAIN and not problem.bias
    return plain and problem.a == problem.d and problem.batch == 1


def left_to_torch(choice: Choice, problem: GemmProblem, sm_count: int) -> str:
    """Return why torch should take a call that no entry is for; empty where it should not."""
    if choice.spec.arch.api != "3.x" or not torch_can(problem):
        return ""  # the estimate was fitted to 3.x kernels
    if choice.spec.store == "direct":
        return ""  # and to widths that suit TMA: what others cost torch is not known
    return unsuited(choice, problem, sm_count)


def same_gpu(made: Made, gpu: str, sm_count: int, capability: tuple[int, int]) -> bool:
    """Whether the numbers of a table hold for that GPU at all."""
    try:
        arch = parse_architecture(made.arch)
    except UnknownArchitectureError:
        return False
    return (made.gpu, made.sm_count, arch.capability) == (gpu, sm_count, capability)
