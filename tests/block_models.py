"""Small models of transformers with random weights, one of each kind that has blocks."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from gemmsmith.conversion import Conversion, convert

transformers = pytest.importorskip("transformers")

DECODERS = ("llama", "mistral", "qwen2", "gpt2")
KINDS = (*DECODERS, "bert")
WINDOW = 8
_SIZES = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 128,
    "max_position_embeddings": 256,
}
_GPT2 = {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 128, "n_positions": 256}
_ENDLESS = {"bos_token_id": 1, "eos_token_id": None, "pad_token_id": 0}


def _empty(kind: str, **more: Any) -> Any:
    made: Any = transformers
    grouped = {**_SIZES, "num_key_value_heads": 2, **_ENDLESS, **more}
    if kind == "llama":
        return made.LlamaForCausalLM(made.LlamaConfig(**grouped))
    if kind == "mistral":
        config = made.MistralConfig(**{"sliding_window": WINDOW, **grouped})
        return made.MistralForCausalLM(config)
    if kind == "qwen2":
        return made.Qwen2ForCausalLM(made.Qwen2Config(**grouped))
    if kind == "gpt2":
        return made.GPT2LMHeadModel(made.GPT2Config(**{**_GPT2, **_ENDLESS, **more}))
    return made.BertModel(made.BertConfig(**{**_SIZES, **more}))


def random_model(kind: str, dtype: torch.dtype = torch.bfloat16, **more: Any) -> Any:
    """Return a model whose attention is far from uniform, in eval mode."""
    torch.manual_seed(0)
    model = _empty(kind, **more)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.05)
            else:
                parameter.mul_(4)
    return model.to(dtype).eval()


def tokens(rows: int = 2, length: int = 20) -> Tensor:
    return torch.randint(2, 128, (rows, length), generator=torch.Generator().manual_seed(1))


def padding(kind: str, ids: Tensor) -> Tensor:
    """Return the mask of a batch whose second sequence is shorter: decoders pad on the left."""
    mask = torch.ones_like(ids)
    mask[1, :5] = 0
    return mask.flip(1) if kind == "bert" else mask


def first_output(model: Any, ids: Tensor, **named: Any) -> Tensor:
    with torch.no_grad():
        y: Tensor = model(ids.to(model.device), **named)[0]
    return y.cpu().double()


def in_f32(model: Any) -> Any:
    return copy.deepcopy(model).float()


def rms(difference: Tensor) -> float:
    return float(difference.square().mean().sqrt())


def converted(model: Any, **named: Any) -> tuple[Any, Conversion]:
    """Return a converted copy, and the report."""
    ours = copy.deepcopy(model)
    return ours, convert(ours, **named)


def check_texts(
    model: Any, ours: Any, ids: Tensor, mask: Tensor, *, new: int, cache: str | None
) -> None:
    """Both must write the same ``new`` tokens, but where the first, by its noise, is undecided."""
    exact = first_output(in_f32(model), ids, attention_mask=mask)
    off = first_output(model, ids, attention_mask=mask) - exact
    noise = off[mask.bool().cpu()].abs().max()
    before, after = (
        each.generate(
            ids,
            attention_mask=mask,
            do_sample=False,
            max_new_tokens=new,
            cache_implementation=cache,
            disable_compile=True,
            output_logits=True,
            return_dict_in_generate=True,
        )
        for each in (model, ours)
    )
    rows, given = ids.shape
    assert before.sequences.shape == (rows, given + new)
    for row, (one, other) in enumerate(zip(before.sequences, after.sequences, strict=True)):
        parted = (one != other).nonzero()
        if len(parted):
            logits = before.logits[int(parted[0]) - given][row]
            assert logits[one[parted[0]]] - logits[other[parted[0]]] <= noise
