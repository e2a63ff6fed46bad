from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers

from gemmsmith.conversion import convert
from gemmsmith.generation import Generated, count_kernels, first_difference, greedy
from gemmsmith.ops import last_kernel


class Words:
    """A tokenizer whose tokens are numbers."""

    def __call__(self, text: str, return_tensors: str) -> Any:
        ids = torch.tensor([[int(word) for word in text.split()]])
        return transformers.BatchEncoding({"input_ids": ids})

    def decode(self, ids: torch.Tensor, skip_special_tokens: bool) -> str:
        return " ".join(str(int(token)) for token in ids)


def tiny(**more: Any) -> Any:
    torch.manual_seed(1)
    config = transformers.LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        pad_token_id=0,
        initializer_range=0.3,
        **more,
    )
    model: Any = transformers.LlamaForCausalLM(config)
    return model.bfloat16().eval()


def test_each_token_is_the_likeliest_after_the_ones_before() -> None:
    model = tiny(eos_token_id=None)
    made = greedy(model, Words(), "1 2 3", 8)
    assert made.logits.shape == (8, 64)
    assert made.text == " ".join(str(int(token)) for token in made.ids)
    assert made.tokens_per_second == pytest.approx(8 / made.seconds)
    for step in range(8):
        ids = torch.cat((torch.tensor([1, 2, 3]), made.ids[:step]))
        assert made.logits[step].argmax() == made.ids[step]
        with torch.no_grad():
            whole = model(ids[None]).logits[0, -1].float()
        torch.testing.assert_close(whole, made.logits[step], atol=0.1, rtol=0.05)


def test_stopping_and_passing_over_the_end_of_text() -> None:
    free = greedy(tiny(eos_token_id=None), Words(), "1 2 3", 8)
    end = int(free.ids[3])
    first = free.ids.tolist().index(end)
    stopped = greedy(tiny(eos_token_id=end), Words(), "1 2 3", 8, stop=True)
    assert stopped.ids.tolist() == free.ids[: first + 1].tolist()
    passed = greedy(tiny(eos_token_id=end), Words(), "1 2 3", 8)
    assert len(passed.ids) == 8
    assert end not in passed.ids


def made_of(ids: list[int], logits: list[list[float]]) -> Generated:
    return Generated(ids=torch.tensor(ids), logits=torch.tensor(logits), text="", seconds=1.0)


def test_first_difference() -> None:
    first = made_of([1, 2, 0], [[0, 9, 0], [0, 1.5, 2], [3, 0, 0]])
    assert first_difference(first, first) is None
    second = made_of([1, 1, 0], [[0, 9, 0], [0, 2, 1], [3, 0, 0]])
    difference = first_difference(first, second)
    assert difference is not None
    assert (difference.step, difference.gap) == (1, 0.5)
    assert str(difference) == "token 1 differs, its two candidates' logits by 0.5000"
    shorter = made_of([1], [[0, 9, 0]])
    assert first_difference(first, shorter) is None


@pytest.mark.parametrize(("blocks", "products"), [(True, 4), (False, 7)])
def test_counting_kernels_names_what_ran(blocks: bool, products: int) -> None:
    model = tiny(eos_token_id=None)
    convert(model, blocks=blocks)
    with count_kernels(model) as counts:
        greedy(model, Words(), "1 2", 3)
    record = last_kernel()
    assert record is not None
    assert counts == {record.name: 3 * (2 * products + 1)}  # calls, layers x products, head
    greedy(model, Words(), "1 2", 1)
    assert sum(counts.values()) == 3 * (2 * products + 1)
