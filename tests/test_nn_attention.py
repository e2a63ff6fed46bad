"""Attention blocks on the CPU and, marked ``gpu``, on the kernels: the same tests."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from gemmsmith import nn
from gemmsmith.errors import ArgumentError, ArgumentTypeError
from layer_data import BF16, exact, linear, numbers, on_each, relative

K, HEADS, KV_HEADS, SIZE = 48, 4, 2, 16


def layers(device: str = "cpu", bias: bool = True) -> tuple[torch.nn.Linear, ...]:
    q = linear(K, HEADS * SIZE, bias, device)
    k, v = (linear(K, KV_HEADS * SIZE, bias, device) for _ in range(2))
    v.weight.mul_(-0.7)
    return q, k, v, linear(HEADS * SIZE, K, False, device)


def reference(
    given: tuple[torch.nn.Linear, ...], x: Tensor, causal: bool, residual: Tensor
) -> Tensor:
    q, k, v = (exact(layer, x).unflatten(-1, (-1, SIZE)).transpose(1, 2) for layer in given[:3])
    y = scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)
    y = y.transpose(1, 2).flatten(-2) @ given[3].weight.cpu().double().t()
    return y + residual.cpu().double()


@on_each
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("block", "bound"), [(nn.Attention, 0.01), (nn.Int8Attention, 0.02)])
def test_a_block_is_its_four_layers_around_attention(
    block: type[nn.Attention], bound: float, causal: bool, device: str
) -> None:
    given, x = layers(device), numbers(2, 7, K, device=device)
    residual = numbers(2, 7, K, device=device) * 3
    ours = block(*given, heads=HEADS, causal=causal)
    assert (ours.kv_heads, ours.head_dim) == (KV_HEADS, SIZE)
    right = reference(given, x, causal, residual)
    assert relative(ours(x, residual=residual), right) < bound
    fused = linear(K, (HEADS + 2 * KV_HEADS) * SIZE, device=device)
    fused.weight.copy_(torch.cat([layer.weight for layer in given[:3]]))
    fused.bias.copy_(torch.cat([layer.bias for layer in given[:3]]))
    sizes = {"heads": HEADS, "kv_heads": KV_HEADS}
    again = block.from_fused(fused, given[3], **sizes, causal=causal)
    assert torch.equal(again(x, residual=residual), ours(x, residual=residual))


@on_each
def test_a_window_a_cap_and_a_scale_reach_attention(device: str) -> None:
    given, x = layers(device), numbers(1, 9, K, device=device)
    plain = nn.Attention(*given, heads=HEADS)(x)
    for options in ({"window": 2}, {"softcap": 0.01}, {"scale": 3.0}):
        ours = nn.Attention(*given, heads=HEADS, **options)(x)  # type: ignore[arg-type]
        assert relative(ours[:, 8:], plain[:, 8:].cpu().double()) > 0.05
        assert relative(ours[:, :1], plain[:, :1].cpu().double()) < 0.01  # sees itself alone
    mask = torch.zeros(9, 9, dtype=torch.bool, device=device)
    mask[:, 0] = True
    ours = nn.Attention(*given, heads=HEADS, causal=False)(x, mask=mask)
    assert relative(ours, plain[:, :1].cpu().double().expand(-1, 9, -1)) < 0.01


@on_each
def test_y12_angles_stay_exact_whatever_the_dtype(device: str) -> None:
    frequencies = 10_000.0 ** -(torch.arange(0, SIZE, 2).double() / SIZE)
    rotary = nn.Rotary(frequencies).to(torch.bfloat16).half().to(device)
    assert rotary.inv_freq.dtype == torch.float64
    assert torch.equal(rotary.inv_freq.cpu(), frequencies)
    given, x = layers(device), numbers(1, 2, K, device=device)
    ours = nn.Attention(*given, heads=HEADS, rotary=rotary).to(torch.bfloat16)
    near = ours(x, torch.tensor([[0, 1]], device=device))
    for far in (257, 4095, 15962, 131071):  # only how far apart two tokens are matters
        moved = ours(x, torch.tensor([[far, far + 1]], device=device))
        assert relative(moved, near.cpu().double()) < 0.01
    other = ours(x, torch.tensor([[0, 3]], device=device))
    assert relative(other, near.cpu().double()) > 0.02


@on_each
@pytest.mark.parametrize("rotary", [True, False])
def test_a_cache_gives_what_the_whole_does(rotary: bool, device: str) -> None:
    given, x = layers(device), numbers(2, 9, K, device=device)
    angles = nn.Rotary(100.0 ** -(torch.arange(0, SIZE, 2).double() / SIZE)) if rotary else None
    ours = nn.Attention(*given, heads=HEADS, rotary=angles).to(device)
    whole = ours(x).cpu().double()
    cache = nn.KVCache(1, 2, 16, KV_HEADS, SIZE, device=device)
    for layer in cache.layers:
        layer.k.fill_(torch.nan)
        layer.v.fill_(torch.nan)
    memory = cache.layer(0)
    position = torch.arange(9, device=device).expand(2, 9)
    first = ours(x[:, :4], position[:, :4], cache=memory)
    keys = torch.full((2,), 8, dtype=torch.int32, device=device)
    chunk = ours(x[:, 4:8], position[:, 4:8], cache=memory, keys=keys)
    last = ours(x[:, 8:], position[:, 8:], cache=memory, keys=keys + 1)
    assert relative(torch.cat((first, chunk, last), 1), whole) < 0.01


@on_each
@pytest.mark.parametrize("rotary", [True, False])
def test_a_position_below_0_is_kept_nowhere(rotary: bool, device: str) -> None:
    angles = nn.Rotary(100.0 ** -(torch.arange(0, SIZE, 2).double() / SIZE)) if rotary else None
    ours = nn.Attention(*layers(device), heads=HEADS, rotary=angles).to(device)
    x, memory = numbers(2, 5, K, device=device), nn.KVCache(1, 2, 8, KV_HEADS, SIZE, device=device)
    positions = torch.tensor([[0, 1, 2, -1, -1], [2, 3, 4, 5, 6]], device=device)
    k, v = memory.layer(0)
    k.fill_(torch.nan)
    v.fill_(torch.nan)
    keys = torch.tensor([3, 7], dtype=torch.int32, device=device)
    ours(x, positions, cache=memory.layer(0), keys=keys)
    there = torch.zeros(2, 8, dtype=torch.bool)
    there[0, :3], there[1, 2:7] = True, True
    for each in (k, v):
        assert torch.equal(~each.isnan().any(-1).any(-1).cpu(), there)
        assert torch.equal(~each.isnan().all(-1).all(-1).cpu(), there)
    right = ours.split(ours.qkv(x))[2]
    assert relative(v[0, :3], right[0, :3].cpu().double()) < 0.01


@pytest.mark.parametrize("rotary", [True, False])
def test_a_cache_of_another_model_is_refused(rotary: bool) -> None:
    angles = nn.Rotary(100.0 ** -(torch.arange(0, SIZE, 2).double() / SIZE)) if rotary else None
    ours, x = nn.Attention(*layers(), heads=HEADS, rotary=angles), numbers(2, 3, K)

    def of(batch: int, capacity: int, heads: int, dtype: torch.dtype = BF16) -> nn.KeysValues:
        return nn.KVCache(1, batch, capacity, heads, SIZE, dtype=dtype).layer(0)

    for cache, words in (
        (of(2, 8, 4), r"k_cache is \(2, 8, 4, 16\)"),
        (of(1, 8, KV_HEADS), "k_cache holds 1 sequences, q has 2"),
        (of(2, 8, KV_HEADS, torch.float16), r"k_cache is torch\.float16"),
        (of(2, 2, KV_HEADS), "the cache holds 2 tokens; 3 do not fit"),
    ):
        with pytest.raises(ArgumentError, match=words):
            ours(x, cache=cache)
    keys = torch.full((2,), 3, dtype=torch.int32)
    with pytest.raises(ArgumentError, match="keys holds 3, the cache 2 keys of a sequence"):
        ours(x, cache=of(2, 2, KV_HEADS), keys=keys)
    with pytest.raises(ArgumentTypeError, match=r"cache is a KVCache; .* KVCache\.layer"):
        ours(x, cache=nn.KVCache(1, 2, 8, KV_HEADS, SIZE))  # type: ignore[arg-type]


@on_each
@pytest.mark.parametrize("block", [nn.Attention, nn.Int8Attention])
@pytest.mark.parametrize("shape", [(0, 3, K), (2, 0, K)])
def test_no_tokens_give_none(
    block: type[nn.Attention], shape: tuple[int, ...], device: str
) -> None:
    ours = block(*layers(device), heads=HEADS)
    assert ours(numbers(*shape, device=device)).shape == shape


@pytest.mark.parametrize("block", [nn.Attention, nn.Int8Attention])
def test_a_block_keeps_its_state_in_the_form_it_was_given(block: type[nn.Attention]) -> None:
    given, x = layers(), numbers(1, 3, K)
    ours = block(*given, heads=HEADS)
    stored = ours.state_dict()
    assert stored["qkv.k.weight"].shape == (KV_HEADS * SIZE, K)
    if block is nn.Attention:
        for name, layer in zip("qkv", given, strict=False):
            assert torch.equal(stored[f"qkv.{name}.weight"], layer.weight)
            assert torch.equal(stored[f"qkv.{name}.bias"], layer.bias)
    q, k, v, o = given
    other = block(q, v, k, o, heads=HEADS)
    assert not torch.equal(other(x), ours(x))
    other.load_state_dict(stored)
    assert torch.equal(other(x), ours(x))
    assert torch.equal(copy.deepcopy(ours)(x), ours(x))
    compiled = torch.compile(ours, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x), ours(x))


def test_what_does_not_fit_is_refused() -> None:
    q, k, v, o = layers()
    with pytest.raises(ArgumentError, match="q gives 64 features, which are not 5 heads"):
        nn.Attention(q, k, v, o, heads=5)
    with pytest.raises(ArgumentError, match="o takes 64 features, 32 come"):
        nn.Attention(k, k, v, o, heads=2)
    with pytest.raises(ArgumentError, match="some have a bias"):
        nn.Attention(q, linear(K, 32, False), v, o, heads=HEADS)
    with pytest.raises(ArgumentError, match="v gives 16 features: k and v are of one size"):
        nn.Attention(q, k, linear(K, 16), o, heads=HEADS)
    with pytest.raises(ArgumentError, match=r"k gives 24 features: .* whole heads of 16 as q's 4"):
        nn.Attention(q, linear(K, 24), linear(K, 24), o, heads=HEADS)
    with pytest.raises(ArgumentTypeError, match="o is a"):
        nn.Attention(q, k, v, torch.nn.Identity(), heads=HEADS)  # type: ignore[arg-type]
    fused = linear(K, 7 * SIZE)
    with pytest.raises(ArgumentError, match="3 heads are no multiple of the 2"):
        nn.Attention.from_fused(fused, linear(3 * SIZE, K), heads=3, kv_heads=2)
    with pytest.raises(ArgumentError, match="features, which are not"):
        nn.Attention.from_fused(fused, o, heads=5, kv_heads=2)
    with pytest.raises(ArgumentError, match="forward only"):
        nn.Attention(q, k, v, o, heads=HEADS)(numbers(1, 3, K).requires_grad_())


def test_inputs_of_other_shapes_and_keys_of_no_cache_are_refused() -> None:
    block = nn.Attention(*layers(), heads=HEADS)
    x = numbers(1, 3, K)
    with pytest.raises(ArgumentError, match=r"input is \(3, 48\); \(B, S, K\) is needed"):
        block(x[0])
    for wrong in (None, "x", [1.0]):
        with pytest.raises(ArgumentTypeError, match=r"^input is a .*, not a torch\.Tensor$"):
            block(wrong)
    rows = nn.QuantizedRows(x.to(torch.int8), torch.ones(1, 3), BF16)
    with pytest.raises(ArgumentTypeError, match="input is QuantizedRows, which only an int8 block"):
        block(rows)
    with pytest.raises(ArgumentError, match="keys counts what a cache holds: it comes with cache"):
        block(x, keys=torch.tensor([3], dtype=torch.int32))


INT32 = torch.int32
UNFIT: list[tuple[dict[str, Any], str]] = [
    ({"residual": numbers(2, 1, K - 8)}, r"residual is \(2, 1, 40\), the output is \(2, 1, 48\)"),
    ({"residual": numbers(1, 1, K)}, r"residual is \(1, 1, 48\), the output is \(2, 1, 48\)"),
    (
        {"residual": torch.zeros(2, 1, K)},
        r"residual is torch\.float32 on cpu, the output torch\.bf",
    ),
    ({"residual": [0.0]}, r"residual is a list, not a torch\.Tensor"),
    ({"residual": numbers(2, 1, K).requires_grad_()}, "residual requires grad"),
    ({"mask": torch.zeros(2, 1, 3, 8)}, r"mask is \(2, 1, 3, 8\); it must broadcast to"),
    ({"mask": torch.zeros(2, 1, 1, 8).int()}, r"mask is torch\.int32"),
    ({"mask": True}, r"mask is a bool, not a torch\.Tensor"),
    ({"mask": torch.zeros(8).requires_grad_()}, "mask requires grad"),
    ({"keys": torch.tensor([3, 4])}, r"keys is torch\.int64 on cpu; torch\.int32 on cpu"),
    ({"keys": torch.tensor([3], dtype=INT32)}, r"keys is \(1,\); \(2,\) is needed"),
    ({"keys": [3, 4]}, r"keys is a list, not a torch\.Tensor"),
    ({"keys": torch.tensor([3, 9], dtype=INT32)}, "keys holds 9, the cache 8 keys"),
]


@pytest.mark.parametrize(("change", "words"), UNFIT, ids=[words for _, words in UNFIT])
@pytest.mark.parametrize("placed", [False, True], ids=["last", "positions"])
def test_what_does_not_fit_a_call_is_refused_before_its_cache_is_written(
    change: dict[str, Any], words: str, placed: bool
) -> None:
    block = nn.Attention(*layers(), heads=HEADS, rotary=nn.Rotary(torch.ones(SIZE // 2)))
    memory = nn.KVCache(1, 2, 8, KV_HEADS, SIZE).layer(0)
    for each in memory:
        each.fill_(7)
    call: dict[str, Any] = {"cache": memory, "keys": torch.tensor([3, 4], dtype=INT32)}
    if placed:
        call["positions"] = torch.tensor([[2], [3]])
    with torch.enable_grad(), pytest.raises(ArgumentError, match=f"^{words}"):
        block(numbers(2, 1, K), **{**call, **change})
    assert all((each == 7).all() for each in memory)


def test_options_that_no_call_takes_are_refused_when_the_block_is_made() -> None:
    large = nn.Rotary(torch.ones(SIZE // 2 + 1))
    for options, words in (
        ({"window": 0}, "window is 0"),
        ({"window": 2.0}, r"window is 2\.0; a whole number"),
        ({"window": 3, "causal": False}, "window goes with causal=True"),
        ({"softcap": 0.0}, "softcap is 0"),
        ({"scale": float("inf")}, "scale is inf"),
        ({"softcap": "3"}, "softcap is '3'; a number is needed"),
        ({"heads": 4.0}, r"heads is 4\.0; a whole number is needed"),
        ({"rotary": large}, "rotary turns 18 elements of a head, which has 16"),
        ({"rotary": large.inv_freq}, "rotary is a Tensor; a gemmsmith"),
    ):
        with pytest.raises(ArgumentError, match=words):
            nn.Attention(*layers(), **{"heads": HEADS, **options})  # type: ignore[arg-type]


def test_blocks_of_layers_that_train_want_no_gradient() -> None:
    given = [layer.requires_grad_() for layer in layers()]
    ours, x = nn.Attention(*given, heads=HEADS), numbers(1, 3, K)
    assert not any(parameter.requires_grad for parameter in ours.parameters())
    assert ours.o.weight.data_ptr() == given[3].weight.data_ptr()
    assert given[3].weight.requires_grad
    with torch.enable_grad():
        assert ours(x).shape == x.shape
        down = linear(64, K).requires_grad_()
        block = nn.FeedForward(linear(K, 64), linear(K, 64), down)
        assert block(x).shape == x.shape
    assert down.weight.requires_grad


def test_extra_repr_names_what_differs() -> None:
    words = repr(nn.Attention(*layers(), heads=HEADS, causal=False, softcap=50.0))
    assert "heads=4, kv_heads=2, head_dim=16, not causal, softcap=50.0" in words
    assert "BF16" not in words
    assert nn.Attention(*layers(), heads=HEADS).qkv.weight.dtype == BF16
