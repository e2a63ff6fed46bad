"""The tuned tables that hold for a GPU, and their entry for a call."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from gemmsmith.choose import Choice, choose, tiles_of_rows, waiting
from gemmsmith.dtypes import BF16, FP16
from gemmsmith.errors import ConfigError
from gemmsmith.fit import misfit
from gemmsmith.kinds import first_fitting
from gemmsmith.problem import GemmProblem
from gemmsmith.resources import configs_dir
from gemmsmith.settings import settings
from gemmsmith.spec import KernelSpec
from gemmsmith.tuned import (
    FAIR,
    TORCH,
    Entry,
    Key,
    Made,
    Table,
    Timing,
    key_of,
    same_gpu,
    timed_as,
    torch_can,
)
from gemmsmith.tuned_file import read_table

EMPTIER = 1.1  # tiles of rows for each row, over those at the bucket, up to which timings hold
NEARLY = 1.08  # of the bucket's rows: so near a call is to it that what was fastest there counts
BEHIND = 1.2  # times as long as the fastest, from where on the estimate may know a better kernel
FEW_ROWS = 64  # up to here the weights must be read whatever the tiles
MANY_ROWS = 2048  # from here on a last tile matters little
_SUFFIXES = (".yaml", ".yml")

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Found:
    """An entry and the table that it is of."""

    entry: Entry
    path: Path
    made: Made


@dataclass(frozen=True, kw_only=True)
class Tables:
    """The tables for one GPU, and why others are not used."""

    used: tuple[tuple[Path, Table], ...]
    """In the order in which they are asked."""
    unread: tuple[str, ...]
    """What is wrong with files that cannot be read."""
    refused: tuple[str, ...]
    """Of what other GPU a file is."""
    entries: Mapping[Key, Found]

    def find(self, problem: GemmProblem) -> Found | None:
        """Return the entry for exactly these N, K, layout and epilogue, nearest in M.

        Types are exact too, but for fp16 without an entry, which has that of bf16; and calls that
        promise a constant B have, without an entry, that of others.
        """
        if problem.batch > 1:
            return None
        for promised in (True, False) if problem.constant_b else (False,):
            key = key_of(replace(problem, constant_b=promised))
            found = self.entries.get(key)
            if found is None and key.a == key.d == FP16.name:
                found = self.entries.get(replace(key, a=BF16.name, d=BF16.name))
            if found is not None:
                return found
        return None

    def choices(
        self, problem: GemmProblem, specs: Mapping[str, KernelSpec], *, torch: bool
    ) -> Iterator[Choice | str]:
        """Yield the kernels for a call, the best first, and among them why torch is better.

        ``specs`` are the kernels there are, by name; ``torch`` says whether torch may run. What
        does not fit, or was edited since, is left out. Of gates and residuals whose weight is
        promised, kernels that wait before they read it stand behind as :func:`waiting` says. It
        ends before what a number of rows beside the bucket's makes another matter: three tiles for
        300 rows where 256 had two, or two that 330 rows leave emptier than 384 did; and before
        kernels that are far behind the fastest, which may be gone, where by estimate the best is
        one that was not timed.
        """
        found = self.find(problem)
        if found is None:
            return
        entry, may_run = found.entry, torch and torch_can(problem)
        reason = f"torch is faster here, as the tuned table {found.path.name} says"
        if may_run and entry.winner == TORCH:
            if not torch_carries_over(entry, problem.m):
                return
            yield reason
            may_run = False
        kernels = kernels_of(entry, problem, specs.values())
        fastest = min((timing.us for timing in entry.timings), default=0.0)
        for timing in _in_order(entry, kernels, problem):
            spec = kernels[timing.kernel]
            if not carries_over(spec, entry, problem.m):
                return
            if may_run and timing.ratio < FAIR and timing.kernel != entry.winner:
                yield reason
                may_run = False
            if timing.us > BEHIND * fastest and _best_is_untimed(specs, found, problem):
                return
            yield Choice(spec=spec, tuning=timing.tuning, microseconds=timing.us)


def kernels_of(
    entry: Entry, problem: GemmProblem, specs: Iterable[KernelSpec]
) -> dict[str, KernelSpec]:
    """Return those of ``specs`` that were timed and take the call, by the entry's names."""
    types, told = (problem.a, problem.d), {timing.kernel for timing in entry.timings}
    named = {timed_as(s, entry.a): s for s in specs if (s.a, s.d) == types}
    return {k: s for k, s in named.items() if k in told and not misfit(s, problem)}


