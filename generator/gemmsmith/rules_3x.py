"""What CUTLASS's 3.x kernels (wgmma and TMA, Hopper) ask of tiles and clusters."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from gemmsmith.errors import Objection
from gemmsmith.footprint import accumulator_registers, nearest_multiple

if TYPE_CHECKING:
    from gemmsmith.spec import KernelSpec

ACCUMULATORS_PER_THREAD = 208  # 240 registers after setmaxnreg, less addresses and fragments


def objections(spec: KernelSpec) -> Iterator[Objection]:
    """Yield what makes ``spec`` impossible; its numbers are positive and its keys of this API."""
    yield from _warpgroup_tiles(spec)
    yield from _clusters(spec)
    yield from _tma_boxes(spec)
    yield from _stores(spec)


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
            fix=f"tile.{m_side}={nearest_multiple(tile.m, step)} is",
        )
    width = 16  # wgmma steps by 8 (int8: by 16), but most collectives do not compile for 8
    if tile.n % width or tile.n > 256:
        yield Objection(
            key="tile",
            reason=f"tile.{n_side}={tile.n} is not a multiple of {width} up to 256 (wgmma's width)",
            fix=f"tile.{n_side}={min(256, nearest_multiple(tile.n, width))} is",
        )
    depth = spec.arch.instructions[spec.a.name][2]
    if tile.k % depth:
        yield Objection(
            key="tile",
            reason=f"tile.k={tile.k} is not a multiple of the instruction's {depth}",
            fix=f"tile.k={nearest_multiple(tile.k, depth)} is",
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


def _stores(spec: KernelSpec) -> Iterator[Objection]:
    gated = spec.gate != "none"
    if gated != (spec.store == "strip"):
        yield Objection(
            key="store",
            reason=f"store {spec.store}, gate {spec.gate}: strip is the store of gated kernels",
            fix="set store: strip" if gated else "set store: tma",
        )
    if gated and spec.schedule == "warp_specialized":
        yield Objection(
            key="schedule",
            reason="a gated kernel keeps strips beside its main loop, which persistent ones have",
            fix="set schedule: pingpong or cooperative",
        )
    if gated and spec.scheduler == "stream_k":
        yield Objection(
            key="scheduler",
            reason="stream_k is built with store tma only",
            fix="set scheduler: static",
        )
    if gated and spec.layout[2] == "c":
        yield Objection(
            key="layout", reason="a gated kernel writes rows", fix=f"use {spec.layout[:2]}r"
        )
    if spec.store == "direct" and (spec.activation != "none" or spec.scaled or spec.zero_point):
        yield Objection(
            key="store",
            reason="store direct adds bias and residual alone",
            fix="set store: tma",
        )
