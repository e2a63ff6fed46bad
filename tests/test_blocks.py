"""Whole blocks of transformers' models: the numbers, texts, caches and checkpoints of before."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from block_models import (
    DECODERS,
    KINDS,
    WINDOW,
    check_texts,
    converted,
    first_output,
    in_f32,
    padding,
    random_model,
    rms,
    tokens,
)
from gemmsmith import blocks, nn
from gemmsmith.conversion import Conversion, convert

each_kind = pytest.mark.parametrize("kind", KINDS)
each_decoder = pytest.mark.parametrize("kind", DECODERS)
ATTENTION = {
    "llama": ("model.layers.1.self_attn", blocks.RotaryAttention),
    "mistral": ("model.layers.1.self_attn", blocks.RotaryAttention),
    "qwen2": ("model.layers.1.self_attn", blocks.RotaryAttention),
    "gpt2": ("transformer.h.1.attn", blocks.Gpt2Attention),
    "bert": ("encoder.layer.1.attention.self", blocks.BertSelfAttention),
}


@each_kind
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("padded", [False, True])
def test_outputs_are_within_the_models_own_noise(kind: str, attention: str, padded: bool) -> None:
    model = random_model(kind)
    model.set_attn_implementation(attention)
    ours, report = converted(model)
    assert len(report.blocks) == 4
    assert not any((report.blocks_left, report.left))
    assert report.converted_flops_share == 1
    ids = tokens()
    mask = padding(kind, ids) if padded else torch.ones_like(ids)
    given = {"attention_mask": mask} if padded else {}
    exact, before, after = (
        first_output(each, ids, **given)[mask.bool()] for each in (in_f32(model), model, ours)
    )
    assert 0 < rms(after - exact) <= 1.5 * rms(before - exact)
    assert (after - exact).abs().max() <= 2 * (before - exact).abs().max()


@each_decoder
@pytest.mark.parametrize("cache", [None, "static"])
@pytest.mark.parametrize("padded", [False, True])
def test_generate_writes_the_same_text_with_a_cache(
    kind: str, cache: str | None, padded: bool
) -> None:
    model = random_model(kind)
    ours, _ = converted(model)
    ids = tokens()
    mask = padding(kind, ids) if padded else torch.ones_like(ids)
    check_texts(model, ours, ids, mask, new=6, cache=cache)


@each_decoder
def test_a_cache_in_pieces_gives_what_one_pass_gives(kind: str) -> None:
    """Several tokens after others: their mask is bottom-right aligned."""
    ours, _ = converted(random_model(kind))
    ids = tokens(1)
    whole = first_output(ours, ids)
    with torch.no_grad():
        start = ours(ids[:, :9], use_cache=True)
        cache = start.past_key_values if "past_key_values" in start else start.cache
        rest = ours(ids[:, 9:], past_key_values=cache).logits.double()
    assert rms(rest - whole[:, 9:]) < 0.01 * rms(whole)


def test_a_window_limits_what_is_seen() -> None:
    """The first layer's output at a token does not depend on tokens a window before."""
    ours, _ = converted(random_model("mistral", num_hidden_layers=1))
    ids = tokens(1)
    other = ids.clone()
    other[:, 0] = (ids[:, 0] + 1) % 128
    before, after = (first_output(ours, each)[0] for each in (ids, other))
    same = (before == after).all(-1).tolist()
    assert same == [token >= WINDOW for token in range(20)]


@each_kind
def test_a_checkpoint_keeps_its_keys_and_numbers(kind: str, tmp_path: Path) -> None:
    model = random_model(kind)
    ours, _ = converted(model)
    stored, before = ours.state_dict(), model.state_dict()
    assert list(stored) == list(before)
    assert all(torch.equal(stored[key], before[key]) for key in before)
    other = random_model(kind)
    for parameter in other.parameters():
        parameter.data.mul_(0.5)
    convert(other)
    assert not torch.equal(first_output(other, tokens()), first_output(ours, tokens()))
    other.load_state_dict(stored)
    assert torch.equal(first_output(other, tokens()), first_output(ours, tokens()))
    ours.save_pretrained(tmp_path)
    back = type(model).from_pretrained(tmp_path, dtype=torch.bfloat16).state_dict()
    assert all(torch.equal(back[key], before[key]) for key in before)
    with pytest.raises(RuntimeError, match=r"size mismatch|the checkpoint has"):
        other.load_state_dict({key: tensor[..., :8] for key, tensor in stored.items()})


@each_kind
def test_copies_casts_and_pickles(kind: str) -> None:
    ours, _ = converted(random_model(kind))
    y = first_output(ours, tokens())
    for again in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
        assert torch.equal(first_output(again, tokens()), y)
    ours.half()
    assert first_output(ours, tokens()).isfinite().all()
    if kind in ("llama", "mistral", "qwen2"):  # angles stay exact, or far positions are lost
        found = ours.get_submodule(ATTENTION[kind][0]).rotary.inv_freq
        right = 10000.0 ** (-torch.arange(0, 16, 2).double() / 16)
        assert torch.allclose(found, right, rtol=1e-6)


