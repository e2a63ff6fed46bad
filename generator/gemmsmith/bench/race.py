"""Several named ways to compute the same thing: how long each takes, and which ran what."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import gemmsmith
from gemmsmith.bench.graphs import Arm
from gemmsmith.bench.measure import compare
from gemmsmith.bench.report import Environment, geomean
from gemmsmith.bench.rivals import fault_of
from gemmsmith.bench.rounds import Comparison, Policy, Ratio
from gemmsmith.bench.tasks import Task
from gemmsmith.errors import MeasureError, NoKernelError


@dataclass(frozen=True, kw_only=True)
class Race:
    """One shape, computed by several arms."""

    section: str
    """What is computed; races of one section have a table together."""
    label: str
    """Words that name the model and its layer."""
    m: int
    n: int
    k: int
    comparison: Comparison
    kernels: Mapping[str, str] = field(default_factory=dict)
    """For each arm of gemmsmith what it ran."""
    wrong: Mapping[str, str] = field(default_factory=dict)
    """Arms that were not timed because their result is wrong or they failed, and how."""
    missing: Mapping[str, str] = field(default_factory=dict)
    """Arms that gemmsmith has no kernel for, and why."""
    figures: Mapping[str, float] = field(default_factory=dict)
    """What else was found, by name."""

    def microseconds(self, arm: str) -> float | None:
        """Return the median µs of ``arm``; None where it was not timed."""
        return self.comparison.median(arm) if arm in self.comparison.samples else None

    def ratio(self, over: str, under: str) -> Ratio | None:
        """Return how many times as long ``over`` takes as ``under``; None where one is absent."""
        both = {over, under} <= self.comparison.samples.keys()
        return self.comparison.ratio(over, under) if both else None

    @property
    def words(self) -> str:
        """Words that name the race."""
        return f"{self.section} {self.label} {self.m}x{self.n}x{self.k}"

    def as_json(self) -> dict[str, Any]:
        """Return everything in plain types."""
        plain = ("section", "label", "m", "n", "k")
        return {
            **{key: getattr(self, key) for key in plain},
            "kernels": dict(self.kernels),
            "wrong": dict(self.wrong),
            "missing": dict(self.missing),
            "figures": dict(self.figures),
            "us": {arm: self.comparison.median(arm) for arm in self.comparison.samples},
            "comparison": self.comparison.as_json(),
        }


@dataclass(frozen=True, kw_only=True)
class Rivalry:
    """Two arms whose ratio is of interest: above 1, ``under`` is the faster."""

    section: str
    over: str
    under: str
    groups: tuple[str, ...] = ("M >= 512", "M <= 64", "all")


GROUPS: Mapping[str, Callable[[int], bool]] = {
    "M >= 2048": lambda m: m >= 2048,
    "M >= 512": lambda m: m >= 512,
    "M <= 64": lambda m: m <= 64,
    "M = 1": lambda m: m == 1,
    "all": lambda m: True,
}
"""Groups of races that are summed up apart, by their rows."""


@dataclass(frozen=True, kw_only=True)
class Standing:
    """The ratios of one rivalry in one group of races."""

    rivalry: Rivalry
    group: str
    geomean: float
    worst: Race
    worst_ratio: float
    count: int
    """Races that have the ratio."""
    without: int
    """Races that have not: wrong or missing."""


@dataclass(frozen=True, kw_only=True)
class RaceReport:
    """A finished benchmark of races."""

    environment: Environment
    notes: str
    """What the arms are, for people."""
    rivalries: tuple[Rivalry, ...]
    races: tuple[Race, ...]

    @property
    def wrong(self) -> tuple[tuple[Race, str, str], ...]:
        """Every (race, arm, fault) whose result was wrong or that failed."""
        return tuple((race, arm, why) for race in self.races for arm, why in race.wrong.items())

    @property
    def standings(self) -> tuple[Standing, ...]:
        """Every rivalry in every group that has a race with its ratio."""
        found = (
            _standing(rivalry, group, [race for race in self.races if GROUPS[group](race.m)])
            for rivalry in self.rivalries
            for group in rivalry.groups
        )
        return tuple(standing for standing in found if standing)

    def as_json(self) -> dict[str, Any]:
        """Return everything in plain types, all raw samples included."""
        return {
            "format": 1,
            "environment": asdict(self.environment),
            "notes": self.notes,
            "standings": [
                {
                    **asdict(standing.rivalry),
                    "group": standing.group,
                    "geomean": standing.geomean,
                    "worst": standing.worst_ratio,
                    "worst_race": standing.worst.words,
                    "count": standing.count,
                    "without": standing.without,
                }
                for standing in self.standings
            ],
            "races": [race.as_json() for race in self.races],
        }


def _standing(rivalry: Rivalry, group: str, races: Sequence[Race]) -> Standing | None:
    mine = [race for race in races if race.section == rivalry.section]
    rated = [(ratio.median, race) for race in mine if (ratio := race.ratio(*_arms(rivalry)))]
    if not rated:
        return None
    worst_ratio, worst = min(rated, key=lambda pair: pair[0])
    return Standing(
        rivalry=rivalry,
        group=group,
        geomean=geomean(ratio for ratio, _ in rated),
        worst=worst,
        worst_ratio=worst_ratio,
        count=len(rated),
        without=len(mine) - len(rated),
    )


def _arms(rivalry: Rivalry) -> tuple[str, str]:
    return rivalry.over, rivalry.under


class Entrants:
    """Collects the arms of one race, each checked before it may be timed."""

    def __init__(self) -> None:
        self.arms: dict[str, Arm] = {}
        self.kernels: dict[str, str] = {}
        self.wrong: dict[str, str] = {}
        self.missing: dict[str, str] = {}

    def torch(self, name: str, task: Task, arm: Arm) -> None:
        """Enter an arm of torch's functions."""
        self.enter(name, arm, fault_of(task, arm))

    def ours(self, name: str, task: Task, kernels: str = "") -> None:
        """Enter gemmsmith's way of ``task``, which allocates its result as torch does."""
        try:
            why = task.run(kernels)
        except NoKernelError as error:
            self.missing[name] = str(error)
            return
        record = gemmsmith.last_kernel()
        if record is not None and record.reason:
            self.missing[name] = record.reason
            return
        self.kernels[name] = "" if record is None else record.name
        self.enter(name, task.arm(kernels), why)

    def enter(self, name: str, arm: Arm, why: str) -> None:
        """Enter an arm unless something is wrong with it."""
        if why:
            self.wrong[name] = why
        else:
            self.arms[name] = arm

    def race(
        self,
        section: str,
        label: str,
        shape: tuple[int, int, int],
        *,
        seconds: float,
        figures: Mapping[str, float] | None = None,
    ) -> Race:
        """Return the arms timed in interleaved rounds.

        Raises:
            MeasureError: where no arm is right.
        """
        m, n, k = shape
        if not self.arms:
            reasons = "; ".join(
                f"{arm}: {why}" for arm, why in {**self.wrong, **self.missing}.items()
            )
            raise MeasureError(f"nothing can be timed at {section} {label} {m}x{n}x{k}: {reasons}")
        return Race(
            section=section,
            label=label,
            m=m,
            n=n,
            k=k,
            comparison=compare(self.arms, keep=tuple(self.arms), policy=Policy(seconds=seconds)),
            kernels=self.kernels,
            wrong=self.wrong,
            missing=self.missing,
            figures=figures or {},
        )
