"""A step of decoding as one op on the CPU: it is two ops, in the cache too; and what is refused."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from torch import Tensor

import gemmsmith
from attention_data import tokens
from gemmsmith.errors import ArgumentError, ArgumentTypeError, NoKernelError
from paged_data import poisoned, scattered

LENGTHS = [40, 9]
CACHE = torch.zeros(2, 48, 2, 64).bfloat16()


def given(count: int, *, page: int = 0) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the tensors of a call for ``count`` tokens of two sequences, and its table."""
    q, k, v = tokens(2, count, 48, 8, 2, 64)
    _, new_k, new_v = tokens(2, 1, count, 2, 2, 64)
    table: dict[str, Any] = {}
    if page:
        k, v, table["block_table"] = scattered(k, v, LENGTHS, page)
    else:
        k, v = poisoned(k, v, LENGTHS)
    lengths = torch.tensor(LENGTHS, dtype=torch.int32)
    call = {"q": q, "k": new_k, "v": new_v, "k_cache": k, "v_cache": v, "lengths": lengths}
    return call, table


def in_two(call: dict[str, Any], inv_freq: Tensor | None, **how: Any) -> Tensor:
    """Return what the two ops make of a call, whose cache they write."""
    way = {name: how.pop(name) for name in ("interleaved", "attention_factor") if name in how}
    table: dict[str, Any] = {"block_table": how.get("block_table")}
    q, count = call["q"].clone(), call["q"].shape[1]
    positions = call["lengths"][:, None] + torch.arange(count) - count
    turned = torch.zeros(1) if inv_freq is None else inv_freq
    k_cache, v_cache = call["k_cache"], call["v_cache"]
    gemmsmith.rope_to_cache(
        q, call["k"], call["v"], k_cache, v_cache, positions, turned, **way, **table
    )
    return gemmsmith.attention(q, k_cache, v_cache, lengths=call["lengths"], causal=True, **how)


@pytest.mark.parametrize("interleaved", [False, True])
def test_without_frequencies_a_factor_scales_nothing(interleaved: bool) -> None:
    plain, _ = given(3)
    right = gemmsmith.attention_with_kvcache(**plain)
    call, _ = given(3)
    how: dict[str, Any] = {"attention_factor": 2.0, "interleaved": interleaved}
    assert torch.equal(gemmsmith.attention_with_kvcache(**call, **how), right)
    for name in ("k_cache", "v_cache"):
        assert torch.equal(call[name].view(torch.int16), plain[name].view(torch.int16))


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("page", [0, 16])
@pytest.mark.parametrize(
    ("pairs", "how"),
    [
        (32, {}),
        (8, {"interleaved": True, "attention_factor": 1.25}),
        (5, {"window": 7}),
        (0, {"softcap": 5.0, "scale": 0.3}),
    ],
    ids=str,
)
def test_it_is_rope_to_cache_and_attention(
    count: int, page: int, pairs: int, how: dict[str, Any]
) -> None:
    inv_freq = gemmsmith.rope_frequencies(2 * pairs) if pairs else None
    call, table = given(count, page=page)
    other, _ = given(count, page=page)
    right = in_two(other, inv_freq, **how, **table)
    q = call["q"].clone()
    out = gemmsmith.attention_with_kvcache(**call, inv_freq=inv_freq, **how, **table)
    assert torch.equal(out, right)
    assert not out.isnan().any()
    assert torch.equal(call["q"], q)
    for name in ("k_cache", "v_cache"):
        assert torch.equal(call[name].view(torch.int16), other[name].view(torch.int16))
    record = gemmsmith.last_kernel()
    assert record is not None
    assert record.name == "cpu"


def test_tokens_before_the_first_place_are_kept_nowhere() -> None:
    call, _ = given(3)
    call["lengths"][1] = 1
    before = call["k_cache"][1, 1:].clone()
    out = gemmsmith.attention_with_kvcache(**call)
    assert torch.equal(call["k_cache"][1, 0], call["k"][1, 2])
    assert torch.equal(call["k_cache"][1, 1:].view(torch.int16), before.view(torch.int16))
    assert not out[1, :2].any()
    torch.testing.assert_close(out[1, 2, :4], call["v"][1, 2, :1].expand(4, -1))


