"""Which kernels, with which run-time knobs, are worth a measurement."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gemmsmith.choose import MOST_PADDING, Choice, Tuning, rank, tiles, tune, waves
from gemmsmith.kinds import first_fitting
from gemmsmith.problem import GemmProblem
from gemmsmith.spec import KernelSpec
from gemmsmith.tuned_values import RASTERS, SPLITS, SWIZZLES

LONG_US = 1000.0
"""Estimated time of calls from which on fewer kernels are tried: estimates are good there, and a
round of eight takes a tenth of a second."""
LONG_SHARE = 0.6


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A kernel and how to run it."""

    spec: KernelSpec
    tuning: Tuning

    @property
    def label(self) -> str:
        """Name of its arm."""
        knobs = self.tuning
        return f"{self.spec.name} r{knobs.raster} s{knobs.swizzle} k{knobs.splits}"


def shortlist(
    specs: Sequence[KernelSpec],
    problem: GemmProblem,
    sm_count: int,
    count: int,
    always: Iterable[str] = (),
) -> list[Choice]:
    """Return the ``count`` kernels with the smallest estimated times, fewer for long calls.

    Those whose names are in ``always`` (an earlier winner) come along if they fit.
    """
    ranked = rank(first_fitting(specs, problem), problem, sm_count)
    if ranked and ranked[0].microseconds > LONG_US:
        count = math.ceil(count * LONG_SHARE)
    names = set(always)
    return ranked[:count] + [choice for choice in ranked[count:] if choice.spec.name in names]


def variants(spec: KernelSpec, problem: GemmProblem, sm_count: int) -> list[Candidate]:
    """Return the kernel with each setting of its knobs that may matter, but for the usual one.

    The order of tiles matters where they are taken in several waves, splits of K where a tile's
    loop may be shared. A swizzle that pads the tiles with empty ones is left out.
    """
    usual = tune(spec, problem)
    found: list[Tuning] = []
    if spec.scheduler == "stream_k":
        found = [Tuning(splits=splits) for splits in SPLITS]
    elif spec.schedule in ("pingpong", "cooperative") and waves(spec, problem, sm_count) > 1:
        count = tiles(spec, problem)
        found = [
            Tuning(raster=raster, swizzle=swizzle)
            for swizzle in SWIZZLES
            for raster in RASTERS
            if tiles(spec, problem, group=swizzle) <= MOST_PADDING * count
        ]
    return [Candidate(spec=spec, tuning=tuning) for tuning in found if tuning != usual]
