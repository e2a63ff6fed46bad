"""How long attention of many queries takes on mma.sync: reckoned, not measured on its hardware."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gemmsmith.attn.cost import tiles_of_keys

if TYPE_CHECKING:
    from gemmsmith.attn.choose import AttentionProblem
    from gemmsmith.attn.spec import AttentionSpec

_PRODUCTS = 512.0
"""Multiplications and additions of mma.sync that a multiprocessor computes in a clock: as in
``cost_split_kv``, so that the two kinds compare."""
_BESIDE_KEYS = 0.6
"""Tiles of keys in whose time a tile of queries is begun and written."""
_SIDE_BY_SIDE = 2
"""Blocks that a multiprocessor needs to be busy: one alone computes at this part of the rate."""


def multistage_clocks(spec: AttentionSpec, problem: AttentionProblem, sms: int) -> float:
    """Return the clocks of the busiest multiprocessor, the launch left out."""
    lines = -(-problem.queries // spec.tile.query)
    lengths = [tiles_of_keys(spec, problem, line) + _BESIDE_KEYS for line in range(lines)]
    query, key = spec.tile
    scores = -(-problem.head_dim // 32) * 32
    sums = -(-problem.head_dim // key) * key
    of_tile = query * key * (scores + sums) / _PRODUCTS
    total = sum(lengths) * problem.batch * problem.heads
    return of_tile * max(total / sms, _SIDE_BY_SIDE * max(lengths))
