"""What a kernel costs and how it meets a problem, as numbers; nothing here runs or reads a GPU."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from gemmsmith.choose import slots, tiles, waves
from gemmsmith.errors import ArgumentError
from gemmsmith.fit import check_sizes, misfit
from gemmsmith.footprint import (
    accumulator_registers,
    epilogue_bytes,
    lean_warpgroups,
    shared_memory,
    stage_bytes,
    stages_that_fit,
)
from gemmsmith.problem import GemmProblem, alignment_of
from gemmsmith.spec import KernelSpec, Tile

FLOP_PER_BYTE: dict[str, float] = {  # data sheets: dense 16-bit over memory bandwidth
    "sm_70": 125e12 / 0.9e12,  # V100 SXM2 32 GB, HBM2
    "sm_75": 65e12 / 0.32e12,  # T4, GDDR6
    "sm_80": 312e12 / 2.039e12,  # A100 80 GB SXM, HBM2e
    "sm_86": 125e12 / 0.6e12,  # A10, GDDR6
    "sm_87": 42.5e12 / 0.2048e12,  # Jetson AGX Orin 64 GB (85 dense int8 TOPS), LPDDR5
    "sm_89": 181e12 / 0.864e12,  # L40, GDDR6
    "sm_90a": 989e12 / 4.8e12,  # H200 SXM, HBM3e
}
"""16-bit operations that a GPU of each architecture does while it moves one byte of memory."""

WARPGROUPS: dict[str, int] = {"warp_specialized": 2, "pingpong": 3, "cooperative": 3}
"""128-thread groups of CUTLASS's 3.x schedules: one loads, the others compute."""


@dataclass(frozen=True, kw_only=True)
class SpecReport:
    """What one kernel takes from a streaming multiprocessor."""

    name: str
    """The kernel's name."""
    device_tile: Tile
    """Tile as the device code sees it (m and n exchanged by ``swap``)."""
    threads: int
    """Threads a block, loading ones included."""
    accumulator_registers: int
    """32-bit registers that each computing thread keeps for sums."""
    stages: int
    """Buffers of the main loop; with ``auto`` the number that is expected to fit."""
    stages_automatic: bool
    """Whether CUTLASS picks the number of stages while it compiles."""
    stages_that_fit: int
    """The most stages that the shared memory holds."""
    stage_bytes: int
    """Shared memory of one stage, in bytes."""
    epilogue_bytes: int
    """Shared memory of the epilogue beside the main loop's, in bytes (an upper estimate)."""
    shared_memory: int
    """Shared memory of a block, in bytes (exact for 2.x and lean, an upper estimate for 3.x)."""
    shared_memory_limit: int
    """What one block may use on this architecture, in bytes."""


@dataclass(frozen=True, kw_only=True)
class ProblemReport:
    """How one kernel meets D (M, N) = A (M, K) @ B (K, N) with contiguous operands."""

    name: str
    """The kernel's name."""
    misfit: str
    """Why the kernel cannot take the problem; empty where it can."""
    tiles: int
    """Tiles of D, up to whole clusters."""
    blocks: int
    """Blocks that compute them: ``split_k`` to a tile."""
    waves: float
    """Blocks over the multiprocessors that clusters of the kernel's size can use."""
    wave_efficiency: float
    """Busy share of the multiprocessors, 0 to 1: 132 SMs with 133 tiles take two waves, 0.50."""
    tile_efficiency: float
    """Share of the tiles' multiply-adds that lie inside the problem, 0 to 1."""
    intensity: float
    """Operations for each byte of A, B and D, each moved once."""
    bound: Literal["memory", "math"]
    """What limits the best possible time on a GPU of :data:`FLOP_PER_BYTE`."""

    @property
    def fits(self) -> bool:
        """Whether the kernel can take the problem."""
        return not self.misfit


