"""What lean kernels (wgmma and TMA without CUTLASS's loops, Hopper) ask of tiles and epilogues."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from gemmsmith.dtypes import FP32, INT8, INT32
from gemmsmith.errors import Objection
from gemmsmith.footprint import accumulator_registers, lean_warpgroups, nearest_multiple
from gemmsmith.spec import GATE_BLOCK

if TYPE_CHECKING:
    from gemmsmith.spec import KernelSpec

SLAB_BYTES = 128
"""Row of a tile in shared memory: the widest swizzle."""
LARGEST_CLUSTER = 8
"""Blocks of a cluster that every sm_90 takes."""
_REGISTERS_FREE = {1: 200, 2: 136, 3: 100}
"""By warpgroups that multiply: accumulators beside which a thread's other values fit.

With the warp that loads, rounded up to four, a thread has 255, 168 or 128 registers; 26 hold other
values. With fewer left, ptxas waits for each instruction and spills kilobytes, or gives up.
"""


def objections(spec: KernelSpec) -> Iterator[Objection]:
    """Yield what makes ``spec`` impossible; its numbers are positive and its keys of sm_90a."""
    yield from _tile(spec)
    yield from _early(spec)
    yield from _cluster(spec)
    yield from _epilogue(spec)


def _tile(spec: KernelSpec) -> Iterator[Objection]:
    tile = spec.device_tile
    m_side, n_side = ("n", "m") if spec.swap else ("m", "n")
    if tile.m not in (64, 128, 192, 256):
        yield Objection(
            key="tile",
            reason=f"tile.{m_side}={tile.m} is not 64, 128, 192 or 256, which one to three"
            " warpgroups share",
            fix=f"tile.{m_side}={min(256, nearest_multiple(tile.m, 64))} is",
        )
        return
    step = 16 if spec.a == INT8 and tile.n > 32 else 8
    if tile.n % step or tile.n > 256:
        yield Objection(
            key="tile",
            reason=f"tile.{n_side}={tile.n} is not a multiple of {step} up to 256 (wgmma's width)",
            fix=f"tile.{n_side}={min(256, nearest_multiple(tile.n, step))} is",
        )
    depth = SLAB_BYTES // spec.a.bytes
    if tile.k % depth:
        yield Objection(
            key="tile",
            reason=f"tile.k={tile.k} is not a multiple of {depth}, a row of {SLAB_BYTES} B",
            fix=f"tile.k={nearest_multiple(tile.k, depth)} is",
        )
    groups = lean_warpgroups(spec)
    sums, most = accumulator_registers(spec), _REGISTERS_FREE[groups]
    if sums > most:
        yield Objection(
            key="tile",
            reason=f"{spec.tile} keeps {sums} accumulator registers a thread; {most} fit beside"
            f" the rest with {groups} warpgroup{'s' * (groups > 1)}",
            fix="halve tile.m or tile.n",
        )


def _early(spec: KernelSpec) -> Iterator[Objection]:
    if spec.constant_b and not spec.dependent_launch:
        yield Objection(
            key="constant_b",
            reason="a kernel that reads B before the one ahead has ended must be started then",
            fix="set dependent_launch: true",
        )


def _cluster(spec: KernelSpec) -> Iterator[Objection]:
    cluster, tile = spec.device_cluster, spec.device_tile
    for key, name, size in (
        ("cluster", "cluster.m", spec.cluster.m),
        ("cluster", "cluster.n", spec.cluster.n),
        ("split_k", "split_k", spec.split_k),
    ):
        if size not in range(1, LARGEST_CLUSTER + 1):
            yield Objection(
                key=key,
                reason=f"{name}={size}; a cluster has 1 to {LARGEST_CLUSTER} blocks",
                fix=f"set {name}={min(max(size, 1), LARGEST_CLUSTER)}",
            )
    blocks = spec.cluster.size * spec.split_k
    if blocks > LARGEST_CLUSTER and max(*spec.cluster, spec.split_k) <= LARGEST_CLUSTER:
        most = LARGEST_CLUSTER // spec.cluster.size  # 0: whatever split_k is
        split = f" with split_k {spec.split_k}" if spec.split_k > 1 else ""
        yield Objection(
            key="split_k" if most else "cluster",
            reason=f"cluster {list(spec.cluster)}{split} is {blocks} blocks;"
            f" {LARGEST_CLUSTER} is the most",
            fix=f"set split_k: {most}" if most else f"set a product of {LARGEST_CLUSTER} or less",
        )
    sides = (("a", tile.m, cluster.n), ("b", tile.n, cluster.m))
    for operand, rows, sharing in sides:
        named = {"a": "b", "b": "a"}[operand] if spec.swap else operand
        if sharing > 0 and rows % sharing:
            yield Objection(
                key="cluster",
                reason=f"{sharing} blocks share {named}'s tile of {rows} rows, which does not"
                " divide evenly",
                fix="choose a smaller cluster or a larger tile",
            )
        elif sharing > 0 and rows // sharing > 256:
            yield Objection(
                key="tile",
                reason=f"{rows // sharing} rows of {named} are over the 256 of a TMA box",
                fix="choose a smaller tile",
            )


def _epilogue(spec: KernelSpec) -> Iterator[Objection]:
    if spec.layout != "rcr":
        yield Objection(
            key="layout",
            reason=f"{spec.layout}: lean kernels read both operands along K and write rows",
            fix="use rcr, or another schedule",
        )
    wanted = INT32 if spec.a == INT8 else FP32
    if spec.acc != wanted:
        yield Objection(
            key="dtype",
            reason=f"acc {spec.acc}: lean kernels sum {spec.a} in {wanted}",
            fix=f"set acc: {wanted}",
        )
    if spec.d == INT32:
        yield Objection(
            key="dtype",
            reason="d int32: lean kernels finish in fp32",
            fix="set d: bf16, or another schedule",
        )
    if spec.zero_point:
        yield Objection(
            key="epilogue",
            reason="zero_point: lean kernels have no such epilogue",
            fix="drop zero_point, or choose another schedule",
        )
    block = 2 * GATE_BLOCK
    if spec.gate != "none" and spec.tile.n % block:
        yield Objection(
            key="tile",
            reason=f"tile.n={spec.tile.n} is not a multiple of {block}, the blocks of gate and up",
            fix=f"tile.n={nearest_multiple(spec.tile.n, block)} is",
        )
    if spec.d == INT8 and spec.residual:
        yield Objection(
            key="epilogue",
            reason="residual with d int8: lean kernels scale and round the product alone",
            fix="set residual: false",
        )
