"""One entry of a table: kernels against torch in interleaved rounds, then the knobs of the best."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from gemmsmith.bench.rounds import Comparison, Policy, Ratio, Timer, run_rounds
from gemmsmith.choose import Choice
from gemmsmith.tune.candidates import Candidate, variants
from gemmsmith.tune.work import Job
from gemmsmith.tuned import TORCH, Entry, Timing, identified, winner_of

LEADERS = 3
"""Kernels whose knobs are turned."""
SECONDS = 0.35
"""Time for the rounds of one entry where no budget is given."""
_FIRST = 0.6  # of the time, for the first stage
_ROUNDS_US = 6  # of knobs: two scout rounds and some, each of two replays


class Bench(Protocol):
    """One job's data, on which kernels are judged and timed."""

    def fault(self, candidate: Candidate) -> str:
        """Return what is wrong with what it writes over NaN; empty where it is right."""

    def timer(self, candidates: Sequence[Candidate]) -> Timer:
        """Return what times ``torch`` and each candidate, by its label."""


class Benches(Protocol):
    """Makes the data of jobs."""

    def open(self, job: Job) -> AbstractContextManager[Bench]:
        """Return the bench of a job; its memory is free again afterwards."""


def contest(
    job: Job,
    choices: Sequence[Choice],
    bench: Bench,
    *,
    sm_count: int,
    seconds: float = SECONDS,
    earlier: Entry | None = None,
) -> Entry:
    """Return the entry of a job: only kernels whose result is right are timed and can win.

    ``earlier`` timings of kernels that are not among ``choices`` are kept, their ratios told anew
    beside what torch takes now. Who wins is what :func:`gemmsmith.tuned.winner_of` says.
    """
    wrong: dict[str, str] = {}
    usual = [Candidate(spec=each.spec, tuning=each.tuning) for each in choices]
    first = _timed(_right(usual, bench, wrong), bench, seconds * _FIRST)
    leaders = sorted(first.ratios, key=lambda each: -first.ratios[each].median)[:LEADERS]
    room = _room(first, leaders, seconds * (1 - _FIRST))
    turned = [each for leader in leaders for each in variants(leader.spec, job.problem, sm_count)]
    turned = _right(_dealt(turned, leaders, room), bench, wrong)
    leaders = [each for each in leaders if identified(each.spec) not in wrong]
    second = _timed([*leaders, *turned], bench, seconds * (1 - _FIRST)) if turned else _Timed()
    ratios = {
        candidate: ratio
        for candidate, ratio in {**first.ratios, **second.ratios}.items()
        if identified(candidate.spec) not in wrong
    }
    names = {choice.spec.name for choice in choices}  # an edited kernel replaces what it was
    before = earlier.timings if earlier else ()
    timings = {each.kernel: _beside(each, first.torch) for each in before if each.name not in names}
    for candidate in sorted(ratios, key=lambda each: ratios[each].median):  # the best stays
        timings[identified(candidate.spec)] = _timing(candidate, ratios[candidate], first.torch)
    ordered = tuple(sorted(timings.values(), key=lambda each: -each.ratio))
    key = job.key
    return Entry(
        n=key.n,
        k=key.k,
        m=key.m,
        a=key.a,
        d=key.d,
        layout=key.layout,
        epilogue=key.epilogue,
        winner=winner_of(ordered),
        torch=round(first.torch, 3),
        timings=ordered,
        wrong=tuple(wrong),
    )


class _Timed:
    """Ratios of a comparison, by candidate."""

    def __init__(
        self, candidates: Sequence[Candidate] = (), found: Comparison | None = None
    ) -> None:
        self.torch = found.median(TORCH) if found else 0.0
        self.ratios: dict[Candidate, Ratio] = (
            {each: found.ratio(TORCH, each.label) for each in candidates} if found else {}
        )


def _right(candidates: Sequence[Candidate], bench: Bench, wrong: dict[str, str]) -> list[Candidate]:
    """Return those whose result is right; one wrong setting excludes the kernel from then on."""
    right = []
    for candidate in candidates:
        kernel = identified(candidate.spec)
        if kernel in wrong:
            continue
        if fault := bench.fault(candidate):
            wrong[kernel] = fault
        else:
            right.append(candidate)
    return right


def _timed(candidates: Sequence[Candidate], bench: Bench, seconds: float) -> _Timed:
    policy = Policy(
        precision=0.004,
        seconds=seconds,
        max_rounds=60,
        warm_up_seconds=0.02,
        retire_above=1.08,
        finalists_within=1.02,
        until_clear=True,
        batch_seconds=0.03,
    )
    arms = (TORCH, *(each.label for each in candidates))
    found = run_rounds(arms, bench.timer(candidates), policy=policy, baseline=TORCH)
    return _Timed(candidates, found)


def _room(first: _Timed, leaders: Sequence[Candidate], seconds: float) -> int:
    """Return how many settings of knobs can be tried in the time; some in any case."""
    if not leaders:
        return 0
    us = first.torch / first.ratios[leaders[0]].median
    return max(len(leaders), int(seconds * 1e6 / (2 * _ROUNDS_US * max(us, 300.0))))


def _dealt(turned: Sequence[Candidate], leaders: Sequence[Candidate], room: int) -> list[Candidate]:
    """Return up to ``room`` of them, taken in turns from the leaders."""
    queues = [[each for each in turned if each.spec == leader.spec] for leader in leaders]
    longest = max(map(len, queues), default=0)
    dealt = [queue[place] for place in range(longest) for queue in queues if place < len(queue)]
    return dealt[:room]


def _beside(timing: Timing, torch_us: float) -> Timing:
    """Return an earlier timing as what it is beside ``torch_us``, which has no interval."""
    return timing.model_copy(
        update={"ratio": round(torch_us / timing.us, 4), "low": None, "high": None}
    )


def _timing(candidate: Candidate, ratio: Ratio, torch_us: float) -> Timing:
    return Timing(
        kernel=identified(candidate.spec),
        raster=candidate.tuning.raster,
        swizzle=candidate.tuning.swizzle,
        splits=candidate.tuning.splits,
        us=round(torch_us / ratio.median, 3),
        ratio=round(ratio.median, 4),
        low=None if ratio.low is None else round(ratio.low, 4),
        high=None if ratio.high is None else round(ratio.high, 4),
    )
