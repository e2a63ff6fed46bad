"""What attention kernels on mma.sync ask, from Volta to Ada, and take of a multiprocessor.

They are the kernel of CUTLASS's example 41, whose warps compute 32 queries by 32 keys.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from gemmsmith.dtypes import BF16
from gemmsmith.errors import Objection

if TYPE_CHECKING:
    from gemmsmith.arch import Architecture
    from gemmsmith.attn.spec import AttentionSpec

STEP = 32
"""Queries and keys of a warp, and elements of a head or keys that one buffer holds."""
_QUERIES = (32, 64, 128)
_KEYS = (64, 128)


def stages(arch: Architecture) -> int:
    """Return the buffers that CUTLASS's kernel has on ``arch``."""
    return 4 if arch.async_copy else 2


def needs_sums(spec: AttentionSpec) -> bool:
    """Return whether sums are kept in memory, f32: registers hold as many columns as keys."""
    return spec.head_dim > spec.tile.key


def threads(spec: AttentionSpec) -> int:
    """Return the threads of a block."""
    return spec.tile.query * spec.tile.key // STEP


def registers(spec: AttentionSpec) -> int:
    """Return about how many registers a thread takes: what CUTLASS's launch bounds leave."""
    return 128 if spec.arch.async_copy else 168


def shared_bytes(spec: AttentionSpec) -> int:
    """Return the shared memory of a block: buffers of queries and keys, or what follows them.

    That is the probabilities, buffers of values, and sums on their way to memory.
    """
    query, key = spec.tile
    size, volta = spec.dtype.bytes, spec.arch.name == "sm_70"
    of_rows = query * (16 + 4 * key // STEP)
    first = spec.stages if needs_sums(spec) else min(spec.stages, -(-spec.head_dim // STEP))
    products = first * (query + key) * STEP * size
    probabilities = query * (key + (0 if volta else 8)) * size
    values = min(spec.stages, key // STEP) * STEP * key * size
    sums = query * (key + (2 if volta else 8)) * size if needs_sums(spec) else 0
    return of_rows + max(products, probabilities + values + sums)


def multistage(spec: AttentionSpec) -> Iterator[Objection]:
    """Yield what makes a ``multistage`` kernel impossible."""
    arch, tile = spec.arch, spec.tile
    if arch.api != "2.x":
        yield Objection(
            key="schedule",
            reason=f"multistage attention is for Volta to Ada; {arch.name} has wgmma",
            fix="pingpong is its schedule",
        )
        return
    if spec.dtype == BF16 and BF16 not in arch.inputs:
        yield Objection(
            key="dtype",
            reason=f"{arch.name} tensor cores take fp16, not bf16",
            fix="bf16 needs sm_80 or later",
        )
    if tile.query not in _QUERIES or tile.key not in _KEYS:
        yield Objection(
            key="tile",
            reason=f"tile {tile} is none of 32, 64 or 128 queries and 64 or 128 keys, which"
            " CUTLASS's kernel has",
            fix="64x64 is for head_dim 64, 64x128 for wider ones",
        )
        return
    if spec.stages != stages(arch):
        how = "in the background" if arch.async_copy else "through registers"
        yield Objection(
            key="stages",
            reason=f"stages {spec.stages}: CUTLASS's kernel copies {how} on {arch.name}, with"
            f" {stages(arch)}",
            fix=f"{stages(arch)} is legal",
        )
        return
    size, room = shared_bytes(spec), arch.smem_per_block
    if size > room:
        yield Objection(
            key="tile",
            reason=f"tile {tile} of head_dim {spec.head_dim} needs {size:,} B of shared memory,"
            f" {arch.name} has {room:,}",
            fix="lower the queries of the tile",
        )
