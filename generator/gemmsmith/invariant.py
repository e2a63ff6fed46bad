"""The batch-invariant mode: a row's bits depend on no other row.

K is summed in one order for every number of rows. On Hopper all kernels that sum it from front to
end give the same bits, whatever their tile, schedule and side of the instruction (the GPU tests
compare all that ship), so the fastest of these runs. Elsewhere one kernel runs for every number of
rows, the one that is behind the best at each by the least, by estimate: on other GPUs, and where
there is a residual and a factor of it or of the product, because compilers fuse such
multiplications and additions each in its own way. What does not suit is refused: another kernel
might round differently.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache, cached_property

from gemmsmith.arch import architecture_of
from gemmsmith.buckets import BUCKETS
from gemmsmith.choose import estimate, tune
from gemmsmith.dtypes import FP32, INT32
from gemmsmith.errors import ArgumentError, NoKernelError, UnknownArchitectureError
from gemmsmith.fit import misfit, misfits
from gemmsmith.kernelset import KernelSet, default_kernels, rows_of_every_gpu
from gemmsmith.kinds import first_fitting
from gemmsmith.problem import GemmProblem
from gemmsmith.selection import DeviceFacts, Plan, register_as
from gemmsmith.spec import KernelSpec

HANDLE = "batch-invariant"
"""What a call names to get the mode; the same in every process."""
ONE_HANDLE = "batch-invariant-one"
"""The same for calls whose bits depend on the kernel: one for every number of rows."""
WORD = "batch"


def handle_of(deterministic: str, kernels: str = "", *, factors: bool = False) -> str:
    """Return the handle that a call with this ``deterministic`` names.

    ``factors`` tells whether there is a residual and a factor of it or of the product.

    Raises:
        ArgumentError: where it is not ``batch``, or kernels are named besides.
    """
    if deterministic != WORD:
        raise ArgumentError(f"deterministic is {deterministic!r}; 'batch' or nothing is legal")
    if kernels not in ("", HANDLE, ONE_HANDLE):
        raise ArgumentError(
            "deterministic='batch' chooses among the default kernels: of your own, name one"
            " (ks['name']) that is not stream_k, which is one for every number of rows"
        )
    return ONE_HANDLE if factors else HANDLE


def sums_alike(spec: KernelSpec) -> bool:
    """Whether a kernel sums a row in one order, however many rows there are."""
    return spec.scheduler == "static"


def sums_in_sequence(spec: KernelSpec) -> bool:
    """Whether a kernel gives the bits of all others of which this is true.

    Those of int8 do whatever their order, as integers are summed exactly. ``direct`` stores are
    left out: they fuse the product's factor and the bias.
    """
    if spec.arch.api != "3.x" or spec.store == "direct" or spec.constant_b:
        return False
    return spec.acc == INT32 or (spec.acc == FP32 and sums_alike(spec) and spec.split_k == 1)


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


@cache
def _set_of(specs: tuple[KernelSpec, ...]) -> KernelSet:
    """Return kernels that give the same bits, to choose from."""
    arch = specs[0].arch
    return KernelSet(specs, arch=arch, source=default_kernels(arch.name).source, build_on_use=True)


@cache
def _in_sequence(specs: tuple[KernelSpec, ...], problem: GemmProblem) -> tuple[KernelSpec, ...]:
    """Return the kernels of one kind that sum calls like ``problem`` in sequence."""
    return tuple(first_fitting([spec for spec in specs if sums_in_sequence(spec)], problem))


class _BatchInvariant:
    """A :class:`gemmsmith.selection.Selection` of the default kernels of whatever GPU calls."""

    torch_may_run = False
    constant_b = False

    def __init__(self, *, one: bool) -> None:
        self._one = one

    @cached_property
    def specs(self) -> tuple[KernelSpec, ...]:
        """What may run on some GPU, so that a call can be checked without one."""
        return tuple(filter(sums_alike, rows_of_every_gpu()))

    def plan(self, problem: GemmProblem, device: DeviceFacts) -> Plan:
        """Return the kernel for the call, or raise; see :class:`Selection`."""
        try:
            kernels = default_kernels(architecture_of(device.capability).name)
        except UnknownArchitectureError as error:
            raise NoKernelError(str(error)) from error
        whole = without_rows(problem)
        alike = () if self._one else _in_sequence(kernels.specs, whole)
        if not alike:
            return _one_kernel(kernels, problem, device.sm_count)
        try:
            plan = _set_of(alike).plan(problem, device)
        except NoKernelError as error:
            raise NoKernelError(f"deterministic='batch': {error}") from error
        assert isinstance(plan, Plan), "torch may not run"
        return plan


def _one_kernel(kernels: KernelSet, problem: GemmProblem, sm_count: int) -> Plan:
    """Return the one kernel for calls like ``problem``.

    Raises:
        NoKernelError: where none sums rows alike, or the one does not fit.
    """
    spec = one_for_all(kernels.specs, without_rows(problem), sm_count)
    reasons: Sequence[str] = [misfit(spec, problem)] if spec else []
    if spec is None:
        alike = [each for each in kernels.specs if sums_alike(each)]
        reasons = misfits(alike, problem) or ["none that sums rows alike fits"]
    if spec is None or reasons[0]:
        name = f"{spec.name}, the one for every number of rows" if spec else kernels.source
        raise NoKernelError(f"deterministic='batch': {name}: {'; '.join(reasons)}")
    return Plan(spec=spec, kernel=kernels.loaded(spec), tuning=tune(spec, problem))


register_as(_BatchInvariant(one=False), HANDLE)
register_as(_BatchInvariant(one=True), ONE_HANDLE)