REFUSED: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"lengths": torch.tensor([49, 2], dtype=torch.int32)}, ArgumentError, "lengths holds 49"),
    ({"lengths": torch.tensor([4, 2])}, ArgumentTypeError, "lengths is torch.int64"),
    ({"k": torch.zeros(2, 1, 4, 64).bfloat16()}, ArgumentError, "k has 4 heads, k_cache has 2"),
    ({"v": torch.zeros(2, 2, 2, 64).bfloat16()}, ArgumentError, "v is .* all but the heads"),
    (
        {"k": torch.zeros(2, 1, 2, 64)},
        ArgumentTypeError,
        "k is torch.float32 on cpu, q is torch.bfloat16 on cpu: they must agree",
    ),
    ({"k_cache": CACHE.half()}, ArgumentTypeError, "k_cache is .*float16 .*: they must agree"),
    ({"v_cache": CACHE.float()}, ArgumentTypeError, "v_cache is .*float32 .*: they must agree"),
    ({"k_cache": CACHE[0]}, ArgumentError, r"k_cache is \(48, 2, 64\); \(batch, sequence"),
    (
        {"k_cache": CACHE[..., :32], "v_cache": CACHE[..., 32:]},
        ArgumentError,
        "q has head_dim 64, k_cache has 32",
    ),
    (
        {"k_cache": CACHE[:, :, [0, 1, 0]], "v_cache": CACHE[:, :, [0, 1, 0]]},
        ArgumentError,
        "q has 8 heads, k_cache has 3",
    ),
    ({"v_cache": CACHE[:, :40]}, ArgumentError, r"k_cache .*, v_cache is \(2, 40, 2, 64\): they"),
    (
        {"k_cache": CACHE[:1], "v_cache": CACHE[:1].clone()},
        ArgumentError,
        "k_cache has batch 1, q has 2",
    ),
    ({"inv_freq": torch.zeros(33)}, ArgumentError, "one dimension of 1 to 32"),
    ({"inv_freq": torch.zeros(4).half()}, ArgumentTypeError, "float32 or float64"),
    ({"window": 0}, ArgumentError, "window is 0"),
    ({"constant_cache": 1}, ArgumentTypeError, "constant_cache is 1"),
    ({"interleaved": None}, ArgumentTypeError, "interleaved is None"),
]


@pytest.mark.parametrize(("change", "kind", "words"), REFUSED, ids=[each[2] for each in REFUSED])
def test_what_does_not_fit_is_refused_before_anything_is_written(
    change: dict[str, Any], kind: type[Exception], words: str
) -> None:
    call, _ = given(1)
    before = call["k_cache"].clone()
    with pytest.raises(kind, match=words):
        gemmsmith.attention_with_kvcache(**{**call, **change})
    assert torch.equal(call["k_cache"].view(torch.int16), before.view(torch.int16))


@pytest.mark.parametrize("at", [(0, 1), (0, 2), (1, 0)], ids=["history", "newest", "beside it"])
def test_a_page_that_there_is_not_is_told_before_the_cache_is_written(at: tuple[int, int]) -> None:
    for count in (1, 12):
        for missing in (-1, 99):
            call, table = given(count, page=16)
            table["block_table"][at] = missing
            before = [call[name].clone() for name in ("k_cache", "v_cache")]
            words = f"block_table holds {missing} for a page that lengths count; k_cache has 9"
            with pytest.raises(ArgumentError, match=words):
                gemmsmith.attention_with_kvcache(**call, **table)
            for name, old in zip(("k_cache", "v_cache"), before, strict=True):
                assert torch.equal(call[name].view(torch.int16), old.view(torch.int16))


