"""A decoder layer in plain torch, to be compiled, and in float64."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from gemmsmith.bench.model_shapes import ModelShapes
from gemmsmith.errors import MeasureError
from gemmsmith.rope_math import rope_frequencies

EPS, BASE = 1e-5, 500_000.0
"""Of the norms; of RoPE."""


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """The sizes of a decoder layer."""

    hidden: int
    inner: int
    heads: int
    kv_heads: int
    head_dim: int


def layer_sizes(model: ModelShapes) -> Sizes:
    """Return the sizes of a model's layer.

    Raises:
        MeasureError: where its shapes are not those of such a layer.
    """
    shapes = {shape.op: (shape.n, shape.k) for shape in model.shapes}
    (qkv, hidden), (out, width) = shapes.get("qkv", (0, 0)), shapes.get("attn_out", (0, 0))
    (up, up_k), (down, inner) = shapes.get("gate_up", (0, 0)), shapes.get("down", (0, 0))
    size = model.head_dim
    fits = size and (out, up, up_k, down) == (hidden, 2 * inner, hidden, hidden)
    if not fits or width % size or (qkv - width) % (2 * size) or qkv <= width:
        raise MeasureError(
            f"{model.model} has no decoder layer: its file must hold head_dim and the shapes qkv,"
            " attn_out, gate_up (2 I, H) and down (H, I)"
        )
    return Sizes(
        hidden=hidden,
        inner=inner,
        heads=width // size,
        kv_heads=(qkv - width) // (2 * size),
        head_dim=size,
    )


@dataclass(frozen=True, kw_only=True)
class Weights:
    """One layer's weights, bf16 (N, K); q, k and v are one below the other, and gate and up."""

    qkv: Tensor
    o: Tensor
    gate_up: Tensor
    down: Tensor
    attention_norm: Tensor
    feed_forward_norm: Tensor


def new_weights(sizes: Sizes, device: str) -> Weights:
    """Return random weights that keep activations of about unit variance."""
    new = partial(torch.randn, dtype=torch.bfloat16, device=device)
    width = sizes.heads * sizes.head_dim

    def matrix(n: int, k: int) -> Tensor:
        return new(n, k).div_(math.sqrt(k))

    return Weights(
        qkv=matrix(width + 2 * sizes.kv_heads * sizes.head_dim, sizes.hidden),
        o=matrix(sizes.hidden, width),
        gate_up=matrix(2 * sizes.inner, sizes.hidden),
        down=matrix(sizes.hidden, sizes.inner),
        attention_norm=new(sizes.hidden).mul_(0.1).add_(1),
        feed_forward_norm=new(sizes.hidden).mul_(0.1).add_(1),
    )


def angles(positions: Tensor, sizes: Sizes) -> tuple[Tensor, Tensor]:
    """Return cosine and sine (S, D) of positions (S,), f64, as a model makes them once a step."""
    frequencies = rope_frequencies(sizes.head_dim, BASE).to(positions.device)
    turned = positions.double()[:, None] * frequencies.repeat(2)
    return turned.cos(), turned.sin()


def torch_layer(
    x: Tensor,
    w: Weights,
    tables: tuple[Tensor, Tensor],
    places: Tensor,
    memory: tuple[Tensor, Tensor],
    sizes: Sizes,
) -> Tensor:
    """Return (B, S, hidden) from (B, S, hidden); the memory, twice (B, Hkv, keys, D), is written.

    Several tokens of a sequence are a prompt, which sees itself alone; one sees the whole cache.
    """
    batch, tokens, hidden = x.shape
    (cosine, sine), (k_cache, v_cache) = tables, memory
    heads = [sizes.heads, sizes.kv_heads, sizes.kv_heads]
    normed = functional.rms_norm(x, (hidden,), w.attention_norm, EPS)
    qkv = functional.linear(normed, w.qkv).view(batch, tokens, -1, sizes.head_dim).transpose(1, 2)
    q, k, v = torch.split(qkv, heads, 1)
    q, k = (each * cosine + _turned(each) * sine for each in (q, k))
    k_cache.index_copy_(2, places, k)
    v_cache.index_copy_(2, places, v)
    if tokens == 1:
        y = functional.scaled_dot_product_attention(q, k_cache, v_cache, enable_gqa=True)
    else:
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    h = x + functional.linear(y.transpose(1, 2).flatten(2), w.o)
    normed = functional.rms_norm(h, (hidden,), w.feed_forward_norm, EPS)
    gate, up = functional.linear(normed, w.gate_up).chunk(2, -1)
    return h + functional.linear(functional.silu(gate) * up, w.down)


def _turned(x: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat((-second, first), -1)


def exact_layer(
    x: Tensor,
    w: Weights,
    tables: tuple[Tensor, Tensor],
    places: Tensor,
    memory: tuple[Tensor, Tensor],
    sizes: Sizes,
) -> Tensor:
    """Return what :func:`torch_layer` does, in float64, (B * S, hidden); the memory stays."""
    double = Weights(**{name: tensor.double() for name, tensor in vars(w).items()})
    copies = (memory[0].double(), memory[1].double())
    return torch_layer(x.double(), double, tables, places, copies, sizes).flatten(0, 1)
