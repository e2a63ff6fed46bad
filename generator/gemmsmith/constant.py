"""The default kernels for weights that stay as they are.

Some of them fetch B while the kernel ahead of them still runs, which hides the start of their
loads. That is right where nothing that is queued already writes B, which only the caller can know.
"""

from __future__ import annotations

from functools import cached_property

from gemmsmith import invariant
from gemmsmith.arch import architecture_of
from gemmsmith.errors import ArgumentError, ArgumentTypeError, UnknownArchitectureError
from gemmsmith.kernelset import default_kernels, rows_of_every_gpu
from gemmsmith.problem import GemmProblem
from gemmsmith.selection import DeviceFacts, Plan, register_as
from gemmsmith.spec import KernelSpec

HANDLE = "constant-b"
"""What a call names to promise it; the same in every process."""


def is_promised(name: str, value: object) -> bool:
    """Return ``value``, the promise that the argument ``name`` makes or not.

    Raises:
        ArgumentTypeError: where it is neither True nor False.
    """
    if not isinstance(value, bool):
        raise ArgumentTypeError(f"{name} is {value!r}; True or False is legal")
    return value


def handle_of(kernels: str = "", name: str = "constant_b") -> str:
    """Return the handle that a call with ``constant_b``, or what ``name`` calls it, names.

    Raises:
        ArgumentError: where kernels are named besides, or the batch-invariant mode is.
    """
    if kernels in (invariant.HANDLE, invariant.ONE_HANDLE):
        raise ArgumentError(
            f"{name} goes without deterministic='batch', whose kernels read b late: drop one"
        )
    if kernels not in ("", HANDLE):
        raise ArgumentError(
            f"{name} chooses among the default kernels: of your own, those that have constant_b"
            " need no promise beside their name"
        )
    return HANDLE


class _ConstantB:
    """A :class:`gemmsmith.selection.Selection` of the default kernels of whatever GPU calls."""

    torch_may_run = True
    constant_b = True

    @cached_property
    def specs(self) -> tuple[KernelSpec, ...]:
        """What may run on some GPU, so that a call can be checked without one."""
        return rows_of_every_gpu()

    def plan(self, problem: GemmProblem, device: DeviceFacts) -> Plan | str:
        """Return the kernel for ``problem``, or why torch has to take it."""
        try:
            kernels = default_kernels(architecture_of(device.capability).name)
        except UnknownArchitectureError as error:
            return str(error)
        return kernels.plan(problem, device)


register_as(_ConstantB(), HANDLE)
