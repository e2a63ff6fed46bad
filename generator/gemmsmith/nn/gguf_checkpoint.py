"""A decoder made of a GGUF file, its weights dequantised."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gemmsmith.errors import ArgumentError
from gemmsmith.gguf import Gguf, read_gguf
from gemmsmith.nn.checkpoint import DecoderConfig, build_decoder
from gemmsmith.nn.decoder import Decoder

__all__ = ["from_gguf"]

_PARTS: Mapping[str, str] = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
_WHOLE = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}


def from_gguf(path: Path | str, dtype: torch.dtype, device: torch.device | str) -> Decoder:
    """Return the decoder of a file; see :meth:`Decoder.from_gguf`."""
    file = read_gguf(path)
    config = _config(file)
    names = dict(_WHOLE)
    for index in range(config.layers):
        for ours, theirs in _PARTS.items():
            names[f"model.layers.{index}.{ours}.weight"] = f"blk.{index}.{theirs}.weight"
    there = {ours: theirs for ours, theirs in names.items() if theirs in file.names}
    heads = {"attn_q": config.heads, "attn_k": _number(file, "attention.head_count_kv")}

    def weight(name: str) -> Tensor:
        theirs = there[name]
        tensor = file.tensor(theirs, device)
        part = theirs.split(".")[-2]
        if part in heads:
            tensor = _in_halves(tensor, int(heads[part]))
        return tensor.to(dtype)

    return build_decoder(config, weight, tuple(there))


def _in_halves(weight: Tensor, heads: int) -> Tensor:
    """Return a weight whose heads' pairs are halves, of one whose pairs are neighbours.

    Llama's files have the rows of q and k in the order that the interleaved rotation wants.
    """
    return weight.view(heads, -1, 2, weight.shape[1]).transpose(1, 2).reshape(weight.shape)


def _config(file: Gguf) -> DecoderConfig:
    if file.metadata.get("general.architecture") != "llama":
        found = file.metadata.get("general.architecture")
        raise ArgumentError(f"{file.path} holds a model of kind {found!r}; llama is known")
    scaling = file.metadata.get("llama.rope.scaling.type", "none")
    if scaling != "none" or "rope_freqs.weight" in file.names:
        raise ArgumentError(f"{file.path} scales its rotation ({scaling}); none is known here")
    heads = int(_number(file, "attention.head_count"))
    head_dim = file.metadata.get("llama.attention.key_length")
    return DecoderConfig(
        layers=int(_number(file, "block_count")),
        heads=heads,
        head_dim=int(head_dim or _number(file, "embedding_length") // heads),
        eps=_number(file, "attention.layer_norm_rms_epsilon"),
        rope_base=float(file.metadata.get("llama.rope.freq_base", 10_000.0)),
    )


def _number(file: Gguf, key: str) -> Any:
    found = file.metadata.get(f"llama.{key}")
    if not isinstance(found, (int, float)):
        raise ArgumentError(f"{file.path} has no number llama.{key}")
    return found
