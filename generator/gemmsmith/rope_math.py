"""What the rotary kernel computes, in torch: on the CPU, and where a GPU has no kernel.

An angle is the exact product of position and frequency: it is reduced to a part of one turn in f64,
so that it is as good at position 131,071 as at 1. Its cosine and sine are f32, products and sums of
a pair are f32, and only their result is rounded to the tensors' type.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from gemmsmith.errors import ArgumentError


def rope_frequencies(rotary_dim: int, base: float = 10_000.0) -> Tensor:
    """Return RoPE's inverse frequencies ``base ** (-2 i / rotary_dim)``, f64 (rotary_dim / 2,).

    In f64 as angles of high positions deserve: rounded to f32 the one at position 131,071 is off by
    up to 0.004. :func:`gemmsmith.rope` takes either.

    Raises:
        ArgumentError: where ``rotary_dim`` is odd or below 2, or ``base`` not above 0.
    """
    if rotary_dim < 2 or rotary_dim % 2:
        raise ArgumentError(f"rotary_dim is {rotary_dim}; a positive even number is needed")
    if not base > 0:
        raise ArgumentError(f"base is {base}; it must be above 0")
    exponents = torch.arange(0, rotary_dim, 2, dtype=torch.float64) / rotary_dim
    return torch.pow(torch.tensor(base, dtype=torch.float64), -exponents)


def angles(positions: Tensor, inv_freq: Tensor, factor: float) -> tuple[Tensor, Tensor]:
    """Return cosine and sine of each token's angles times ``factor``: f32 (…, 1, frequencies)."""
    turns = positions.double()[..., None, None] * inv_freq.double() * (1 / (2 * math.pi))
    part = (turns - turns.round()) * (2 * math.pi)
    scale = torch.tensor(factor, dtype=torch.float32, device=part.device)
    return part.cos().float() * scale, part.sin().float() * scale


def rotated(x: Tensor, cosine: Tensor, sine: Tensor, interleaved: bool) -> Tensor:
    """Return ``x`` (…, heads, head_dim) with the first ``2 * frequencies`` of each head rotated."""
    pairs = cosine.shape[-1]
    turning = x[..., : 2 * pairs].float()
    if interleaved:
        first, second = turning[..., 0::2], turning[..., 1::2]
    else:
        first, second = turning[..., :pairs], turning[..., pairs:]
    left = first * cosine - second * sine
    right = second * cosine + first * sine
    whole = (
        torch.stack((left, right), -1).flatten(-2) if interleaved else torch.cat((left, right), -1)
    )
    return torch.cat((whole.to(x.dtype), x[..., 2 * pairs :]), -1)


@dataclass(frozen=True, kw_only=True)
class Places:
    """Where in a cache each token of a call goes; all (…) like its positions."""

    row: Tensor
    """Index of the sequence or page."""
    slot: Tensor
    """Index within it."""
    kept: Tensor
    """Whether there is such a place; row and slot are 0 where there is not."""


def places(
    cache: Tensor, positions: Tensor, slots: Tensor | None, block_table: Tensor | None
) -> Places:
    """Return where tokens go whose positions are (B, S), or whose slots are given (…)."""
    rows, size = cache.shape[:2]
    if slots is not None:
        kept = (slots >= 0) & (slots < rows * size)
        flat = torch.where(kept, slots, 0).long()
        return Places(row=flat // max(size, 1), slot=flat % max(size, 1), kept=kept)
    if block_table is None:
        kept = (positions >= 0) & (positions < size)
        row = torch.arange(positions.shape[0], device=positions.device)[:, None]
        row, slot = row.expand(positions.shape), positions.long()
    else:
        kept = (positions >= 0) & (positions < block_table.shape[1] * size)
        at = torch.where(kept, positions, 0).long()
        column = at // max(size, 1)
        if block_table.shape[1] == 0:
            row = torch.full_like(at, -1)
        else:
            row = block_table.long().gather(1, column)
        slot = at % max(size, 1)
        kept = kept & (row >= 0) & (row < rows)
    return Places(row=torch.where(kept, row, 0), slot=torch.where(kept, slot, 0), kept=kept)
