"""Blocks that are not swapped, and calls that a swapped block refuses: each with its reason."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from block_models import converted, first_output, random_model, rms, tokens
from gemmsmith import nn
from gemmsmith.conversion import convert
from gemmsmith.errors import ArgumentError
from gemmsmith.nn.parallel import _check


def test_int8_layers_that_lose_leave_their_block_as_it_is() -> None:
    model = random_model("llama")
    ours, report = converted(model, dtype="int8", samples=tokens(), max_error=1e-4)
    assert not any((report.swapped, report.blocks))
    assert {block.kind for block in report.blocks_left} == {"LlamaAttention", "LlamaMLP"}
    assert all("stays: int8 is off by" in block.reason for block in report.blocks_left)
    assert torch.equal(first_output(ours, tokens()), first_output(model, tokens()))
    assert "no block for LlamaMLP model.layers.0.mlp" in str(report)


def test_a_skipped_layer_leaves_its_block() -> None:
    ours, report = converted(random_model("llama"), skip=("layers.0.self_attn.k_proj",))
    (block,) = report.blocks_left
    assert (block.name, block.reason) == (
        "model.layers.0.self_attn",
        "k_proj stays: it is in skip",
    )
    assert len(report.blocks) == 3
    assert type(ours.model.layers[0].self_attn.q_proj) is nn.Linear
    right = first_output(random_model("llama"), tokens())
    assert rms(first_output(ours, tokens()) - right) < 0.02 * rms(right)


def _eager_f32(model: Any) -> None:
    model.set_attn_implementation("eager")
    for block in model.transformer.h:
        block.attn.reorder_and_upcast_attn = True


def _flex(model: Any) -> None:
    model.config._attn_implementation = "flex_attention"


def _tied(model: Any) -> None:
    model.model.layers[1].self_attn.q_proj.weight = model.model.layers[0].self_attn.q_proj.weight


def _other_activation(model: Any) -> None:
    for layer in model.model.layers:
        layer.mlp.act_fn = torch.nn.Tanh()


def _own_class(model: Any) -> None:
    kind = type(model.model.layers[0].self_attn)
    for layer in model.model.layers:
        vars(layer.self_attn)["forward"] = kind.forward.__get__(layer.self_attn)


def _dynamic(model: Any) -> None:
    model.model.rotary_emb.rope_type = "dynamic"


def _other_angles(model: Any) -> None:
    model.model.rotary_emb.inv_freq.mul_(1.5)


@pytest.mark.parametrize(
    ("kind", "change", "words"),
    [
        ("gpt2", _eager_f32, "reorder_and_upcast_attn asks for attention in f32"),
        ("llama", _flex, "attention implementation is 'flex_attention'; .*\"sdpa\""),
        ("llama", _tied, "q_proj is tied to model.layers.*q_proj.weight"),
        ("llama", _other_activation, "its gate is Tanh; silu, gelu, gelu_tanh are known"),
        ("llama", _own_class, "its forward is replaced on the object"),
        ("llama", _dynamic, "rope type dynamic changes frequencies"),
        ("llama", _other_angles, "holds other frequencies than its configuration gives"),
    ],
)
def test_a_block_that_is_not_as_known_stays_with_a_reason(
    kind: str, change: Any, words: str
) -> None:
    model = random_model(kind)
    change(model)
    report = convert(model)
    assert len(report.blocks_left) == 2
    assert report.converted_flops_share == 1
    for block in report.blocks_left:
        assert re.search(words, block.reason)


@pytest.mark.parametrize(
    ("kind", "path", "hooked"),
    [
        ("llama", "model.layers.{}.self_attn.q_proj", "q_proj"),
        ("qwen2", "model.layers.{}.self_attn.v_proj", "v_proj"),
        ("llama", "model.layers.{}.self_attn.o_proj", ""),
        ("llama", "model.layers.{}.mlp.act_fn", "act_fn"),
        ("llama", "model.layers.{}.mlp.down_proj", "down_proj"),
        ("gpt2", "transformer.h.{}.attn.c_attn", ""),
        ("gpt2", "transformer.h.{}.attn.resid_dropout", ""),
        ("gpt2", "transformer.h.{}.mlp.c_fc", "c_fc"),
        ("gpt2", "transformer.h.{}.mlp.c_proj", ""),
        ("bert", "encoder.layer.{}.attention.self.key", "key"),
        ("bert", "encoder.layer.{}.intermediate.intermediate_act_fn", "intermediate_act_fn"),
    ],
)
@pytest.mark.parametrize("before", [False, True])
def test_hooks_within_a_block_are_called_as_before(
    kind: str, path: str, hooked: str, before: bool
) -> None:
    model = random_model(kind)
    for index in (0, 1):
        module = model.get_submodule(path.format(index))
        if before:
            module.register_forward_pre_hook(lambda _, given: (given[0] / 2,))
        else:
            module.register_forward_hook(lambda _, given, y: y / 2)
    right = first_output(model, tokens())
    ours, report = converted(model)
    assert rms(first_output(ours, tokens()) - right) < 0.03 * rms(right)
    reasons = {block.reason for block in report.blocks_left}
    words = f"{hooked} has hooks, which a fused block would not call; remove them first"
    assert reasons == ({words} if hooked else set())


def test_an_activation_whose_forward_is_replaced_leaves_its_block() -> None:
    model = random_model("llama")
    for layer in model.model.layers:
        layer.mlp.act_fn.forward = torch.tanh
    report = convert(model)
    assert len(report.blocks_left) == 2
    for block in report.blocks_left:
        assert block.reason.startswith("act_fn: its forward is replaced on the object")


def test_a_swap_that_fails_leaves_the_block_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    model = random_model("llama")
    right = first_output(model, tokens())

    def fail(*_: object) -> None:
        raise ArgumentError("a test")

    monkeypatch.setattr("gemmsmith.blocks.gated_mlp.gated", fail)
    report = convert(model)
    assert [block.reason for block in report.blocks_left] == ["a test", "a test"]
    kind = type(model.model.layers[0].mlp)
    assert kind.__name__ == "LlamaMLP"
    assert rms(first_output(model, tokens()) - right) < 0.02 * rms(right)


def test_a_layer_alone_has_no_position_embedding() -> None:
    layer = random_model("llama").model.layers[0]
    report = convert(layer)
    assert [block.kind for block in report.blocks] == ["LlamaMLP"]
    assert (
        report.blocks_left[0].reason == "no rotary_emb was found above it; convert the whole model"
    )


def test_calls_that_a_block_does_not_know_are_refused_by_name() -> None:
    ours, _ = converted(random_model("llama"))
    attention, x = ours.model.layers[0].self_attn, torch.zeros(1, 3, 64).bfloat16()
    positions = torch.arange(3)[None]
    with torch.no_grad():
        assert attention(x, position_ids=positions, use_cache=True, flag=None)[1] is None
        with pytest.raises(ArgumentError, match=r"cu_seq_lens_q is given, which .* do not know"):
            attention(x, position_ids=positions, cu_seq_lens_q=positions)
        with pytest.raises(ArgumentError, match="weights of a fused attention are not kept"):
            attention(x, position_ids=positions, output_attentions=True)
        with pytest.raises(ArgumentError, match="position_ids are not given"):
            attention(x)
        with pytest.raises(ArgumentError, match=r"attention_mask is \(1, 3\); .* \"sdpa\""):
            attention(x, position_ids=positions, attention_mask=positions)


def test_a_converted_model_is_no_checkpoint_and_is_not_divided() -> None:
    ours, _ = converted(random_model("llama"))
    with pytest.raises(ArgumentError, match=r"model was converted .* as it was loaded"):
        nn.Decoder.from_transformers(ours)
    with pytest.raises(ArgumentError, match="mesh is a NoneType, not a DeviceMesh"):
        nn.parallelize(ours, None)  # type: ignore[type-var,arg-type]
    with pytest.raises(ArgumentError, match=r"0\.self_attn: a RotaryAttention .*Decoder"):
        _check(ours, 2)


def test_dropout_in_training_and_gradients_are_refused() -> None:
    ours, _ = converted(random_model("gpt2"))
    with pytest.raises(ArgumentError, match="forward only"):
        ours(tokens())
    ours.train()
    with torch.no_grad(), pytest.raises(ArgumentError, match=r"attention dropout is 0\.1 .*eval"):
        ours(tokens())


def test_a_set_without_a_gated_kernel_leaves_the_feed_forward_block(tmp_path: Path) -> None:
    from gemmsmith.kernelset import load

    file = tmp_path / "own.yaml"
    file.write_text(
        "families:\n"
        "  - {name: own, arch: sm_90a, dtype: bf16, schedule: pingpong, tile: [64, 64, 64]}\n"
    )
    kernels = load(file, arch="sm_90a")
    ours, report = converted(random_model("llama"), kernels=kernels)
    assert [block.kind for block in report.blocks] == ["LlamaAttention"] * 2
    assert all("as one product: " in block.reason for block in report.blocks_left)
    assert ours.model.layers[0].self_attn.qkv.kernels == kernels.handle
    assert report.converted_flops_share == 1
    promised, _ = converted(random_model("llama"), constant_weights=True)
    assert promised.model.layers[0].self_attn.qkv.constant_weight
    assert promised.model.layers[0].mlp.block.constant_weight