def _in_order(
    entry: Entry, kernels: Mapping[str, KernelSpec], problem: GemmProblem
) -> list[Timing]:
    """Return the timings of ``kernels``, the one first that should be the fastest in a model."""
    known = [timing for timing in entry.order() if timing.kernel in kernels]
    if problem.gate == "none" and not problem.residual:
        return known
    return sorted(known, key=lambda each: each.us + waiting(kernels[each.kernel], problem))


def _best_is_untimed(specs: Mapping[str, KernelSpec], found: Found, problem: GemmProblem) -> bool:
    """Whether the estimate takes a kernel of which the entry knows nothing, good or bad."""
    fitting = first_fitting(tuple(specs.values()), problem)
    best = choose(fitting, problem, found.made.sm_count)
    told = {*(timing.kernel for timing in found.entry.timings), *found.entry.wrong}
    return best is not None and timed_as(best.spec, found.entry.a) not in told


def carries_over(spec: KernelSpec, entry: Entry, m: int) -> bool:
    """Whether a timing at the entry's rows holds at ``m``: tiles are as full as there, and between
    few rows and many none of another width may fit better."""
    if FEW_ROWS < m < MANY_ROWS and not _near(entry, m):
        return False
    there, here = tiles_of_rows(spec, entry.m), tiles_of_rows(spec, m)
    return there == here or here * entry.m <= EMPTIER * there * m


def torch_carries_over(entry: Entry, m: int) -> bool:
    """Whether torch's lead at the entry's rows may be one at ``m``; its tiles are not known."""
    return _near(entry, m) or min(m, entry.m) >= MANY_ROWS


def _near(entry: Entry, m: int) -> bool:
    return max(m, entry.m) <= NEARLY * min(m, entry.m)


def own_tables() -> Path:
    """Return the folder that ``gemmsmith tune`` writes to; it need not exist."""
    return settings().cache_dir / "v1" / "tuned"


def shipped_tables() -> Path:
    """Return the folder of the tables that come with gemmsmith; it need not exist."""
    return configs_dir() / "tuned"


def tables_for(gpu: str, sm_count: int, capability: tuple[int, int]) -> Tables:
    """Return the tables that hold for a GPU; each file is read once in a process.

    Those that ``GEMMSMITH_TUNED`` names go first, then the user's own, then those that ship. A file
    that cannot be used is told once in the log and is no error.
    """
    wanted = settings().tuned
    if wanted is None:
        return Tables(used=(), unread=(), refused=(), entries={})
    return _tables(wanted, (own_tables(), shipped_tables()), gpu, sm_count, capability)


def forget_tables() -> None:
    """Read the files again at the next use."""
    _tables.cache_clear()


@cache
def _tables(
    wanted: tuple[Path, ...],
    usual: tuple[Path, ...],
    gpu: str,
    sm_count: int,
    capability: tuple[int, int],
) -> Tables:
    used: list[tuple[Path, Table]] = []
    unread = [why for place in wanted if (why := _no_place(place))]
    for why in unread:
        _log.warning("a tuned table is not used: %s", why)
    refused: list[str] = []
    for path in _files((*wanted, *usual)):
        try:
            table = read_table(path)
        except ConfigError as error:
            unread.append(str(error))
            _log.warning("a tuned table is not used: %s", error)
            continue
        if same_gpu(table.made, gpu, sm_count, capability):
            used.append((path, table))
        else:
            made = table.made
            refused.append(
                f"{path}: is of {made.gpu} with {made.sm_count} multiprocessors and {made.arch}"
            )
    entries: dict[Key, Found] = {}
    for path, table in used:
        for entry in table.entries:
            entries.setdefault(entry.key, Found(entry=entry, path=path, made=table.made))
    return Tables(used=tuple(used), unread=tuple(unread), refused=tuple(refused), entries=entries)


def _no_place(place: Path) -> str:
    """Return why a place that was asked for holds no table; empty where :func:`_files` looks."""
    if place.is_dir() or place.suffix in _SUFFIXES:
        return ""
    why = "is no .yaml file" if place.exists() else "there is no such folder"
    hint = "did you mean none?" if place.name.lower() == "none" else "name a .yaml file or a folder"
    return f"GEMMSMITH_TUNED: {place}: {why}; {hint}"


def _files(places: tuple[Path, ...]) -> Iterator[Path]:
    """Yield the files: of a folder the newest first, so that the last tuning is the one in use."""
    for place in places:
        if place.is_dir():
            found = (file for suffix in _SUFFIXES for file in place.glob(f"*{suffix}"))
            files = [(file.stat().st_mtime, file) for file in found]
            yield from (file for _, file in sorted(files, reverse=True))
        elif place.suffix in _SUFFIXES:
            yield place
