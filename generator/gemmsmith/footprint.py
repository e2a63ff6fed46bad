"""What a kernel takes of a multiprocessor: registers and shared memory."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gemmsmith.spec import KernelSpec

MAX_STAGES = 16
"""Buffers beyond which more bytes in flight brought nothing."""
BARRIER_BYTES = 1024  # pipelines' mbarriers, tile scheduler and TMA alignment of the 3.x kernels
LEAN_BARRIER_BYTES = 256  # two mbarriers for each of up to 16 stages


def accumulator_registers(spec: KernelSpec) -> int:
    """32-bit registers that each thread of the main loop keeps for sums."""
    if spec.warp is not None:
        return spec.warp.m * spec.warp.n // 32 * spec.acc.bytes // 4
    if spec.schedule == "lean":
        threads = 128 * lean_warpgroups(spec)
    else:
        threads = 256 if spec.schedule == "cooperative" else 128
    return spec.tile.m * spec.tile.n // threads * spec.acc.bytes // 4


def lean_warpgroups(spec: KernelSpec) -> int:
    """Warpgroups of a lean kernel that multiply; one warp beside them loads."""
    rows = spec.device_tile.m
    return 2 if rows % 128 == 0 else rows // 64


def stage_bytes(spec: KernelSpec) -> int:
    """Shared memory of one main-loop stage: a tile of A and one of B, in bytes."""
    return (spec.tile.m * spec.a.bytes + spec.tile.n * spec.b.bytes) * spec.tile.k


def epilogue_bytes(spec: KernelSpec) -> int:
    """Shared memory that the epilogue holds beside the main loop's, in bytes (an upper estimate).

    2.x epilogues reuse the main loop's memory; ``direct`` ones need none; TMA ones stage sub-tiles
    of 64 or 128 rows by up to 32 columns, two of D or up to four of C. Lean ones take the tile's
    sums in the main loop's place.
    """
    tile = spec.device_tile
    if spec.schedule == "lean":
        return _sums_of_a_tile(spec)
    if spec.store == "strip":
        return _strips(spec)
    if spec.store != "tma":
        return 0
    rows = min(128 if spec.schedule == "cooperative" else 64, tile.m)
    columns = math.gcd(32, tile.n)
    subtiles = (tile.m // rows) * (tile.n // columns)
    staged_d = min(subtiles, 2)
    buffers = max(min(subtiles, 4), staged_d + 1) if spec.residual else staged_d
    vectors = spec.bias_type.bytes * spec.bias + 4 * spec.scaled + 4 * spec.zero_point
    return buffers * rows * columns * spec.d.bytes + (tile.m + tile.n) * vectors


def _sums_of_a_tile(spec: KernelSpec) -> int:
    """Sums of a lean kernel's tile by rows of D, apart so that banks of shared memory differ."""
    columns = spec.tile.n
    pitch = columns + (4 if spec.swap else (40 - columns % 32) % 32)
    return spec.tile.m * pitch * 4


def _strips(spec: KernelSpec) -> int:
    """Strips of a gated kernel's warps: 16 rows of 64 results, or 8 results of 128 tokens."""
    warps = 8 if spec.schedule == "cooperative" else 4
    columns = spec.device_tile.n if spec.device_tile.n % 128 else 128
    line = columns * 8 if spec.swap else 16 * (columns // 2 + 16 // spec.d.bytes)
    return warps * line * spec.d.bytes


def shared_memory(spec: KernelSpec, stages: int) -> int:
    """Shared memory of one block with ``stages`` stages, in bytes (an upper estimate for 3.x)."""
    loads = stage_bytes(spec) * stages
    if spec.arch.api == "2.x":
        return loads
    if spec.schedule == "lean":
        return max(loads, epilogue_bytes(spec)) + LEAN_BARRIER_BYTES
    if spec.schedule == "warp_specialized":  # not persistent: the epilogue comes after the loop
        return max(loads, epilogue_bytes(spec)) + BARRIER_BYTES
    return loads + epilogue_bytes(spec) + BARRIER_BYTES


def lean_blocks(spec: KernelSpec) -> int:
    """Blocks of a lean kernel that a multiprocessor's shared memory holds."""
    whole = spec.arch.multiprocessor
    stages = spec.stages or stages_that_fit(spec)
    each = shared_memory(spec, stages) + whole.shared_memory_reserved
    return max(1, whole.shared_memory // each)


def stages_that_fit(spec: KernelSpec) -> int:
    """The largest number of stages that the shared memory holds; 0 where not one fits."""
    fitting = (
        stages
        for stages in range(MAX_STAGES, 0, -1)
        if shared_memory(spec, stages) <= spec.arch.smem_per_block
    )
    return next(fitting, 0)


def nearest_multiple(value: int, step: int) -> int:
    """Return the multiple of ``step``, not 0, that is nearest to ``value``."""
    return max(step, round(value / step) * step)
