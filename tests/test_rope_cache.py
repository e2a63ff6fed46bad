"""Rotating into a KV cache on the CPU: what is written where, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import gemmsmith
from gemmsmith.errors import ArgumentError
from rope_data import qkv

BF16 = torch.bfloat16
FREQUENCIES = gemmsmith.rope_frequencies(32)


def caches(*shape: int) -> tuple[Tensor, Tensor]:
    """Return two caches full of NaN."""
    return torch.full(shape, float("nan")).to(BF16), torch.full(shape, float("nan")).to(BF16)


def rotated(q: Tensor, k: Tensor, positions: Tensor, **way: Any) -> tuple[Tensor, Tensor]:
    """Return what :func:`gemmsmith.rope` makes of them."""
    q, k = q.clone(), k.clone()
    gemmsmith.rope(q, k, positions, FREQUENCIES, **way)
    return q, k


@pytest.mark.parametrize("interleaved", [False, True])
def test_tokens_go_to_their_positions(interleaved: bool) -> None:
    _, q, k, v = qkv((2, 3), 4, 2, 80, BF16)
    old_k, old_v = k.clone(), v.clone()
    positions = torch.tensor([[0, 1, -1], [14, 15, 13]])
    right_q, right_k = rotated(q, k, positions, interleaved=interleaved)
    k_cache, v_cache = caches(2, 16, 2, 80)
    gemmsmith.rope_to_cache(
        q, k, v, k_cache, v_cache, positions, FREQUENCIES, interleaved=interleaved
    )
    assert torch.equal(q, right_q)
    assert torch.equal(k, old_k)
    assert torch.equal(v, old_v)
    for b, s in ((0, 0), (0, 1), (1, 0), (1, 1), (1, 2)):
        assert torch.equal(k_cache[b, positions[b, s]], right_k[b, s])
        assert torch.equal(v_cache[b, positions[b, s]], v[b, s])
    assert (~k_cache.isnan()).any(-1).any(-1).sum() == 5
    assert (~v_cache.isnan()).any(-1).any(-1).sum() == 5


def test_pages_and_slots_name_the_same_places() -> None:
    _, q, k, v = qkv((2, 3), 4, 2, 80, BF16)
    positions = torch.tensor([[2, 3, 4], [9, 10, 11]], dtype=torch.int32)
    right_q, right_k = rotated(q, k, positions)
    table = torch.tensor([[5, 3, -1], [0, 1, 2]], dtype=torch.int32)
    paged = caches(6, 4, 2, 80)
    first = q.clone()
    gemmsmith.rope_to_cache(first, k, v, *paged, positions, FREQUENCIES, block_table=table)
    assert torch.equal(first, right_q)
    places = [[(5, 2), (5, 3), (3, 0)], [(2, 1), (2, 2), (2, 3)]]
    for b in range(2):
        for s in range(3):
            assert torch.equal(paged[0][places[b][s]], right_k[b, s])
            assert torch.equal(paged[1][places[b][s]], v[b, s])
    assert (~paged[0].isnan()).any(-1).any(-1).sum() == 6
    flat = torch.tensor([[page * 4 + at for page, at in row] for row in places])
    by_slots = caches(6, 4, 2, 80)
    packed, *rest = (part.flatten(0, 1) for part in (q.clone(), k, v))
    at, where = positions.flatten(), flat.flatten()
    gemmsmith.rope_to_cache(packed, rest[0], rest[1], *by_slots, at, FREQUENCIES, slots=where)
    assert torch.equal(packed, right_q.flatten(0, 1))
    for one, other in zip(by_slots, paged, strict=True):
        assert torch.equal(one.nan_to_num(7.0), other.nan_to_num(7.0))


def test_a_place_that_there_is_not_is_refused_before_anything_is_written() -> None:
    _, q, k, v = qkv((2, 1), 4, 2, 80, BF16)
    before = q.clone()
    k_cache, v_cache = caches(2, 16, 2, 80)
    table = torch.tensor([[0, 1], [1, 7]], dtype=torch.int32)
    refused: tuple[tuple[str, dict[str, Any]], ...] = (
        ("positions holds 16, which has no place", {}),
        ("slots holds 32, which has no place", {"slots": torch.tensor([[1], [32]])}),
        ("positions holds 16, which has no place", {"block_table": table}),
    )
    for message, where in refused:
        with pytest.raises(ArgumentError, match=message):
            gemmsmith.rope_to_cache(
                q, k, v, k_cache, v_cache, torch.tensor([[3], [16]]), FREQUENCIES, **where
            )
    assert torch.equal(q, before)
    assert k_cache.isnan().all()
    assert v_cache.isnan().all()


def test_bad_arguments_are_named() -> None:
    _, q, k, v = qkv((2, 3), 4, 2, 80, BF16)
    k_cache, v_cache = caches(2, 16, 2, 80)
    positions = torch.arange(3)
    usual = {
        "q": q,
        "k": k,
        "v": v,
        "k_cache": k_cache,
        "v_cache": v_cache,
        "positions": positions,
        "inv_freq": FREQUENCIES,
    }
    slots = torch.zeros(2, 3, dtype=torch.int64)
    table = torch.zeros(2, 4, dtype=torch.int32)
    packed = {name: usual[name][0] for name in ("q", "k", "v")}
    bad: dict[str, dict[str, Any]] = {
        "slots is a int": {"slots": 3},
        "v has 1 heads, k has 2": {"v": v[..., :1, :]},
        "k_cache is torch.float32 on cpu, q is": {"k_cache": k_cache.float()},
        r"v_cache is \(2, 16, 1, 80\); \(sequences, capacity, 2, 80\)": {
            "v_cache": v_cache[:, :, :1]
        },
        r"v_cache is \(2, 8, 2, 80\), k_cache \(2, 16": {"v_cache": v_cache[:, :8]},
        "pass one of them": {"slots": slots, "block_table": table},
        r"slots is torch.float32; int32": {"slots": slots.float()},
        "packed tokens do not tell": packed,
        "k_cache holds 1 sequences, q has 2": {"k_cache": k_cache[:1], "v_cache": v_cache[:1]},
        "block_table is torch.int64 on cpu; int32": {"block_table": table.long()},
        r"block_table is \(1, 4\); \(2, pages\)": {"block_table": table[:1]},
        "k_cache is an expanded view": {"k_cache": k_cache[:1].expand(2, 16, 2, 80)},
    }
    for message, changed in bad.items():
        with pytest.raises(ArgumentError, match=message):
            gemmsmith.rope_to_cache(**{**usual, **changed})


def test_opcheck_and_compiled() -> None:
    _, q, k, v = qkv((2, 3), 4, 2, 80, BF16)
    positions = torch.arange(3).expand(2, 3)
    op = torch.ops.gemmsmith.rope_to_cache.default
    table = torch.arange(4, dtype=torch.int32).view(2, 2)
    given = (q.clone(), k.clone(), v.clone())
    torch.library.opcheck(op, (*given, *caches(2, 8, 2, 80), positions, FREQUENCIES))
    places = (positions, FREQUENCIES, None, table)
    torch.library.opcheck(op, (*given, *caches(4, 2, 2, 80), *places))

    def step(buffer: Tensor, cache: Tensor, positions: Tensor) -> Tensor:
        q, k, v = (buffer * 2).unflatten(-1, (-1, 80)).split((4, 2, 2), -2)
        gemmsmith.rope_to_cache(q, k, v, cache[0], cache[1], positions, FREQUENCIES)
        total: Tensor = q.sum() + cache.nansum()
        return total

    compiled = torch.compile(step, fullgraph=True, dynamic=True, backend="aot_eager")
    for batch, tokens in ((2, 3), (1, 5), (3, 1)):
        buffer = qkv((batch, tokens), 4, 2, 80, BF16)[0]
        caches_of = [torch.stack(caches(batch, 8, 2, 80)) for _ in range(2)]
        positions = torch.arange(tokens).expand(batch, tokens)
        assert compiled(buffer, caches_of[0], positions) == step(buffer, caches_of[1], positions)
        assert torch.equal(caches_of[0].nan_to_num(7.0), caches_of[1].nan_to_num(7.0))
