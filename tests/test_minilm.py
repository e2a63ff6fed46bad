"""Sentence embeddings of a real encoder whose blocks run on gemmsmith: those of fp32."""

from __future__ import annotations

import copy

import pytest
import torch
from torch.nn.functional import cosine_similarity

import minilm
from gemmsmith.conversion import convert
from gemmsmith.generation import count_kernels
from layer_data import DEVICES

pytestmark = pytest.mark.skipif(minilm.folder() is None, reason=minilm.MISSING)

LONG = (
    "The central bank raised interest rates by half a percentage point, more than economists had"
    " expected, and its governor said that further steps might follow before the end of the year."
)
SENTENCES = (
    "A man is eating a plate of spaghetti.",
    "Someone has pasta for dinner.",
    LONG,
    "Yes.",
    "Violins and cellos are string instruments.",
    "A bow drawn across strings makes them sound.",
)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("blocks", [True, False])
def test_sentence_embeddings_are_those_of_fp32(device: str, blocks: bool) -> None:
    exact, tokenizer = minilm.load_minilm(torch.float32, device)
    right = minilm.embeddings(exact, tokenizer, SENTENCES)
    model = copy.deepcopy(exact).half()
    report = convert(model, blocks=blocks)
    print(f"\n{report}")
    assert report.converted_flops_share == 1
    assert len(report.blocks) == (12 if blocks else 0)
    with count_kernels(model) as counts:
        found = minilm.embeddings(model, tokenizer, SENTENCES)
    cosine = cosine_similarity(found, right)
    print(f"largest difference {(found - right).abs().max():.2e}, least cosine {cosine.min():.7f}")
    assert (found - right).abs().max() <= 1e-2
    assert cosine.min() >= 0.9999
    assert sum(counts.values()) == 6 * (4 if blocks else 6) + 1
    assert "torch" not in counts
    alike = right @ right.T  # a wrong mask or order of heads gives numbers too, but not these
    assert alike[0, 1] > 0.5 > 0.1 > alike[0, 2]
    alone = minilm.embeddings(model, tokenizer, SENTENCES[3:4])
    assert (alone - found[3:4]).abs().max() <= 2e-3


@pytest.mark.parametrize("device", DEVICES)
def test_in_int8_sentences_keep_their_neighbours(device: str) -> None:
    exact, tokenizer = minilm.load_minilm(torch.float32, device)
    right = minilm.embeddings(exact, tokenizer, SENTENCES)
    model = copy.deepcopy(exact).half()
    sample = tokenizer(LONG, return_tensors="pt").input_ids.to(device)
    report = convert(model, dtype="int8", samples=sample, min_speedup=0)
    assert report.converted_flops_share > 0.95
    assert len(report.blocks) >= 10
    found = minilm.embeddings(model, tokenizer, SENTENCES)
    cosine = cosine_similarity(found, right)
    print(f"\n{report}\ncosines {[round(float(each), 4) for each in cosine]}")
    assert cosine.min() >= 0.95
    assert cosine.median() >= 0.99
    nearest = [(each @ each.T).fill_diagonal_(-1).argmax(-1) for each in (right, found)]
    assert nearest[0][[0, 1, 4, 5]].tolist() == [1, 0, 5, 4]
    assert nearest[1][[0, 1, 4, 5]].tolist() == [1, 0, 5, 4]
