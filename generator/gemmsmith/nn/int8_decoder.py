"""A decoder with int8 weights and activations, layer by layer from one that has not."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor
from torch.nn import functional

from gemmsmith.errors import ArgumentError
from gemmsmith.nn.attention import Int8Attention
from gemmsmith.nn.decoder import Decoder
from gemmsmith.nn.decoder_layer import DecoderLayer
from gemmsmith.nn.feed_forward import Int8FeedForward
from gemmsmith.nn.int8 import Int8Linear
from gemmsmith.nn.norm import RMSNorm
from gemmsmith.smoothing import smooth

__all__ = ["to_int8"]


@torch.no_grad()
def to_int8(decoder: Decoder, samples: Tensor | None = None) -> Decoder:
    """Return the int8 decoder of another; see :meth:`Decoder.to_int8`.

    Layers see the samples as the unquantised layers ahead of them leave them.
    """
    if isinstance(decoder.head, Int8Linear):
        raise ArgumentError("the decoder is int8 already; to_int8 is for one in bf16 or fp16")
    if samples is not None:
        decoder.check_ids("samples", samples)
    x = None if samples is None else functional.embedding(samples, decoder.embedding.weight)
    layers = []
    for each in decoder.layers:
        layer = cast(DecoderLayer, each)
        layers.append(_int8_layer(layer, x))
        x = None if x is None else layer(x)
    norm, found = decoder.norm, None
    if x is not None:
        weight = decoder.head.weight[: decoder.head.out_features, : decoder.head.in_features]
        found = smooth(weight, norm(x)).column_scale
    head = Int8Linear.of_prepared(decoder.head, found)
    made = Decoder(decoder.embedding.weight, layers, _folded(norm, head), head)
    return made.train(decoder.training)


def _int8_layer(layer: DecoderLayer, x: Tensor | None) -> DecoderLayer:
    """Return the int8 layer; ``x`` (B, S, K) are samples of what it reads."""
    attention, normed, inner, h_normed = layer.attention, None, None, None
    if x is not None:
        normed = layer.attention_norm(x)
        inner = attention.context(normed)
        h_normed = layer.feed_forward_norm(attention.o(inner, residual=x))
    int8_attention = Int8Attention.of(attention, normed, inner)
    feed_forward = Int8FeedForward.of(layer.feed_forward, h_normed)
    return DecoderLayer(
        _folded(layer.attention_norm, cast(Int8Linear, int8_attention.qkv)),
        int8_attention,
        _folded(layer.feed_forward_norm, cast(Int8Linear, feed_forward.gate_up)),
        feed_forward,
    )


def _folded(norm: RMSNorm, reader: Int8Linear) -> RMSNorm:
    """Return a norm of its own memory that does what the column scale of its reader does, which
    loses it.

    Exact, as such scales are powers of two; where a product leaves the dtype's range, both stay.
    """
    scale = reader.column_scale
    if scale is None:
        return RMSNorm(norm.weight.detach().clone(), norm.eps)
    weight = norm.weight * scale.to(norm.weight.dtype)
    if not torch.equal(weight / scale.to(weight.dtype), norm.weight):
        return RMSNorm(norm.weight.detach().clone(), norm.eps)
    reader.register_parameter("column_scale", None)
    return RMSNorm(weight, norm.eps)
