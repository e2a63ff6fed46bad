"""Attention at the edges of its arguments: missing pages, NaN masks, outputs, kinds of numbers."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import gemmsmith
from attention_data import check_near, exact, tokens
from gemmsmith.attn.arguments import Attention
from gemmsmith.attn.execute import problem_of
from gemmsmith.errors import ArgumentError, ArgumentTypeError

NAN = float("nan")


def ints(*values: Any) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


@pytest.mark.parametrize("page", [-1, 3, 7])
def test_a_page_that_there_is_not_is_refused_where_it_is_used(page: int) -> None:
    q, k, v = tokens(1, 1, 8, 2, 2, 64)
    k, v = (part.view(2, 4, 2, 64).repeat(2, 1, 1, 1)[:3] for part in (k, v))
    table = ints([0, page])
    message = f"block_table holds {page} for a page that lengths count; k has 3 pages"
    with pytest.raises(ArgumentError, match=message):
        gemmsmith.attention(q, k, v, lengths=ints(5), block_table=table)
    out = gemmsmith.attention(q, k, v, lengths=ints(4), block_table=table)
    check_near(out, exact(q, k[:1], v[:1]))


def test_no_pages_are_enough_for_sequences_without_keys() -> None:
    q, k, _ = tokens(1, 2, 4, 2, 2, 64)
    empty = k.view(1, 4, 2, 64)[:0]
    way: dict[str, Any] = {"lengths": ints(0), "block_table": ints([-1, -1])}
    assert not gemmsmith.attention(q, empty, empty, **way).any()
    with pytest.raises(ArgumentError, match=r"block_table holds -1 .* k has 0 pages"):
        gemmsmith.attention(q, empty, empty, **{**way, "lengths": ints(1)})


@pytest.mark.parametrize("how", [{}, {"softcap": 5.0}, {"causal": True}], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_nan_in_a_mask_comes_out_wherever_it_stands(
    how: dict[str, Any], dtype: torch.dtype
) -> None:
    q, k, v = tokens(1, 4, 4, 2, 2, 64, dtype=torch.float32)
    mask = torch.zeros(4, 4, dtype=dtype)
    mask[1], mask[2, 1], mask[3] = NAN, NAN, float("-inf")
    out = gemmsmith.attention(q, k, v, mask=mask, **how)
    assert out[:, 1:3].isnan().all()
    assert out[:, 0].isfinite().all()
    assert not out[:, 3].any()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float8_e4m3fn, torch.int8], ids=str)
def test_masks_of_other_types_are_refused(dtype: torch.dtype) -> None:
    q, k, v = tokens(1, 2, 2, 2, 2, 64)
    with pytest.raises(ArgumentTypeError, match="float16, bfloat16 or float32 that is added"):
        gemmsmith.attention(q, k, v, mask=torch.zeros(2, 2).to(dtype))


def test_an_expanded_view_is_no_output() -> None:
    q, k, v = tokens(2, 3, 3, 2, 2, 64)
    out = torch.empty_like(q[:1]).expand_as(q)
    with pytest.raises(ArgumentError, match="out is an expanded view"):
        gemmsmith.attention(q, k, v, out=out)
    ends, packed = ints(0, 3), torch.empty_like(q[0, :1]).expand_as(q[0])
    with pytest.raises(ArgumentError, match="out is an expanded view"):
        gemmsmith.attention_varlen(q[0], k[0], v[0], ends, ends, 3, 3, out=packed)


def test_an_output_may_lie_beside_the_inputs_but_not_on_them() -> None:
    fused = torch.randn(2, 9, 8 * 64).bfloat16()
    heads = fused.unflatten(-1, (-1, 64))
    q, k, v = heads[:, :, :2], heads[:, :, 2:4], heads[:, :, 4:6]
    right = exact(q, k, v)
    check_near(gemmsmith.attention(q, k, v, out=heads[:, :, 6:]), right)
    for out in (heads[:, :, 5:7], heads[:, :, 1:3], heads.flatten()[1 : 1 + q.numel()].view_as(q)):
        with pytest.raises(ArgumentError, match="out overlaps q, k or v"):
            gemmsmith.attention(q, k, v, out=out)


@pytest.mark.parametrize("scale", [-0.5, -1e-8, 0.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_scale_that_is_not_above_0_is_a_scale(scale: float, dtype: torch.dtype) -> None:
    q, k, v = tokens(2, 5, 5, 4, 2, 64, dtype=dtype)
    found = gemmsmith.attention(q, k, v, causal=True, scale=scale)
    check_near(found, exact(q, k, v, causal=True, scale=scale))


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"window": 2.0, "causal": True}, "window is 2.0; a whole number is needed"),
    ({"causal": "yes"}, "causal is 'yes'; True or False is needed"),
    ({"softcap": "3"}, "softcap is '3'; a number is needed"),
    ({"scale": 1j}, "scale is 1j; a number is needed"),
]


@pytest.mark.parametrize(("wrong", "message"), WRONG, ids=[message for _, message in WRONG])
def test_numbers_and_switches_of_other_kinds_are_refused(
    wrong: dict[str, Any], message: str
) -> None:
    q, k, v = tokens(1, 3, 3, 2, 2, 64)
    ends = ints(0, 3)
    with pytest.raises(ArgumentTypeError, match=message):
        gemmsmith.attention(q, k, v, **wrong)
    with pytest.raises(ArgumentTypeError, match=message):
        gemmsmith.attention_varlen(q[0], k[0], v[0], ends, ends, 3, 3, **wrong)
    longest: Any = 3.0
    with pytest.raises(ArgumentTypeError, match=r"max_q is 3\.0; a whole number is needed"):
        gemmsmith.attention_varlen(q[0], k[0], v[0], ends, ends, longest, 3)


@pytest.mark.parametrize("window", [21, 2**31 + 3, 2**32 + 5])
def test_a_window_that_is_wider_than_the_keys_cuts_none_in_a_kernel(window: int) -> None:
    q, k, v = tokens(1, 20, 20, 4, 2, 64)
    call = Attention(q, k, v, True, window, None, None, None, None, None)
    assert problem_of(call).window == 20
    assert torch.equal(
        gemmsmith.attention(q, k, v, causal=True, window=window),
        gemmsmith.attention(q, k, v, causal=True, window=20),
    )


def test_whole_numbers_of_a_compiled_call_may_be_symbols() -> None:
    def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        return gemmsmith.attention_varlen(q, k, v, ends, ends, q.shape[0], q.shape[0], softcap=3)

    compiled = torch.compile(call, fullgraph=True, dynamic=True, backend="aot_eager")
    for length in (3, 5):
        q, k, v = (part[0] for part in tokens(1, length, length, 2, 2, 64))
        check_near(
            compiled(q, k, v, ints(0, length))[None], exact(q[None], k[None], v[None], softcap=3)
        )
