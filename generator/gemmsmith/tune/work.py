"""What is to be measured: weights of models, at the buckets of M."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from gemmsmith.bench.model_shapes import load_model
from gemmsmith.buckets import BUCKETS
from gemmsmith.dtypes import BF16, INPUTS, INT8, DType, parse_input
from gemmsmith.errors import MeasureError
from gemmsmith.problem import GemmProblem, packed_problem
from gemmsmith.tuned import Key, key_of

Epilogue = Literal["plain", "residual", "activation", "gate"]
EPILOGUES: tuple[str, ...] = get_args(Epilogue)
"""What may follow the product; int8 has scales besides. A gate goes with gate_up weights alone."""
FIRST = (1, 4, 16, 64, 128, 256, 512, 1024, 2048, 8192)
"""Buckets that are measured before the others."""


@dataclass(frozen=True, kw_only=True)
class Weight:
    """One weight (n, k) of the models, and what follows its product."""

    n: int
    k: int
    dtype: DType
    epilogue: str = "plain"
    constant: bool = False
    """Whether calls promise that no queued work writes it."""

    def problem(self, m: int) -> GemmProblem:
        """Return the call on ``m`` rows, as layers make it: y = x @ w.T."""
        whole = self.dtype == INT8
        return packed_problem(
            m,
            self.n,
            self.k,
            self.dtype,
            d=BF16 if whole else self.dtype,
            scaled=whole,
            residual=self.epilogue == "residual",
            activation="gelu" if self.epilogue == "activation" else "none",
            gate="silu" if self.epilogue == "gate" else "none",
            constant_b=self.constant,
        )


@dataclass(frozen=True, kw_only=True)
class Job:
    """One weight at one bucket of M: one entry of a table."""

    weight: Weight
    m: int

    @property
    def problem(self) -> GemmProblem:
        """The call that is timed."""
        return self.weight.problem(self.m)

    @property
    def key(self) -> Key:
        """What the entry is found by."""
        return key_of(self.problem)


def weights_of(
    models: Sequence[str],
    shapes: Sequence[tuple[int, int]] = (),
    *,
    dtype: str = "bf16",
    epilogues: Sequence[str] = ("plain",),
    constant: bool = False,
) -> tuple[Weight, ...]:
    """Return each weight of the models, and each (n, k) of ``shapes``, once.

    Raises:
        ConfigError: where a model is not known.
        MeasureError: where a dtype or an epilogue is not, or there is no weight.
    """
    unknown = [word for word in epilogues if word not in EPILOGUES]
    if unknown:
        raise MeasureError(f"epilogue {unknown[0]!r} is not known; use {', '.join(EPILOGUES)}")
    try:
        element = parse_input(dtype)
    except KeyError:
        legal = ", ".join(known.name for known in INPUTS)
        raise MeasureError(f"dtype {dtype!r} cannot be tuned; use one of {legal}") from None
    asked = [(each.op, each.n, each.k) for name in models for each in load_model(name).shapes]
    asked += [("", n, k) for n, k in shapes]
    found = [
        Weight(n=n, k=k, dtype=element, epilogue=epilogue, constant=constant)
        for epilogue in epilogues
        for op, n, k in asked
        if epilogue != "gate" or op in ("gate_up", "")
    ]
    if not found:
        raise MeasureError("nothing to tune: name a --model or a --weight NxK")
    return tuple(dict.fromkeys(found))


def jobs_of(weights: Sequence[Weight], m: Sequence[int] | None = None) -> tuple[Job, ...]:
    """Return a job for each weight and each bucket.

    The sizes of :data:`FIRST` come first, all weights at one size after the other, so that a budget
    that is too small leaves no weight without entries.

    Raises:
        MeasureError: where ``m`` holds what is no bucket.
    """
    wanted = BUCKETS if m is None else tuple(sorted(set(m)))
    strange = [size for size in wanted if size not in BUCKETS]
    if strange or not wanted:
        raise MeasureError(
            f"M = {strange[0] if strange else 'nothing'} is no bucket;"
            f" use {', '.join(map(str, BUCKETS))}"
        )
    ordered = sorted(wanted, key=lambda size: (size not in FIRST, size))
    return tuple(Job(weight=weight, m=size) for size in ordered for weight in weights)
