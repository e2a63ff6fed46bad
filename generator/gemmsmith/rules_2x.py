"""What CUTLASS's 2.x kernels (mma.sync, Volta to Ada) ask of tiles, warps and stores."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from gemmsmith.dtypes import INT8
from gemmsmith.errors import Objection
from gemmsmith.footprint import accumulator_registers, nearest_multiple

if TYPE_CHECKING:
    from gemmsmith.spec import KernelSpec, Tile

WARP_SIZES = (32, 64)  # rows and columns of warp tiles; every pair is proven on integer data
ACCUMULATORS_PER_THREAD = 128  # 255 registers less two stages of A and B fragments


def objections(spec: KernelSpec) -> Iterator[Objection]:
    """Yield what makes ``spec`` impossible; its numbers are positive and its keys of this API."""
    assert spec.warp is not None, "2.x kernels without a warp tile are refused before"
    yield from _warp_tiles(spec, spec.warp)
    yield from _epilogue_accesses(spec, spec.warp)


def _warp_tiles(spec: KernelSpec, warp: Tile) -> Iterator[Objection]:
    tile, instruction = spec.tile, spec.arch.instructions[spec.a.name]
    for axis, of_tile, of_warp, of_instruction in zip("mnk", tile, warp, instruction, strict=True):
        if of_tile % of_warp:
            yield Objection(
                key="tile",
                reason=f"tile.{axis}={of_tile} is not a multiple of warp.{axis}={of_warp}",
                fix=f"tile.{axis}={nearest_multiple(of_tile, of_warp)} is"
                if axis == "k" or of_warp in WARP_SIZES
                else "",  # the warp itself is refused below
            )
        if of_warp % of_instruction:
            yield Objection(
                key="warp",
                reason=f"warp.{axis}={of_warp} is not a multiple of the instruction's"
                f" {of_instruction}",
                fix=f"warp.{axis}={nearest_multiple(of_warp, of_instruction)} is",
            )
    if warp.k != tile.k:
        yield Objection(
            key="warp",
            reason=f"warp.k={warp.k} differs from tile.k={tile.k}: there is no sliced-K template",
            fix=f"set warp.k={tile.k}",
        )
    for axis, size in (("m", warp.m), ("n", warp.n)):
        if size not in WARP_SIZES:
            yield Objection(
                key="warp",
                reason=f"warp.{axis}={size} is not proven; warp tiles are 32 or 64 wide",
                fix=f"set warp.{axis}={32 if size < 48 else 64}",
            )
    depths = _depths(spec)
    if tile.k not in depths:
        words = " or ".join(str(depth) for depth in depths)
        yield Objection(
            key="tile",
            reason=f"tile.k={tile.k} of {spec.a}: {words} has a conflict-free layout in shared"
            f" memory on {spec.arch.name}",
            fix=f"set tile.k={min(depths, key=lambda depth: abs(depth - tile.k))}",
        )
    warps = (tile.m // warp.m) * (tile.n // warp.n)
    divided = tile.m % warp.m == 0 and tile.n % warp.n == 0  # else that is what is wrong
    if divided and not 2 <= warps <= 16:
        yield Objection(
            key="warp",
            reason=f"{warps} warps in a block; 2 to 16 have a template",
            fix=_other_warp(tile, few=warps < 2),
        )
    registers = accumulator_registers(spec)
    if registers > ACCUMULATORS_PER_THREAD:
        yield Objection(
            key="warp",
            reason=f"warp {warp.m}x{warp.n} keeps {registers} accumulator registers a thread,"
            f" {ACCUMULATORS_PER_THREAD} fit",
            fix=f"set warp: {[min(warp.m, 64), min(warp.n, 64), warp.k]}",
        )


def _other_warp(tile: Tile, *, few: bool) -> str:
    """Offer a warp tile that parts ``tile`` among 2 to 16 warps, the largest there is."""
    for m in reversed(WARP_SIZES):
        for n in reversed(WARP_SIZES):
            whole = tile.m % m == 0 and tile.n % n == 0
            if whole and 2 <= (tile.m // m) * (tile.n // n) <= 16:
                return f"set warp: {[m, n, tile.k]}"
    return "choose a larger tile" if few else "choose a smaller tile"


def _depths(spec: KernelSpec) -> tuple[int, ...]:
    """Depths of a 2.x tile: rows of 64 or 128 B suit the swizzles of its iterators."""
    widths = (64, 128) if spec.arch.async_copy else (64,)
    return tuple(width // spec.a.bytes for width in widths)


def _epilogue_accesses(spec: KernelSpec, warp: Tile) -> Iterator[Objection]:
    """2.x epilogues give each warp 32 accesses of 8 rows: 4 accesses must fit into its columns."""
    side = "m" if spec.layout[2] == "c" else "n"
    width = warp.m if side == "m" else warp.n
    stored = {"int8": (4, 8, 16), "fp16": (8,), "bf16": (8,)}.get(spec.d.name)
    if spec.a == INT8 and stored and spec.alignment.d not in stored:
        words = " or ".join(str(elements) for elements in stored)
        yield Objection(
            key="alignment",
            reason=f"d: int32 sums are stored as {spec.d} by {words} elements, not"
            f" {spec.alignment.d}",
            fix=f"set d: {stored[0]}",
        )
    elif 4 * spec.alignment.d > width:
        yield Objection(
            key="alignment",
            reason=f"d: stores of {spec.alignment.d} elements need warp.{side}="
            f"{4 * spec.alignment.d} or more, not {width}",
            fix=f"set d: {width // 4}, or warp.{side}={4 * spec.alignment.d}",
        )
