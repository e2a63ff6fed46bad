"""Attention by its definition in float64, and operands for it."""

from __future__ import annotations

import torch
from torch import Tensor


def exact(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = False,
    window: int | None = None,
    softcap: float | None = None,
    scale: float | None = None,
    mask: Tensor | None = None,
    lengths: list[int] | None = None,
) -> Tensor:
    """Return attention of (B, S, H, D) in float64: sequence by sequence, head by head, key by key.

    Nothing of a key that a query does not see is ever read.
    """
    batch, queries, heads, size = q.shape
    group = heads // k.shape[2]
    out = torch.zeros(q.shape, dtype=torch.float64, device=q.device)
    factor = size**-0.5 if scale is None else scale
    for b in range(batch):
        keys = k.shape[1] if lengths is None else lengths[b]
        i = torch.arange(queries, device=q.device)[:, None] + keys - queries
        j = torch.arange(keys, device=q.device)[None]
        seen = j <= i if causal else j >= 0 * i
        if window is not None:
            seen = seen & (j > i - window)
        for h in range(heads):
            scores = q[b, :, h].double() @ k[b, :keys, h // group].double().T * factor
            if softcap is not None:
                scores = softcap * torch.tanh(scores / softcap)
            allowed = seen
            if mask is not None:
                whole = mask.expand(batch, heads, queries, k.shape[1])[b, h, :, :keys]
                allowed = seen & whole if whole.dtype == torch.bool else seen
                scores = scores if whole.dtype == torch.bool else scores + whole.double()
            scores = scores.masked_fill(~allowed, float("-inf"))
            some = (scores > float("-inf")).any(-1)
            out[b, some, h] = scores[some].softmax(-1) @ v[b, :keys, h // group].double()
    return out


def tokens(
    batch: int,
    queries: int,
    keys: int,
    heads: int,
    kv_heads: int,
    size: int,
    *,
    dtype: torch.dtype = torch.bfloat16,
    device: str = "cpu",
) -> tuple[Tensor, Tensor, Tensor]:
    """Return random q, k and v."""
    torch.manual_seed(0)
    q = torch.randn(batch, queries, heads, size, device=device).to(dtype)
    k = torch.randn(batch, keys, kv_heads, size, device=device).to(dtype)
    v = torch.randn(batch, keys, kv_heads, size, device=device).to(dtype)
    return q, k, v


def check_near(result: Tensor, right: Tensor) -> None:
    """Assert that a result is as near to float64's as its dtype and probabilities in it allow."""
    step = torch.finfo(result.dtype).eps
    assert result.isfinite().all()
    largest = right.abs().amax().item()
    torch.testing.assert_close(
        result.double(), right, rtol=2 * step, atol=max(2 * step * largest, 1e-5)
    )
