"""Decoders over two processes, with gloo and, marked ``gpu``, with nccl on two GPUs."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from torch import Tensor
from torch.multiprocessing.spawn import spawn

from decoder_data import (
    HEADS,
    HIDDEN,
    INNER,
    KV_HEADS,
    SIZE,
    VOCABULARY,
    exact_logits,
    ids,
    weights,
)
from gemmsmith.nn.division import why_heads_stay
from layer_data import on_each, relative
from parallel_data import (
    DTYPES,
    KINDS,
    RANKS,
    STEPS,
    Seen,
    answers,
    block_answer,
    new_blocks,
    new_decoder,
    work,
)

_BOUNDS = {"f32": 1e-5, "bf16": 0.03, "f16": 0.005, "int8": 0.1}


@cache
def ranks(device: str) -> list[Seen]:
    """Return what each rank saw; the processes run once for all tests."""
    if device == "cuda" and torch.cuda.device_count() < RANKS:
        pytest.skip(f"{torch.cuda.device_count()} GPU here, {RANKS} are needed")
    with TemporaryDirectory() as name:
        folder = Path(name)
        spawn(work, (folder, device), nprocs=RANKS)
        return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(RANKS)]


@cache
def alone(kind: str, device: str) -> Seen:
    """Return what the whole decoder answers."""
    return answers(new_decoder(kind, device), device)


def exact(kind: str) -> Tensor:
    dtype = DTYPES.get(kind, torch.bfloat16)
    given = weights(dtype, bias=kind in ("bf16", "f16"), tied=kind == "f32")
    return torch.stack([exact_logits(given, row) for row in ids(2, 21)])


@on_each
@pytest.mark.parametrize("kind", KINDS)
def test_logits_are_those_of_the_whole(kind: str, device: str) -> None:
    first, second = (seen[kind] for seen in ranks(device))
    assert torch.equal(first["whole"], second["whole"])
    assert first["whole"].shape == (2, 21, VOCABULARY)
    right, whole = exact(kind), alone(kind, device)["whole"]
    assert relative(first["whole"], right) < _BOUNDS[kind]
    assert relative(first["whole"], right) < 2 * relative(whole, right) + 1e-6
    assert torch.equal(first["again"], first["whole"])
    assert torch.equal(second["again"], second["whole"])


@on_each
@pytest.mark.parametrize("kind", KINDS)
def test_prompts_of_different_lengths_and_steps(kind: str, device: str) -> None:
    """Each rank chooses the next tokens by itself; in f32 they are those of the whole."""
    first, second = (seen[kind] for seen in ranks(device))
    assert torch.equal(first["steps"], second["steps"])
    assert first["cache"] == second["cache"] == (2, 16, KV_HEADS // RANKS, SIZE)
    whole = alone(kind, device)["steps"]
    assert whole.shape == (2, STEPS + 1, VOCABULARY)
    assert torch.isfinite(first["steps"]).all()
    assert relative(first["steps"][:, 0], whole[:, 0].double()) < _BOUNDS[kind]
    if kind == "f32":
        assert torch.equal(first["steps"].argmax(-1), whole.argmax(-1))
        assert relative(first["steps"], whole.double()) < _BOUNDS[kind]


@on_each
def test_a_rank_has_its_part_of_each_weight(device: str) -> None:
    given, whole = weights(torch.bfloat16, bias=True, tied=False), new_decoder("bf16", "cpu")
    states = [seen["bf16"]["state"] for seen in ranks(device)]
    at = "layers.1.attention"
    names = {f"{at}.qkv.{part}.{what}" for part in "qkv" for what in ("weight", "bias")}
    assert names <= whole.state_dict().keys() == states[0].keys()
    for part, heads in zip("qkv", (HEADS, KV_HEADS, KV_HEADS), strict=True):
        for what in ("weight", "bias"):
            parts = [state[f"{at}.qkv.{part}.{what}"] for state in states]
            assert parts[0].shape[0] == heads // RANKS * SIZE
            right = given[f"model.layers.1.self_attn.{part}_proj.{what}"]
            assert torch.equal(torch.cat(parts), right)
    o = [state[f"{at}.o.weight"] for state in states]
    assert o[0].shape == (HIDDEN, HEADS // RANKS * SIZE)
    assert torch.equal(torch.cat(o, 1), given["model.layers.1.self_attn.o_proj.weight"])
    for part, dimension in (("gate_up.gate", 0), ("gate_up.up", 0), ("down", 1)):
        parts = [state[f"layers.0.feed_forward.{part}.weight"] for state in states]
        assert parts[0].shape[dimension] == INNER // RANKS
        name = f"model.layers.0.mlp.{part.removeprefix('gate_up.')}_proj.weight"
        assert torch.equal(torch.cat(parts, dimension), given[name])
    head = [state["head.weight"] for state in states]
    assert torch.equal(torch.cat(head), given["lm_head.weight"])
    for name in ("embedding.weight", "norm.weight", "layers.0.attention_norm.weight"):
        assert torch.equal(states[0][name], whole.state_dict()[name])


@on_each
def test_int8_parts_keep_numbers_and_scales(device: str) -> None:
    whole = new_decoder("int8", "cpu").state_dict()
    states = [seen["int8"]["state"] for seen in ranks(device)]
    for name, dimension in (
        ("layers.0.attention.qkv.k.weight", 0),
        ("layers.0.attention.qkv.k.weight_scale", 0),
        ("layers.1.feed_forward.gate_up.up.weight_scale", 0),
        ("layers.1.feed_forward.down.weight", 1),
        ("head.weight", 0),
    ):
        parts = torch.cat([state[name] for state in states], dimension)
        if device == "cpu":
            assert torch.equal(parts, whole[name])
        assert parts.shape == whole[name].shape
    scale = [state["layers.1.feed_forward.down.weight_scale"] for state in states]
    assert torch.equal(scale[0], scale[1])


@on_each
def test_compiled_and_divided_on_the_cpu(device: str) -> None:
    first = ranks(device)[0]
    assert torch.equal(first["compiled"], first["int8"]["whole"])
    assert torch.equal(first["moved"], first["bf16"]["whole"])


@on_each
def test_blocks_with_biases_and_residuals_are_those_of_the_whole(device: str) -> None:
    """A bias or residual that both ranks added would be off by three times the bound and more."""
    first, second = (seen["blocks"] for seen in ranks(device))
    for name, (block, attends) in new_blocks(device).items():
        whole = block_answer(block, attends, device).double()
        assert torch.equal(first[name], second[name]), name
        assert relative(first[name], whole) < (0.02 if "int8" in name else 0.006), name


def test_what_does_not_divide_is_told_before_anything_changes() -> None:
    for told in (seen["refusals"] for seen in ranks("cpu")):
        assert told["heads"] == (
            "0.attention: 6 heads that read 3 KV heads do not divide by 2 ranks: 3, 6 would do;"
            " 1: 41 inner features do not divide by 2 ranks"
        )
        assert "divided over 2 ranks already" in told["twice"]
        assert "Linear holds no gemmsmith.nn.Attention" in told["nothing"]
        assert "quantise first, then parallelize" in told["quantise"]
        assert "gelu of a layer that is divided along K" in told["activate"]


@pytest.mark.parametrize(
    ("heads", "kv_heads", "fitting"),
    [(9, 3, [3, 9]), (32, 8, [2, 4, 8, 16, 32]), (12, 1, [2, 3, 4, 6, 12]), (28, 4, [2, 4, 28])],
)
def test_numbers_of_ranks_that_heads_divide_by(
    heads: int, kv_heads: int, fitting: list[int]
) -> None:
    assert [n for n in range(2, 40) if not why_heads_stay(heads, kv_heads, n)] == fitting
