"""The judge of attention: it takes what is right, and finds what is spoiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import gemmsmith
from prefill_cases import CASES, Case, check_case, check_packed

BF16 = torch.empty(0, dtype=torch.bfloat16)
SMALL = [case for case in CASES if case.queries <= 300 and case.heads <= 9]


@pytest.mark.parametrize("case", SMALL, ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_what_is_right_passes(case: Case, dtype: torch.dtype) -> None:
    for size in (64, 80):
        check_case(gemmsmith.attention, case, size, BF16.to(dtype))


def element_off(q: Tensor, k: Tensor, v: Tensor, *, out: Tensor, **how: Any) -> None:
    gemmsmith.attention(q, k, v, out=out, **how)
    out[0, -1, 1, 3] += 0.05 * out[0, -1, 1].abs().max()


def row_unwritten(q: Tensor, k: Tensor, v: Tensor, *, out: Tensor, **how: Any) -> None:
    gemmsmith.attention(q[:, :-1], k, v, out=out[:, :-1], **how)


def behind_a_head(q: Tensor, k: Tensor, v: Tensor, *, out: Tensor, **how: Any) -> None:
    gemmsmith.attention(q, k, v, out=out, **how)
    out.as_strided((1,), (1,), out.storage_offset() + out.shape[-1]).fill_(0)


def behind_the_last_query(q: Tensor, k: Tensor, v: Tensor, *, out: Tensor, **how: Any) -> None:
    gemmsmith.attention(q, k, v, out=out, **how)
    out.as_strided((1,), (1,), out.storage_offset() + out.shape[1] * out.stride(1)).fill_(0)


def top_left(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, **how: Any) -> None:
    mask = torch.ones(q.shape[1], k.shape[1], dtype=torch.bool).tril() if causal else None
    gemmsmith.attention(q, k, v, mask=mask, **how)


def tiled_heads(q: Tensor, k: Tensor, v: Tensor, **how: Any) -> None:
    group = q.shape[2] // k.shape[2]
    gemmsmith.attention(q, k.repeat(1, 1, group, 1), v.repeat(1, 1, group, 1), **how)


def wider_window(q: Tensor, k: Tensor, v: Tensor, *, window: int, **how: Any) -> None:
    gemmsmith.attention(q, k, v, window=window + 1, **how)


def no_cap(q: Tensor, k: Tensor, v: Tensor, *, softcap: float, **how: Any) -> None:
    gemmsmith.attention(q, k, v, **how)


def no_scale(q: Tensor, k: Tensor, v: Tensor, *, scale: float, **how: Any) -> None:
    gemmsmith.attention(q, k, v, **how)


def padded_scale(q: Tensor, k: Tensor, v: Tensor, *, scale: None, **how: Any) -> None:
    gemmsmith.attention(q, k, v, scale=96**-0.5, **how)


def longer(q: Tensor, k: Tensor, v: Tensor, *, lengths: Tensor, **how: Any) -> None:
    gemmsmith.attention(q, k, v, lengths=lengths + 1, **how)


def keys_left_out(q: Tensor, k: Tensor, v: Tensor, **how: Any) -> None:
    gemmsmith.attention(q, k[:, 1:], v[:, 1:], **how)


SPOILED: list[tuple[Callable[..., None], Case, str]] = [
    (element_off, Case(queries=20, keys=30), r"1 of 5120 .* at \(0, 19, 1, 3\)"),
    (row_unwritten, Case(queries=20, keys=30), "256 of 5120 elements are not finite, or not writ"),
    (behind_a_head, Case(queries=20, keys=30), "1 elements beside the output were written"),
    (behind_the_last_query, Case(queries=20, keys=30), "1 elements beside the output were"),
    (top_left, Case(queries=5, keys=9, causal=True), "elements are wrong"),
    (tiled_heads, Case(queries=20, keys=30), "elements are wrong"),
    (wider_window, Case(queries=300, keys=300, causal=True, window=100), "elements are wrong"),
    (no_cap, Case(queries=300, keys=300, causal=True, softcap=5.0), "elements are wrong"),
    (no_scale, Case(queries=300, keys=300, scale=0.3), "elements are wrong"),
    (padded_scale, Case(queries=257, keys=257, causal=True), "elements are wrong"),
    (longer, Case(queries=20, keys=30, batch=2, lengths=(7, 29)), "are not finite"),
    (keys_left_out, Case(queries=1000, keys=1000), "elements are wrong"),
]


@pytest.mark.parametrize(
    ("spoiled", "case", "found"), SPOILED, ids=[s[0].__name__ for s in SPOILED]
)
def test_what_is_spoiled_is_found(spoiled: Callable[..., None], case: Case, found: str) -> None:
    size = 80 if spoiled is padded_scale else 64
    check_case(gemmsmith.attention, case, size, BF16)
    with pytest.raises(AssertionError, match=found):
        check_case(spoiled, case, size, BF16)


@pytest.mark.parametrize("causal", [False, True])
def test_packed_sequences_are_judged(causal: bool) -> None:
    check_packed(gemmsmith.attention_varlen, 64, BF16, causal=causal)

    def shifted(
        q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor, cu_k: Tensor, *rest: int, **how: Any
    ) -> None:
        cu_k = cu_k.clone()
        cu_k[2] += 1
        gemmsmith.attention_varlen(q, k, v, cu_q, cu_k, *rest, **how)

    with pytest.raises(AssertionError, match="elements are wrong"):
        check_packed(shifted, 64, BF16, causal=causal)


def test_a_row_without_keys_must_be_zero() -> None:
    def nearly(q: Tensor, k: Tensor, v: Tensor, *, out: Tensor, **how: Any) -> None:
        gemmsmith.attention(q, k, v, out=out, **how)
        out[0, 0, 0, 0] = 1e-30  # in bf16, 9.984e-31

    with pytest.raises(
        AssertionError, match=r"1 of 1280 .* at \(0, 0, 0, 0\): 9.984e-31 where 0 is"
    ):
        check_case(nearly, Case(queries=5, keys=2, causal=True), 64, BF16)
