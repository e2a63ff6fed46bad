"""Kernels that get ready while others are timed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Literal, Protocol

from gemmsmith.build import BuildReport
from gemmsmith.card import Card
from gemmsmith.errors import GemmsmithError
from gemmsmith.progress import Progress
from gemmsmith.spec import KernelSpec

State = Literal["ready", "pending", "failed"]


class Build(Protocol):
    """:func:`gemmsmith.build.build`, or what stands in for it."""

    def __call__(
        self, specs: Sequence[KernelSpec], *, progress: Progress | None = None
    ) -> BuildReport: ...


class Workshop:
    """Builds kernels in a thread and tells of each whether it is ready yet.

    The compilers of an interrupted program end with it (:mod:`gemmsmith.compile`).
    """

    def __init__(
        self,
        specs: Sequence[KernelSpec],
        *,
        there: Callable[[Sequence[KernelSpec]], Sequence[KernelSpec]],
        build: Build,
        told: Callable[[str], None] = lambda line: None,
    ) -> None:
        """``there`` returns those that are compiled already; ``told`` hears of failures."""
        self._changed = threading.Condition()
        found = set(there(specs))
        self._state: dict[str, State] = {
            spec.name: "ready" if spec in found else "pending" for spec in specs
        }
        self._build = build
        self._told = told
        self._missing = [spec for spec in specs if spec not in found]
        self._thread = threading.Thread(target=self._run, daemon=True, name="gemmsmith tune: build")
        if self._missing:
            self._thread.start()

    def state(self, spec: KernelSpec) -> State:
        """Return whether a kernel is ready, will be, or cannot be built."""
        with self._changed:
            return self._state[spec.name]

    def pending(self) -> int:
        """Return how many kernels are not ready yet."""
        with self._changed:
            return sum(state == "pending" for state in self._state.values())

    def wait(self, seconds: float) -> None:
        """Return when a kernel has become ready or has failed, or after ``seconds``."""
        with self._changed:
            if any(state == "pending" for state in self._state.values()):
                self._changed.wait(seconds)

    def _run(self) -> None:
        try:
            report = self._build(self._missing, progress=_Listener(self._set))
        except GemmsmithError as error:
            self._told(f"no kernel can be built: {error}")
        else:
            for built in report.built:
                self._set(built.spec.name, "ready")
            for failure in report.failed:
                self._told(f"left out: {str(failure.error).splitlines()[0]}")
        finally:
            for spec in self._missing:
                if self.state(spec) == "pending":
                    self._set(spec.name, "failed")

    def _set(self, name: str, state: State) -> None:
        with self._changed:
            self._state[name] = state
            self._changed.notify_all()


class _Listener:
    """Hears of each kernel of a build as it becomes ready."""

    def __init__(self, tell: Callable[[str, State], None]) -> None:
        self._tell = tell

    def begin(self, *, missing: int, cached: int, jobs: int, remaining: float) -> None: ...

    def started(self, names: Sequence[str], *, remaining: float) -> None: ...

    def finished(self, card: Card, *, remaining: float) -> None:
        self._tell(card.name, "ready")

    def failed(self, name: str, error: Exception, *, remaining: float) -> None:
        self._tell(name, "failed")

    def end(self) -> None: ...
