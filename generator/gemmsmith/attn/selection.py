"""Attention kernels that a call names: one of them, or a set to choose from."""

from __future__ import annotations

from dataclasses import replace

from gemmsmith.arch import Architecture
from gemmsmith.attn.choose import AttentionProblem, misfit, promise_by_name
from gemmsmith.attn.kernels import plan_of
from gemmsmith.errors import LaunchError, NoKernelError
from gemmsmith.launcher import AttentionCall, AttentionKernel
from gemmsmith.shelf import AttentionShelf


class AttentionSelection:
    """Kernels of one architecture that an op's string stands for; torch takes nothing of theirs."""

    def __init__(self, shelf: AttentionShelf, *, arch: Architecture, source: str) -> None:
        self.shelf = shelf
        self.arch = arch
        specs = shelf.specs
        self.constant_cache = promise_by_name(specs)
        self.label = specs[0].name if len(specs) == 1 else f"no attention kernel of {source} fits"
        self.handle = f"{specs[0].name if len(specs) == 1 else 'attention'}@{id(self):x}"
        _selections[self.handle] = self

    def refuse(self, problem: AttentionProblem) -> None:
        """Raise NoKernelError where no kernel takes the call, as far as sizes tell."""
        asked = replace(problem, named=True)
        reasons = list(dict.fromkeys(misfit(spec, asked) for spec in self.shelf.specs))
        if not self.shelf.specs:
            raise NoKernelError(f"{self.label}: it has none for {self.arch.name}")
        if all(reasons):
            raise NoKernelError(self._told("; ".join(reasons)))

    def plan(
        self, problem: AttentionProblem, call: AttentionCall, capability: tuple[int, int]
    ) -> AttentionKernel:
        """Return the kernel for a call.

        Raises:
            LaunchError: where the GPU is not of the kernels' architecture.
            NoKernelError: where none takes it or is built.
        """
        if capability != self.arch.capability:
            raise LaunchError(
                f"the kernels are built for {self.arch.name}, the GPU has compute capability"
                f" {capability[0]}.{capability[1]}: load them with an arch of that GPU"
            )
        self.refuse(problem)
        asked = replace(problem, named=True)
        found = plan_of(self.shelf, asked, call)
        if isinstance(found, str):
            self.shelf.look_again()  # another process may have built it
            found = plan_of(self.shelf, asked, call)
        if isinstance(found, str):
            raise NoKernelError(self._told(found) + self._advice())
        return found

    def _told(self, reason: str) -> str:
        """Return a reason that says what it is about, once."""
        return reason if reason.startswith(self.label) else f"{self.label}: {reason}"

    def _advice(self) -> str:
        missing = [spec for spec in self.shelf.specs if spec not in self.shelf.kernels()]
        return f": {self.shelf.how_to_get(missing)}" if missing else ""


_selections: dict[str, AttentionSelection] = {}


def attention_selection(handle: str) -> AttentionSelection:
    """Return what ``handle`` stands for.

    Raises:
        NoKernelError: where the handle is of another process, or stands for GEMMs.
    """
    try:
        return _selections[handle]
    except KeyError:
        raise NoKernelError(
            f"{handle!r} is no set of attention kernels of this process: load it again"
        ) from None
