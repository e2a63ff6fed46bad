"""torch.autocast changes nothing of what torch computes in a kernel's place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import gemmsmith
from attention_data import check_near, exact, tokens


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("how", [{"softcap": 30.0}, {}, {"causal": True, "window": 9}], ids=str)
def test_attention_is_as_near_to_float64_as_without(
    how: dict[str, Any], dtype: torch.dtype
) -> None:
    q, k, v = tokens(1, 33, 33, 4, 4, 64, dtype=dtype)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = gemmsmith.attention(q, k, v, **how)
    assert torch.equal(out, gemmsmith.attention(q, k, v, **how))
    check_near(out, exact(q, k, v, **how))


def test_packed_sequences_too() -> None:
    q, k, v = (part[0] for part in tokens(1, 20, 20, 4, 2, 64, dtype=torch.float32))
    ends = torch.tensor([0, 20], dtype=torch.int32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = gemmsmith.attention_varlen(q, k, v, ends, ends, 20, 20)
    check_near(out[None], exact(q[None], k[None], v[None]))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("to", [torch.float16, torch.bfloat16], ids=str)
def test_rope_and_a_step_have_the_same_bits(dtype: torch.dtype, to: torch.dtype) -> None:
    x = tokens(1, 8, 8, 2, 2, 64, dtype=dtype)
    turned = gemmsmith.rope_frequencies(32)

    def made() -> list[Tensor]:
        q, k, v, k_cache, v_cache = (each.clone() for each in (*x, *x[1:]))
        cache = (k_cache, v_cache)
        gemmsmith.rope(q, k, torch.arange(8), turned)
        gemmsmith.rope_to_cache(q, k, v, *cache, torch.arange(8)[None], turned)
        lengths = torch.tensor([8], dtype=torch.int32)
        step = gemmsmith.attention_with_kvcache(q, k, v, *cache, lengths, turned)
        return [q, k, *cache, step]

    right = made()
    with torch.autocast("cpu", dtype=to):
        found = made()
    for one, other in zip(found, right, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_a_gemm_has_the_same_bits(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    a, b, bias = (torch.randn(*size).to(dtype) for size in ((7, 96), (96, 16), (16,)))
    right = gemmsmith.gemm(a, b, bias, activation="silu")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(gemmsmith.gemm(a, b, bias, activation="silu"), right)


def test_compiled_calls_do_not_break_the_graph() -> None:
    q, k, v = tokens(1, 9, 9, 4, 2, 64, dtype=torch.float32)

    def both(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return gemmsmith.attention(q, k, v, softcap=5.0), gemmsmith.gemm(q[0, 0], k[0, 0].t())

    compiled: Callable[..., tuple[Tensor, Tensor]] = torch.compile(
        both, fullgraph=True, backend="aot_eager"
    )
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = compiled(q, k, v)
    for one, other in zip(found, both(q, k, v), strict=True):
        assert torch.equal(one, other)
