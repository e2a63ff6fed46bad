"""Attention and feed-forward block of GPT-2, whose weights are stored [K, N]."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from gemmsmith.attn.ops import attention
from gemmsmith.blocks.activations import ActivatedBlock
from gemmsmith.blocks.block import Block
from gemmsmith.blocks.calls import check_named, updated
from gemmsmith.blocks.implementation import attention_obstacles
from gemmsmith.blocks.masks import sight
from gemmsmith.nn import PreparedLinear

__all__ = ["Gpt2Attention", "Gpt2Mlp"]

_FORWARD = ("hidden_states", "attention_mask", "encoder_hidden_states", "encoder_attention_mask")


class Gpt2Attention(Block):
    """Attention in one kernel, of the one product that makes query, key and value.

    Takes what transformers' ``GPT2Attention`` takes, and returns (output, None).
    """

    parts = ("c_attn", "c_proj")
    called = ("c_attn", "c_proj", "resid_dropout")
    does = "attention"

    c_attn: PreparedLinear
    c_proj: PreparedLinear
    resid_dropout: torch.nn.Dropout
    attn_dropout: torch.nn.Dropout
    head_dim: int
    scaling: float
    layer_idx: int

    @classmethod
    def obstacle(cls, module: Any, above: Any) -> str:
        """Return why the layer cannot be swapped, beside its linear layers; or nothing."""
        return next(cls._obstacles(module), "")

    @classmethod
    def _obstacles(cls, module: Any) -> Iterator[str]:
        needed = ("head_dim", "scaling", "attn_dropout", "resid_dropout")
        yield from attention_obstacles(module, (*_FORWARD, "kwargs"), *needed)
        if getattr(module, "is_cross_attention", False):
            yield "is cross-attention"
        eager = module.config._attn_implementation == "eager"
        if eager and getattr(module, "reorder_and_upcast_attn", False):
            yield "config.reorder_and_upcast_attn asks for attention in f32"

    @classmethod
    def contents(cls, module: Any, above: Any) -> tuple[dict[str, torch.nn.Module], dict[str, Any]]:
        """Return the linear layers as they are."""
        return {name: getattr(module, name) for name in cls.parts}, {}

    def forward(
        self,
        hidden_states: Tensor,
        cache: Any = None,
        attention_mask: Tensor | None = None,
        **named: Any,
    ) -> tuple[Tensor, None]:
        """Return (B, S, hidden) and None, of (B, S, hidden).

        Args:
            hidden_states: (B, S, hidden).
            cache: keys and values of the tokens before.
            attention_mask: None, or (B or 1, 1, S, keys), bool or numbers.
            named: what transformers hands around.

        Raises:
            ArgumentError: naming what a call asks for that blocks do not do.
        """
        check_named(named)
        self.refuse_dropout(self.attn_dropout.p)
        rows = self.c_attn(hidden_states)  # (B, S, 3 H D)
        q, k, v = rows.unflatten(-1, (3, -1, self.head_dim)).unbind(-3)  # (B, S, H, D)
        named = named if cache is None else {**named, "cache": cache}
        k, v = updated(named, k, v, self.layer_idx)  # (B, keys, H, D)
        seen = sight(attention_mask, q.shape[1], k.shape[1], causal=True)
        y = attention(
            q,
            k[:, : seen.keys],
            v[:, : seen.keys],
            causal=seen.causal,
            scale=self.scaling,
            mask=seen.mask,
            lengths=seen.lengths,
        )
        return self.resid_dropout(self.c_proj(y.flatten(-2))), None


class Gpt2Mlp(ActivatedBlock):
    """The first product with its activation in one kernel, and the second."""

    parts = ("c_fc", "c_proj")
    called = ("c_proj", "dropout")
    activated = "c_fc"
    held = "act"

    c_fc: PreparedLinear
    c_proj: PreparedLinear
    dropout: torch.nn.Dropout

    def forward(self, hidden_states: Tensor) -> Tensor:
        """Return (..., hidden) from (..., hidden)."""
        y: Tensor = self.c_proj(self.first(hidden_states))
        return self.dropout(y)  # type: ignore[no-any-return]
