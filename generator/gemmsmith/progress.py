"""What a build tells while it runs: a line for each kernel, and when all will be done."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType
from typing import Protocol

from rich.console import Console
from rich.live import Live
from rich.text import Text

from gemmsmith.card import Card
from gemmsmith.wording import counted


class Progress(Protocol):
    """Hears of a build's events, one at a time; ``remaining`` is the expected rest in seconds."""

    def begin(self, *, missing: int, cached: int, jobs: int, remaining: float) -> None:
        """The build starts; ``missing`` kernels get compiled, ``jobs`` compilers at once."""

    def started(self, names: Sequence[str], *, remaining: float) -> None:
        """One compiler starts on these kernels."""

    def finished(self, card: Card, *, remaining: float) -> None:
        """A kernel is ready."""

    def failed(self, name: str, error: Exception, *, remaining: float) -> None:
        """A kernel cannot be built."""

    def end(self) -> None:
        """The build is over, whether well or not."""


class Silent:
    """Tells nothing."""

    def begin(self, *, missing: int, cached: int, jobs: int, remaining: float) -> None: ...

    def started(self, names: Sequence[str], *, remaining: float) -> None: ...

    def finished(self, card: Card, *, remaining: float) -> None: ...

    def failed(self, name: str, error: Exception, *, remaining: float) -> None: ...

    def end(self) -> None: ...


class ConsoleProgress:
    """A line for each kernel on stderr and, on a terminal, a live last line with the ETA."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True, highlight=False, soft_wrap=True)
        self._live: Live | None = None
        self._missing = self._done = 0
        self._running: set[str] = set()
        self._ready_at = 0.0

    def begin(self, *, missing: int, cached: int, jobs: int, remaining: float) -> None:
        self._missing, self._done = missing, 0
        self._expect(remaining)
        if not missing:
            return
        self._console.print(
            f"compiling {counted(missing, 'kernel')} ({cached} cached), {jobs} at once, "
            f"about {duration(remaining)}"
        )
        if self._console.is_terminal:
            self._live = Live(get_renderable=self._status, console=self._console, transient=True)
            self._live.start()

    def started(self, names: Sequence[str], *, remaining: float) -> None:
        self._running.update(names)
        self._expect(remaining)

    def finished(self, card: Card, *, remaining: float) -> None:
        self._step(card.name, remaining)
        spills = f", spills {card.spill_store_bytes} B" if card.spill_store_bytes else ""
        unread = "" if card.sass_inspected else ", machine code not inspected"
        self._print(
            f"{self._count()} {card.name}: {card.compile_seconds / card.compiled_with:.1f} s, "
            f"{card.registers} registers, {card.shared_bytes:,} B shared{spills}{unread}"
        )

    def failed(self, name: str, error: Exception, *, remaining: float) -> None:
        self._step(name, remaining)
        self._print(f"{self._count()} {name}: failed: {str(error).splitlines()[0]}")

    def end(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def __enter__(self) -> ConsoleProgress:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end()

    def _step(self, name: str, remaining: float) -> None:
        self._done += 1
        self._running.discard(name)
        self._expect(remaining)

    def _expect(self, remaining: float) -> None:
        self._ready_at = time.monotonic() + remaining

    def _count(self) -> str:
        return f"[{self._done}/{self._missing}]"

    def _print(self, line: str) -> None:
        eta = duration(max(0.0, self._ready_at - time.monotonic()))
        left = f", ETA {eta}" if self._live is None and self._done < self._missing else ""
        self._console.print(Text(line + left))

    def _status(self) -> Text:
        eta = duration(max(0.0, self._ready_at - time.monotonic()))
        return Text(f"{self._count()} {len(self._running)} being compiled, ETA {eta}")


def duration(seconds: float) -> str:
    """Return seconds as ``45 s`` or ``2 min 05 s``."""
    whole = round(seconds)
    return f"{whole} s" if whole < 60 else f"{whole // 60} min {whole % 60:02d} s"
