"""The smallest set of kernels that loses little against all known ones, by the timings of a table.

A greedy set cover: the kernel that saves most is added until the loss is small enough; then each
is tried without. The smallest set of all is not promised, one that no single kernel can leave is.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from gemmsmith.errors import MeasureError
from gemmsmith.tuned import TORCH, Entry

_WITHOUT = 10.0  # what a shape counts as losing for which no kernel of the set was timed
_OVER_CAP = 100.0  # weight of what a shape loses beyond the cap


@dataclass(frozen=True, kw_only=True)
class ShapeLoss:
    """What one entry loses with a set of kernels."""

    entry: Entry
    kernel: str
    """The best kernel of the set, as tables write it."""
    loss: float
    """Its time over that of the best known kernel, less one."""


@dataclass(frozen=True, kw_only=True)
class Reduction:
    """A set of kernels and what it loses."""

    kernels: tuple[str, ...]
    """As tables write them, the one that is the best of them at most shapes first."""
    candidates: int
    """Kernels that there were to choose from."""
    losses: tuple[ShapeLoss, ...]
    torch: int
    """Entries that torch wins, which ask for no kernel."""

    @property
    def loss(self) -> float:
        """The geometric mean of what is lost."""
        return math.expm1(
            math.fsum(math.log1p(each.loss) for each in self.losses) / len(self.losses)
        )

    @property
    def worst(self) -> ShapeLoss:
        """The shape that loses most."""
        return max(self.losses, key=lambda each: each.loss)


def reduce_set(
    entries: Sequence[Entry],
    *,
    loss: float,
    worst: float,
    known: Collection[str] | None = None,
) -> Reduction:
    """Return a small set that loses at most ``loss`` in the geometric mean and ``worst`` anywhere.

    ``known`` are the kernels that may be in it, as tables write them; None: all.

    Raises:
        MeasureError: where there is no entry that a kernel wins.
    """
    mine = [entry for entry in entries if entry.winner != TORCH]
    slower = {
        entry.key: {
            each.kernel: best / each.ratio
            for each in entry.timings
            if known is None or each.kernel in known
        }
        for entry in mine
        if (best := _best(entry, known))
    }
    mine = [entry for entry in mine if entry.key in slower]
    if not mine:
        raise MeasureError("no entry of the tables is won by a kernel that is known: tune first")
    tables = [slower[entry.key] for entry in mine]
    every = sorted({kernel for each in tables for kernel in each})
    kept: list[str] = []
    while not _enough(tables, kept, loss, worst):
        rest = [kernel for kernel in every if kernel not in kept]
        kept.append(min(rest, key=lambda kernel: _cost(tables, [*kept, kernel], worst)))
    for kernel in reversed(list(kept)):
        without = [each for each in kept if each != kernel]
        if _enough(tables, without, loss, worst):
            kept = without
    losses = tuple(
        ShapeLoss(entry=entry, kernel=kernel, loss=each[kernel] - 1)
        for entry, each in zip(mine, tables, strict=True)
        if (kernel := min((one for one in kept if one in each), key=each.__getitem__))
    )
    best_at = Counter(each.kernel for each in losses)
    return Reduction(
        kernels=tuple(sorted(kept, key=lambda kernel: -best_at[kernel])),
        candidates=len(every),
        losses=losses,
        torch=sum(entry.winner == TORCH for entry in entries),
    )


def _best(entry: Entry, known: Collection[str] | None) -> float:
    ratios = [each.ratio for each in entry.timings if known is None or each.kernel in known]
    return max(ratios, default=0.0)


def _factors(tables: Sequence[Mapping[str, float]], kept: Sequence[str]) -> list[float]:
    return [
        min((each[kernel] for kernel in kept if kernel in each), default=_WITHOUT)
        for each in tables
    ]


def _enough(
    tables: Sequence[Mapping[str, float]], kept: Sequence[str], loss: float, worst: float
) -> bool:
    if not all(any(kernel in each for kernel in kept) for each in tables):
        return False
    factors = _factors(tables, kept)
    mean = math.fsum(map(math.log, factors)) / len(factors)
    return mean <= math.log1p(loss) + 1e-12 and max(factors) <= 1 + worst + 1e-12


def _cost(tables: Sequence[Mapping[str, float]], kept: Sequence[str], worst: float) -> float:
    factors = _factors(tables, kept)
    over = math.fsum(max(0.0, factor - 1 - worst) for factor in factors)
    return math.fsum(map(math.log, factors)) + _OVER_CAP * over