@each_kind
@pytest.mark.parametrize("padded", [False, True])
def test_a_converted_model_compiles_to_one_graph(kind: str, padded: bool) -> None:
    ours, _ = converted(random_model(kind))
    ids = tokens()
    mask = padding(kind, ids) if padded else torch.ones_like(ids)
    given = {"attention_mask": mask} if padded else {}
    compiled = torch.compile(ours, fullgraph=True, backend="aot_eager")
    found, right = first_output(compiled, ids, **given), first_output(ours, ids, **given)
    assert rms((found - right)[mask.bool()]) <= 0.01 * rms(right)


@each_kind
def test_objects_and_hooks_stay(kind: str) -> None:
    model = random_model(kind)
    name, ours = ATTENTION[kind]
    attention = model.get_submodule(name)
    kept, seen = vars(attention)["_forward_hooks"], []
    attention.register_forward_hook(lambda *_: seen.append(name))
    report = convert(model)
    assert model.get_submodule(name) is attention
    assert type(attention) is ours
    assert vars(attention)["_forward_hooks"] is kept
    first_output(model, tokens())
    assert seen == [name]
    assert f"swapped   2 {_class_of(report, name)} as a block" in str(report)
    again = convert(model)
    assert not any((again.swapped, again.left, again.blocks, again.blocks_left))
    assert again.converted_flops_share == 1


def _class_of(report: Conversion, name: str) -> str:
    return next(block.kind for block in report.blocks if block.name == name)


@each_kind
def test_without_blocks_only_linear_layers_are_swapped(kind: str) -> None:
    model = random_model(kind)
    ours, report = converted(model, blocks=False)
    assert not any((report.blocks, report.blocks_left))
    assert report.converted_flops_share == 1
    assert list(ours.state_dict()) == list(model.state_dict())
    found, right = first_output(ours, tokens()), first_output(model, tokens())
    assert rms(found - right) <= 0.01 * rms(right)
    if kind == "gpt2":
        layer = ours.transformer.h[0].mlp.c_fc
        assert type(layer) is nn.PreparedLinear
        assert layer.preparation.transposed
        assert layer.weight.shape == (256, 64)


@each_kind
def test_in_int8_what_reads_one_input_is_quantised_once(kind: str) -> None:
    model, ids = random_model(kind), tokens()
    ours, report = converted(model, dtype="int8", samples=ids)
    assert not any((report.left, report.blocks_left))
    assert len(report.blocks) == 4
    apart, _ = converted(model, dtype="int8", samples=ids, blocks=False)
    right = first_output(model, ids)
    off = rms(first_output(ours, ids) - right)
    assert off <= 0.05 * rms(right)
    assert off <= 1.3 * rms(first_output(apart, ids) - right)
    qkv = getattr(ours.get_submodule(ATTENTION[kind][0]), "qkv", None)
    assert (qkv is None) == (kind == "gpt2")
    assert qkv is None or type(qkv) is nn.Int8Linear
    stored = ours.state_dict()
    held = {key for key in model.state_dict() if stored[key].dtype == torch.int8}
    assert len(held) == len([key for key in stored if key.endswith("weight_scale")])
    other = copy.deepcopy(ours)
    for parameter in other.parameters():
        parameter.data.zero_()
    other.load_state_dict(stored)
    assert torch.equal(first_output(other, ids), first_output(ours, ids))


def test_a_padded_batch_of_bert_is_read_to_its_lengths() -> None:
    """Keys beyond a sequence's end have no effect, be they NaN."""
    ours, _ = converted(random_model("bert"))
    attention = ours.encoder.layer[0].attention.self
    x = torch.randn(2, 8, 64, generator=torch.Generator().manual_seed(0)).bfloat16()
    x[1, 5:] = torch.nan
    mask = torch.ones(2, 1, 8, 8, dtype=torch.bool)
    mask[1, ..., 5:] = False
    with torch.no_grad():
        y: Tensor = attention(x, mask)[0]
        short: Tensor = attention(x[1:, :5])[0]
    assert y[0].isfinite().all()
    assert torch.equal(y[1, :5], short[0])


@pytest.mark.parametrize("int8", [False, True])
def test_layers_that_run_on_gemmsmith_become_blocks_later(int8: bool) -> None:
    """Int8 layers only where their column scales are alike, as without samples."""
    model = random_model("llama")
    how: dict[str, Any] = {"dtype": "int8", "max_error": 1} if int8 else {}
    ours, _ = converted(model, blocks=False, **how)
    y = first_output(ours, tokens())
    report = convert(ours, **how)
    assert (len(report.swapped), len(report.already), len(report.blocks)) == (0, 15, 4)
    assert rms(first_output(ours, tokens()) - y) <= 0.02 * rms(y)
