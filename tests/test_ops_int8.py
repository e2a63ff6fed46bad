"""The op on the CPU with int8 operands."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import gemmsmith
from gemm_data import rounded
from gemmsmith.errors import ArgumentError
from op_data import HALVES, integers


def bytes_(*shape: int) -> Tensor:
    return torch.randint(-128, 128, shape, dtype=torch.int8)


def test_int8_products_are_exact_in_int32_above_what_fp32_holds() -> None:
    k = 4096
    a = torch.full((3, k), 127, dtype=torch.int8)
    w = torch.full((5, k), 126, dtype=torch.int8)
    w[1, 0] = 125  # the sum is odd: 127 * 126 * 4096 needs 26 bits
    result = gemmsmith.gemm(a, w.t())
    assert result.dtype == torch.int32
    assert result[0].tolist() == [65544192, 65544065, 65544192, 65544192, 65544192]
    a, w = bytes_(33, 200), bytes_(40, 200)
    bias = torch.randint(-(2**20), 2**20, (40,), dtype=torch.int32)
    residual = torch.randint(-(2**20), 2**20, (33, 40), dtype=torch.int32)
    result = gemmsmith.gemm(a, w.t(), bias, residual, alpha=-3, beta=2)
    assert torch.equal(result.long(), -3 * (a.long() @ w.long().t()) + bias + 2 * residual.long())


@pytest.mark.parametrize("dtype", HALVES)
def test_int8_products_are_scaled_in_fp32_and_rounded_once(dtype: torch.dtype) -> None:
    a, w, bias = bytes_(17, 64), bytes_(24, 64), integers(24, dtype=dtype)
    scale = 2.0**-9  # exact, so that one rounding is all there is
    result = gemmsmith.gemm(a, w.t(), bias, alpha=scale, out_dtype=dtype)
    expected = scale * (a.double() @ w.double().t()) + bias.double()
    assert torch.equal(result, rounded(expected, dtype))
    out = torch.empty(17, 24, dtype=dtype)
    assert gemmsmith.gemm(a, w.t(), bias, alpha=scale, out=out) is out
    assert torch.equal(out, result)


def test_n03_int8_outputs_are_rounded_half_to_even_and_saturated() -> None:
    a = torch.zeros(8, 16, dtype=torch.int8)
    a[:, 0] = torch.tensor([1, 3, 5, -1, -3, -5, 127, -128])
    w = torch.zeros(2, 16, dtype=torch.int8)
    w[:, 0] = torch.tensor([1, 127])
    result = gemmsmith.gemm(a, w.t(), alpha=0.5, out_dtype=torch.int8)
    assert result[:, 0].tolist() == [0, 2, 2, 0, -2, -2, 64, -64]
    assert result[:, 1].tolist() == [64, 127, 127, -64, -128, -128, 127, -128]
    full = torch.full((1, 16), 127, dtype=torch.int8)
    least = torch.full((1, 16), -128, dtype=torch.int8)
    both = torch.cat((full, -full))
    assert gemmsmith.gemm(full, both.t(), out_dtype=torch.int8).tolist() == [[127, -128]]
    assert gemmsmith.gemm(least, least.t(), out_dtype=torch.int8).tolist() == [[127]]


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ({"alpha": 0.5}, r"alpha is 0.5: an int32 result takes whole factors; scale into"),
        ({"alpha": float("nan")}, r"alpha is nan: an int32 result"),
        ({"out_dtype": torch.float32}, r"from torch.int8 the kernels write int32, float16, bf"),
        ({"bias": torch.ones(8)}, r"bias is torch.float32, the output is torch.int32"),
        (
            {"a_scale": torch.ones(8)},
            r"a_scale is given, but the result is int32, exact sums",
        ),
        ({"b_scale": torch.ones(1)}, r"b_scale is given, but the result is int32"),
        ({"activation": "relu"}, r"activation is given, but the result is int32"),
        ({"out_scale": 0.5}, r"out_scale is 0.5: it goes with int8, not torch.int32"),
        (
            {"out_scale": 0.5, "out_dtype": torch.bfloat16},
            r"out_scale is 0.5: it goes with int8, not torch.bfloat16",
        ),
        (
            {"b_sum": torch.zeros(8, dtype=torch.int32)},
            r"b_sum is given without a_zero_point, which alone needs it",
        ),
    ],
)
def test_what_int8_does_not_do_is_refused(extra: dict[str, Any], words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        gemmsmith.gemm(bytes_(8, 16), bytes_(8, 16).t(), **extra)
