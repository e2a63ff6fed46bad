"""Which kernel takes a call: an estimate of its time from tiles, waves and bytes.

The rates below were fitted to timings on an H200 (benchmarks/NOTES.md). They rank kernels; they do
not predict microseconds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from gemmsmith.fit import misfit
from gemmsmith.footprint import lean_blocks
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
class Costs:
    """What an estimate is made of, in µs."""

    limits: Mapping[str, float]
    """Time that each resource alone would take, by the resource's name."""
    exposed: float
    """Launch, fill, epilogues and reductions that no main loop hides."""
    total: float
    """All of it, and :func:`waiting`."""

    @property
    def bound(self) -> str:
        """The tightest limit, or ``latency`` where it is below what is exposed."""
        name = max(self.limits, key=self.limits.__getitem__)
        return name if self.limits[name] >= self.exposed else "latency"


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The kernel for a call and how to run it."""

    spec: KernelSpec
    tuning: Tuning
    microseconds: float
    """Estimated time; good for ranking only."""


MATH_PER_SM = 3.62e6  # 16-bit FLOP per µs of one multiprocessor when all are busy; int8: twice
SHARED_PER_SM = 308e3  # bytes per µs that wgmma reads from shared memory
INGEST_PER_SM = 152e3  # bytes per µs that TMA brings into one multiprocessor ...
WIDEST_ACCESS = 16  # ... or that accesses of so many bytes do; narrower ones bring less each
L2 = 9.19e6  # bytes per µs that L2 reads for all, multicast ones counted once
DELIVERY = 10.3e6  # bytes per µs that reach all multiprocessors, multicast ones counted each time
HBM = 4.48e6  # bytes per µs of device memory
READ_AGAIN = 2.13  # times as long it takes where several clusters read the same weights
EPILOGUE = 1.94  # µs of a 128x128 tile's epilogue in a cooperative kernel
PINGPONG_EPILOGUE = 0.491  # the same where only the last tile's is not hidden by a main loop
FUNCTION = 3.0  # µs in which one warpgroup takes a function of a 128x128 tile's elements
RAMP = 3.32  # µs of a block that is launched for one tile: pipeline fill and epilogue
ALONE = 2.65  # of SHARED_PER_SM where one warpgroup alone multiplies (warp_specialized)
ALONE_RAMP = 1.77  # µs of pipeline fill in such a kernel
ALONE_EPILOGUE = 0.413  # µs of a 128x128 tile's epilogue in such a kernel
POWER_LIMITED = 21.6  # waves at which idle multiprocessors begin to lend the others their power
LEAN_RAMP = 2.34  # RAMP of a lean kernel
LEAN_EPILOGUE = 3.09  # µs of a 128x128 tile of a lean kernel, shared by the blocks that split its K
CLUSTER_SUM = 0.541  # µs in which the blocks of a cluster exchange sums
OVERLAPPED = 0.791  # of what a wave that is not full costs where blocks share a multiprocessor
DEPENDENT = 1.71  # µs of launch and fill that a dependent launch hides
EARLY_WEIGHTS = 1.0  # µs of fill that it hides besides where B is read ahead of the wait
WAITS = 2.5  # µs more where a call promises B and the kernel waits to read it: see waiting()
WAITS_UP_TO = 64  # rows; measured up to 16
GATES_FLATTERED = 4.0  # µs more of gates that wait, which the rates above make too fast
LONELY = 0.414  # of INGEST_PER_SM where dependent blocks are placed beside those they follow ...
LONELY_BELOW = 0.935  # ... on a GPU that is filled up to here
CLUSTERED = {4: 0.88, 8: 0.91}  # share of the multiprocessors that clusters of this size can use
DIRECT_STORE = 4.0  # µs of a 128x128 tile that is stored element by element
ACROSS = 1.01  # times as long main loops take where clusters share tokens and several read a weight
STREAM_K = 1.08  # times as long as others a stream_k kernel takes for its main loops
REDUCTION = 1.5  # µs that stream_k spends on partial tiles
SPARE_RESIDUAL = 1.01  # a kernel that can add a residual has fewer stages than one that cannot
SPARE_NODE = 1.004  # one more node in the epilogue's tree that the call leaves at its identity
MOST_PADDING = 1.02  # tiles with those that only fill up groups, over tiles without
SHARPNESS = 4.88  # how nearly the tightest limit alone decides (a p-norm's p)
FITTING = 3.5  # µs outside its main loops of a call whose tiles fit
UNSUITED = 1.25  # times as long as such a call, from where on torch is the safer choice ...
JUDGED_FROM = 8.5  # ... for calls with so many µs of main loops


def choose(specs: Iterable[KernelSpec], problem: GemmProblem, sm_count: int) -> Choice | None:
    """Return the fitting kernel with the smallest estimated time; None where none fits."""
    times = _times(specs, problem, sm_count)
    best = min(times, key=lambda spec: (times[spec], spec.name), default=None)
    if best is None:
        return None
    return Choice(spec=best, tuning=tune(best, problem), microseconds=times[best])


def rank(specs: Iterable[KernelSpec], problem: GemmProblem, sm_count: int) -> list[Choice]:
    """Return the fitting kernels, the smallest estimated time first."""
    times = _times(specs, problem, sm_count)
    return [
        Choice(spec=spec, tuning=tune(spec, problem), microseconds=times[spec])
        for spec in sorted(times, key=lambda spec: (times[spec], spec.name))
    ]


def _times(
    specs: Iterable[KernelSpec], problem: GemmProblem, sm_count: int
) -> dict[KernelSpec, float]:
    """Return the estimated time of each kernel that fits."""
    fitting = (spec for spec in specs if not misfit(spec, problem))
    return {spec: estimate(spec, problem, sm_count) for spec in fitting}


def unsuited(choice: Choice, problem: GemmProblem, sm_count: int) -> str:
    """Return why torch should rather take a 16-bit call that no table holds; empty where not.

    cuBLAS has more tiles than a set that compiles in minutes. Where the best of the set leaves much
    of its tiles or waves empty, the estimate is far above what tiles that fit would take
    (benchmarks/NOTES.md).
    """
    flop = 2.0 * problem.m * problem.n * problem.k
    busy = _together((flop / (sm_count * MATH_PER_SM), _unique_bytes(problem) / HBM))
    alone = replace(problem, constant_b=False)  # torch's kernels wait for the one ahead as well
    microseconds = estimate(choice.spec, alone, sm_count)
    over = microseconds / (busy + FITTING)
    if busy < JUDGED_FROM or over <= UNSUITED:
        return ""
    return (
        f"by estimate no kernel here suits {problem.m}x{problem.n}x{problem.k}: the best,"
        f" {choice.spec.name}, takes {over:.2f} times as long as tiles that fit would;"
        f" gemmsmith tune --weight {problem.n}x{problem.k} measures what is faster"
    )


def tune(spec: KernelSpec, problem: GemmProblem) -> Tuning:
    """Return run-time knobs for ``spec``: the order in which a persistent kernel takes its tiles.

    Tiles are taken in groups, so that those of one wave share operands in L2. CUTLASS rounds both
    tile counts up to whole groups, so a group is made only as large as leaves next to none empty.
    The raster runs across the narrower side of a tile, which keeps the wider operand in place.
    """
    if spec.schedule not in ("pingpong", "cooperative"):
        return Tuning()
    count = tiles(spec, problem)
    for swizzle in (8, 4, 2):
        if tiles(spec, problem, group=swizzle) <= MOST_PADDING * count:
            return Tuning(raster=1 if spec.tile.n > spec.tile.m else 2, swizzle=swizzle)
    return Tuning()


def tiles(spec: KernelSpec, problem: GemmProblem, group: int = 1) -> int:
    """Return how many tiles the call has, with those that only fill up clusters (in groups)."""
    tiles_n = _up(math.ceil(problem.n / spec.tile.n), spec.cluster.n * group)
    return tiles_of_rows(spec, problem.m, group) * tiles_n * problem.batch


def tiles_of_rows(spec: KernelSpec, m: int, group: int = 1) -> int:
    """Return how many tiles ``m`` rows have, with those that only fill up clusters (in groups)."""
    return _up(math.ceil(m / spec.tile.m), spec.cluster.m * group)


def waves(spec: KernelSpec, problem: GemmProblem, sm_count: int) -> float:
    """Return blocks over the multiprocessors that clusters of this size can use."""
    return tiles(spec, problem) * spec.split_k / slots(spec, sm_count)


def slots(spec: KernelSpec, sm_count: int) -> int:
    """Return how many blocks run at once, one to a multiprocessor.

    Multiprocessors of one cluster are neighbours, so that some are left over.
    """
    size = spec.cluster.size * spec.split_k
    usable = int(sm_count * CLUSTERED.get(size, 1.0))
    return max(1, usable // size) * size


def estimate(spec: KernelSpec, problem: GemmProblem, sm_count: int) -> float:
    """Return the estimated time of the call with ``spec``, in microseconds."""
    return costs(spec, problem, sm_count).total


def costs(spec: KernelSpec, problem: GemmProblem, sm_count: int) -> Costs:
    """Return the estimated time of the call with ``spec``, part by part.

    The tightest of tensor cores, shared memory, TMA, L2 and device memory decides the main loops;
    waves that are not full cost as much as full ones, unless stream_k splits their tiles.
    """
    tile, device, size = spec.tile, spec.device_tile, spec.a.bytes
    lean = spec.schedule == "lean"
    count = tiles(spec, problem) * spec.split_k
    full = waves(spec, problem, sm_count)
    unfilled = (math.ceil(full) - full) * math.exp(-full / POWER_LIMITED)
    overlapped = lean and full > 1 and lean_blocks(spec) > 1
    rounds: float = full + unfilled * (OVERLAPPED if overlapped else 1.0)
    split = spec.scheduler == "stream_k"
    if split:
        rounds = max(1.0, full)
    # Clusters along the tokens of a swapped kernel keep their multiprocessors to themselves.
    paired = spec.swap and spec.cluster.m > 1
    lonely = spec.dependent_launch and full < LONELY_BELOW and not paired
    access = min(spec.alignment.a * size, spec.alignment.b * spec.b.bytes, WIDEST_ACCESS)
    ingest = INGEST_PER_SM * (LONELY if lonely else 1.0) * access / WIDEST_ACCESS
    reading = SHARED_PER_SM * (ALONE if spec.schedule == "warp_specialized" else 1.0)
    whole = problem.k * size
    # A block takes the longest of the parts of K, in whole steps.
    depth = math.ceil(math.ceil(problem.k / tile.k) / spec.split_k) * tile.k * size
    main_loops = {
        "tensor cores": tile.m * tile.n * depth / MATH_PER_SM,
        # A once, B for each 64 rows of A
        "shared memory": depth * device.m * (1 + device.n / 64) / reading,
        "TMA": depth * (tile.m + tile.n) / ingest,
    }
    read = count / spec.split_k * whole
    shared = read * (tile.m / spec.cluster.n + tile.n / spec.cluster.m)
    delivered = read * (tile.m + tile.n)
    several = problem.m > tile.m * spec.cluster.m
    slower = STREAM_K if split else ACROSS if several and spec.cluster.n > spec.cluster.m else 1.0
    limits = {name: slower * rounds * main_loop for name, main_loop in main_loops.items()}
    again = READ_AGAIN if several else 1.0
    others = {
        "L2": shared / L2,
        "delivery": delivered / DELIVERY,
        "HBM": again * problem.batch * _unique_bytes(problem) / HBM,
    }
    busy = _together((max(limits.values()), *others.values()))
    area = tile.m * tile.n / (128 * 128)
    exposed = {
        "pingpong": RAMP + PINGPONG_EPILOGUE * area,
        "cooperative": RAMP + EPILOGUE * area * rounds,
        "warp_specialized": (ALONE_RAMP + ALONE_EPILOGUE * area) * rounds,
        "lean": (LEAN_RAMP + LEAN_EPILOGUE * area / spec.split_k) * (1.0 if overlapped else rounds),
    }.get(spec.schedule, RAMP * rounds)
    exposed -= DEPENDENT if spec.dependent_launch else 0.0
    exposed -= EARLY_WEIGHTS if spec.constant_b else 0.0
    exposed += CLUSTER_SUM if spec.split_k > 1 else 0.0
    if problem.activation != "none":  # ping-pong hides all but the last tile's
        exposed += (
            FUNCTION
            * area
            * {"pingpong": 1.0, "cooperative": rounds / 2}.get(spec.schedule, rounds)
        )
    exposed += REDUCTION if split else 0.0
    if spec.store == "direct":
        exposed += DIRECT_STORE * area * rounds
    waits = waiting(spec, problem)
    waits += GATES_FLATTERED if waits and problem.gate != "none" else 0.0
    total = (busy + exposed) * _spare(spec, problem) + waits
    return Costs(limits=limits | others, exposed=exposed, total=total)


def waiting(spec: KernelSpec, problem: GemmProblem) -> float:
    """Return the µs that a kernel loses in a model by waiting before it reads a promised B.

    The norm or the attention that is ahead there leaves the memory idle meanwhile. A product that
    is timed beside itself does not show it.
    """
    waits = problem.constant_b and not spec.constant_b and problem.m <= WAITS_UP_TO
    return WAITS if waits else 0.0


def _unique_bytes(problem: GemmProblem) -> int:
    """Return the bytes of one product's operands and result, each counted once."""
    read = problem.a.bytes * problem.k * (problem.m + problem.n)
    return read + problem.d.bytes * problem.m * problem.columns


def _together(limits: Iterable[float]) -> float:
    """Return the time of main loops that each resource alone would take so long for."""
    total: float = sum(limit**SHARPNESS for limit in limits) ** (1 / SHARPNESS)
    return total


def _spare(spec: KernelSpec, problem: GemmProblem) -> float:
    """What a call pays for what the kernel could do and it does not ask for."""
    spare = SPARE_RESIDUAL if spec.residual and not problem.residual else 1.0
    features = (
        (spec.activation != "none", problem.activation != "none"),
        (spec.scaled, problem.scaled),
        (spec.zero_point, problem.zero_point),
    )
    return spare * math.prod(SPARE_NODE for has, asked in features if has and not asked)


def _up(value: int, step: int) -> int:
    return -(-value // step) * step
