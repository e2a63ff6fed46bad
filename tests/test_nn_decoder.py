"""Whole decoders on the CPU and, marked ``gpu``, on the kernels: the same tests."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch

from decoder_data import CONFIG, VOCABULARY, decoder, exact_logits, ids, weights
from gemmsmith.errors import ArgumentError, ArgumentTypeError
from gemmsmith.nn import KVCache, RMSNorm
from layer_data import on_each, relative

F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16


@on_each
@pytest.mark.parametrize(("dtype", "bound"), [(F32, 1e-5), (BF16, 0.03), (F16, 0.005)])
@pytest.mark.parametrize(("bias", "tied"), [(False, True), (True, False)])
def test_logits_are_those_written_out(
    dtype: torch.dtype, bound: float, bias: bool, tied: bool, device: str
) -> None:
    ours = decoder(dtype, device, bias=bias, tied=tied)
    assert (ours.head.weight is ours.embedding.weight) == tied
    tokens = ids(2, 21, device=device)
    logits = ours(tokens)
    assert logits.shape == (2, 21, VOCABULARY)
    given = weights(dtype, bias=bias, tied=tied)
    for row in (0, 1):
        assert relative(logits[row], exact_logits(given, tokens[row])) < bound


@on_each
def test_a_window_reaches_every_layer_that_has_it(device: str) -> None:
    windowed = replace(CONFIG, windows=(3, 3))
    tokens = ids(1, 12, device=device)
    logits = decoder(F32, device, windowed)(tokens)
    right = exact_logits(weights(F32), tokens[0], window=3)
    assert relative(logits[0], right) < 1e-5
    one = decoder(F32, device, replace(CONFIG, windows=(None, 3)))(tokens)
    assert relative(one[0], right) > 0.01


@on_each
@pytest.mark.parametrize("dtype", [F32, BF16])
def test_prompts_of_different_lengths_and_steps_give_what_the_whole_does(
    dtype: torch.dtype, device: str
) -> None:
    """The second prompt is padded, with tokens that must not matter; memory starts as NaN."""
    bound = 1e-5 if dtype == F32 else 0.03
    ours, tokens, lengths = decoder(dtype, device), ids(2, 14, device=device), [9, 4]
    given = weights(dtype)
    cache = ours.cache(2, 16)
    for layer in cache.layers:
        layer.k.fill_(torch.nan)
        layer.v.fill_(torch.nan)
    logits = ours.prefill(tokens[:, :9], cache, torch.tensor(lengths, device=device))
    texts = [tokens[0, :9], tokens[1, :4]]
    for step in range(4):
        for row, text in enumerate(texts):
            assert relative(logits[row], exact_logits(given, text)[-1]) < bound, (step, row)
        chosen = tokens[:, 9 + step]
        texts = [torch.cat((text, chosen[row : row + 1])) for row, text in enumerate(texts)]
        logits = ours.step(chosen, cache)
    assert cache.lengths.tolist() == [13, 8]
    with pytest.raises(ArgumentError, match="13 are there and 4 more do not fit"):
        ours.prefill(tokens[:, :4], cache)
    more = tokens[:, 10:13]
    logits = ours.prefill(more, cache, torch.tensor([3, 2], device=device))
    for row, (text, length) in enumerate(zip(texts, (3, 2), strict=True)):
        whole = torch.cat((text, more[row, :length]))
        assert relative(logits[row], exact_logits(given, whole)[-1]) < bound


@on_each
def test_int8_is_close(device: str) -> None:
    ours, tokens = decoder(BF16, device), ids(2, 30, device=device)
    right = torch.stack([exact_logits(weights(BF16), row) for row in tokens])
    plain, chosen = ours.to_int8(), ours.to_int8(ids(4, 32, device=device))
    assert relative(ours(tokens), right) < 0.03
    assert relative(plain(tokens), right) < 0.1
    assert relative(chosen(tokens), right) < 0.1
    assert plain.layers[0].attention.qkv.weight.dtype == torch.int8  # type: ignore[union-attr]
    assert plain.embedding.weight is not ours.head.weight
    cache = plain.cache(2, 8)
    logits = plain.prefill(tokens[:, :7], cache)
    assert relative(logits, plain(tokens[:, :7])[:, -1].cpu().double()) < 0.02


def test_an_int8_decoder_may_change_without_the_one_it_is_of() -> None:
    ours, tokens = decoder(BF16), ids(1, 9)
    before = ours(tokens)
    made = ours.to_int8()
    for name, tensor in made.state_dict().items():
        if "norm" in name:
            tensor.mul_(2)
    made.load_state_dict(ours.to_int8(ids(4, 32)).state_dict())
    assert torch.equal(ours(tokens), before)


def test_column_scales_become_part_of_the_norms() -> None:
    ours = decoder(BF16)
    norm = ours.layers[0].attention_norm  # type: ignore[union-attr]
    assert isinstance(norm, RMSNorm)
    norm.weight[5] *= 100  # what it makes has a column that needs a scale
    made = ours.to_int8(ids(4, 32))
    layer = made.layers[0]
    assert layer.attention.qkv.column_scale is None  # type: ignore[union-attr]
    assert norm.weight[5] > 2 * layer.attention_norm.weight[5]  # type: ignore[union-attr,operator,index]
    right = ours(ids(1, 30)).double()
    assert relative(made(ids(1, 30)), right) < relative(ours.to_int8()(ids(1, 30)), right)


@pytest.mark.parametrize("int8", [False, True])
def test_state_moves_and_copies(int8: bool) -> None:
    ours, tokens = decoder(BF16), ids(1, 9)
    other = copy.deepcopy(ours)
    for parameter in other.parameters():
        parameter.add_(0.1)
    if int8:
        ours, other = ours.to_int8(ids(2, 32)), other.to_int8()
        assert torch.equal(ours.to(BF16)(tokens), ours(tokens))
    stored = ours.state_dict()
    before = ours(tokens)
    if not int8:
        given = weights(BF16)
        name = "layers.1.attention.qkv.k.weight"
        assert torch.equal(stored[name], given["model.layers.1.self_attn.k_proj.weight"])
        up = stored["layers.0.feed_forward.gate_up.up.weight"]
        assert torch.equal(up, given["model.layers.0.mlp.up_proj.weight"])
        in_f32 = copy.deepcopy(ours).to(F32)
        assert in_f32.head.weight is in_f32.embedding.weight
        assert relative(in_f32(tokens)[0], exact_logits(given, tokens[0])) < 1e-5
        other.load_state_dict(stored)
        assert torch.equal(other(tokens), before)
    again = copy.deepcopy(ours)
    assert torch.equal(again(tokens), before)
    again.load_state_dict(stored)
    assert torch.equal(again(tokens), before)


def test_a_compiled_decoder_gives_the_same() -> None:
    ours, tokens = decoder(BF16), ids(1, 9)
    compiled = torch.compile(ours, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(tokens), ours(tokens))


def test_constant_weights_are_promised_for_all() -> None:
    ours = decoder(BF16)
    assert not ours.constant_weight
    before = ours(ids(1, 5))
    ours.constant_weight = True
    assert ours.constant_weight
    assert ours.head.constant_weight
    assert torch.equal(ours(ids(1, 5)), before)
    ours.layers[1].feed_forward.down.constant_weight = False  # type: ignore[union-attr]
    assert not ours.constant_weight


def test_a_gradient_is_refused() -> None:
    ours = decoder(BF16)
    ours.embedding.weight.requires_grad_()
    with pytest.raises(ArgumentError, match="forward only"):
        ours(ids(1, 5))
    with torch.no_grad():
        ours(ids(1, 5))


def test_what_does_not_fit_is_refused() -> None:
    ours = decoder(BF16)
    with pytest.raises(ArgumentError, match="ids are of 1 sequences, the cache of 2"):
        ours.prefill(ids(1, 5), ours.cache(2, 8))
    with pytest.raises(ArgumentError, match="the checkpoint has no model"):
        decoder(BF16, config=replace(CONFIG, layers=3))
    with pytest.raises(ArgumentError, match="the decoder is int8 already"):
        ours.to_int8().to_int8()


@pytest.mark.parametrize(
    ("lengths", "words"),
    [
        (torch.tensor([3]), r"lengths is \(1,\); \(2,\) is needed"),
        (torch.tensor([6, 5]), "lengths holds 6; 1 to 5 are legal"),
        (torch.tensor([0, 5]), "lengths holds 0; 1 to 5"),
        (torch.tensor([-2, 5]), "lengths holds -2; 1 to 5"),
        (torch.tensor([2.0, 5.0]), r"lengths is torch\.float32 on cpu; int32 or int64"),
        ([2, 5], "lengths is a list, not a"),
    ],
)
def test_lengths_that_no_prompt_has_are_refused_before_anything_is_written(
    lengths: torch.Tensor, words: str
) -> None:
    ours = decoder(BF16)
    cache = ours.cache(2, 8)
    cache.layer(0).k.fill_(torch.nan)
    with pytest.raises(ArgumentError, match=words):
        ours.prefill(ids(2, 5), cache, lengths)
    assert cache.lengths.tolist() == [0, 0]
    assert cache.longest == 0
    assert cache.layer(0).k.isnan().all()


def test_ids_and_caches_that_are_none_of_the_model_are_refused() -> None:
    ours = decoder(BF16)
    cache = ours.cache(2, 8)
    for given, words in (
        (ids(2, 5).float(), r"ids is torch\.float32"),
        (ids(5), r"ids is \(5,\); \(B, S\) is needed"),
        (ids(2, 5) + VOCABULARY, f"ids holds .*; 0 to {VOCABULARY - 1} are legal"),
        (ids(2, 5) - VOCABULARY, "ids holds -"),
    ):
        for call in (ours, lambda given: ours.prefill(given, cache), ours.to_int8):
            with pytest.raises(ArgumentError, match=words.removeprefix("ids")):
                call(given)
    with pytest.raises(ArgumentError, match=r"ids is \(2, 1\); \(B,\) is needed"):
        ours.step(ids(2, 1), cache)
    with pytest.raises(ArgumentError, match=r"ids is \(2, 0\); each prompt needs a token"):
        ours.prefill(ids(2, 0), cache)
    with pytest.raises(ArgumentError, match="the cache has 1 layers, the decoder 2"):
        ours.prefill(ids(2, 5), KVCache(1, 2, 8, 2, 16))
    with pytest.raises(ArgumentTypeError, match=r"cache is a KeysValues; a KVCache is needed"):
        ours.prefill(ids(2, 5), cache.layer(0))  # type: ignore[arg-type]
    assert ours(ids(0, 5)).shape == (0, 5, VOCABULARY)
    assert ours(ids(2, 0)).shape == (2, 0, VOCABULARY)
