"""How long an attention kernel takes whose blocks share the keys of a head: mostly to read them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gemmsmith.attn.choose import AttentionProblem
    from gemmsmith.attn.spec import AttentionSpec

_MEMORY_BYTES = 18.0
"""Bytes a clock that a multiprocessor of an H200 reads where all do, of 4.15 TB/s; twice that from
the L2 cache."""
_PRODUCTS = 512.0
"""Multiplications and additions of mma.sync a clock, fragments of eight queries at a time."""
_FIXED = 2500.0
"""Clocks in which a block begins, and what the blocks of a head found is put together."""
_EARLY = 1750.0
"""Clocks less after the kernel ahead, where keys are read before that has ended."""
_LEAST_KEYS = 64
"""Keys of a block, at least."""


def split_clocks(spec: AttentionSpec, problem: AttentionProblem, sms: int) -> float:
    """Return the clocks of the busiest multiprocessor, the launch left out."""
    keys = problem.keys
    if problem.window:
        keys = min(keys, problem.window + problem.queries - 1)
    groups = -(-problem.queries * problem.heads // problem.kv_heads // spec.tile.query)
    units = problem.batch * problem.kv_heads * groups
    bytes_of_key = 2 * problem.head_dim * spec.dtype.bytes
    memory = bytes_of_key / _MEMORY_BYTES * (1 + (groups - 1) / 2) / groups
    products = 2 * spec.tile.query * spec.head_dim / _PRODUCTS
    of_key = max(memory, products) + min(memory, products) / 4
    busy = min(sms, units * -(-keys // _LEAST_KEYS))
    begun = _EARLY if spec.constant_cache else 0.0
    return units * keys * of_key / busy + _FIXED - begun
