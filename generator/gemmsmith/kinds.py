"""What kernels have in common that a first call builds together, and chooses among."""

from __future__ import annotations

from collections.abc import Sequence

from gemmsmith.dtypes import DType
from gemmsmith.fit import misfit
from gemmsmith.problem import GemmProblem
from gemmsmith.spec import KernelSpec

Kind = tuple[DType, DType, str, bool]
"""Types of A and D, the gate, and whether there is an activation."""


def kind_of(of: KernelSpec | GemmProblem) -> Kind:
    """Return the kind of a kernel, or that of the kernels that are made for a call."""
    return (of.a, of.d, of.gate, of.activation != "none")


def kinds_of(problem: GemmProblem) -> tuple[Kind, ...]:
    """Return the kinds that can take a call, the plainer one first."""
    kind = kind_of(problem)
    return (kind,) if kind[3] else (kind, (*kind[:3], True))


def first_fitting(specs: Sequence[KernelSpec], problem: GemmProblem) -> list[KernelSpec]:
    """Return the kernels that fit, of the plainest kind that has any."""
    for kind in kinds_of(problem):
        fitting = [spec for spec in specs if kind_of(spec) == kind and not misfit(spec, problem)]
        if fitting:
            return fitting
    return []
