"""SmolLM2 in int8: nearly all of it, and the same language. ``pytest -s`` shows the figures."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

from gemmsmith.conversion import convert
from gemmsmith.errors import ArgumentError
from gemmsmith.generation import count_kernels
from gemmsmith.perplexity import perplexity
from gemmsmith.smollm2 import ModelFileError, find_gguf, load_smollm2

TEXT = Path(__file__).parents[1] / "examples" / "data" / "alice.txt"
SAMPLE = (
    "The quantity of heat which a body absorbs depends upon its mass, upon the rise of its"
    " temperature, and upon the substance of which it is made."
)

try:
    find_gguf()
    ABSENT = ""
except ModelFileError as error:
    ABSENT = str(error)


class Even:
    """A model of four tokens that finds each equally likely."""

    device = torch.device("cpu")

    def __init__(self) -> None:
        self.seen: list[int] = []

    def __call__(self, ids: torch.Tensor) -> Any:
        self.seen.append(ids.shape[1])

        class Output:
            logits = torch.zeros(1, ids.shape[1], 4)

        return Output


def test_perplexity_of_even_chances_is_their_number() -> None:
    model = Even()
    assert perplexity(model, torch.tensor([0, 3, 1, 2, 0]), window=3) == pytest.approx(4.0)
    assert model.seen == [3, 2]
    perplexity(model, torch.tensor([0, 1, 2, 3]), window=3)
    assert model.seen[2:] == [3]  # a last token alone is predicted from nothing
    with pytest.raises(ArgumentError, match="1 tokens in windows of 512: nothing to predict"):
        perplexity(model, torch.tensor([1]))


@pytest.mark.skipif(bool(ABSENT), reason=ABSENT)
@pytest.mark.parametrize(
    ("device", "tokens", "most"),
    [("cpu", 256, 0.015), pytest.param("cuda", 2048, 0.02, marks=pytest.mark.gpu)],
)
def test_smollm2_in_int8_predicts_a_text_nearly_as_well(
    device: str, tokens: int, most: float
) -> None:
    """Proven on one text, judged on another; speed is not asked of layers this small."""
    original, tokenizer = load_smollm2(torch.bfloat16, device)
    text = tokenizer(TEXT.read_text(), return_tensors="pt").input_ids[:, :tokens]
    sample = tokenizer(SAMPLE, return_tensors="pt").input_ids.to(device)
    converted = copy.deepcopy(original)
    report = convert(converted, dtype="int8", samples=sample, min_speedup=0)
    with count_kernels(converted) as counts:
        after = perplexity(converted, text)
    before = perplexity(original, text)
    change = after / before - 1
    print(f"\n{report}\nperplexity: bf16 {before:.3f}, int8 {after:.3f} ({change:+.2%})")
    assert report.converted_flops_share == 1
    assert change <= most
    assert "torch" not in counts
    assert (set(counts) == {"cpu"}) == (device == "cpu")
    assert converted.model.embed_tokens.weight.dtype == torch.bfloat16
