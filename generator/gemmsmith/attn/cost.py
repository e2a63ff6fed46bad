"""How long an attention kernel of many queries takes, by a rule that measurements on an H200 gave.

Of 56 calls at head sizes of 64 to 256, 512 to 16,384 tokens, causal and full, it tells the time
within 14 %, and which of two kernels is faster within 1 %.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gemmsmith.attn.choose import AttentionProblem
    from gemmsmith.attn.spec import AttentionSpec

_OF_A_QUERY = 32.0
"""Scores that each query of a tile costs besides its own: the maximum, and what it rescales."""
_OF_A_KEY = 107.0
"""Scores that each key of a tile costs besides its own: its way through shared memory."""
_SOFTMAX = 78.0
"""Elements of a head that multiply as long as a score's share of softmax takes."""
_PER_CLOCK = 2300.0
"""Scores times elements of a head, with these, that a multiprocessor computes in a clock."""
_BESIDE_KEYS = 0.63
"""Tiles of keys in whose time a tile of queries is begun and written."""
_OUT_OF_STEP = 1.01
"""What schedules lose whose warpgroups do not take turns."""
_ROUNDS_APART = 4
"""Tiles of a multiprocessor, up to which it matters which ones it gets."""


def tile_clocks(spec: AttentionSpec, problem: AttentionProblem, sms: int) -> float:
    """Return the clocks of the busiest multiprocessor, the launch left out."""
    lines = -(-problem.queries // spec.tile.query)
    lengths = [tiles_of_keys(spec, problem, line) + _BESIDE_KEYS for line in range(lines)]
    query, key = spec.tile
    scores = query * key + _OF_A_QUERY * query + _OF_A_KEY * key
    clocks = scores * (_SOFTMAX + spec.head_dim) / _PER_CLOCK
    if spec.schedule != "pingpong":
        clocks *= _OUT_OF_STEP
    return clocks * _busiest(lengths, problem, sms)


def tiles_of_keys(spec: AttentionSpec, problem: AttentionProblem, line: int) -> int:
    """Return the tiles of keys that the queries of a head's tile number ``line`` see."""
    end, first = problem.keys, 0
    if problem.causal:
        shift = problem.keys - problem.queries
        end = min(end, shift + (line + 1) * spec.tile.query)
        if problem.window:
            first = max(0, shift + line * spec.tile.query - problem.window + 1) // spec.tile.key
    return max(0, -(-end // spec.tile.key) - first)


def _busiest(lengths: list[int | float], problem: AttentionProblem, sms: int) -> float:
    """Return what the multiprocessor does that has most: ``lengths`` are of one head's tiles.

    Tiles are dealt as ``attention_schedule.h`` does it: where causal, the longest of all heads
    first; every second round goes backwards.
    """
    heads = problem.batch * problem.heads
    total = len(lengths) * heads
    blocks = min(total, sms)
    rounds = -(-total // blocks)
    if not problem.causal:
        return rounds * max(lengths)
    if rounds > _ROUNDS_APART:
        return sum(lengths) * heads / blocks
    loads = [0.0] * blocks
    for index in range(total):
        number, place = divmod(index, blocks)
        loads[blocks - 1 - place if number % 2 else place] += lengths[-1 - index // heads]
    return max(loads)
