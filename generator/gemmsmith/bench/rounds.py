"""Timing of rival functions in interleaved rounds, and the statistics of their ratios.

A round times every arm twice: once in a shuffled order and once in its reverse, so that a drift
of the clock and the place in the order fall on all arms alike. Ratios are taken within a round
and their median is told with its distribution-free 95 % interval. Nothing here knows a GPU: a
``Timer`` does the work.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from gemmsmith.nvml import Reading


class Timer(Protocol):
    """Runs arms and tells how long they took."""

    def replay(self, order: Sequence[str]) -> Sequence[float]:
        """Run these arms one after the other and return the µs of one call of each."""

    def elapsed(self) -> float:
        """Return the seconds since the timer was made."""

    def readings(self) -> tuple[Reading, ...]:
        """Return the GPU's clocks, power and temperature: before, during and after the replays."""


@dataclass(frozen=True, kw_only=True)
class Policy:
    """When enough has been measured."""

    precision: float = 0.005
    """Width of the 95 % interval of the ratios that count, relative to the ratio."""
    seconds: float = 1.5
    """Time after which no further round is begun once ``min_rounds`` are done."""
    min_rounds: int = 6
    """Rounds that arms which are not retired always get; 6 are the fewest that have an interval."""
    max_rounds: int = 300
    """Rounds after which measuring ends in any case."""
    warm_up_seconds: float = 0.1
    """Time of untimed rounds at the start."""
    scout_rounds: int = 2
    """Rounds before the first arms may be retired."""
    retire_above: float | None = None
    """Arms slower than the fastest by more than this factor get no further rounds; None: none."""
    finalists_within: float = 1.03
    """The same factor once ``min_rounds`` are done, where arms may be retired at all."""
    until_clear: bool = False
    """Whether measuring also ends once no arm can still prove faster than the leader."""
    batch_seconds: float = 0.05
    """About how long the GPU is kept busy between two looks at the results."""
    seed: int = 0
    """Of the shuffled orders."""


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """How many times as long one arm takes as another."""

    median: float
    """Median of the ratios of all rounds that both arms ran in."""
    low: float | None
    """Lower end of the median's 95 % interval; None below 6 rounds."""
    high: float | None
    """Upper end of it."""
    rounds: int
    """Rounds that both arms ran in."""

    @property
    def width(self) -> float:
        """The interval's width relative to the median; infinite where there is none."""
        if self.low is None or self.high is None:
            return math.inf
        return (self.high - self.low) / self.median

    def __str__(self) -> str:
        if self.low is None or self.high is None:
            return f"{self.median:.3f} ({self.rounds} rounds)"
        return f"{self.median:.3f} [{self.low:.3f}, {self.high:.3f}]"


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What a measurement of several arms found."""

    samples: Mapping[str, tuple[float, ...]]
    """For each arm the µs of one call, round by round; arms that were retired have fewer."""
    baseline: str
    """The arm that others are compared with."""
    converged: bool
    """Whether the intervals became as narrow as asked, or the leader clear of the others."""
    seconds: float
    """How long it took."""
    readings: tuple[Reading, ...] = ()
    """The GPU's clocks, power and temperature before, during and after."""

    def median(self, arm: str) -> float:
        """Return the median µs of one call of ``arm``."""
        return statistics.median(self.samples[arm])

    def fastest(self, among: Collection[str] | None = None) -> str:
        """Return the arm (of ``among``) that gains most on the baseline, round by round."""
        arms = self.samples if among is None else among
        return max(arms, key=lambda arm: self.ratio(self.baseline, arm).median)

    def ratio(self, over: str, under: str) -> Ratio:
        """Return how many times as long ``over`` takes as ``under``."""
        pairs = zip(self.samples[over], self.samples[under], strict=False)
        return ratio_of([first / second for first, second in pairs])

    def as_json(self) -> dict[str, Any]:
        """Return everything in plain types."""
        return {
            "baseline": self.baseline,
            "converged": self.converged,
            "seconds": round(self.seconds, 3),
            "readings": [vars(reading) for reading in self.readings],
            "arms": {
                arm: {
                    "median_us": round(self.median(arm), 4),
                    "samples_us": [round(sample, 4) for sample in samples],
                }
                for arm, samples in self.samples.items()
            },
        }


def ratio_of(ratios: Sequence[float]) -> Ratio:
    """Return the median of ``ratios`` with its 95 % interval."""
    ordered = sorted(ratios)
    cut = interval_cut(len(ordered))
    return Ratio(
        median=statistics.median(ordered),
        low=ordered[cut - 1] if cut else None,
        high=ordered[-cut] if cut else None,
        rounds=len(ordered),
    )


def interval_cut(n: int) -> int:
    """Return k such that the k-th smallest and k-th largest of n samples enclose the median.

    The true median lies between them with at least 95 % (each sample falls above or below it with
    probability 1/2, whatever the distribution). 0 where n is too small, below 6.
    """
    k, tail = 0, 1  # tail: ways in which at most k of n samples fall below the median
    while 40 * tail <= 2**n:
        k += 1
        tail += math.comb(n, k)
    return k


