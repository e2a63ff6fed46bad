"""What a kernel gets whose file leaves keys out, so that one family can name every architecture."""

from __future__ import annotations

from collections.abc import Iterator

from gemmsmith.arch import Architecture, Schedule, Store
from gemmsmith.dtypes import INT8, INT32, DType
from gemmsmith.spec import Tile

_WARP_SIZES = ((64, 64), (64, 32), (32, 64), (32, 32))
_MOST_STAGES = 4  # of 2.x main loops: from there on bytes in flight are not what they wait for


def default_output(a: DType) -> DType:
    """Return the element type of D: that of A, and int32 for int8, whose sums need it."""
    return INT32 if a == INT8 else a


def default_schedule(arch: Architecture, tile: Tile, *, swap: bool) -> Schedule:
    """Return the architecture's only schedule, or the persistent one of sm_90a that the tile takes.

    Two cooperating warpgroups need 128 rows of the instruction's 64-row side (m, with ``swap`` n);
    tiles with less go to ``pingpong``.
    """
    if len(arch.schedules) == 1:
        return arch.schedules[0]
    rows = tile.n if swap else tile.m
    return "cooperative" if rows % 128 == 0 else "pingpong"


def default_store(arch: Architecture, schedule: Schedule, *, gated: bool) -> Store:
    """Return the schedule's usual store, or the architecture's for gated kernels if it has one."""
    if schedule == "lean":
        return "smem"
    return "strip" if gated and "strip" in arch.stores else arch.stores[0]


def warp_tiles(tile: Tile) -> tuple[Tile, ...]:
    """Return the warp tiles of a 2.x kernel in the order in which they are tried, at least one.

    First those that divide the tile among 4 or 8 warps, then 2 to 16; larger ones first, because
    they read less shared memory for each product, and of two as large the one nearer to the tile's
    own proportions.
    """

    def rank(warp: Tile) -> tuple[bool, bool, int, int]:
        rows, columns = tile.m // warp.m, tile.n // warp.n
        warps = rows * columns
        few_or_many = not 2 <= warps <= 16
        return (warps not in (4, 8), few_or_many, -warp.m * warp.n, abs(rows - columns))

    sizes = [Tile(m, n, tile.k) for m, n in _WARP_SIZES]
    whole = [warp for warp in sizes if tile.m % warp.m == 0 and tile.n % warp.n == 0]
    return tuple(sorted(whole, key=rank)) or (sizes[0],)  # refused with what does not divide


def stage_counts(arch: Architecture) -> Iterator[int]:
    """Yield the numbers of stages of a 2.x kernel in the order in which they are tried."""
    yield from range(_MOST_STAGES if arch.async_copy else 2, 1, -1)
