"""Attention with rotary position embedding: that of Llama, Mistral and Qwen2."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from gemmsmith.attn.ops import attention
from gemmsmith.blocks.block import Block
from gemmsmith.blocks.calls import check_named, updated
from gemmsmith.blocks.implementation import attention_obstacles
from gemmsmith.blocks.joining import joined
from gemmsmith.blocks.masks import sight
from gemmsmith.errors import ArgumentError
from gemmsmith.nn import Linear, PreparedLinear, Rotary
from gemmsmith.rope_ops import rope

__all__ = ["RotaryAttention"]

_FORWARD = ("hidden_states", "position_embeddings", "attention_mask")
_CHANGING = ("dynamic", "longrope")
"""Rope types whose frequencies change with the length of the text."""


class RotaryAttention(Block):
    """Query, key and value from one product, rotated in place, and attention in one kernel.

    Takes what transformers' ``LlamaAttention`` takes, and returns (output, None).
    """

    parts = ("q_proj", "k_proj", "v_proj", "o_proj")
    joined = (("q_proj", "k_proj", "v_proj"),)
    called = ("o_proj",)
    does = "q, k and v in one product, rope, attention"
    stored = {f"qkv.{name}.": f"{name}." for name in ("q_proj", "k_proj", "v_proj")}  # noqa: RUF012

    qkv: PreparedLinear
    o_proj: Linear
    rotary: Rotary
    config: Any
    head_dim: int
    layer_idx: int
    scaling: float
    attention_dropout: float
    rows: tuple[int, int, int]
    """Outputs of the product that are query, key and value."""
    window: int | None
    """Keys that a query sees, itself included."""

    @classmethod
    def obstacle(cls, module: Any, above: Any) -> str:
        """Return why the layer cannot be swapped, beside its linear layers; or nothing."""
        return next(cls._obstacles(module, above), "")

    @classmethod
    def _obstacles(cls, module: Any, above: Any) -> Iterator[str]:
        needed = ("head_dim", "scaling", "attention_dropout")
        yield from attention_obstacles(module, _FORWARD, *needed)
        if not getattr(module.config, "is_causal", True):
            yield "config.is_causal is False"
        rotary = getattr(above, "rotary_emb", None)
        if rotary is None:
            yield "no rotary_emb was found above it; convert the whole model"
        elif (kind := getattr(rotary, "rope_type", "?")) in _CHANGING:
            yield f"rope type {kind} changes frequencies with the length of the text"
        else:
            try:
                _rotary(rotary)
            except ArgumentError as error:
                yield str(error)

    @classmethod
    def contents(cls, module: Any, above: Any) -> tuple[dict[str, torch.nn.Module], dict[str, Any]]:
        """Return what the block holds, of the layer's linear layers."""
        parts = {name: getattr(module, name) for name in cls.joined[0]}
        qkv = joined(parts)
        rotary = _rotary(above.rotary_emb).to(qkv.weight.device)
        rows = tuple(part.out_features for part in parts.values())
        modules = {"qkv": qkv, "o_proj": module.o_proj, "rotary": rotary}
        return modules, {"rows": rows, "window": _window(module)}

    def forward(
        self,
        hidden_states: Tensor,
        position_embeddings: tuple[Tensor, Tensor] | None = None,
        attention_mask: Tensor | None = None,
        **named: Any,
    ) -> tuple[Tensor, None]:
        """Return (B, S, hidden) and None, of (B, S, hidden).

        Args:
            hidden_states: (B, S, hidden).
            position_embeddings: not read: angles come from ``position_ids``, in full precision.
            attention_mask: None, or (B or 1, 1, S, keys), bool or numbers.
            named: ``position_ids`` (B or 1, S), the cache, and what transformers hands around.

        Raises:
            ArgumentError: naming what a call asks for that blocks do not do.
        """
        check_named(named)
        self.refuse_dropout(self.attention_dropout)
        positions = named.get("position_ids")
        if positions is None:
            raise ArgumentError("position_ids are not given; rope needs them, (B, S)")
        batch, length = hidden_states.shape[:2]
        rows = self.qkv(hidden_states)  # (B, S, (H + 2 Hkv) D)
        q, k, v = (
            part.unflatten(-1, (-1, self.head_dim))  # (B, S, H, D), (B, S, Hkv, D) twice
            for part in rows.split(self.rows, -1)
        )
        positions = positions.expand(batch, length)
        rope(q, k, positions, self.rotary.inv_freq, **self.rotary.pairing)
        k, v = updated(named, k, v, self.layer_idx)  # (B, keys, Hkv, D)
        seen = sight(attention_mask, length, k.shape[1], causal=True, window=self.window)
        y = attention(
            q,
            k[:, : seen.keys],
            v[:, : seen.keys],
            causal=seen.causal,
            window=seen.window,
            scale=self.scaling,
            mask=seen.mask,
            lengths=seen.lengths,
        )
        return self.o_proj(y.flatten(-2)), None


def _window(module: Any) -> int | None:
    """Return the layer's own window (Qwen2 says for each layer), else that of all (Mistral)."""
    if hasattr(module, "sliding_window"):
        found = module.sliding_window
    else:
        found = getattr(module.config, "sliding_window", None)
    return None if found is None else int(found)


def _rotary(rotary: Any) -> Rotary:
    """Return the angles of a model's position embedding in full precision.

    They are made anew: ``model.to(torch.bfloat16)`` rounds those that a rotary embedding holds.

    Raises:
        ArgumentError: where they do not come out as those that it holds.
    """
    try:
        if rotary.rope_type == "default":
            make = rotary.compute_default_rope_parameters
        else:
            rules: Any = sys.modules["transformers.modeling_rope_utils"]
            make = rules.ROPE_INIT_FUNCTIONS[rotary.rope_type]
        frequencies, factor = make(rotary.config)
        held = rotary.inv_freq
    except (AttributeError, KeyError, TypeError) as error:
        name = type(rotary).__qualname__
        raise ArgumentError(f"{name} makes its frequencies in a way that is not known") from error
    if held.shape != frequencies.shape:
        raise ArgumentError(
            f"rotary_emb holds {tuple(held.shape)} frequencies, its configuration"
            f" gives {tuple(frequencies.shape)}"
        )
    if not held.is_meta and not torch.allclose(held.float().cpu(), frequencies.cpu(), rtol=0.01):
        raise ArgumentError("rotary_emb holds other frequencies than its configuration gives")
    return Rotary(frequencies, attention_factor=float(factor))
