"""Generating text on the CPU and, marked ``gpu``, in a CUDA graph: the same tests."""

from __future__ import annotations

import pytest
import torch

from decoder_data import decoder, exact_logits, ids, weights
from gemmsmith.errors import ArgumentError, ArgumentTypeError
from gemmsmith.nn import DecodeGraph
from layer_data import on_each

F32 = torch.float32
PROMPTS = [ids(7).tolist(), ids(12).tolist()[3:6], [5]]


@on_each
def test_each_token_is_the_likeliest_after_those_before(device: str) -> None:
    made = decoder(F32, device).generate(PROMPTS, 6, keep_logits=True)
    assert made.ids.shape == (3, 6)
    assert made.logits is not None
    given = weights(F32)
    for row, prompt in enumerate(PROMPTS):
        text = torch.tensor([*prompt, *made.ids[row].tolist()])
        right = exact_logits(given, text)[len(prompt) - 1 : -1]
        assert torch.allclose(made.logits[row].double(), right, atol=1e-4)
        assert torch.equal(right.argmax(-1), made.ids[row])
    assert made.texts == tuple(map(tuple, made.ids.tolist()))
    assert made.prefill_seconds > 0
    assert made.tokens_per_second == pytest.approx(15 / made.decode_seconds)


@on_each
def test_texts_end_where_they_stop(device: str) -> None:
    ours = decoder(F32, device)
    made = ours.generate(PROMPTS, 40)
    stop = {int(made.ids[row, 2]) for row in range(3)}
    ended = ours.generate(PROMPTS, 40, stop=stop)
    assert ended.ids.shape == (3, 16)  # all have met one by then; it is looked every 16 tokens
    assert torch.equal(ended.ids, made.ids[:, :16])
    for row, text in enumerate(ended.texts):
        assert not set(text) & stop
        assert len(text) <= 2
        assert list(text) == made.ids[row, : len(text)].tolist()


def test_one_token_needs_no_step() -> None:
    made = decoder(F32).generate(PROMPTS, 1)
    assert made.ids.shape == (3, 1)
    assert made.tokens_per_second == 0


def test_what_makes_no_text_is_refused() -> None:
    ours = decoder(F32)
    with pytest.raises(ArgumentError, match="one at least is needed"):
        ours.generate([], 4)
    with pytest.raises(ArgumentError, match="each with a token"):
        ours.generate([[1], []], 4)
    with pytest.raises(ArgumentError, match="tokens is 0"):
        ours.generate([[1]], 0)
    with pytest.raises(ArgumentTypeError, match=r"tokens is 2\.5; a whole number is needed"):
        ours.generate([[1]], 2.5)  # type: ignore[arg-type]
    for prompts in (torch.tensor([[1]]), [1, 2], [[1.5]], ["text"], 5):
        with pytest.raises(ArgumentTypeError, match="prompts"):
            ours.generate(prompts, 4)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="prompts holds 80; 0 to 79 are legal"):
        ours.generate([[1], [3, 80]], 4)
    with pytest.raises(ArgumentTypeError, match=r"stop is 5; a collection is needed, as \(5,\)"):
        ours.generate([[1]], 4, stop=5)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="the cache is on cpu; graphs are for a GPU"):
        DecodeGraph(ours, ours.cache(1, 4))


@pytest.mark.gpu
@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("int8", [False, True])
def test_a_graph_gives_what_steps_do(dtype: torch.dtype, int8: bool) -> None:
    ours = decoder(dtype, "cuda")
    ours = ours.to_int8() if int8 else ours
    ours.constant_weight = True
    texts = [ours.generate(PROMPTS, 12, graph=graph, keep_logits=True) for graph in (True, False)]
    assert texts[0].logits is not None
    assert texts[1].logits is not None
    assert torch.equal(texts[0].ids, texts[1].ids)
    assert torch.equal(texts[0].logits, texts[1].logits)


@pytest.mark.gpu
@torch.no_grad()
def test_a_graph_refuses_to_go_past_the_cache() -> None:
    ours = decoder(torch.bfloat16, "cuda")
    cache = ours.cache(2, 6)
    ours.prefill(ids(2, 4, device="cuda"), cache)
    step = DecodeGraph(ours, cache)
    assert cache.lengths.tolist() == [4, 4]
    step()
    step()
    assert cache.lengths.tolist() == [6, 6]
    with pytest.raises(ArgumentError, match="6 are there and 1 more do not fit"):
        step()
    assert cache.lengths.tolist() == [6, 6]
    cache.reset()
    with pytest.raises(ArgumentError, match="holds 6 tokens"):
        ours.prefill(ids(2, 7, device="cuda"), cache)


@pytest.mark.gpu
@torch.no_grad()
def test_a_compiled_decoder_gives_the_same_on_a_gpu() -> None:
    ours, tokens = decoder(torch.bfloat16, "cuda"), ids(2, 9, device="cuda")
    compiled = torch.compile(ours, fullgraph=True)
    assert torch.equal(compiled(tokens).argmax(-1), ours(tokens).argmax(-1))
