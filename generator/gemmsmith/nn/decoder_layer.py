"""One layer of a decoder: attention and a gated feed-forward block, each behind a norm."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from gemmsmith.nn.attention import Attention
    from gemmsmith.nn.cache import KeysValues
    from gemmsmith.nn.feed_forward import FeedForward
    from gemmsmith.nn.norm import RMSNorm

__all__ = ["DecoderLayer"]


class DecoderLayer(torch.nn.Module):
    """``h = x + attention(norm(x)); h + feed_forward(norm(h))``, for inference.

    Both sums are made by the products ahead of them, in f32. On a GPU a step of decoding is seven
    kernels: norm, qkv, attention (with RoPE, and the cache's newest token), output, norm, gated
    product, down; with int8 blocks a norm quantises, and one kernel more ahead of the output and of
    down does.

    Args:
        attention_norm: what attention reads is normalised by.
        attention: the block, K to K features.
        feed_forward_norm: what the feed-forward block reads is normalised by.
        feed_forward: the block, K to K features.
    """

    def __init__(
        self,
        attention_norm: RMSNorm,
        attention: Attention,
        feed_forward_norm: RMSNorm,
        feed_forward: FeedForward,
    ) -> None:
        super().__init__()
        self.attention_norm = attention_norm
        self.attention = attention
        self.feed_forward_norm = feed_forward_norm
        self.feed_forward = feed_forward

    @property
    def constant_weight(self) -> bool:
        """Whether both blocks promise that no queued work writes their weights
        (:attr:`gemmsmith.nn.Linear.constant_weight`)."""
        return self.attention.constant_weight and self.feed_forward.constant_weight

    @constant_weight.setter
    def constant_weight(self, promised: bool) -> None:
        self.attention.constant_weight = self.feed_forward.constant_weight = promised

    @property
    def constant_cache(self) -> bool:
        """Whether attention promises that no queued work writes a cache but at the places of a
        call's tokens (:attr:`gemmsmith.nn.Attention.constant_cache`)."""
        return self.attention.constant_cache

    @constant_cache.setter
    def constant_cache(self, promised: bool) -> None:
        self.attention.constant_cache = promised

    def forward(
        self,
        x: Tensor,
        positions: Tensor | None = None,
        *,
        cache: KeysValues | None = None,
        keys: Tensor | None = None,
    ) -> Tensor:
        """Return (B, S, K) from (B, S, K); arguments are those of :class:`Attention`."""
        normed = self.attention_norm.ahead_of(self.attention.qkv, x)  # (B, S, K)
        h = self.attention(normed, positions, cache=cache, keys=keys, residual=x)  # (B, S, K)
        normed = self.feed_forward_norm.ahead_of(self.feed_forward.gate_up, h)  # (B, S, K)
        y: Tensor = self.feed_forward(normed, residual=h)  # (B, S, K)
        return y