def explain_spec(spec: KernelSpec) -> SpecReport:
    """Return the resources that ``spec`` takes, as far as they are known before compiling."""
    fitting = stages_that_fit(spec)
    stages = fitting if spec.stages is None else spec.stages
    return SpecReport(
        name=spec.name,
        device_tile=spec.device_tile,
        threads=_threads(spec),
        accumulator_registers=accumulator_registers(spec),
        stages=stages,
        stages_automatic=spec.stages is None,
        stages_that_fit=fitting,
        stage_bytes=stage_bytes(spec),
        epilogue_bytes=epilogue_bytes(spec),
        shared_memory=shared_memory(spec, stages),
        shared_memory_limit=spec.arch.smem_per_block,
    )


def explain_problem(
    spec: KernelSpec, m: int, n: int, k: int, sm_count: int, *, constant_b: bool = False
) -> ProblemReport:
    """Return how ``spec`` meets an (m, k) @ (k, n) problem on a GPU of ``sm_count`` SMs.

    Operands are contiguous and 16-byte aligned at their start; no bias, no residual, no batch. With
    ``constant_b`` the call promises that no queued work writes B.

    Raises:
        ArgumentError: where a size is negative, ``sm_count`` is below 1, or one of them is above
            :data:`gemmsmith.fit.MAX_SIZE`.
    """
    for argument, value, least in (
        ("m", m, 0),
        ("n", n, 0),
        ("k", k, 0),
        ("sm_count", sm_count, 1),
    ):
        if value < least:
            raise ArgumentError(f"{argument} is {value}; it must be {least} or more")
    check_sizes(m=m, n=n, k=k, sm_count=sm_count)
    problem = replace(_contiguous(spec, m, n, k), constant_b=constant_b)
    count, steps = tiles(spec, problem), _up(k, spec.tile.k)
    computed = count * spec.tile.m * spec.tile.n * steps * spec.tile.k
    moved = m * k * spec.a.bytes + k * n * spec.b.bytes + m * n * spec.d.bytes
    intensity = 2 * m * n * k / moved if moved else 0.0
    # static deals whole tiles to the SMs, stream_k deals steps along K
    blocks = count * spec.split_k
    units = count * steps if spec.scheduler == "stream_k" else blocks
    at_once = slots(spec, sm_count)
    offered = _up(units, at_once) * max(at_once, sm_count)  # SMs that no cluster fits on idle
    return ProblemReport(
        name=spec.name,
        misfit=misfit(spec, problem),
        tiles=count,
        blocks=blocks,
        waves=waves(spec, problem, sm_count),
        wave_efficiency=units / offered if offered else 0.0,
        tile_efficiency=m * n * k / computed if computed else 0.0,
        intensity=intensity,
        bound="memory" if intensity < FLOP_PER_BYTE[spec.arch.name] else "math",
    )


def _threads(spec: KernelSpec) -> int:
    if spec.schedule == "lean":
        return 128 * lean_warpgroups(spec) + 32  # one warp loads
    if spec.warp is None:
        return 128 * WARPGROUPS[spec.schedule]
    return 32 * (spec.tile.m // spec.warp.m) * (spec.tile.n // spec.warp.n)


def _up(size: int, step: int) -> int:
    return -(-size // step)


def _contiguous(spec: KernelSpec, m: int, n: int, k: int) -> GemmProblem:
    """The problem in the kernel's own layout, packed, so that a row's length sets the alignment."""
    a_row = k if spec.layout[0] == "r" else m
    b_row = n if spec.layout[1] == "r" else k
    d_row = n if spec.layout[2] == "r" else m
    return GemmProblem(
        m=m,
        n=n,
        k=k,
        a=spec.a,
        b=spec.b,
        d=spec.d,
        layout=spec.layout,
        a_align=alignment_of(a_row * spec.a.bytes),
        b_align=alignment_of(b_row * spec.b.bytes),
        d_align=alignment_of(d_row * spec.d.bytes),
    )
