"""What a call may run, and the handles by which ops name it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from gemmsmith.choose import Tuning
from gemmsmith.dtypes import DType
from gemmsmith.errors import NoKernelError
from gemmsmith.fit import misfits
from gemmsmith.launcher import Kernel
from gemmsmith.problem import GemmProblem
from gemmsmith.spec import KernelSpec


@dataclass(frozen=True, kw_only=True)
class DeviceFacts:
    """What a choice depends on of the GPU that a call runs on."""

    name: str
    capability: tuple[int, int]
    sm_count: int


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A choice whose kernel is loaded."""

    spec: KernelSpec
    kernel: Kernel
    tuning: Tuning


class Selection(Protocol):
    """What a call may run: one kernel, or a set to choose from."""

    @property
    def specs(self) -> tuple[KernelSpec, ...]:
        """The kernels in question."""

    @property
    def torch_may_run(self) -> bool:
        """Whether torch takes what no kernel fits."""

    @property
    def constant_b(self) -> bool:
        """Whether who names it promises that no work which is queued already writes B."""

    def plan(self, problem: GemmProblem, device: DeviceFacts) -> Plan | str:
        """Return the kernel for ``problem``, or why torch has to take it: the same each time.

        Raises:
            NoKernelError: where torch must not take it.
        """


_selections: dict[str, Selection] = {}


def register(selection: Selection, label: str) -> str:
    """Return a handle for ``selection`` that an op can carry as a string."""
    handle = f"{label}@{id(selection):x}"
    register_as(selection, handle)
    return handle


def register_as(selection: Selection, handle: str) -> None:
    """Let ``handle`` stand for ``selection``."""
    _selections[handle] = selection


def selection(handle: str) -> Selection:
    """Return what ``handle`` stands for.

    Raises:
        NoKernelError: where the handle is of another process.
    """
    try:
        return _selections[handle]
    except KeyError:
        raise NoKernelError(f"{handle!r} is no kernel set of this process: load it again") from None


def output_letter(handle: str, a: DType) -> str:
    """Return the layout letter of the outputs that what ``handle`` stands for makes of ``a``."""
    if not handle:
        return "r"
    letters = {spec.layout[2] for spec in selection(handle).specs if spec.a == a}
    return "c" if letters == {"c"} else "r"


def refuse_misfit(handle: str, problem: GemmProblem) -> None:
    """Raise NoKernelError where nothing that ``handle`` stands for takes ``problem``."""
    named = selection(handle)
    reasons = [] if named.torch_may_run else misfits(named.specs, problem)
    if reasons:
        names = named.specs[0].name if len(named.specs) == 1 else "no kernel of the set fits"
        raise NoKernelError(f"{names}: {'; '.join(reasons)}")