def run_rounds(
    arms: Sequence[str],
    timer: Timer,
    *,
    policy: Policy,
    baseline: str,
    keep: Collection[str] = (),
) -> Comparison:
    """Return the times of ``arms``, measured until ``policy`` is content.

    ``baseline`` and the arms in ``keep`` are never retired. The ratios that have to become
    precise are those between the baseline and each of these and the fastest arm.
    """
    kept = {baseline, *keep}
    shuffle = random.Random(policy.seed)
    samples: dict[str, list[float]] = {arm: [] for arm in arms}
    alive = list(arms)
    _warm_up(alive, timer, policy)
    converged, done, round_seconds = False, 0, math.inf
    while not converged and done < policy.max_rounds:
        if done >= policy.min_rounds and timer.elapsed() > policy.seconds:
            break
        count = _batch(done, round_seconds, policy)
        start = timer.elapsed()
        _batch_of_rounds(alive, samples, timer, shuffle, count)
        round_seconds = (timer.elapsed() - start) / count
        done += count
        alive = _survivors(alive, samples, kept, done, policy)
        converged = done >= policy.min_rounds and (
            _precise(samples, baseline, kept, policy)
            or (policy.until_clear and _clear(alive, samples, baseline, policy))
        )
    return Comparison(
        samples={arm: tuple(times) for arm, times in samples.items()},
        baseline=baseline,
        converged=converged,
        seconds=timer.elapsed(),
        readings=timer.readings(),
    )


def _warm_up(alive: Sequence[str], timer: Timer, policy: Policy) -> None:
    start = timer.elapsed()
    while timer.elapsed() - start < policy.warm_up_seconds:
        timer.replay(alive)


def _batch(done: int, round_seconds: float, policy: Policy) -> int:
    """Return how many rounds to enqueue at once."""
    if done < policy.scout_rounds:
        return policy.scout_rounds - done
    wanted = max(1, int(policy.batch_seconds / round_seconds)) if round_seconds > 0 else 1
    if done < policy.min_rounds:
        return min(wanted, policy.min_rounds - done)
    return min(wanted, policy.max_rounds - done)


def _batch_of_rounds(
    alive: Sequence[str],
    samples: Mapping[str, list[float]],
    timer: Timer,
    shuffle: random.Random,
    count: int,
) -> None:
    order: list[str] = []
    for _ in range(count):
        forward = shuffle.sample(list(alive), len(alive))
        order += [*forward, *reversed(forward)]
    times = timer.replay(order)
    width = 2 * len(alive)
    for start in range(0, len(order), width):
        totals = dict.fromkeys(alive, 0.0)
        for arm, time in zip(
            order[start : start + width], times[start : start + width], strict=True
        ):
            totals[arm] += time
        for arm, total in totals.items():
            samples[arm].append(total / 2)


def _survivors(
    alive: Sequence[str],
    samples: Mapping[str, list[float]],
    kept: Collection[str],
    done: int,
    policy: Policy,
) -> list[str]:
    """Return the arms that the next rounds are for."""
    if policy.retire_above is None:
        return list(alive)
    factor = policy.retire_above if done < policy.min_rounds else policy.finalists_within
    medians = {arm: statistics.median(samples[arm]) for arm in alive}
    limit = factor * min(medians.values())
    return [arm for arm in alive if arm in kept or medians[arm] <= limit]


def _precise(
    samples: Mapping[str, list[float]], baseline: str, kept: Collection[str], policy: Policy
) -> bool:
    ratios = {
        arm: ratio_of([b / t for b, t in zip(samples[baseline], times, strict=False)])
        for arm, times in samples.items()
        if arm != baseline
    }
    if not ratios:
        return ratio_of(samples[baseline]).width <= policy.precision  # one arm: its own time
    fastest = max(ratios, key=lambda arm: ratios[arm].median)
    rivals = {*kept, fastest} - {baseline}
    return all(ratios[arm].width <= policy.precision for arm in rivals)


def _clear(
    alive: Sequence[str], samples: Mapping[str, list[float]], baseline: str, policy: Policy
) -> bool:
    """Whether each arm left is slower than the leader beyond doubt, or as good as equal to it."""
    pace = {arm: _ratio(samples, baseline, arm).median for arm in alive}
    leader = max(pace, key=pace.__getitem__)
    behind = (_ratio(samples, arm, leader) for arm in alive if arm != leader)
    return all(
        (ratio.low is not None and ratio.low > 1) or ratio.width <= policy.precision
        for ratio in behind
    )


def _ratio(samples: Mapping[str, list[float]], over: str, under: str) -> Ratio:
    return ratio_of([o / u for o, u in zip(samples[over], samples[under], strict=False)])
