"""What CUTLASS's 2.x kernels (mma.sync, Volta to Ada) ask of tiles, warps and stores."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from gemmsmith.dtypes import INT8
from gemmsmith.errors import Objection
from gemmsmith.footprint import accumulator_registers, nearest_multiple
from gemmsmith.rules_loads import MOST_PREDICATES, least_alignment, loads_evenly, whole_rows

if TYPE_CHECKING:
    from gemmsmith.spec import KernelSpec, Tile

WARP_SIZES = (32, 64)  # rows and columns of warp tiles; every pair is proven on integer data
ACCUMULATORS_PER_THREAD = 128  # 255 registers less two stages of A and B fragments
MOST_WARPS = 8  # 255 registers of each thread, the most there are, fill a multiprocessor
MOST_LIGHT_WARPS = 16  # where a thread keeps few registers: 128 are left for each
LIGHT_ACCUMULATORS = 32  # and 3 stages: loads go by cp.async, not through registers


def objections(spec: KernelSpec) -> Iterator[Objection]:
    """Yield what makes ``spec`` impossible; its numbers are positive and its keys of this API."""
    assert spec.warp is not None, "2.x kernels without a warp tile are refused before"
    yield from _warp_tiles(spec, spec.warp)
    if not spec.tile.m % spec.warp.m and not spec.tile.n % spec.warp.n:
        yield from _warps(spec, spec.warp)  # else that is what is wrong
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
    registers = accumulator_registers(spec)
    if registers > ACCUMULATORS_PER_THREAD:
        yield Objection(
            key="warp",
            reason=f"warp {warp.m}x{warp.n} keeps {registers} accumulator registers a thread,"
            f" {ACCUMULATORS_PER_THREAD} fit",
            fix=f"set warp: {[min(warp.m, 64), min(warp.n, 64), warp.k]}",
        )


def _warps(spec: KernelSpec, warp: Tile) -> Iterator[Objection]:
    warps = _count(spec, warp)
    most = _most_warps(spec, warp)
    if not 2 <= warps <= most:
        light = f"; up to {MOST_LIGHT_WARPS} with {LIGHT_ACCUMULATORS} accumulators a thread and 3"
        yield Objection(
            key="warp",
            reason=f"{warps} warps in a block; 2 to {most} have registers"
            + (f"{light} stages" if most == MOST_WARPS else ""),
            fix=_other_warp(spec, few=warps < 2),
        )
        return
    for operand, axis, size in (("a", "m", spec.tile.m), ("b", "n", spec.tile.n)):
        step = whole_rows(spec, operand)
        if size % step:
            yield Objection(
                key="tile",
                reason=f"tile.{axis}={size} is not a multiple of {step}, which loads of"
                f" {operand} with contiguous {axis} take at a time",
                fix=f"tile.{axis}={nearest_multiple(size, step)} is",
            )
        elif not loads_evenly(spec, operand, warps):
            yield Objection(
                key="warp",
                reason=f"{warps} warps cannot load {operand}'s tile of {size}x{spec.tile.k} in"
                " equal parts of 32 times 16 B",
                fix=_other_warp(spec, few=False),
            )
        elif (elements := getattr(spec.alignment, operand)) < (
            least := least_alignment(spec, operand, warps)
        ):
            yield Objection(
                key="alignment",
                reason=f"{operand}: {warps} warps load a tile of {size}x{spec.tile.k} by {elements}"
                f" elements with over {MOST_PREDICATES} loads a thread",
                fix=f"set {operand}: {least}, or more warps",
            )


def _count(spec: KernelSpec, warp: Tile) -> int:
    return (spec.tile.m // warp.m) * (spec.tile.n // warp.n)


def _most_warps(spec: KernelSpec, warp: Tile) -> int:
    """Warps of a block whose registers are there, however many the compiler takes."""
    accumulators = warp.m * warp.n // 32 * spec.acc.bytes // 4
    light = accumulators <= LIGHT_ACCUMULATORS and (spec.stages or 0) > 2
    return MOST_LIGHT_WARPS if light else MOST_WARPS


def _other_warp(spec: KernelSpec, *, few: bool) -> str:
    """Offer a warp tile that parts the tile among as many warps as can be, the largest there is."""
    for m in reversed(WARP_SIZES):
        for n in reversed(WARP_SIZES):
            warp = spec.tile._replace(m=m, n=n)
            if spec.tile.m % m or spec.tile.n % n:
                continue
            warps = _count(spec, warp)
            even = all(loads_evenly(spec, operand, warps) for operand in "ab")
            if 2 <= warps <= _most_warps(spec, warp) and even:
                return f"set warp: {list(warp)}"
    return "choose a larger tile" if few else "choose a tile with sides of 64, 128 or 256"


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
