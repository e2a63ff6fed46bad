"""A small decoder of random weights, and its logits written out in f64."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from gemmsmith.nn.checkpoint import DecoderConfig, build_decoder
from gemmsmith.nn.decoder import Decoder

VOCABULARY, HIDDEN, INNER, HEADS, KV_HEADS, SIZE, LAYERS = 80, 64, 96, 4, 2, 16, 2
CONFIG = DecoderConfig(layers=LAYERS, heads=HEADS, head_dim=SIZE, eps=1e-5, rope_base=500.0)


def weights(
    dtype: torch.dtype, device: str = "cpu", *, bias: bool = False, tied: bool = True
) -> dict[str, Tensor]:
    """Return random weights under transformers' names, the embedding the head's too where tied."""
    made = torch.Generator().manual_seed(3)

    def new(*shape: int) -> Tensor:
        return torch.randn(shape, generator=made).div(shape[-1] ** 0.5)

    found = {"model.embed_tokens.weight": new(VOCABULARY, HIDDEN) * 4}
    rows = {"q": HEADS * SIZE, "k": KV_HEADS * SIZE, "v": KV_HEADS * SIZE, "o": HIDDEN}
    for index in range(LAYERS):
        at = f"model.layers.{index}"
        for part, n in rows.items():
            k = HEADS * SIZE if part == "o" else HIDDEN
            found[f"{at}.self_attn.{part}_proj.weight"] = new(n, k)
            if bias and part != "o":
                found[f"{at}.self_attn.{part}_proj.bias"] = new(n)
        for part, n, k in (("gate", INNER, HIDDEN), ("up", INNER, HIDDEN), ("down", HIDDEN, INNER)):
            found[f"{at}.mlp.{part}_proj.weight"] = new(n, k)
        for norm in ("input_layernorm", "post_attention_layernorm"):
            found[f"{at}.{norm}.weight"] = 1 + new(HIDDEN)
    found["model.norm.weight"] = 1 + new(HIDDEN)
    if not tied:
        found["lm_head.weight"] = new(VOCABULARY, HIDDEN)
    return {name: tensor.to(dtype).to(device) for name, tensor in found.items()}


def decoder(
    dtype: torch.dtype = torch.bfloat16,
    device: str = "cpu",
    config: DecoderConfig = CONFIG,
    *,
    bias: bool = False,
    tied: bool = True,
) -> Decoder:
    given = weights(dtype, device, bias=bias, tied=tied)
    return build_decoder(config, given.__getitem__, tuple(given))


def ids(*shape: int, device: str = "cpu") -> Tensor:
    return torch.randint(VOCABULARY, shape, generator=torch.Generator().manual_seed(8)).to(device)


def exact_logits(given: dict[str, Tensor], tokens: Tensor, window: int | None = None) -> Tensor:
    """Return the logits (S, V) behind each of the tokens (S,), in f64 on the CPU."""
    w = {name: tensor.cpu().double() for name, tensor in given.items()}
    x = w["model.embed_tokens.weight"][tokens.cpu()]
    place = torch.arange(len(tokens))
    ahead = place[:, None] - place
    seen = (ahead >= 0) & (ahead < (window or len(tokens)))
    for index in range(LAYERS):
        at = f"model.layers.{index}"
        normed = _norm(x, w[f"{at}.input_layernorm.weight"])
        q, k, v = (
            (normed @ w[f"{at}.self_attn.{part}_proj.weight"].t())
            .add(w.get(f"{at}.self_attn.{part}_proj.bias", torch.zeros(())))
            .unflatten(-1, (-1, SIZE))
            .transpose(0, 1)
            for part in "qkv"
        )
        k, v = (each.repeat_interleave(HEADS // KV_HEADS, 0) for each in (k, v))
        scores = (_turned(q) @ _turned(k).mT / SIZE**0.5).masked_fill(~seen, -torch.inf)
        context = (scores.softmax(-1) @ v).transpose(0, 1).flatten(1)
        x = x + context @ w[f"{at}.self_attn.o_proj.weight"].t()
        normed = _norm(x, w[f"{at}.post_attention_layernorm.weight"])
        gate, up = (normed @ w[f"{at}.mlp.{part}_proj.weight"].t() for part in ("gate", "up"))
        x = x + (functional.silu(gate) * up) @ w[f"{at}.mlp.down_proj.weight"].t()
    head = w.get("lm_head.weight", w["model.embed_tokens.weight"])
    return _norm(x, w["model.norm.weight"]) @ head.t()


def _norm(x: Tensor, weight: Tensor) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + CONFIG.eps).sqrt() * weight


def _turned(x: Tensor) -> Tensor:
    """Return heads (H, S, D) with the halves of each turned by position * frequency."""
    frequency = CONFIG.rope_base ** -(torch.arange(0, SIZE, 2).double() / SIZE)
    angle = torch.arange(x.shape[1]).double()[:, None] * frequency
    first, second = x.chunk(2, -1)
    turned = (
        first * angle.cos() - second * angle.sin(),
        second * angle.cos() + first * angle.sin(),
    )
    return torch.cat(turned, -1)
