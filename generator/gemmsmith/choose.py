"""Which kernel takes a call: an estimate of its time from tiles, waves and bytes.

The rates below were fitted to timings on an H200 (benchmarks/NOTES.md). They rank kernels; they do
not predict microseconds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from gemmsmith.legality import misfit
from gemmsmith.problem import GemmProblem
from gemmsmith.spec import KernelSpec


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """Run-time knobs of a kernel: part of a choice, never of a kernel's identity."""

    raster: int = 0
    """0: the kernel's own choice, 1: tiles along m first, 2: along n first."""
    swizzle: int = 0
    """Largest tile group of the raster, in tiles; 0: the kernel's own choice."""
    splits: int = 0
    """Parts of k per tile (``stream_k`` kernels); 0: the kernel's own choice."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The kernel for a call and how to run it."""

    spec: KernelSpec
    tuning: Tuning
    microseconds: float
    """Estimated time; good for ranking only."""


MATH_PER_SM = 7.0e6  # bf16 FLOP per microsecond of one multiprocessor that never waits
SMEM_PER_SM = 210e3  # bytes per microsecond that wgmma reads from shared memory
L2_PER_SM = 60e3  # bytes per microsecond that TMA brings to one multiprocessor
HBM = 4.2e6  # bytes per microsecond of the whole device
L2_TOTAL = 7.0e6  # bytes per microsecond of the whole device
LAUNCH = 2.5  # microseconds from launch to first load and from last store to completion
EPILOGUE = 1.0  # microseconds of a 128x128 tile's epilogue that no main loop hides


def choose(specs: Iterable[KernelSpec], problem: GemmProblem, sm_count: int) -> Choice | None:
    """Return the fitting kernel with the smallest estimated time; None where none fits."""
    fitting = [spec for spec in specs if not misfit(spec, problem)]
    if not fitting:
        return None
    times = {spec: estimate(spec, problem, sm_count) for spec in fitting}
    best = min(fitting, key=lambda spec: (times[spec], spec.name))
    return Choice(spec=best, tuning=tune(best, problem), microseconds=times[best])


def tune(spec: KernelSpec, problem: GemmProblem) -> Tuning:
    """Return run-time knobs for ``spec``: group tiles so that a wave's operands stay in L2."""
    tiles_m = math.ceil(problem.m / spec.tile.m)
    tiles_n = math.ceil(problem.n / spec.tile.n)
    if spec.schedule in ("pingpong", "cooperative") and min(tiles_m, tiles_n) >= 8:
        return Tuning(swizzle=4)
    return Tuning()


def tiles(spec: KernelSpec, problem: GemmProblem) -> int:
    """Return how many tiles the call has, those included that only fill up clusters."""
    tiles_m = _up(math.ceil(problem.m / spec.tile.m), spec.cluster.m)
    tiles_n = _up(math.ceil(problem.n / spec.tile.n), spec.cluster.n)
    return tiles_m * tiles_n * problem.batch


def waves(spec: KernelSpec, problem: GemmProblem, sm_count: int) -> float:
    """Return tiles over the multiprocessors that clusters of this size can use."""
    return tiles(spec, problem) / slots(spec, sm_count)


def slots(spec: KernelSpec, sm_count: int) -> int:
    """Return how many tiles run at once, one block to a multiprocessor."""
    return max(1, sm_count // spec.cluster.size) * spec.cluster.size


def estimate(spec: KernelSpec, problem: GemmProblem, sm_count: int) -> float:
    """Return the estimated time of the call with ``spec``, in microseconds."""
    tile, size = spec.tile, spec.a.bytes
    count = tiles(spec, problem)
    rounds = count / slots(spec, sm_count)
    if spec.scheduler == "static":
        rounds = math.ceil(rounds)
    device = spec.device_tile
    math_time = 2 * tile.m * tile.n * problem.k / MATH_PER_SM
    smem_time = problem.k * size * device.m * (1 + device.n / 64) / SMEM_PER_SM
    loads = problem.k * size * (tile.m / spec.cluster.n + tile.n / spec.cluster.m)
    per_tile = max(math_time, smem_time, loads / L2_PER_SM)
    epilogue = EPILOGUE * tile.m * tile.n / (128 * 128)
    if spec.schedule == "pingpong" and rounds > 1:
        epilogue /= rounds
    unique = size * problem.k * (problem.m + problem.n) + spec.d.bytes * problem.m * problem.n
    memory = max(problem.batch * unique / HBM, count * loads / L2_TOTAL)
    return LAUNCH + max(rounds * (per_tile + epilogue), memory + epilogue)


def _up(value: int, step: int) -> int:
    return -(-value // step) * step
