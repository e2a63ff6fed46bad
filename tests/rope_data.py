"""Rotary data: fused qkv buffers, and what f64 makes of them."""

from __future__ import annotations

import torch
from torch import Tensor

BASE = 10_000.0


def qkv(
    tokens: tuple[int, ...],
    heads: int,
    kv_heads: int,
    head_dim: int,
    dtype: torch.dtype,
    device: str = "cpu",
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return a fused buffer (…, all heads * head_dim) of normal data, and its q, k and v."""
    torch.manual_seed(0)
    width = (heads + 2 * kv_heads) * head_dim
    buffer = torch.randn(*tokens, width, device=device).to(dtype)
    q, k, v = buffer.unflatten(-1, (-1, head_dim)).split((heads, kv_heads, kv_heads), -2)
    return buffer, q, k, v


def turned(
    x: Tensor,
    positions: Tensor,
    frequencies: Tensor,
    interleaved: bool = False,
    factor: float = 1.0,
) -> Tensor:
    """Return ``x`` rotated, in f64, pair by pair as complex numbers."""
    angle = (positions.double()[..., None] * frequencies.double())[..., None, :]
    turn = torch.polar(torch.full_like(angle, factor), angle)
    pairs = frequencies.shape[0]
    head = x[..., : 2 * pairs].double()
    parts = head.unflatten(-1, (pairs, 2)) if interleaved else head.unflatten(-1, (2, pairs)).mT
    result = torch.view_as_real(torch.view_as_complex(parts.contiguous()) * turn)
    whole = result.flatten(-2) if interleaved else result.mT.flatten(-2)
    return torch.cat((whole, x[..., 2 * pairs :].double()), -1)
