"""The one statement of what kernels can exist; what calls they take is in :mod:`gemmsmith.fit`.

Loader, ``explain``, tuner and dispatcher all ask here. A rule is one function that yields
objections; each names its hardware or CUTLASS reason at the end of the clause.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from gemmsmith.arch import SM_90A
from gemmsmith.errors import IllegalKernelError, Objection
from gemmsmith.footprint import (
    MAX_STAGES,
    accumulator_registers,
    shared_memory,
    stages_that_fit,
)
from gemmsmith.legality_types import element_types

if TYPE_CHECKING:
    from gemmsmith.spec import KernelSpec

ACCUMULATORS_PER_THREAD = 208  # 240 registers after setmaxnreg, less addresses and fragments
WARP_SIZES = (32, 64)  # rows and columns of 2.x warp tiles; every pair is proven on integer data
MULTISTAGE_ACCUMULATORS_PER_THREAD = 128  # 255 registers less two stages of A and B fragments


def check_spec(spec: KernelSpec) -> None:
    """Raise :class:`IllegalKernelError` with every rule that ``spec`` breaks."""
    found = list(objections(spec))
    if found:
        raise IllegalKernelError(found)


def objections(spec: KernelSpec) -> Iterator[Objection]:
    """Yield what makes ``spec`` impossible; nothing for a legal kernel."""
    basic = [*element_types(spec), *_keys_of_the_api(spec), *_positive(spec)]
    yield from basic
    if basic:
        return  # the rules below divide by these numbers
    if spec.arch.api == "2.x":
        yield from _warp_tiles(spec)
    else:
        yield from _warpgroup_tiles(spec)
        yield from _clusters(spec)
        yield from _tma_boxes(spec)
    yield from _alignments(spec)
    yield from _stages(spec)
    yield from _shared_memory(spec)


def _keys_of_the_api(spec: KernelSpec) -> Iterator[Objection]:
    arch = spec.arch
    if spec.schedule not in arch.schedules:
        yield Objection(
            key="schedule",
            reason=f"{arch.name} has {', '.join(arch.schedules)}, not {spec.schedule}"
            + (", which needs sm_90a" if spec.schedule in SM_90A.schedules else ""),
            fix=f"set schedule: {arch.schedules[0]}",
        )
    if spec.store not in arch.stores:
        yield Objection(
            key="store",
            reason=f"{arch.name} has {', '.join(arch.stores)}, not {spec.store}",
            fix=f"set store: {arch.stores[0]}",
        )
    if arch.api == "2.x":
        if spec.cluster.size != 1:
            yield Objection(
                key="cluster",
                reason=f"cluster {list(spec.cluster)} needs sm_90a; {arch.name} has no clusters",
                fix="set cluster: [1, 1]",
            )
        if spec.swap:
            yield Objection(
                key="swap",
                reason="2.x kernels store row-major in either operand order: swap changes nothing",
                fix="set swap: false",
            )
        if spec.scheduler != "static":
            yield Objection(
                key="scheduler",
                reason=f"{spec.scheduler} needs sm_90a",
                fix="set scheduler: static",
            )
        if spec.bias and spec.layout[2] == "c":
            yield Objection(
                key="epilogue",
                reason=f"a 2.x kernel adds its bias along the rows that it stores,"
                f" and {spec.layout} stores columns",
                fix="set epilogue: {bias: false}, or a layout that ends in r",
            )
        if spec.warp is None:
            yield Objection(
                key="warp",
                reason="2.x kernels need a warp tile",
                fix="for example warp: [64, 64, 32]",
            )
        if spec.stages is None:
            fix = "set stages: 3" if arch.async_copy else "set stages: 2"
            yield Objection(key="stages", reason="2.x kernels need a number of stages", fix=fix)
        return
    if spec.warp is not None:
        yield Objection(
            key="warp",
            reason="3.x kernels divide a tile by warpgroups, not by warps",
            fix="remove warp",
        )
    if spec.scheduler == "stream_k" and spec.schedule != "cooperative":
        yield Objection(
            key="scheduler",
            reason=f"stream_k needs schedule cooperative, not {spec.schedule}",  # CUTLASS 4.2
            fix="set schedule: cooperative",
        )
    if spec.scheduler == "stream_k" and spec.store == "direct":
        yield Objection(
            key="scheduler", reason="stream_k is built with store tma only", fix="set store: tma"
        )


def _positive(spec: KernelSpec) -> Iterator[Objection]:
    sizes = {"tile": spec.tile, "cluster": spec.cluster, "alignment": spec.alignment}
    if spec.warp is not None:
        sizes["warp"] = spec.warp
    for key, values in sizes.items():
        if min(values) < 1:
            yield Objection(key=key, reason=f"{list(values)} holds a number below 1")
    if spec.stages is not None and not 2 <= spec.stages <= MAX_STAGES:
        yield Objection(
            key="stages",
            reason=f"{spec.stages} is outside 2 to {MAX_STAGES}:"
            " loads overlap with math from 2 buffers on",
        )


def _warp_tiles(spec: KernelSpec) -> Iterator[Objection]:
    assert spec.warp is not None
    tile, warp, instruction = spec.tile, spec.warp, spec.arch.instructions[spec.a.name]
    for axis, of_tile, of_warp, of_instruction in zip("mnk", tile, warp, instruction, strict=True):
        if of_tile % of_warp:
            yield Objection(
                key="tile",
                reason=f"tile.{axis}={of_tile} is not a multiple of warp.{axis}={of_warp}",
                fix=f"tile.{axis}={_multiple_near(of_tile, of_warp)} is"
                if axis == "k" or of_warp in WARP_SIZES
                else "",  # the warp itself is refused below
            )
        if of_warp % of_instruction:
            yield Objection(
                key="warp",
                reason=f"warp.{axis}={of_warp} is not a multiple of the instruction's"
                f" {of_instruction}",
                fix=f"warp.{axis}={_multiple_near(of_warp, of_instruction)} is",
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
            fix="change warp or tile",
        )
    registers = accumulator_registers(spec)
    if registers > MULTISTAGE_ACCUMULATORS_PER_THREAD:
        yield Objection(
            key="warp",
            reason=f"warp {warp.m}x{warp.n} keeps {registers} accumulator registers a thread,"
            f" {MULTISTAGE_ACCUMULATORS_PER_THREAD} fit",
        )


def _depths(spec: KernelSpec) -> tuple[int, ...]:
    """Depths of a 2.x tile: rows of 64 or 128 B suit the swizzles of its iterators."""
    widths = (64, 128) if spec.arch.async_copy else (64,)
    return tuple(width // spec.a.bytes for width in widths)


def _warpgroup_tiles(spec: KernelSpec) -> Iterator[Objection]:
    tile = spec.device_tile
    m_side, n_side = ("n", "m") if spec.swap else ("m", "n")
    swapped = " (wgmma's M side, because swap is on)" if spec.swap else ""
    step = 128 if spec.schedule == "cooperative" else 64  # 64 rows a warpgroup, coop has two
    if tile.m % step:
        yield Objection(
            key="tile",
            reason=f"tile.{m_side}={tile.m}{swapped} is not a multiple of {step},"
            f" which {spec.schedule} needs",
            fix=f"tile.{m_side}={_multiple_near(tile.m, step)} is",
        )
    width = 16  # wgmma steps by 8 (int8: by 16), but the collectives do not compile for 8
    if tile.n % width or tile.n > 256:
        yield Objection(
            key="tile",
            reason=f"tile.{n_side}={tile.n} is not a multiple of {width} up to 256 (wgmma's width)",
            fix=f"tile.{n_side}={min(256, _multiple_near(tile.n, width))} is",
        )
    depth = spec.arch.instructions[spec.a.name][2]
    if tile.k % depth:
        yield Objection(
            key="tile",
            reason=f"tile.k={tile.k} is not a multiple of the instruction's {depth}",
            fix=f"tile.k={_multiple_near(tile.k, depth)} is",
        )
    accumulators = accumulator_registers(spec)
    if accumulators > ACCUMULATORS_PER_THREAD:
        shared = accumulators // 2 <= ACCUMULATORS_PER_THREAD and tile.m % 128 == 0 and step == 64
        yield Objection(
            key="tile",
            reason=f"{spec.tile} keeps {accumulators} accumulator registers a thread with"
            f" {spec.schedule}; {ACCUMULATORS_PER_THREAD} fit beside the rest",
            fix="halve tile.m or tile.n" + (", or set schedule: cooperative" if shared else ""),
        )


def _clusters(spec: KernelSpec) -> Iterator[Objection]:
    cluster, tile = spec.device_cluster, spec.device_tile
    for axis, size in zip("mn", spec.cluster, strict=True):
        if size not in (1, 2, 4, 8):
            yield Objection(
                key="cluster",
                reason=f"cluster.{axis}={size}; 1, 2, 4 and 8 have kernels"
                " (a multicast splits the tile evenly)",
                fix=f"set cluster.{axis}={1 << min(3, size.bit_length() - 1)}",
            )
    if spec.cluster.size > 8:  # portable cluster size of sm_90
        yield Objection(
            key="cluster",
            reason=f"{list(spec.cluster)} is {spec.cluster.size} blocks; 8 is the most",
            fix="set a product of 8 or less",
        )
    # TMA writes each block's share of a multicast tile at a multiple of 128 B
    a, b = ("a", "b") if not spec.swap else ("b", "a")
    k_major = {"a": spec.layout[0] == "r", "b": spec.layout[1] == "c"}
    for operand, width, sharing in ((a, tile.m, cluster.n), (b, tile.n, cluster.m)):
        rows, columns = (width, tile.k) if k_major[operand] else (tile.k, width)
        share = rows // sharing * min(128, columns * spec.a.bytes)
        if rows % sharing or share % 128:
            yield Objection(
                key="cluster",
                reason=f"{sharing} blocks share {operand}'s tile of {rows} rows of"
                f" {columns * spec.a.bytes} B: {share} B each, not a multiple of TMA's 128",
                fix="choose a smaller cluster or a deeper tile.k",
            )


def _tma_boxes(spec: KernelSpec) -> Iterator[Objection]:
    cluster, tile = spec.device_cluster, spec.device_tile
    m_side, n_side = ("n", "m") if spec.swap else ("m", "n")
    for side, rows, sharing in ((m_side, tile.m, cluster.n), (n_side, tile.n, cluster.m)):
        if rows > 256 * sharing:  # cuTensorMapEncodeTiled: a box is at most 256 elements a side
            yield Objection(
                key="tile",
                reason=f"tile.{side}={rows} shared by {sharing} block(s) is over the 256 rows of a"
                " TMA box",
                fix=f"tile.{side}=256 is legal",
            )


def _alignments(spec: KernelSpec) -> Iterator[Objection]:
    for operand, elements, dtype in zip(
        "abd", spec.alignment, (spec.a, spec.b, spec.d), strict=True
    ):
        most = 16 // dtype.bytes  # 16 B: widest load, and what TMA demands
        if spec.arch.api == "3.x":
            least = 1 if operand == "d" and spec.store == "direct" else most
            why = "TMA addresses in steps of 16 B"
        elif operand == "d":
            least, why = 1, ""
        else:
            least = 1 if spec.stages == 2 else 4 // dtype.bytes
            why = "cp.async copies 4 B or more; stages: 2 goes without it"
        if elements & (elements - 1) or not least <= elements <= most:
            yield Objection(
                key="alignment",
                reason=f"{operand}: {elements} elements of {dtype.bytes} B;"
                f" a power of two from {least} to {most} is legal" + (f" ({why})" if why else ""),
                fix=f"set {operand}: {most}",
            )


def _stages(spec: KernelSpec) -> Iterator[Objection]:
    if spec.stages != 2 and not spec.arch.async_copy:
        yield Objection(
            key="stages",
            reason=f"{spec.arch.name} has no cp.async: a main loop has 2 stages, not {spec.stages}",
            fix="set stages: 2",
        )


def _shared_memory(spec: KernelSpec) -> Iterator[Objection]:
    limit = spec.arch.smem_per_block
    stages = spec.stages or 2
    needed = shared_memory(spec, stages)
    if needed <= limit:
        return
    fitting = stages_that_fit(spec)
    if fitting >= 2:
        fix = f"at most {fitting} stages fit: {shared_memory(spec, fitting):,} B"
    else:
        halved = f"tile k {spec.tile.k // 2} halves it"
        fix = halved if spec.tile.k >= 32 else "choose a smaller tile"
        fix = f"only 1 stage fits, {shared_memory(spec, 1):,} B; {fix}" if fitting else fix
    yield Objection(
        key="stages",
        reason=f"{spec.tile} with stages {stages} needs {needed:,} B of shared memory,"
        f" {spec.arch.name} has {limit:,}",
        fix=fix,
    )


def _multiple_near(value: int, step: int) -> int:
    return max(step, round(value / step) * step)
