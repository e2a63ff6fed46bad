"""Functions and scales of a result, on the CPU: values against f64, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import gemmsmith
from gemm_data import rounded, small_integers
from gemmsmith.errors import ArgumentError

BF16 = torch.bfloat16
FUNCTIONS = {
    "relu": torch.relu,
    "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "silu": functional.silu,
}


def integers(*shape: int, dtype: torch.dtype = BF16) -> Tensor:
    return small_integers(*shape, dtype=dtype, device="cpu")


def bytes_(*shape: int) -> Tensor:
    return torch.randint(-128, 128, shape, dtype=torch.int8)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_activations_act_on_product_and_bias_and_not_on_the_residual(name: str) -> None:
    a, w, bias = integers(9, 64), integers(24, 64), integers(24)
    residual = integers(9, 24)
    result = gemmsmith.gemm(a, w.t(), bias, residual, alpha=0.25, beta=3.0, activation=name)
    inner = 0.25 * (a.double() @ w.double().t()) + bias.double()
    exact = FUNCTIONS[name](inner) + 3.0 * residual.double()
    assert torch.allclose(result.double(), exact, rtol=2**-8, atol=1e-6)


def test_r06_row_scales_and_column_bias_do_not_change_places() -> None:
    m, n, k = 8, 24, 16
    a, w = integers(m, k), integers(n, k)
    scale = 2.0 ** torch.arange(m)  # exact factors
    bias = integers(n)
    exact = scale.double()[:, None] * (a.double() @ w.double().t())
    assert torch.equal(gemmsmith.gemm(a, w.t(), a_scale=scale), rounded(exact, BF16))
    both = gemmsmith.gemm(a, w.t(), bias, a_scale=scale)
    assert torch.equal(both, rounded(exact + bias.double(), BF16))
    square = integers(k, k)
    by_row = gemmsmith.gemm(square, square.t(), a_scale=2.0 ** torch.arange(k))
    by_column = gemmsmith.gemm(square, square.t(), b_scale=2.0 ** torch.arange(k))
    assert torch.equal(by_column, by_row.t())  # the product is symmetric, its scales are not
    assert not torch.equal(by_row, by_column)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_n09_scales_of_any_sign_and_size_are_multiplied_in_f32(dtype: torch.dtype) -> None:
    a, w = bytes_(6, 64), bytes_(10, 64)
    a_scale = torch.tensor([-3e4, 1e-30, 65504.0, 0.0, -0.5, 1.0])
    b_scale = torch.randn(10)
    b_scale[:3] = torch.tensor([65504.0, 0.0, -1e-3])
    result = gemmsmith.gemm(a, w.t(), a_scale=a_scale, b_scale=b_scale, out_dtype=dtype)
    sums = a.double() @ w.double().t()
    exact = sums * (a_scale.double()[:, None] * b_scale.double())
    expected = exact.float().to(dtype)
    assert torch.equal(result.isinf(), expected.isinf())
    finite = ~expected.isinf()
    error = (result.double() - exact).abs()[finite]
    bound = torch.finfo(dtype).eps * exact.abs()[finite] + torch.finfo(dtype).smallest_normal
    assert bool((error <= bound).all())
    if dtype == torch.float16:
        assert result.isinf().any(), "65504 * 65504 is beyond fp16"
        assert torch.equal(result[result.isinf()].sign(), exact[expected.isinf()].sign().to(dtype))


@pytest.mark.parametrize("zero", [37, -128, "rows"])
def test_n07_zero_points_are_taken_off_before_products(zero: Any) -> None:
    a, w = bytes_(7, 64), bytes_(12, 64)
    points = torch.randint(-128, 128, (7,), dtype=torch.int32)
    zero_point = points if zero == "rows" else torch.tensor(zero, dtype=torch.int32)
    a_scale, b_scale = torch.rand(7) / 64, torch.rand(12)
    result = gemmsmith.gemm(
        a,
        w.t(),
        a_scale=a_scale,
        b_scale=b_scale,
        a_zero_point=zero_point,
        out_dtype=torch.float16,
    )
    shifted = a.long() - zero_point.long().reshape(-1, 1)
    exact = (shifted @ w.long().t()).double() * a_scale.double()[:, None] * b_scale.double()
    eps = torch.finfo(torch.float16).eps
    assert bool(((result.double() - exact).abs() <= eps * exact.abs() + 1e-7).all())
    given = gemmsmith.gemm(
        a,
        w.t(),
        a_scale=a_scale,
        b_scale=b_scale,
        a_zero_point=zero_point,
        b_sum=-w.sum(1, dtype=torch.int32),
        out_dtype=torch.float16,
    )
    assert torch.equal(given, result)


def test_y16_a_gate_takes_blocks_of_eight_gate_first() -> None:
    a = integers(5, 32)
    gate, up = integers(16, 32), integers(16, 32)
    blocks = torch.stack((gate.reshape(2, 8, 32), up.reshape(2, 8, 32)), dim=1)
    w = blocks.reshape(32, 32)
    result = gemmsmith.gemm(a, w.t(), alpha=0.125, gate="silu")
    inner = 0.125 * (a.double() @ gate.double().t())
    exact = functional.silu(inner) * (0.125 * (a.double() @ up.double().t()))
    assert result.shape == (5, 16)
    assert torch.allclose(result.double(), exact, rtol=2**-8, atol=1e-6)


def test_int8_outputs_have_a_scale_of_their_own() -> None:
    a, w, bias = bytes_(8, 64), bytes_(16, 64), torch.randn(16)
    result = gemmsmith.gemm(
        a,
        w.t(),
        bias,
        activation="relu",
        a_scale=torch.tensor(2.0**-7),
        out_scale=0.5,
        out_dtype=torch.int8,
    )
    exact = 0.5 * torch.relu(2.0**-7 * (a.double() @ w.double().t()) + bias.double())
    assert torch.equal(result, exact.float().round().clamp(-128, 127).to(torch.int8))


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ({"activation": "tanh"}, "activation is 'tanh'; none, relu, gelu, gelu_tanh, silu are"),
        ({"gate": "relu"}, "gate is 'relu'; none, silu, gelu, gelu_tanh are legal"),
        ({"gate": "silu", "activation": "relu"}, "gate silu and activation relu"),
        ({"gate": "silu"}, "b has 24 columns; a gate wants blocks of 16"),
        ({"a_scale": torch.ones(3)}, r"a_scale is \(3,\); 8 values or one are needed"),
        ({"b_scale": torch.ones(24).half()}, "b_scale is torch.float16, torch.float32 is needed"),
        ({"a_zero_point": torch.zeros(8, dtype=torch.int32)}, "a_zero_point goes with int8"),
    ],
)
def test_what_does_not_go_together_is_refused(extra: dict[str, Any], words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        gemmsmith.gemm(integers(8, 16), integers(24, 16).t(), **extra)
