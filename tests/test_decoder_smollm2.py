"""SmolLM2's real weights in a decoder of ours: its text, its cache, its int8 form.

Run with ``pytest -s`` to see the figures.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gemmsmith.bytepair import BytePairs
from gemmsmith.generation import Generated, first_difference, greedy
from gemmsmith.gguf import read_gguf
from gemmsmith.nn import Continued, Decoder
from gemmsmith.perplexity import perplexity
from gemmsmith.smollm2 import ModelFileError, find_gguf, load_smollm2
from layer_data import DEVICES, relative
from model_noise import measure

PROMPTS = (
    "The capital of France is",
    "Once upon a time there was a girl who",
    "def matrix_multiply(a, b):",
)
TOKENS = 16
ALICE = (Path(__file__).parent.parent / "examples/data/alice.txt").read_text(encoding="utf-8")


class AsModel:
    """A decoder that is called as a model of transformers."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self.device = decoder.device

    def __call__(self, ids: torch.Tensor) -> Any:
        return SimpleNamespace(logits=self._decoder(ids))


@dataclass(frozen=True, kw_only=True)
class Ours:
    decoder: Decoder
    in_f32: Decoder
    tokenizer: BytePairs
    prompts: tuple[list[int], ...]


@pytest.fixture(scope="module", params=DEVICES)
def ours(request: pytest.FixtureRequest) -> Ours:
    try:
        path = find_gguf()
    except ModelFileError as error:
        pytest.skip(str(error))
    decoder = Decoder.from_gguf(path, device=request.param)
    tokenizer = BytePairs(read_gguf(path).metadata)
    return Ours(
        decoder=decoder,
        in_f32=copy.deepcopy(decoder).to(torch.float32),
        tokenizer=tokenizer,
        prompts=tuple(tokenizer.encode(prompt) for prompt in PROMPTS),
    )


def generated(made: Continued, row: int) -> Generated:
    assert made.logits is not None
    return Generated(ids=made.ids[row], logits=made.logits[row], text="", seconds=1.0)


def text_of(prompt: list[int], ids: torch.Tensor, device: torch.device) -> torch.Tensor:
    return torch.cat((torch.tensor(prompt), ids))[None].to(device)


def test_text_is_that_of_transformers_up_to_bf16_noise(ours: Ours) -> None:
    """All prompts, of different lengths, in one batch; see test_gpu_model.py and model_noise.py."""
    try:
        theirs, tokenizer = load_smollm2(torch.bfloat16, ours.decoder.device)
    except ModelFileError as error:
        pytest.skip(str(error))
    in_f32 = copy.deepcopy(theirs).float()
    made = ours.decoder.generate(ours.prompts, TOKENS, keep_logits=True)
    for row, prompt in enumerate(PROMPTS):
        assert tokenizer(prompt).input_ids == ours.prompts[row]
        before = greedy(theirs, tokenizer, prompt, TOKENS)
        text = text_of(ours.prompts[row], before.ids, ours.decoder.device)
        noise = measure(in_f32, theirs, AsModel(ours.decoder), text)
        difference = first_difference(before, generated(made, row))
        print(f"\n{prompt!r}: {noise}\n  {TOKENS} tokens: {difference or 'the same text'}")
        if difference is not None:
            assert 0 <= difference.gap <= noise.original_max, str(difference)


def test_noise_is_that_of_transformers(ours: Ours) -> None:
    try:
        theirs, _ = load_smollm2(torch.bfloat16, ours.decoder.device)
    except ModelFileError as error:
        pytest.skip(str(error))
    text = torch.tensor([ours.tokenizer.encode(ALICE)[:128]])
    noise = measure(copy.deepcopy(theirs).float(), theirs, AsModel(ours.decoder), text)
    print(f"\n{noise}")
    noise.check()
    right = copy.deepcopy(theirs).float()
    with torch.inference_mode():
        logits = right(text.to(right.device)).logits
        assert relative(ours.in_f32(text.to(right.device)), logits.cpu().double()) < 1e-3


def test_a_batch_of_prompts_says_what_f32_finds_likeliest(ours: Ours) -> None:
    """Needs no transformers: the same decoder in f32 judges each token, its text given."""
    made = ours.decoder.generate(ours.prompts, TOKENS)
    for row, prompt in enumerate(ours.prompts):
        text = text_of(prompt, made.ids[row], ours.decoder.device)[:, :-1]
        with torch.inference_mode():
            exact, found = (
                model(text)[0, len(prompt) - 1 :].cpu().double()
                for model in (ours.in_f32, ours.decoder)
            )
        noise = float((found - exact).abs().max())
        chosen = exact.gather(1, made.ids[row][:, None])[:, 0]
        gap = float((exact.max(-1).values - chosen).max())
        print(f"\n{PROMPTS[row]!r}: noise {noise:.3f}, largest gap {gap:.3f}")
        print(f"  {ours.tokenizer.decode(made.texts[row])!r}")
        assert 0 <= gap <= 2 * noise  # of two logits, each off by as much
    assert ours.tokenizer.decode(made.texts[0]).startswith(" Paris")


def test_steps_with_a_cache_give_what_the_whole_text_does(ours: Ours) -> None:
    ids = torch.tensor([ours.tokenizer.encode(ALICE)[:40]], device=ours.decoder.device)
    with torch.inference_mode():
        whole = ours.in_f32(ids)[0].cpu().double()
        cache = ours.in_f32.cache(1, 40)
        logits = [ours.in_f32.prefill(ids[:, :30], cache)]
        logits += [ours.in_f32.step(ids[:, at], cache) for at in range(30, 40)]
    assert relative(torch.cat(logits), whole[29:]) < 1e-4


def test_int8_predicts_nearly_as_well(ours: Ours) -> None:
    ids = torch.tensor(ours.tokenizer.encode(ALICE))
    samples, text = ids[:128].view(2, 64), ids[256:512]
    int8 = ours.decoder.to_int8(samples.to(ours.decoder.device))
    before = perplexity(AsModel(ours.decoder), text, window=256)
    after = perplexity(AsModel(int8), text, window=256)
    print(f"\nperplexity: bf16 {before:.3f}, int8 {after:.3f}")
    assert abs(after / before - 1) < 0.04
    made = int8.generate(ours.prompts[:1], 4)
    assert ours.tokenizer.decode(made.texts[0]).startswith(" Paris")
    stored = int8.state_dict()
    other = ours.decoder.to_int8()
    other.load_state_dict(stored)
    with torch.inference_mode():
        tokens = text[None, :9].to(ours.decoder.device)
        assert torch.equal(other(tokens), int8(tokens))


def test_state_goes_from_gguf_to_transformers_weights(ours: Ours) -> None:
    try:
        theirs, _ = load_smollm2(torch.bfloat16, ours.decoder.device)
    except ModelFileError as error:
        pytest.skip(str(error))
    other = Decoder.from_transformers(theirs)
    found, right = ours.decoder.state_dict(), other.state_dict()
    assert found.keys() == right.keys()
    assert [name for name in found if not torch.equal(found[name], right[name])] == []
    weight = dict(theirs.named_parameters())["model.layers.7.self_attn.k_proj.weight"]
    assert torch.equal(found["layers.7.attention.qkv.k.weight"], weight)
    assert other.embedding.weight.data_ptr() == theirs.model.embed_tokens.weight.data_ptr()
