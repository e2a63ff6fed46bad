"""Steps of decoding that append to a cache: the call, and the same once RoPE and cache are done."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attention_data import tokens
from gemmsmith.attn.arguments import Attention, Newest
from gemmsmith.rope_math import rope_frequencies, rotated
from paged_data import NAN, poisoned, scattered

FACTOR = 1.25


class Step(NamedTuple):
    """A step of two sequences in a cache of ``keys``, and what RoPE turns."""

    lengths: list[int]
    keys: int
    heads: int
    kv_heads: int
    page: int = 0
    splits: int = 0
    narrower: int = 0
    pairs: int | None = 16
    """None: half a head, 0: nothing is turned."""
    interleaved: bool = False
    wide: bool = False
    how: dict[str, Any] = {}  # noqa: RUF012


STEPS = (
    Step([1, 2], 5, 2, 2, pairs=None),
    Step([200, 17], 200, 7, 1, splits=5, pairs=None, wide=True),
    Step([0, 257], 257, 3, 1, splits=3),
    Step([200, 161], 200, 8, 2, page=16, interleaved=True, pairs=4, how={"softcap": 5.0}),
    Step([130, 129], 130, 8, 2, page=64, splits=4, pairs=0),
    Step([300, 64], 200, 17, 1, how={"window": 40}),  # no room for the first's newest
    Step([140, 33], 140, 4, 4, splits=2, narrower=8, pairs=8, how={"window": 3, "scale": -0.3}),
    Step([70, 65], 96, 40, 1, interleaved=True, pairs=None),  # more rows than a block has
)


def place_of(memory: Tensor, table: Tensor | None, sequence: int, key: int) -> Tensor:
    """Return the place of a key in a cache, (Hkv, D)."""
    if table is None:
        return memory[sequence, key]
    return memory[table[sequence, key // memory.shape[1]], key % memory.shape[1]]


def angles_of_a_kernel(positions: Tensor, inv_freq: Tensor) -> tuple[Tensor, Tensor]:
    """Return cosine and sine times FACTOR of angles whose part of a turn is rounded to f32."""
    turns = positions.double()[..., None, None] * inv_freq.double() * 0.15915494309189535
    part = (2.0 * (turns - turns.round()).float()).double() * math.pi
    return part.cos().float() * FACTOR, part.sin().float() * FACTOR


def prepared(
    dtype: torch.dtype, size: int, step: Step, device: str = "cpu"
) -> tuple[Attention, Attention]:
    """Return the call that appends, and the same once RoPE and cache are done."""
    size -= step.narrower
    way: dict[str, Any] = {"dtype": dtype, "device": device}
    q, k, v = tokens(2, 1, step.keys, step.heads, step.kv_heads, size, **way)
    ends = [min(length, step.keys) for length in step.lengths]
    table = None
    if step.page:
        k, v, table = scattered(k, v, ends, step.page)
    else:
        k, v = poisoned(k, v, ends)
    _, new_k, new_v = tokens(2, 1, 1, step.kv_heads, step.kv_heads, size, **way)
    pairs = size // 16 * 8 if step.pairs is None else step.pairs
    inv_freq = None
    q_turned, k_turned = q, new_k
    if pairs:
        inv_freq = rope_frequencies(2 * pairs).to(device)
        inv_freq = inv_freq if step.wide else inv_freq.float()
        positions = torch.tensor(step.lengths, device=device)[:, None] - 1
        turns = angles_of_a_kernel(positions, inv_freq)
        q_turned, k_turned = (rotated(each, *turns, step.interleaved) for each in (q, new_k))
    done = [each.clone() for each in (k, v)]
    for sequence, length in enumerate(step.lengths):
        if 0 < length <= step.keys:
            for memory, after, new in ((k, done[0], k_turned), (v, done[1], new_v)):
                place_of(memory, table, sequence, length - 1).fill_(NAN)
                place_of(after, table, sequence, length - 1).copy_(new[sequence, 0])
    lengths = torch.tensor(step.lengths, dtype=torch.int32, device=device)
    how = {"causal": True, "window": None, "softcap": None, "scale": None, **step.how}
    rest: dict[str, Any] = {"mask": None, "lengths": lengths, "block_table": table, **how}
    newest = Newest(new_k, new_v, inv_freq, step.interleaved, FACTOR)
    return Attention(q, k, v, **rest, newest=newest), Attention(q_turned, done[0], done[1], **rest)


def same_bits(one: Tensor, other: Tensor) -> bool:
    """Return whether tensors of 16 bits are equal, NaN too."""
    return torch.equal(one.view(torch.int16), other.view(torch.int16))
