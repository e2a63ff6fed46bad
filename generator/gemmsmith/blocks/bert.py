"""Self-attention of BERT, and the layer whose activation its first product applies."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from gemmsmith.attn.ops import attention
from gemmsmith.blocks.activations import ActivatedBlock
from gemmsmith.blocks.block import Block
from gemmsmith.blocks.calls import check_named
from gemmsmith.blocks.implementation import attention_obstacles
from gemmsmith.blocks.joining import joined
from gemmsmith.blocks.masks import sight
from gemmsmith.nn import Linear, PreparedLinear

__all__ = ["BertIntermediate", "BertSelfAttention"]


class BertSelfAttention(Block):
    """Query, key and value from one product, and attention in one kernel; of an encoder.

    Takes what transformers' ``BertSelfAttention`` takes, and returns (output, None). Sequences that
    are padded on the right are read to their lengths.
    """

    parts = ("query", "key", "value")
    joined = (("query", "key", "value"),)
    does = "q, k and v in one product, attention"
    stored = {f"qkv.{name}.": f"{name}." for name in ("query", "key", "value")}  # noqa: RUF012

    qkv: PreparedLinear
    dropout: torch.nn.Dropout
    attention_head_size: int
    scaling: float

    @classmethod
    def obstacle(cls, module: Any, above: Any) -> str:
        """Return why the layer cannot be swapped, beside its linear layers; or nothing."""
        return next(cls._obstacles(module), "")

    @classmethod
    def _obstacles(cls, module: Any) -> Iterator[str]:
        needed = ("attention_head_size", "scaling", "dropout")
        yield from attention_obstacles(module, ("hidden_states", "attention_mask"), *needed)
        if getattr(module, "is_decoder", False) or getattr(module, "is_causal", False):
            yield "is part of a decoder; those of encoders are known"

    @classmethod
    def contents(cls, module: Any, above: Any) -> tuple[dict[str, torch.nn.Module], dict[str, Any]]:
        """Return what the block holds, of the layer's linear layers."""
        return {"qkv": joined({name: getattr(module, name) for name in cls.parts})}, {}

    def forward(
        self, hidden_states: Tensor, attention_mask: Tensor | None = None, **named: Any
    ) -> tuple[Tensor, None]:
        """Return (B, S, hidden) and None, of (B, S, hidden).

        Args:
            hidden_states: (B, S, hidden).
            attention_mask: None, or (B or 1, 1, S, S), bool or numbers.
            named: what transformers hands around.

        Raises:
            ArgumentError: naming what a call asks for that blocks do not do, as a cache.
        """
        check_named(named, cached=False)
        self.refuse_dropout(self.dropout.p)
        rows = self.qkv(hidden_states)  # (B, S, 3 H D)
        heads = rows.unflatten(-1, (3, -1, self.attention_head_size))
        q, k, v = heads.unbind(-3)  # (B, S, H, D)
        seen = sight(attention_mask, q.shape[1], k.shape[1], causal=False)
        y = attention(
            q,
            k[:, : seen.keys],
            v[:, : seen.keys],
            scale=self.scaling,
            mask=seen.mask,
            lengths=seen.lengths,
        )
        return y.flatten(-2), None


class BertIntermediate(ActivatedBlock):
    """A linear layer with its activation in one kernel."""

    parts = ("dense",)
    activated = "dense"
    held = "intermediate_act_fn"

    dense: Linear

    def forward(self, hidden_states: Tensor) -> Tensor:
        """Return (..., N) from (..., K)."""
        return self.first(hidden_states)
