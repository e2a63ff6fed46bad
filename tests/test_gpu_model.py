"""SmolLM2 in bf16 on the GPU: all of its linear layers on our kernels, and the same language.

Run with ``pytest -s`` to see the figures.
"""

from __future__ import annotations

import copy
from collections import Counter
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from gemmsmith import nn
from gemmsmith.conversion import Conversion, convert
from gemmsmith.generation import count_kernels, first_difference, greedy
from gemmsmith.ops import last_kernel
from gemmsmith.smollm2 import load_smollm2
from model_noise import measure

pytestmark = pytest.mark.gpu

PROMPTS = ("The tensor core", "Once upon a time there was", "def matrix_multiply(a, b):")


@dataclass(frozen=True, kw_only=True)
class Models:
    in_fp32: Any
    original: Any
    converted: Any
    report: Conversion
    tokenizer: Any


@pytest.fixture(scope="module")
def models() -> Models:
    original, tokenizer = load_smollm2(torch.bfloat16, "cuda")
    converted = copy.deepcopy(original)
    return Models(
        in_fp32=copy.deepcopy(original).float(),
        original=original,
        converted=converted,
        report=convert(converted, blocks=False),
        tokenizer=tokenizer,
    )


def test_nearly_all_linear_flops_are_converted(models: Models) -> None:
    print(f"\n{models.report}")
    assert models.report.converted_flops_share >= 0.9
    assert len(models.report.swapped) == 30 * 7 + 1
    assert models.converted.lm_head.weight is models.converted.model.embed_tokens.weight


@pytest.mark.parametrize("tokens", [1, 7, 200])
def test_only_our_kernels_run_in_the_swapped_layers(models: Models, tokens: int) -> None:
    """Each swapped layer runs alone on the input that it has in the model, under the profiler.

    The whole model would not do: its rotary embedding is a small torch.matmul, and attention has
    CUTLASS kernels of torch's own.
    """
    inputs = _inputs_of_layers(models.converted, tokens)
    assert len(inputs) == len(models.report.swapped)
    ran: Counter[str] = Counter()
    with torch.inference_mode():
        for layer, x in inputs:
            layer(x)
        torch.cuda.synchronize()
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
            for layer, x in inputs:
                layer(x)
                record = last_kernel()
                assert record is not None
                ran[record.name] += 1
            torch.cuda.synchronize()
    launched = [
        event.name
        for event in profiler.events()
        if event.device_type.name == "CUDA" and not event.name.startswith(("Memset", "Memcpy"))
    ]
    print(f"\n{tokens} tokens: {dict(ran)}")
    foreign = [name for name in launched if not any(kernel in name for kernel in ran)]
    assert foreign == []
    assert "torch" not in ran
    for kernel, count in ran.items():
        assert sum(kernel in name for name in launched) == count


def _inputs_of_layers(model: Any, tokens: int) -> list[tuple[nn.Linear, torch.Tensor]]:
    inputs: list[tuple[nn.Linear, torch.Tensor]] = []
    layers = [module for module in model.modules() if isinstance(module, nn.Linear)]
    hooks = [
        layer.register_forward_pre_hook(lambda module, given: inputs.append((module, given[0])))
        for layer in layers
    ]
    try:
        with torch.inference_mode():
            model(torch.arange(tokens, device="cuda")[None])
    finally:
        for hook in hooks:
            hook.remove()
    return inputs


@pytest.mark.parametrize("prompt", PROMPTS)
def test_logits_and_text_are_the_originals_up_to_bf16_noise(models: Models, prompt: str) -> None:
    """The bounds are explained in model_noise.py.

    Where the texts part, the original must have been undecided: its logits of the two candidates
    no farther apart than its own largest error against fp32 on that text.
    """
    before = greedy(models.original, models.tokenizer, prompt, 64)
    with count_kernels(models.converted) as counts:
        after = greedy(models.converted, models.tokenizer, prompt, 64)
    assert "torch" not in counts
    assert sum(counts.values()) == 64 * len(models.report.swapped)

    given = models.tokenizer(prompt, return_tensors="pt").input_ids[0]
    text = torch.cat((given, before.ids))[None]
    noise = measure(models.in_fp32, models.original, models.converted, text)
    difference = first_difference(before, after)
    print(f"\n{prompt!r}: {noise}\n  64 tokens: {difference or 'the same text'}")
    print(f"  {after.tokens_per_second:.0f} tokens/s, original {before.tokens_per_second:.0f}")
    noise.check()
    if difference is not None:
        assert 0 <= difference.gap <= noise.original_max, str(difference)


@pytest.mark.parametrize("prompt", PROMPTS)
def test_whole_blocks_write_the_originals_text_up_to_bf16_noise(
    models: Models, prompt: str
) -> None:
    converted = copy.deepcopy(models.original)
    report = convert(converted)
    assert len(report.blocks) == 60
    before = greedy(models.original, models.tokenizer, prompt, 64)
    with count_kernels(converted) as counts:
        after = greedy(converted, models.tokenizer, prompt, 64)
    assert "torch" not in counts
    assert sum(counts.values()) == 64 * (30 * 4 + 1)
    given = models.tokenizer(prompt, return_tensors="pt").input_ids[0]
    noise = measure(
        models.in_fp32, models.original, converted, torch.cat((given, before.ids))[None]
    )
    difference = first_difference(before, after)
    print(f"\n{prompt!r}: {noise}\n  64 tokens: {difference or 'the same text'}")
    print(f"  {after.tokens_per_second:.0f} tokens/s, original {before.tokens_per_second:.0f}")
    noise.check()
    assert difference is None or 0 <= difference.gap <= noise.original_max, str(difference)
