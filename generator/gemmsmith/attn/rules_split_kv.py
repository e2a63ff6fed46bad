"""What kernels whose blocks share the keys of a head ask, and take of a multiprocessor."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from gemmsmith.errors import Objection
from gemmsmith.footprint import nearest_multiple

if TYPE_CHECKING:
    from gemmsmith.attn.spec import AttentionSpec

ROWS = 8
"""Queries of one product: columns of mma.sync."""
_SUMS = 2048
"""Most sums of a warp, queries times head: beyond it no registers are left for the rest."""
OTHER_REGISTERS = 72
"""What a thread needs beside sums, queries and scores."""
_MOST_KEY_WARPS = 15
"""A named barrier for each, and one for the block."""
_WARP_KEYS = (16, 32)
_CLUSTERS = (1, 2, 4, 8)


def threads(spec: AttentionSpec) -> int:
    """Return the threads of a block."""
    assert spec.warps is not None, "legal split_kv kernels have warps"
    return 32 * spec.warps.query * spec.warps.key


def registers(spec: AttentionSpec) -> int:
    """Return about how many registers a thread takes."""
    assert spec.warps is not None, "legal split_kv kernels have warps"
    eights = spec.tile.query // spec.warps.query // ROWS
    scores = 6 * eights * spec.tile.key // spec.warps.key // 16
    return 3 * eights * spec.head_dim // 8 + scores + OTHER_REGISTERS


def register_limit(spec: AttentionSpec) -> int:
    """Return the registers that a thread may have."""
    return min(255, spec.arch.multiprocessor.registers // threads(spec))


def shared_bytes(spec: AttentionSpec, stages: int) -> int:
    """Return the shared memory of a block: the buffers, or what is put together after the loop; and
    angles, and q, a key and a value of a call that appends."""
    assert spec.warps is not None, "legal split_kv kernels have warps"
    loop = 2 * stages * spec.tile.key * 2 * spec.head_dim
    rows, parts = spec.tile.query, spec.warps.key
    finish = 4 * parts * rows * (spec.head_dim + 6) + 16 * rows + 16
    own = (rows + 2) * 16 * (spec.head_dim // 8 | 1)
    return max(loop, finish) + 4 * spec.head_dim + own


def split_kv(spec: AttentionSpec) -> Iterator[Objection]:
    """Yield what makes a ``split_kv`` kernel impossible."""
    arch, tile, warps = spec.arch, spec.tile, spec.warps
    if not arch.async_copy:
        yield Objection(
            key="schedule",
            reason=f"split_kv attention copies in the background, which {arch.name} cannot",
            fix="sm_80 and later can",
        )
        return
    if spec.cluster not in _CLUSTERS:
        yield Objection(
            key="cluster",
            reason=f"cluster {spec.cluster} is none of {', '.join(map(str, _CLUSTERS))} blocks",
            fix=f"{min(_CLUSTERS, key=lambda size: abs(size - spec.cluster))} is legal",
        )
    elif spec.cluster > 1 and not arch.clusters:
        yield Objection(
            key="cluster",
            reason=f"{arch.name} has no clusters, cluster {spec.cluster} needs them",
            fix="leave it out",
        )
    if spec.constant_cache and not spec.dependent_launch:
        yield Objection(
            key="constant_cache",
            reason="constant_cache reads keys before the kernel ahead has ended, and on"
            f" {arch.name} none starts before that",
            fix="leave it out",
        )
    if spec.stages < 1:
        yield Objection(key="stages", reason=f"stages {spec.stages} is below 1", fix="2 is legal")
        return
    if warps is None:
        yield Objection(
            key="warps",
            reason="split_kv attention needs warps: how many divide the queries, how many the keys",
            fix="warps: [1, 4]",
        )
        return
    if warps.query < 1 or not 1 <= warps.key <= _MOST_KEY_WARPS or threads(spec) > 1024:
        yield Objection(
            key="warps",
            reason=f"warps {warps} are {32 * warps.query * warps.key} threads; a block has up to"
            f" 1024, and 1 to {_MOST_KEY_WARPS} warps along keys",
        )
        return
    step = ROWS * warps.query
    if tile.query < step or tile.query % step:
        yield Objection(
            key="tile",
            reason=f"tile {tile} has {tile.query} queries, no multiple of 8 for each of"
            f" {warps.query} warps",
            fix=f"{max(step, nearest_multiple(tile.query, step))} is",
        )
        return
    if tile.key not in {keys * warps.key for keys in _WARP_KEYS}:
        few, many = (keys * warps.key for keys in _WARP_KEYS)
        yield Objection(
            key="tile",
            reason=f"tile {tile} has {tile.key} keys; {warps.key} warps take 16 or 32 each",
            fix=f"{few} or {many} is legal",
        )
        return
    queries, most = tile.query // warps.query, _SUMS // spec.head_dim
    if queries > most:
        yield Objection(
            key="tile",
            reason=f"{queries} queries a warp of head_dim {spec.head_dim} are more sums than a warp"
            " has registers for",
            fix=f"up to {most} are legal: lower the queries of the tile or raise their warps",
        )
        return
    limit = register_limit(spec)
    if registers(spec) > limit:
        yield Objection(
            key="warps",
            reason=f"{threads(spec)} threads have {limit} registers each, tile {tile} of head_dim"
            f" {spec.head_dim} takes {registers(spec)}",
            fix="lower the warps",
        )
    size, room = shared_bytes(spec, spec.stages), arch.smem_per_block
    if size > room:
        yield Objection(
            key="stages",
            reason=f"tile {tile} of head_dim {spec.head_dim} with {spec.stages} stages needs"
            f" {size:,} B of shared memory, {arch.name} has {room:,}",
            fix="lower stages or the keys of the tile",
        )
