"""Which blocks of transformers have one of ours. transformers itself is not imported."""

from __future__ import annotations

import torch

from gemmsmith.blocks.bert import BertIntermediate, BertSelfAttention
from gemmsmith.blocks.block import Block
from gemmsmith.blocks.gated_mlp import GatedMlp
from gemmsmith.blocks.gpt2 import Gpt2Attention, Gpt2Mlp
from gemmsmith.blocks.rotary import RotaryAttention

__all__ = ["KNOWN", "known_block"]

_MODELS = "transformers.models"

KNOWN: dict[tuple[str, str], type[Block]] = {
    (f"{_MODELS}.llama.modeling_llama", "LlamaAttention"): RotaryAttention,
    (f"{_MODELS}.llama.modeling_llama", "LlamaMLP"): GatedMlp,
    (f"{_MODELS}.mistral.modeling_mistral", "MistralAttention"): RotaryAttention,
    (f"{_MODELS}.mistral.modeling_mistral", "MistralMLP"): GatedMlp,
    (f"{_MODELS}.qwen2.modeling_qwen2", "Qwen2Attention"): RotaryAttention,
    (f"{_MODELS}.qwen2.modeling_qwen2", "Qwen2MLP"): GatedMlp,
    (f"{_MODELS}.gpt2.modeling_gpt2", "GPT2Attention"): Gpt2Attention,
    (f"{_MODELS}.gpt2.modeling_gpt2", "GPT2MLP"): Gpt2Mlp,
    (f"{_MODELS}.bert.modeling_bert", "BertSelfAttention"): BertSelfAttention,
    (f"{_MODELS}.bert.modeling_bert", "BertIntermediate"): BertIntermediate,
}
"""Module and name of a class, exactly that one, and ours: a subclass may compute something else."""


def known_block(module: torch.nn.Module) -> type[Block] | None:
    """Return our class for a block of transformers; None where there is none."""
    kind = type(module)
    return KNOWN.get((kind.__module__, kind.__qualname__))
