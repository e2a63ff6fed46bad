"""Row operations on the CPU against float64, and what they refuse."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import gemmsmith
from gemmsmith import row_ops
from gemmsmith.errors import ArgumentError, ArgumentTypeError

DTYPES = [torch.float16, torch.bfloat16, torch.float32]
EPS = 1e-5
STEP = 2.0**-22
"""What some roundings to f32 may add to a relative error."""


def normal(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    torch.manual_seed(0)
    return torch.randn(*shape).to(dtype)


def check_quantized(q: Tensor, scale: Tensor, exact: Tensor) -> None:
    """Assert that int8 rows are within half a step of f64 values, and use the range fully."""
    columns = exact.shape[-1]
    assert q.shape == (*exact.shape[:-1], -(-columns // 16) * 16)
    assert q.dtype == torch.int8
    assert scale.dtype == torch.float32
    assert not q[..., columns:].any()
    most = exact.abs().amax(-1)
    torch.testing.assert_close(scale.double(), most / 127, rtol=64 * STEP, atol=0)
    error = (q[..., :columns].double() * scale.double()[..., None] - exact).abs()
    assert (error <= scale.double()[..., None] * (0.5 + 2.0**-9)).all()
    assert (q.abs().amax(-1) == 127).logical_or(most == 0).all()


def norm_of(x: Tensor, weight: Tensor) -> Tensor:
    exact = x.double()
    return exact / (exact.square().mean(-1, keepdim=True) + EPS).sqrt() * weight.double()


def gate_of(gate: Tensor, up: Tensor, kind: str) -> Tensor:
    gate, up = gate.double(), up.double()
    functions: dict[str, Any] = {
        "silu": torch.nn.functional.silu,
        "gelu": torch.nn.functional.gelu,
        "gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    }
    result: Tensor = functions[kind](gate) * up
    return result


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(7, 64), (3, 100), (2, 3, 33), (1, 1), (4099,)], ids=str)
def test_quantized_rows_are_within_half_a_step(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = normal(*shape, dtype=dtype)
    q, scale = gemmsmith.quantize_rows(x)
    check_quantized(q, scale, x.double())
    assert row_ops.last_row_kernel() == "cpu"


def test_halves_are_rounded_to_even() -> None:
    x = torch.tensor([[127.0, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 63.5]])
    q, scale = gemmsmith.quantize_rows(x)
    assert scale.tolist() == [1.0]
    assert q[0, :8].tolist() == [127, 0, 2, 2, 0, -2, -2, 64]


def test_n05_a_zero_row_or_channel_gives_exactly_the_bias() -> None:
    x, w = normal(4, 48, dtype=torch.float32), normal(6, 48, dtype=torch.float32)
    bias = normal(6, dtype=torch.float32)
    x[2], w[4] = 0.0, 0.0
    (q, scale), (qw, w_scale) = gemmsmith.quantize_rows(x), gemmsmith.quantize_weight(w)
    assert scale[2] == w_scale[4] == 0.0
    product = (q.int() @ qw.int().t()) * scale[:, None] * w_scale + bias
    assert product.isfinite().all()
    assert torch.equal(product[2], bias)
    assert torch.equal(product[:, 4], bias[4].expand(4))
    tiny = torch.full((1, 16), 1e-38)
    assert [part.abs().sum().item() for part in gemmsmith.quantize_rows(tiny)] == [0, 0]


def test_nan_and_infinity_stay_in_their_row() -> None:
    x = normal(5, 40)
    x[1, 3], x[3, 39], x[4, 0] = float("nan"), float("inf"), -float("inf")
    q, scale = gemmsmith.quantize_rows(x)
    clean, clean_scale = gemmsmith.quantize_rows(x[[0, 2]])
    assert torch.equal(q[[0, 2]], clean)
    assert torch.equal(scale[[0, 2]], clean_scale)
    assert scale[1].isnan()
    assert scale[[3, 4]].tolist() == [float("inf")] * 2
    assert not q[[1, 3, 4]].any()
    assert (q.float() * scale[:, None])[[1, 3, 4]].isnan().all()
    normed, norm_scale = gemmsmith.rms_norm_quantize(x, torch.ones_like(x[0]), EPS)
    assert norm_scale.isfinite().tolist() == [True, False, True, False, False]
    assert not normed[[1, 3, 4]].any()


def test_a_weight_is_quantized_channel_by_channel_like_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    w = normal(37, 72)
    rows = gemmsmith.quantize_rows(w)
    monkeypatch.setattr(row_ops, "_AT_ONCE", 5 * 72)
    for parameter in (w, torch.nn.Parameter(w), w.t().contiguous().t()):
        q, scale = gemmsmith.quantize_weight(parameter)
        assert torch.equal(q, rows[0])
        assert torch.equal(scale, rows[1])
        assert not scale.requires_grad
    assert gemmsmith.quantize_weight(w[:0])[0].shape == (0, 80)


def powers_of_two(columns: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return (torch.arange(columns) % 7 - 4.0).exp2().to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_columns_are_scaled_in_f32_before_the_largest_is_found(dtype: torch.dtype) -> None:
    x, columns = normal(7, 100, dtype=dtype), normal(100, dtype=dtype).flip(0)
    wide = x.float() * columns.float()
    q, scale = gemmsmith.quantize_rows(x, column_scale=columns)
    check_quantized(q, scale, wide.double())
    assert all(map(torch.equal, (q, scale), gemmsmith.quantize_rows(wide)))
    out = (torch.zeros_like(q), torch.zeros_like(scale))
    gemmsmith.quantize_rows(x, out, column_scale=columns)
    assert all(map(torch.equal, out, (q, scale)))
    halves = normal(3, 200, dtype=dtype)
    exact = gate_of(halves[:, :100], halves[:, 100:], "gelu") * columns.double()
    check_quantized(*gemmsmith.gate_quantize(halves, "gelu", column_scale=columns), exact)
    strided = torch.stack((columns, columns + 1), 1)[:, 0]
    assert torch.equal(gemmsmith.quantize_rows(x, column_scale=strided)[0], q)
    x[2, 5], x[4, 6] = float("nan"), float("inf")
    bad, bad_scale = gemmsmith.quantize_rows(x, column_scale=columns)
    assert bad_scale.isfinite().tolist() == [True, True, False, True, False, True, True]
    assert torch.equal(bad[[0, 1, 3, 5, 6]], q[[0, 1, 3, 5, 6]])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_powers_of_two_leave_the_product_as_it_is(dtype: torch.dtype) -> None:
    """Whole numbers that int8 holds once they are scaled: nothing is rounded anywhere."""
    torch.manual_seed(1)
    columns = powers_of_two(48, dtype)
    scaled, divided = torch.randint(-127, 128, (5, 48)), torch.randint(-127, 128, (9, 48))
    scaled[:, 0] = divided[:, 1] = 127
    x, w = (scaled / columns.float()).to(dtype), (divided * columns.float()).to(dtype)
    (q, scale), (qw, w_scale) = (
        gemmsmith.quantize_rows(x, column_scale=columns),
        gemmsmith.quantize_weight(w, columns),
    )
    assert scale.unique().tolist() == w_scale.unique().tolist() == [1.0]
    assert torch.equal(q, scaled.to(torch.int8))
    assert torch.equal(qw, divided.to(torch.int8))
    assert torch.equal(q.double() @ qw.double().t(), x.double() @ w.double().t())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_norm_takes_powers_of_two_into_its_weight(dtype: torch.dtype) -> None:
    x, weight, columns = normal(5, 96, dtype=dtype), normal(96, dtype=dtype), powers_of_two(96)
    folded = weight * columns.to(dtype)
    q, scale = gemmsmith.rms_norm_quantize(x, folded, EPS)
    check_quantized(q, scale, norm_of(x, weight) * columns.double())
    if dtype == torch.float32:
        normed = gemmsmith.rms_norm(x, weight, EPS)
        assert isinstance(normed, Tensor)
        again = gemmsmith.quantize_rows(normed, column_scale=columns.float())
        assert all(map(torch.equal, again, (q, scale)))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_norms_agree_with_float64(dtype: torch.dtype) -> None:
    x, weight = normal(9, 200, dtype=dtype), normal(200, dtype=dtype)
    residual = normal(9, 200, dtype=dtype).flip(0)
    out = gemmsmith.rms_norm(x, weight, EPS)
    assert isinstance(out, Tensor)
    rounding = torch.finfo(dtype).eps / 2 + 4 * STEP
    torch.testing.assert_close(out.double(), norm_of(x, weight), rtol=rounding, atol=1e-7)
    q, scale = gemmsmith.rms_norm_quantize(x, weight, EPS)
    check_quantized(q, scale, norm_of(x, weight))
    total = (x.double() + residual.double()).to(dtype)
    added, stored = gemmsmith.rms_norm(x, weight, EPS, residual)
    assert torch.equal(stored, total)
    torch.testing.assert_close(added.double(), norm_of(total, weight), rtol=rounding, atol=1e-7)
    q, scale, stored = gemmsmith.rms_norm_quantize(x, weight, EPS, residual)
    assert torch.equal(stored, total)
    check_quantized(q, scale, norm_of(total, weight))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", ["silu", "gelu", "gelu_tanh"])
@pytest.mark.parametrize("interleaved", [False, True])
def test_y16_gates_take_the_right_half(kind: Any, interleaved: bool, dtype: torch.dtype) -> None:
    gate, up = normal(5, 72, dtype=dtype), normal(5, 72, dtype=dtype).flip(0) + 2
    x = torch.cat([gate, up], -1)
    if interleaved:
        x = torch.stack([gate.view(5, 9, 8), up.view(5, 9, 8)], 2).view(5, 144)
    exact = gate_of(gate, up, kind)
    out = gemmsmith.gate(x, kind, interleaved)
    rounding = torch.finfo(dtype).eps / 2 + 8 * STEP
    torch.testing.assert_close(out.double(), exact, rtol=rounding, atol=1e-7)
    check_quantized(*gemmsmith.gate_quantize(x, kind, interleaved), exact)
    ones = torch.cat([torch.ones(1, 16), torch.full((1, 16), 2.0)], -1)
    assert gemmsmith.gate(ones).unique().tolist() == pytest.approx([2 / (1 + 2.718281828**-1)])


def test_views_are_read_in_place_and_strange_strides_right() -> None:
    big = normal(16, 64)
    for x in (big[:, 8:40], big[::2, 1:34], big.t(), big[3:4].expand(5, 64), big[:, :1]):
        q, scale = gemmsmith.quantize_rows(x)
        right = gemmsmith.quantize_rows(x.contiguous())
        assert torch.equal(q, right[0])
        assert torch.equal(scale, right[1])
    three = big.view(4, 4, 64)[:, 1:3]
    assert torch.equal(gemmsmith.gate(three), gemmsmith.gate(three.contiguous()))


def test_out_is_written_where_it_lies() -> None:
    x = normal(6, 40)
    right = gemmsmith.quantize_rows(x)
    room = torch.full((6, 64), 99, dtype=torch.int8)
    q, scale = room[:, 8:56], torch.full((6,), 99.0)
    found = gemmsmith.quantize_rows(x, out=(q, scale))
    assert found[0] is q
    assert torch.equal(q, right[0])
    assert torch.equal(scale, right[1])
    assert (room[:, :8] == 99).all()
    assert (room[:, 56:] == 99).all()
    wrong: dict[str, tuple[Tensor, Tensor]] = {
        r"q is \(6, 40\); \(6, 48\) is needed": (q[:, :40], scale),
        r"q is torch.int32 on cpu; torch.int8": (q.int(), scale),
        r"scale is \(5,\)": (q, scale[:5]),
        "q: strides": (torch.zeros(48, 6, dtype=torch.int8).t(), scale),
        "q: strides .* no matrix": (torch.zeros(1, 48, dtype=torch.int8).expand(6, 48), scale),
        "scale has strides": (q, torch.zeros(12)[::2]),
    }
    for message, out in wrong.items():
        with pytest.raises(ArgumentError, match=message):
            gemmsmith.quantize_rows(x, out=out)


def test_no_rows_or_no_columns_are_no_trouble() -> None:
    q, scale = gemmsmith.quantize_rows(torch.empty(0, 40))
    assert (q.shape, scale.shape) == ((0, 48), (0,))
    q, scale = gemmsmith.quantize_rows(torch.empty(3, 0))
    assert (q.shape, scale.tolist()) == ((3, 0), [0.0] * 3)
    assert gemmsmith.gate(torch.empty(2, 0, 16)).shape == (2, 0, 8)
    out = gemmsmith.rms_norm(torch.empty(0, 8), torch.ones(8), EPS, torch.empty(0, 8))
    assert [part.shape for part in out] == [(0, 8), (0, 8)]


def test_bad_arguments_are_named() -> None:
    x, weight = normal(4, 32), normal(32)
    bad: dict[str, Any] = {
        "x is torch.int8; float16, bfloat16, float32": lambda: gemmsmith.quantize_rows(x.char()),
        "x has no dimension": lambda: gemmsmith.quantize_rows(torch.tensor(1.0)),
        "x is a list": lambda: gemmsmith.quantize_rows([1.0]),  # type: ignore[arg-type]
        r"weight is \(31,\); \(32,\)": lambda: gemmsmith.rms_norm(x, weight[:31], EPS),
        "weight is torch.float32 on cpu, x is": lambda: gemmsmith.rms_norm(x, weight.float(), EPS),
        r"residual is \(3, 32\)": lambda: gemmsmith.rms_norm_quantize(x, weight, EPS, x[:3]),
        "eps is 0.0: it must be above 0": lambda: gemmsmith.rms_norm(x, weight, 0.0),
        "kind is 'relu'; silu, gelu, gelu_tanh": lambda: gemmsmith.gate(x, "relu"),  # type: ignore[arg-type]
        "x has 31 columns; gates and factors need": lambda: gemmsmith.gate(x[:, 1:]),
        "in blocks of 8 need a multiple of 16": lambda: gemmsmith.gate(x[:, 8:], interleaved=True),
        r"column_scale is \(31,\); \(32,\) is": lambda: gemmsmith.quantize_rows(
            x, column_scale=weight[:31]
        ),
        "column_scale is torch.float32 on cpu, x is": lambda: gemmsmith.quantize_rows(
            x, column_scale=weight.float()
        ),
        r"column_scale is \(32,\); \(16,\) is": lambda: gemmsmith.gate_quantize(
            x, column_scale=weight
        ),
        "column_scale is a float": lambda: gemmsmith.quantize_rows(x, column_scale=2.0),  # type: ignore[arg-type]
        r"column_scale is \(31,\); \(32,\) is needed": lambda: gemmsmith.quantize_weight(
            x, weight[:31]
        ),
        "w is torch.bfloat16": lambda: gemmsmith.quantize_weight(weight),
        "gemmsmith.gate is forward only": lambda: gemmsmith.gate(x.float().requires_grad_()),
    }
    for message, call in bad.items():
        with pytest.raises((ArgumentError, ArgumentTypeError), match=message):
            call()


OPS: dict[str, tuple[Any, ...]] = {
    "quantize_rows": (normal(5, 100),),
    "rms_norm": (normal(5, 100), normal(100), EPS),
    "add_rms_norm": (normal(5, 100), normal(100), EPS, normal(5, 100)),
    "rms_norm_quantize": (normal(2, 5, 100), normal(100), EPS),
    "add_rms_norm_quantize": (normal(5, 100), normal(100), EPS, normal(5, 100)),
    "gate": (normal(5, 96), "silu", True),
    "gate_quantize": (normal(5, 90), "gelu_tanh", False),
}


@pytest.mark.parametrize("name", OPS)
def test_opcheck(name: str) -> None:
    torch.library.opcheck(getattr(torch.ops.gemmsmith, name).default, OPS[name])


def test_opcheck_of_the_out_variant() -> None:
    out = {"q": torch.empty(5, 112, dtype=torch.int8), "scale": torch.empty(5)}
    op = torch.ops.gemmsmith.quantize_rows_out.default
    torch.library.opcheck(op, (normal(5, 100),), out)
    torch.library.opcheck(op, (normal(5, 100), normal(100)), out)


def test_opcheck_with_a_column_scale() -> None:
    ops = torch.ops.gemmsmith
    torch.library.opcheck(ops.quantize_rows.default, (normal(5, 100), normal(100)))
    torch.library.opcheck(
        ops.gate_quantize.default, (normal(5, 90), "gelu_tanh", False, normal(45))
    )
