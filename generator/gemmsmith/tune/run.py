"""A whole tuning run: jobs in the order in which their kernels get ready, within a budget."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from gemmsmith.bench.report import geomean
from gemmsmith.choose import Choice
from gemmsmith.spec import KernelSpec
from gemmsmith.tune.building import Workshop
from gemmsmith.tune.candidates import shortlist
from gemmsmith.tune.contest import SECONDS, Benches, contest
from gemmsmith.tune.store import Store
from gemmsmith.tune.work import Job
from gemmsmith.tuned import TORCH, Entry, identified

CANDIDATES = 8
"""Kernels that are timed for each entry, if as many fit."""
_LEAST, _MOST = 0.12, 1.5  # seconds of one entry's rounds
_POLL = 0.2


class Watcher(Protocol):
    """Hears of a run."""

    def begin(self, *, jobs: int, done: int, building: int) -> None:
        """The run starts; ``done`` jobs are measured already."""

    def waiting(self, *, building: int) -> None:
        """Nothing can be timed until a kernel is built."""

    def measured(self, job: Job, entry: Entry, *, left: int, remaining: float) -> None:
        """An entry is kept; ``left`` jobs may take ``remaining`` seconds more."""

    def skipped(self, job: Job, why: str) -> None:
        """A job has no kernel."""

    def end(self) -> None:
        """The run is over."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a run came to."""

    entries: tuple[Entry, ...]
    """Of all jobs that are measured, in this run or before."""
    measured: int
    """Entries of this run."""
    skipped: tuple[str, ...]
    """Jobs without a kernel, and why."""
    left: int
    """Jobs that the budget did not reach."""
    seconds: float

    @property
    def own_share(self) -> float:
        """Share of the entries that a kernel won, not torch."""
        own = sum(entry.winner != TORCH for entry in self.entries)
        return own / len(self.entries) if self.entries else 0.0

    @property
    def geomean(self) -> float:
        """torch's time over that of the best kernel, over all entries that have one."""
        ratios = [entry.timings[0].ratio for entry in self.entries if entry.timings]
        return geomean(ratios) if ratios else 0.0


def run(
    jobs: Sequence[Job],
    pool: Sequence[KernelSpec],
    *,
    benches: Benches,
    workshop: Callable[[Sequence[KernelSpec]], Workshop],
    store: Store,
    sm_count: int,
    watcher: Watcher,
    budget: float | None = None,
    candidates: int = CANDIDATES,
    again: bool = False,
    clock: Callable[[], float] = time.monotonic,
) -> Outcome:
    """Measure each job that is not measured yet; what is found is kept at once.

    A job counts as measured where each of its candidates is in the store's entry. ``budget`` is in
    seconds: no job is begun after it, and time is shared out evenly. Jobs whose kernels are ready
    go first.
    """
    started = clock()
    todo = {job: _choices(job, pool, store, sm_count, candidates) for job in dict.fromkeys(jobs)}
    done = 0 if again else sum(_covered(job, todo[job], store) for job in todo)
    if not again:
        todo = {job: found for job, found in todo.items() if not _covered(job, found, store)}
    shop = workshop(_by_need(todo.values()))
    watcher.begin(jobs=len(todo) + done, done=done, building=shop.pending())
    spent = _Spending(budget, clock, started)
    skipped: list[str] = []
    measured = 0
    while todo and not spent.over():
        job = next((each for each, found in todo.items() if _settled(found, shop)), None)
        if job is None:
            watcher.waiting(building=shop.pending())
            shop.wait(_POLL)
            continue
        choices = [each for each in todo.pop(job) if shop.state(each.spec) == "ready"]
        if not choices:
            why = f"{job.key}: no kernel that fits is built"
            skipped.append(why)
            watcher.skipped(job, why)
            continue
        if not again and _covered(job, choices, store):
            continue  # the others could not be built
        seconds = spent.share(len(todo) + 1)
        began = clock()
        with benches.open(job) as bench:
            entry = contest(
                job,
                choices,
                bench,
                sm_count=sm_count,
                seconds=seconds,
                earlier=store.find(job.key),
            )
        store.add(entry)
        measured += 1
        spent.note(clock() - began, seconds)
        watcher.measured(job, entry, left=len(todo), remaining=spent.expected(len(todo)))
    watcher.end()
    found = [store.find(job.key) for job in dict.fromkeys(jobs)]
    return Outcome(
        entries=tuple(entry for entry in found if entry is not None),
        measured=measured,
        skipped=tuple(skipped),
        left=len(todo),
        seconds=clock() - started,
    )


class _Spending:
    """Shares a budget out over jobs, less what each costs beside its rounds."""

    def __init__(self, budget: float | None, clock: Callable[[], float], started: float) -> None:
        self._budget = budget
        self._clock = clock
        self._started = started
        self._beside = 0.3  # seconds a job for data, checks and graphs, at first guessed
        self._took = 0.0

    def over(self) -> bool:
        return self._budget is not None and self._clock() - self._started >= self._budget

    def share(self, jobs: int) -> float:
        if self._budget is None:
            return SECONDS
        rest = self._budget - (self._clock() - self._started)
        return min(_MOST, max(_LEAST, rest / jobs - self._beside))

    def note(self, took: float, given: float) -> None:
        self._beside = (2 * self._beside + max(0.0, took - given)) / 3
        self._took = took if not self._took else (2 * self._took + took) / 3

    def expected(self, jobs: int) -> float:
        rest = self._took * jobs
        if self._budget is None:
            return rest
        return min(rest, max(0.0, self._budget - (self._clock() - self._started)))


def _choices(
    job: Job, pool: Sequence[KernelSpec], store: Store, sm_count: int, count: int
) -> list[Choice]:
    entry = store.find(job.key)
    winners = [each.name for each in entry.timings[:1]] if entry else []
    return shortlist(pool, job.problem, sm_count, count, always=winners)


def _covered(job: Job, choices: Sequence[Choice], store: Store) -> bool:
    entry = store.find(job.key)
    if entry is None:
        return False
    known = {*(each.kernel for each in entry.timings), *entry.wrong}
    return all(identified(choice.spec) in known for choice in choices)


def _settled(choices: Sequence[Choice], shop: Workshop) -> bool:
    return all(shop.state(choice.spec) != "pending" for choice in choices)


def _by_need(found: Iterable[Sequence[Choice]]) -> list[KernelSpec]:
    """Return all kernels in question, those first that the most jobs want."""
    counts = Counter(choice.spec for choices in found for choice in choices)
    return [spec for spec, _ in counts.most_common()]
