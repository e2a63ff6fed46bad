"""Benchmark of gemmsmith's GEMMs beside torch's ``F.linear`` on the shapes of real models."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch

import gemmsmith
from gemmsmith.bench import peers
from gemmsmith.bench.environment import environment_here
from gemmsmith.bench.gpu import require_gpu
from gemmsmith.bench.graphs import Arm
from gemmsmith.bench.measure import (
    SelfTest,
    compare,
    self_test,
)
from gemmsmith.bench.model_shapes import ModelShapes, load_model
from gemmsmith.bench.report import OURS, TORCH, BenchReport, BenchRow
from gemmsmith.bench.report_text import row_line
from gemmsmith.bench.rounds import Policy
from gemmsmith.dtypes import BF16, FP16, DType, parse_dtype
from gemmsmith.errors import GemmsmithError, MeasureError, NoKernelError
from gemmsmith.kernelset import default_kernels
from gemmsmith.nvml import detect_architecture
from gemmsmith.progress import Progress
from gemmsmith.spec import KernelSpec

__all__ = [
    "DEFAULT_M",
    "BenchCase",
    "BenchReport",
    "SelfTest",
    "bench_gemm",
    "plan_cases",
    "run_bench",
    "self_test",
]

DEFAULT_M = (1, 16, 64, 512, 2048, 8192)
"""Tokens at a time: decode of one and of some sequences, short and long prefill."""
_FP16_SPOTS = (1, 64, 512, 2048)  # M for each weight in turn, where no dtype is asked for
_RETIRE_ABOVE = 1.3
MEASURED_DTYPES: Mapping[DType, torch.dtype] = {BF16: torch.bfloat16, FP16: torch.float16}
"""Element types that can be measured, as torch has them."""


class Kernel(peers.Gemm, Protocol):
    """One kernel of a set."""

    def misfit(self, a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor | None = None) -> str:
        """Return why it cannot run on these operands; empty where it can."""
        ...


class Kernels(Protocol):
    """What a benchmark needs of a :class:`gemmsmith.KernelSet`."""

    @property
    def names(self) -> Sequence[str]: ...

    @property
    def gemm(self) -> peers.Gemm: ...

    def __getitem__(self, name: str) -> Kernel: ...


@dataclass(frozen=True, kw_only=True)
class BenchCase:
    """One shape to measure: y (m, n) = x (m, k) @ w (n, k).T."""

    model: str
    op: str
    m: int
    n: int
    k: int
    dtype: DType


def plan_cases(
    model: ModelShapes, *, dtype: DType | None = None, m: Sequence[int] | None = None
) -> tuple[BenchCase, ...]:
    """Return the shapes to measure for a model, small M first.

    ``dtype`` None means bf16 everywhere, and fp16 too at four spots. ``m`` None means
    :data:`DEFAULT_M`.
    """
    tokens = sorted(set(DEFAULT_M if m is None else m))
    cases = [
        BenchCase(model=model.model, op=s.op, m=size, n=s.n, k=s.k, dtype=dtype or BF16)
        for size in tokens
        for s in model.shapes
    ]
    if dtype is None:
        cases += [
            BenchCase(model=model.model, op=s.op, m=size, n=s.n, k=s.k, dtype=FP16)
            for s, size in zip(model.shapes, _FP16_SPOTS, strict=False)
            if size in tokens
        ]
    return tuple(cases)


def bench_gemm(
    cases: Sequence[BenchCase],
    *,
    kernels: Kernels | None = None,
    alone: Kernels | None = None,
    seconds_per_shape: float = 1.5,
) -> Iterator[BenchRow]:
    """Yield each case measured, once its result has been compared with a float64 product.

    Args:
        cases: Shapes to measure, on torch's current CUDA device.
        kernels: The set that gemmsmith's arm chooses from; None: :func:`gemmsmith.gemm`.
        alone: Set of which every fitting kernel gets an arm of its own; None: none.
        seconds_per_shape: Time for one shape's rounds; kernels that are far behind get few.

    Raises:
        NoDeviceError: where there is no GPU.
        MeasureError: where an arm cannot be captured in a CUDA graph.
    """
    require_gpu()
    for case in cases:
        yield _measure(case, kernels, alone, seconds_per_shape)
        torch.cuda.empty_cache()


def _measure(
    case: BenchCase, kernels: Kernels | None, alone: Kernels | None, seconds: float
) -> BenchRow:
    inputs = peers.make_inputs(case.m, case.n, case.k, MEASURED_DTYPES[case.dtype])
    checked = check_arms(inputs, gemmsmith.gemm if kernels is None else kernels.gemm, alone)
    policy = Policy(seconds=seconds, retire_above=_RETIRE_ABOVE if alone else None)
    keep = [arm for arm in (TORCH, OURS) if arm in checked.arms]
    return timed_row(case, checked, keep, policy)


def timed_row(
    case: BenchCase, checked: CheckedArms, keep: Collection[str], policy: Policy
) -> BenchRow:
    """Return the row of ``case`` after timing its arms beside torch; those in ``keep`` stay."""
    return BenchRow(
        model=case.model,
        op=case.op,
        m=case.m,
        n=case.n,
        k=case.k,
        dtype=case.dtype.name,
        element_bytes=case.dtype.bytes,
        comparison=compare(checked.arms, baseline=TORCH, keep=keep, policy=policy),
        kernel=checked.kernel,
        wrong=checked.wrong,
        missing=checked.missing,
    )


@dataclass(frozen=True, kw_only=True)
class CheckedArms:
    """The arms of one shape that may be timed, and what became of the others."""

    arms: Mapping[str, Arm]
    """torch, and each arm whose result is right."""
    wrong: Mapping[str, str]
    """Arms whose result is wrong or that failed, and how."""
    kernel: str
    """The kernel that gemmsmith chose."""
    missing: str
    """Why gemmsmith has no kernel here; empty where it has."""


def check_arms(inputs: peers.Inputs, gemm: peers.Gemm, alone: Kernels | None) -> CheckedArms:
    """Return the arms for ``inputs`` whose results are right on NaN-poisoned memory."""
    right = peers.reference(inputs.x, inputs.weights[0])
    arms: dict[str, Arm] = {TORCH: peers.torch_arm(inputs)}
    wrong: dict[str, str] = {}
    kernel = missing = ""
    try:
        why = written_fault(gemm, inputs, right)
        kernel, missing = last_choice()
        if missing:
            kernel = ""
        elif why:
            wrong[OURS] = f"{kernel}: {why}"
        else:
            arms[OURS] = peers.gemm_arm(gemm, inputs)
    except NoKernelError as error:
        missing = str(error)
    for name, one in _fitting(alone, inputs):
        if why := written_fault(one, inputs, right, name):
            wrong[name] = why
        else:
            arms[name] = peers.kernel_arm(one, inputs)
    return CheckedArms(arms=arms, wrong=wrong, kernel=kernel, missing=missing)


def _fitting(kernels: Kernels | None, inputs: peers.Inputs) -> Iterator[tuple[str, Kernel]]:
    """Yield the kernels that can do what torch does with ``inputs``, by name."""
    if kernels is None:
        return
    for name in kernels.names:
        kernel = kernels[name]
        if not kernel.misfit(inputs.x, inputs.weights[0].t(), out=inputs.out):
            yield name, kernel


def written_fault(
    gemm: peers.Gemm, inputs: peers.Inputs, right: peers.Reference, kernel: str = ""
) -> str:
    """Return what is wrong with what ``gemm`` writes over NaN; empty where it is right.

    ``kernel`` is the name of the one that runs; empty: the choice of ``gemm``.
    """
    try:
        gemm(inputs.x, inputs.weights[0].t(), out=inputs.poisoned())
    except NoKernelError:
        raise
    except GemmsmithError as error:
        return f"{type(error).__name__}: {error}"
    return peers.fault(inputs.out, right, half_sums="_accfp16_" in (kernel or last_choice()[0]))


def last_choice() -> tuple[str, str]:
    """Return the name of what the last call ran and why torch took it, empty where it did not."""
    record = gemmsmith.last_kernel()
    return ("", "") if record is None else (record.name, record.reason)


def run_bench(
    model: str | Sequence[str],
    *,
    dtype: str | None = None,
    m: Sequence[int] | None = None,
    all_kernels: bool = False,
    json_path: Path | None = None,
    seconds_per_shape: float = 1.5,
    kernels: Path | str | None = None,
    progress: Callable[[str], None] = lambda line: None,
    building: Progress | None = None,
) -> BenchReport:
    """Return the measured shapes of a model; see :mod:`gemmsmith.bench.report_text` for its tables.

    Args:
        model: Name of a model of ``configs/models``, or a path to such a file; or several.
        dtype: ``bf16`` or ``fp16``; None: bf16, and fp16 at four spots, or what ``kernels`` take.
        m: Tokens at a time; None: :data:`DEFAULT_M`.
        all_kernels: Whether every fitting kernel gets an arm of its own.
        json_path: File for all raw numbers, written anew after each shape.
        seconds_per_shape: Time for one shape's rounds.
        kernels: Configuration to choose kernels from; None: the kernels of gemmsmith.
        progress: Called with one line after each shape.
        building: Hears of the kernels that have to be built first.

    Raises:
        ConfigError: where the model or the configuration cannot be read.
        MeasureError: where ``dtype`` or ``m`` is none that can be measured.
        NoDeviceError: where there is no GPU.
        CompileError, ToolchainError: where a kernel is missing and cannot be built.
    """
    models = [load_model(name) for name in ([model] if isinstance(model, str) else model)]
    wanted, tokens = _dtype(dtype), checked_tokens(m)
    environment = environment_here()
    if json_path is not None:
        json_path.parent.mkdir(parents=True, exist_ok=True)
    own = None if kernels is None else gemmsmith.load(kernels)
    if own is not None:
        wanted = dtype_of(own.specs, wanted, str(kernels))
    cases = [case for each in models for case in plan_cases(each, dtype=wanted, m=tokens)]
    used = own or default_kernels(detect_architecture().name)
    used.build(progress=building)
    alone = used if all_kernels else None
    rows: list[BenchRow] = []
    for row in bench_gemm(cases, kernels=own, alone=alone, seconds_per_shape=seconds_per_shape):
        rows.append(row)
        progress(row_line(row))
        report = BenchReport(environment=environment, rows=tuple(rows))
        if json_path is not None:
            json_path.write_text(json.dumps(report.as_json(), indent=1) + "\n", encoding="utf-8")
    return BenchReport(environment=environment, rows=tuple(rows))


def _dtype(word: str | None) -> DType | None:
    if word is None:
        return None
    try:
        dtype = parse_dtype(word)
    except KeyError:
        dtype = None
    if dtype not in MEASURED_DTYPES:
        legal = ", ".join(known.name for known in MEASURED_DTYPES)
        raise MeasureError(f"dtype {word!r} cannot be measured; use one of {legal}")
    return dtype


def dtype_of(specs: Sequence[KernelSpec], wanted: DType | None, source: str) -> DType | None:
    """Return the element type to measure kernels of ``source`` in; None: bf16, and fp16 in spots.

    Raises:
        MeasureError: where no kernel takes it.
    """
    taken = [known for known in MEASURED_DTYPES if any(spec.a == known for spec in specs)]
    if not taken or wanted not in (None, *taken):
        asked = wanted.name if wanted else " or ".join(known.name for known in MEASURED_DTYPES)
        hint = "" if taken or not specs else ": give --dtype int8 for those of int8"
        raise MeasureError(f"{source} has no GEMM that takes {asked}{hint}")
    return wanted or (taken[0] if len(taken) == 1 else None)


def checked_tokens(m: Sequence[int] | None) -> Sequence[int] | None:
    """Return ``m``.

    Raises:
        MeasureError: where it holds no number of tokens.
    """
    if m is not None and (not m or min(m) < 1):
        raise MeasureError(f"m {list(m)} cannot be measured; give numbers of tokens from 1 up")
    return m
