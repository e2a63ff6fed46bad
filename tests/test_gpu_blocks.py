"""Blocks of transformers' models on the GPU: right, on our kernels, and in a CUDA graph.

Run with ``pytest -s`` to see the figures.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from block_models import (
    DECODERS,
    KINDS,
    check_texts,
    converted,
    first_output,
    in_f32,
    padding,
    random_model,
    rms,
    tokens,
)
from gemmsmith.generation import count_kernels

pytestmark = pytest.mark.gpu

each_kind = pytest.mark.parametrize("kind", KINDS)
SIZES = {"hidden_size": 512, "intermediate_size": 1024, "num_attention_heads": 8}
GPT2 = {"n_embd": 512, "n_head": 8}


def wide(kind: str) -> Any:
    """Return a model with head_dim 64, which attention kernels have."""
    more: dict[str, Any] = dict(GPT2 if kind == "gpt2" else SIZES)
    if kind in ("llama", "mistral", "qwen2"):
        more["num_key_value_heads"] = 2
    model = random_model(kind, **more)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(0.4)
    return model.cuda()


@each_kind
@pytest.mark.parametrize("int8", [False, True])
@pytest.mark.parametrize("padded", [False, True])
def test_outputs_are_within_the_models_own_noise(kind: str, int8: bool, padded: bool) -> None:
    model, ids = wide(kind), tokens(2, 150).cuda()
    mask = padding(kind, ids) if padded else torch.ones_like(ids)
    given = {"attention_mask": mask} if padded else {}
    how = {"dtype": "int8", "samples": ids, "min_speedup": 0} if int8 else {}
    ours, report = converted(model, **how)
    assert len(report.blocks) == 4
    assert report.converted_flops_share == 1
    exact = first_output(in_f32(model), ids, **given)[mask.bool().cpu()]
    before = first_output(model, ids, **given)[mask.bool().cpu()]
    with count_kernels(ours) as counts:
        after = first_output(ours, ids, **given)[mask.bool().cpu()]
    print(f"\n{kind}: rms to fp32: {rms(before - exact):.4f}, ours {rms(after - exact):.4f}")
    assert "torch" not in counts
    most = 0.05 * rms(exact) if int8 else 1.5 * rms(before - exact)
    assert 0 < rms(after - exact) <= most


@pytest.mark.parametrize("kind", DECODERS)
@pytest.mark.parametrize("cache", [None, "static"])
def test_texts_with_a_cache_part_only_where_the_model_is_undecided(
    kind: str, cache: str | None
) -> None:
    model, ids = wide(kind), tokens(2, 40).cuda()
    ours, _ = converted(model)
    check_texts(model, ours, ids, torch.ones_like(ids), new=24, cache=cache)


@pytest.mark.parametrize(
    ("kind", "name"),
    [("llama", "model.layers.0"), ("gpt2", "transformer.h.0"), ("bert", "encoder.layer.0")],
)
def test_a_layer_is_captured_in_a_cuda_graph(kind: str, name: str) -> None:
    ours, _ = converted(wide(kind))
    layer = ours.get_submodule(name)
    given = torch.randn(2, 64, 512, device="cuda").bfloat16()
    named = {"position_ids": torch.arange(64, device="cuda")[None]} if kind == "llama" else {}

    def run() -> Any:
        with torch.no_grad():
            y = layer(given, **named)
        return y[0] if isinstance(y, tuple) else y

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = run()
    given.copy_(torch.randn(2, 64, 512, device="cuda"))
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(y, run())
