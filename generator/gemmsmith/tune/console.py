"""What a tuning run tells: a line for each entry and, on a terminal, how far it is."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from gemmsmith.progress import duration
from gemmsmith.tune.work import Job
from gemmsmith.tuned import TORCH, Entry
from gemmsmith.wording import counted


class ConsoleWatcher:
    """A line for each entry on stderr; on a terminal a bar with the ETA below them."""

    def __init__(self, console: Console | None = None, prefix: str = "") -> None:
        """``prefix`` goes before each line, to tell GPUs apart."""
        self._console = console or Console(stderr=True, highlight=False, soft_wrap=True)
        self._prefix = prefix
        self._bar = Progress(
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.description}"),
            console=self._console,
            transient=True,
        )
        self._task = self._bar.add_task("", total=None)
        self._told_waiting = False

    def begin(self, *, jobs: int, done: int, building: int) -> None:
        missing = f", {counted(building, 'kernel')} to build" if building else ""
        left = counted(jobs - done, "entry", "entries")
        self._print(f"{left} to measure, {done} done before{missing}")
        self._bar.update(self._task, total=jobs, completed=done)
        if self._console.is_terminal:
            self._bar.start()

    def waiting(self, *, building: int) -> None:
        self._bar.update(self._task, description=f"waiting for {counted(building, 'kernel')}")
        if not self._told_waiting:
            self._told_waiting = True
            self._print(f"waiting for {counted(building, 'kernel')} to be built")

    def measured(self, job: Job, entry: Entry, *, left: int, remaining: float) -> None:
        self._told_waiting = False
        eta = duration(remaining)
        self._bar.update(self._task, advance=1, description=f"ETA {eta}")
        self._print(f"{entry_words(entry)}  ({left} left, {eta})")

    def skipped(self, job: Job, why: str) -> None:
        self._bar.update(self._task, advance=1)
        self._print(why)

    def end(self) -> None:
        self._bar.stop()

    def say(self, line: str) -> None:
        """Print a line of another source between the others."""
        self._print(line)

    def _print(self, line: str) -> None:
        self._console.print(f"{self._prefix}{line}", markup=False)


def entry_words(entry: Entry) -> str:
    """Return an entry in one line."""
    words = f"{entry.key}: torch {entry.torch:.1f} µs"
    if entry.wrong:
        words += f", WRONG: {', '.join(entry.wrong)}"
    if not entry.timings:
        return f"{words}, no kernel is right"
    best = entry.timings[0]
    knobs = "".join(f" {name}={value}" for name, value in vars(best.tuning).items() if value)
    verdict = " (torch stays)" if entry.winner == TORCH else ""
    return f"{words}, {best.us:.1f} {best.name}{knobs}: {best.ratio:.3f}{verdict}"
