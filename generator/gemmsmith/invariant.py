"""The batch-invariant mode: one kernel for every number of rows.

A row's bits then depend neither on how many rows are with it nor on what they hold: one tile, and K
summed in one order (lean kernels cut it in as many parts for every M). The kernel is the one that
is behind the best at each number of rows by the least, by estimate. What does not suit it is
refused, because another kernel might round differently.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache, cached_property

from gemmsmith.arch import architecture_of
from gemmsmith.buckets import BUCKETS
from gemmsmith.choose import estimate, tune
from gemmsmith.errors import ArgumentError, NoKernelError, UnknownArchitectureError
from gemmsmith.fit import misfit, misfits
from gemmsmith.kernelset import default_kernels, rows_of_every_gpu
from gemmsmith.kinds import first_fitting
from gemmsmith.problem import GemmProblem
from gemmsmith.selection import DeviceFacts, Plan, register_as
from gemmsmith.spec import KernelSpec

HANDLE = "batch-invariant"
"""What a call names to get the mode; the same in every process."""
WORD = "batch"


def handle_of(deterministic: str, kernels: str = "") -> str:
    """Return the handle that a call with this ``deterministic`` names.

    Raises:
        ArgumentError: where it is not ``batch``, or kernels are named besides.
    """
    if deterministic != WORD:
        raise ArgumentError(f"deterministic is {deterministic!r}; 'batch' or nothing is legal")
    if kernels not in ("", HANDLE):
        raise ArgumentError(
            "deterministic='batch' chooses among the default kernels: of your own, name one"
            " (ks['name']) that is not stream_k, which is one for every number of rows"
        )
    return HANDLE


def sums_alike(spec: KernelSpec) -> bool:
    """Whether a kernel sums a row in one order, however many rows there are."""
    return spec.scheduler == "static"


def without_rows(problem: GemmProblem) -> GemmProblem:
    """Return the call with a fixed M, batch and alignment: what decides the one kernel."""
    return replace(problem, m=BUCKETS[-1], batch=1, a_align=16, b_align=16, d_align=16)


@cache
def one_for_all(
    specs: tuple[KernelSpec, ...], problem: GemmProblem, sm_count: int
) -> KernelSpec | None:
    """Return the kernel for calls like ``problem``, whatever its M; None where none fits."""
    whole = without_rows(problem)
    fitting = first_fitting([spec for spec in specs if sums_alike(spec)], whole)
    if not fitting:
        return None
    behind = dict.fromkeys(fitting, 0.0)
    for m in BUCKETS:
        times = {spec: estimate(spec, replace(whole, m=m), sm_count) for spec in fitting}
        best = min(times.values())
        for spec, us in times.items():
            behind[spec] += math.log(us / best)
    return min(fitting, key=lambda spec: (behind[spec], spec.name))


class _BatchInvariant:
    """A :class:`gemmsmith.selection.Selection` of the default kernels of whatever GPU calls."""

    torch_may_run = False
    constant_b = False

    @cached_property
    def specs(self) -> tuple[KernelSpec, ...]:
        """What may run on some GPU, so that a call can be checked without one."""
        return tuple(filter(sums_alike, rows_of_every_gpu()))

    def plan(self, problem: GemmProblem, device: DeviceFacts) -> Plan:
        """Return the one kernel for such calls, or raise; see :class:`Selection`."""
        try:
            kernels = default_kernels(architecture_of(device.capability).name)
        except UnknownArchitectureError as error:
            raise NoKernelError(str(error)) from error
        spec = one_for_all(kernels.specs, without_rows(problem), device.sm_count)
        reasons: Sequence[str] = [misfit(spec, problem)] if spec else []
        if spec is None:
            alike = [each for each in kernels.specs if sums_alike(each)]
            reasons = misfits(alike, problem) or ["none that sums rows alike fits"]
        if spec is None or reasons[0]:
            name = f"{spec.name}, the one for every number of rows" if spec else kernels.source
            raise NoKernelError(f"deterministic='batch': {name}: {'; '.join(reasons)}")
        return Plan(spec=spec, kernel=kernels.loaded(spec), tuning=tune(spec, problem))


register_as(_BatchInvariant(), HANDLE)
