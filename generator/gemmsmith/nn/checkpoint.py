"""A decoder made of a checkpoint's weights, under the names that transformers gives them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from gemmsmith.errors import ArgumentError
from gemmsmith.nn.attention import Attention
from gemmsmith.nn.decoder import Decoder
from gemmsmith.nn.decoder_layer import DecoderLayer
from gemmsmith.nn.feed_forward import FeedForward
from gemmsmith.nn.norm import RMSNorm
from gemmsmith.nn.prepared import PreparedLinear
from gemmsmith.nn.rotary import Rotary, scaled_frequencies
from gemmsmith.rowspec import GateKind

__all__ = ["MODELS", "DecoderConfig", "build_decoder", "config_of", "from_transformers"]

MODELS = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM")
"""Classes of transformers that :class:`gemmsmith.nn.Decoder` computes."""
_KINDS: Mapping[str, GateKind] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
}


@dataclass(frozen=True, kw_only=True)
class DecoderConfig:
    """What a checkpoint says beside its weights."""

    layers: int
    heads: int
    head_dim: int
    eps: float
    """Of the norms."""
    rope_base: float
    rope_scaling: Mapping[str, Any] | None = None
    """As :func:`gemmsmith.nn.rotary.scaled_frequencies` takes it."""
    windows: tuple[int | None, ...] = field(default=())
    """For each layer how many tokens a token sees, None for all; empty: all in every layer."""
    kind: GateKind = "silu"


def from_transformers(model: Any) -> Decoder:
    """Return the decoder of one of :data:`MODELS`; see :meth:`Decoder.from_transformers`."""
    name = type(model).__name__
    if name not in MODELS:
        raise ArgumentError(f"model is a {name}; {', '.join(MODELS)} are known")
    if any(isinstance(each, PreparedLinear) for each in model.modules()):
        raise ArgumentError(
            "model was converted (gemmsmith.convert), which changes its weights' places: make the"
            " decoder of the model as it was loaded"
        )
    weights = dict(model.named_parameters(remove_duplicate=False))
    return build_decoder(config_of(model.config), weights.__getitem__, tuple(weights))


def config_of(config: Any) -> DecoderConfig:
    """Return what a configuration of transformers says.

    Raises:
        ArgumentError: where it asks for what the decoder does not compute.
    """
    if config.hidden_act not in _KINDS:
        known = ", ".join(_KINDS)
        raise ArgumentError(f"hidden_act is {config.hidden_act!r}; {known} are known")
    rope = getattr(config, "rope_parameters", None)  # transformers 5
    scaling = rope or getattr(config, "rope_scaling", None) or {}
    base = scaling.get("rope_theta", getattr(config, "rope_theta", None))
    if not isinstance(base, (int, float)):
        raise ArgumentError(f"rope parameters {scaling} name no single rope_theta")
    head_dim = getattr(config, "head_dim", None)
    return DecoderConfig(
        layers=config.num_hidden_layers,
        heads=config.num_attention_heads,
        head_dim=head_dim or config.hidden_size // config.num_attention_heads,
        eps=config.rms_norm_eps,
        rope_base=float(base),
        rope_scaling=scaling,
        windows=_windows(config),
        kind=_KINDS[config.hidden_act],
    )


def _windows(config: Any) -> tuple[int | None, ...]:
    """Return the sliding window of each layer."""
    window = getattr(config, "sliding_window", None)
    if not window or not getattr(config, "use_sliding_window", True):
        return ()
    types = getattr(config, "layer_types", None)
    if types is None:
        first = getattr(config, "max_window_layers", None)  # Qwen2: layers from here on have it
        layers = range(config.num_hidden_layers)
        return tuple(window if first is None or layer >= first else None for layer in layers)
    return tuple(window if kind == "sliding_attention" else None for kind in types)


def build_decoder(
    config: DecoderConfig, weight: Callable[[str], Tensor], names: tuple[str, ...]
) -> Decoder:
    """Return the decoder of a checkpoint.

    Args:
        config: what it says beside its weights.
        weight: gives a weight by the name that transformers has for it.
        names: the names that there are.

    Raises:
        ArgumentError: naming a weight that is missing.
    """

    def layer(prefix: str) -> torch.nn.Linear:
        w = _weight(weight, names, f"{prefix}.weight")
        bias = weight(f"{prefix}.bias") if f"{prefix}.bias" in names else None
        made = torch.nn.Linear(w.shape[1], w.shape[0], bias=False, device="meta", dtype=w.dtype)
        made.weight = _parameter(w)
        made.register_parameter("bias", None if bias is None else _parameter(bias))
        return made.eval()

    def norm(name: str) -> RMSNorm:
        return RMSNorm(_weight(weight, names, f"{name}.weight"), config.eps)

    frequencies = scaled_frequencies(config.head_dim, config.rope_base, config.rope_scaling)
    embedding = _parameter(_weight(weight, names, "model.embed_tokens.weight"))
    rotary = Rotary(frequencies.to(embedding.device))
    windows = config.windows or (None,) * config.layers
    layers = []
    for index, window in enumerate(windows):
        at = f"model.layers.{index}"
        q, k, v, o = (layer(f"{at}.self_attn.{part}_proj") for part in "qkvo")
        gate, up, down = (layer(f"{at}.mlp.{part}_proj") for part in ("gate", "up", "down"))
        layers.append(
            DecoderLayer(
                norm(f"{at}.input_layernorm"),
                Attention(q, k, v, o, heads=config.heads, rotary=rotary, window=window),
                norm(f"{at}.post_attention_layernorm"),
                FeedForward(gate, up, down, config.kind),
            )
        )
    return Decoder(embedding, layers, norm("model.norm"), _head(embedding, weight, names)).eval()


def _head(
    embedding: Tensor, weight: Callable[[str], Tensor], names: tuple[str, ...]
) -> PreparedLinear:
    """Return the head, whose weight is the embedding's where it has none of its own."""
    own = _parameter(weight("lm_head.weight")) if "lm_head.weight" in names else embedding
    if own.data_ptr() == embedding.data_ptr() and own.shape == embedding.shape:
        own = embedding
    bias = weight("lm_head.bias") if "lm_head.bias" in names else None
    return PreparedLinear.from_weight(own, None if bias is None else _parameter(bias)).eval()


def _parameter(tensor: Tensor) -> torch.nn.Parameter:
    """Return a tensor as a parameter of its own that shares the memory and wants no gradient."""
    return torch.nn.Parameter(tensor.detach(), requires_grad=False)


def _weight(weight: Callable[[str], Tensor], names: tuple[str, ...], name: str) -> Tensor:
    if name not in names:
        raise ArgumentError(f"the checkpoint has no {name}")
    return weight(name)