def test_tensors_that_share_memory_with_a_cache_are_refused() -> None:
    call, _ = given(1)
    memory = torch.zeros(3, 48, 2, 64).bfloat16()
    overlapping = {"k_cache": memory[:2], "v_cache": memory[1:]}
    with pytest.raises(ArgumentError, match="k_cache and v_cache share memory"):
        gemmsmith.attention_with_kvcache(**{**call, **overlapping})
    q, k, v = call["q"].clone(), call["k"], call["v"]
    positions = call["lengths"][:, None] - 1
    turned = gemmsmith.rope_frequencies(64)
    with pytest.raises(ArgumentError, match="k_cache and v_cache share memory"):
        gemmsmith.rope_to_cache(q, k, v, memory[:2], memory[1:], positions, turned)
    for cache in ("k_cache", "v_cache"):
        for name in ("k", "v"):
            inside = {name: call[cache][:, 3:4]}
            with pytest.raises(ArgumentError, match=f"{cache} and {name} share memory"):
                gemmsmith.attention_with_kvcache(**{**call, **inside})
    both = torch.zeros(2, 2, 48, 2, 64).bfloat16()
    side_by_side = torch.zeros(2, 48, 4, 64).bfloat16().split(2, 2)
    for apart in (both.unbind(), side_by_side):
        gemmsmith.attention_with_kvcache(
            **{**call, "k_cache": apart[0], "v_cache": apart[1]}, inv_freq=turned
        )
        assert torch.equal(apart[1][:, LENGTHS[1] - 1][1], call["v"][1, 0])


def test_caches_that_are_one_or_expanded_are_refused() -> None:
    call, _ = given(1)
    with pytest.raises(ArgumentError, match="k_cache and v_cache share memory"):
        gemmsmith.attention_with_kvcache(**{**call, "v_cache": call["k_cache"]})
    wide = call["k_cache"][:1].expand(2, -1, -1, -1)
    with pytest.raises(ArgumentError, match="k_cache is an expanded view"):
        gemmsmith.attention_with_kvcache(**{**call, "k_cache": wide})
    call["q"].requires_grad_()
    with pytest.raises(ArgumentError, match="attention_with_kvcache is forward only"):
        gemmsmith.attention_with_kvcache(**call)


def test_named_kernels_that_do_not_fit_are_told_before_the_cache_is_written(
    tmp_path: Any,
) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(
        "attention:\n  - {name: mine, arch: sm_90a, dtype: fp16, head_dim: 64,"
        " tile: [8, 64], schedule: split_kv, warps: [1, 4], stages: 2}\n"
    )
    kernels = gemmsmith.load(path, arch="sm_90a")
    call, _ = given(1)
    before = call["k_cache"].clone()
    with pytest.raises(NoKernelError, match="takes fp16, the call has bf16"):
        kernels.attention_with_kvcache(**call)
    assert torch.equal(call["k_cache"].view(torch.int16), before.view(torch.int16))
    fitting = {name: each.half() if each.dim() == 4 else each for name, each in call.items()}
    right = in_two({name: each.clone() for name, each in fitting.items()}, None)
    assert torch.equal(kernels.attention_with_kvcache(**fitting), right)
    one = kernels["attention_fp16_d64_8x64_w1x4_s2_split_sm90a"]
    assert torch.equal(one.with_kvcache(**fitting), right)  # type: ignore[union-attr]
    for call_of in (kernels.attention_with_kvcache, one.with_kvcache):  # type: ignore[union-attr]
        assert list(inspect.signature(call_of).parameters)[:6] == [*call]


def test_opcheck_and_compiled() -> None:
    call, _ = given(1)
    inv_freq = gemmsmith.rope_frequencies(64)
    sample = (*call.values(), inv_freq, None, None, None, None, False, 1.0, False, "")
    torch.library.opcheck(torch.ops.gemmsmith.attention_with_kvcache.default, sample)
    other: dict[str, Any] = {name: each.clone() for name, each in call.items()}
    right = gemmsmith.attention_with_kvcache(**other, inv_freq=inv_freq)

    def step(**tensors: Any) -> Tensor:
        return 2 * gemmsmith.attention_with_kvcache(**tensors, inv_freq=inv_freq)

    compiled: Any = torch.compile(step, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(**call), 2 * right)
    assert torch.equal(call["k_cache"].view(torch.int16), other["k_cache"].view(torch.int16))
