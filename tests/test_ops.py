"""The op on the CPU: values, shapes and refusals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from torch.autograd import forward_ad

import gemmsmith
from gemmsmith.errors import ArgumentError, ArgumentTypeError, NoKernelError
from op_data import BF16, HALVES, exact, integers


@pytest.mark.parametrize("dtype", [*HALVES, torch.float32])
def test_values_of_all_arguments_together(dtype: torch.dtype) -> None:
    a, w = integers(33, 72, dtype=dtype), integers(40, 72, dtype=dtype)
    bias, residual = integers(40, dtype=dtype), integers(33, 40, dtype=dtype)
    combinations: tuple[dict[str, Any], ...] = (
        {},
        {"bias": bias},
        {"alpha": -0.5},
        {"residual": residual},
        {"bias": bias, "residual": residual, "alpha": 2.0, "beta": -3.0},
    )
    for extra in combinations:
        result = gemmsmith.gemm(a, w.t(), **extra)
        assert result.dtype == dtype
        assert result.stride() == (40, 1)
        assert torch.equal(result, exact(a, w.t(), **extra)), extra
        out = torch.full((33, 40), float("nan"), dtype=dtype)
        assert gemmsmith.gemm(a, w.t(), out=out, **extra) is out
        assert torch.equal(out, result)
    record = gemmsmith.last_kernel()
    assert record is not None
    assert (record.name, record.copied) == ("cpu", ())


def test_the_output_may_be_the_residual_and_any_slice() -> None:
    a, w = integers(8, 16), integers(24, 16)
    whole = integers(8, 48)
    before, total = whole.clone(), whole[:, 24:]
    right = exact(a, w.t(), None, before[:, 24:], 1.0, -2.0)
    assert gemmsmith.gemm(a, w.t(), residual=total, beta=-2.0, out=total) is total
    assert torch.equal(whole[:, 24:], right)
    assert torch.equal(whole[:, :24], before[:, :24])
    turned = torch.empty(24, 8, dtype=BF16).t()
    gemmsmith.gemm(a, w.t(), out=turned)
    assert torch.equal(turned, exact(a, w.t()))


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
@pytest.mark.parametrize("beta", [0.0, -0.0])
def test_x14_a_residual_with_beta_zero_is_not_read(poison: float, beta: float) -> None:
    a, w = integers(8, 16), integers(24, 16)
    residual = torch.full((8, 24), poison, dtype=BF16)
    result = gemmsmith.gemm(a, w.t(), residual=residual, beta=beta)
    assert torch.equal(result, exact(a, w.t()))


def test_the_sum_is_rounded_once() -> None:
    a = torch.tensor([[1.0, 2.0**-8]], dtype=BF16)  # sums to a tie between 1 and 1 + 2^-7
    b, small = torch.ones(2, 1, dtype=BF16), torch.tensor([2.0**-9], dtype=BF16)
    twice = (a @ b) + small
    assert twice.item() == 1.0
    assert gemmsmith.gemm(a, b, bias=small).item() == 1 + 2**-7
    assert gemmsmith.gemm(a, b, residual=small.reshape(1, 1)).item() == 1 + 2**-7


def test_n01_sums_are_kept_in_f32() -> None:
    a = torch.zeros(1, 4096, dtype=torch.float16)
    a[0, 0] = 2048
    a[0, 16::16] = 1
    b = torch.ones(4096, 1, dtype=torch.float16)
    assert gemmsmith.gemm(a, b).item() == 2304.0


def test_beta_without_a_residual_is_refused() -> None:
    a, b = integers(4, 8), integers(8, 4)
    with pytest.raises(ArgumentError, match=r"beta is 2\.0 without a residual; .* residual=out"):
        gemmsmith.gemm(a, b, beta=2.0, out=torch.zeros(4, 4, dtype=BF16))
    assert torch.equal(gemmsmith.gemm(a, b, beta=0.0), exact(a, b))


def test_x08_empty_sizes_give_empty_results() -> None:
    bias = integers(6)
    none = gemmsmith.gemm(integers(0, 8), integers(8, 6), bias)
    assert (tuple(none.shape), none.dtype) == ((0, 6), BF16)
    no_features = gemmsmith.gemm(integers(5, 8), integers(8, 0), integers(0))
    assert tuple(no_features.shape) == (5, 0)
    no_batch = gemmsmith.gemm(integers(0, 5, 8), integers(0, 8, 6), bias)
    assert tuple(no_batch.shape) == (0, 5, 6)
    rows = gemmsmith.gemm(integers(3, 0, 8), integers(8, 6), bias)
    assert tuple(rows.shape) == (3, 0, 6)


def test_x08_an_empty_sum_leaves_bias_and_residual() -> None:
    a, b = integers(5, 0), integers(0, 6)
    bias, residual = integers(6), integers(5, 6)
    assert torch.equal(gemmsmith.gemm(a, b), torch.zeros(5, 6, dtype=BF16))
    result = gemmsmith.gemm(a, b, bias, residual, beta=2.0)
    assert torch.equal(result, bias + 2 * residual)


def test_x10_leading_dimensions_are_rows_or_a_batch() -> None:
    w = integers(48, 64)
    x = integers(2, 7, 64)
    result = gemmsmith.gemm(x, w.t())
    assert tuple(result.shape) == (2, 7, 48)
    assert torch.equal(result, exact(x, w.t()))
    a, b = integers(4, 1, 128), integers(4, 128, 1)
    result = gemmsmith.gemm(a, b)
    assert tuple(result.shape) == (4, 1, 1)
    assert torch.equal(result, exact(a, b))
    heads, values = integers(2, 3, 5, 8), integers(2, 3, 8, 4)
    assert torch.equal(gemmsmith.gemm(heads, values), exact(heads, values))
    with pytest.raises(ArgumentError, match=r"a has 1 dimension\(s\), .* unsqueeze it"):
        gemmsmith.gemm(integers(64), w.t())


def test_x22_biases_of_the_right_type_work_strided_ones_too() -> None:
    a, b = integers(8, 16, dtype=torch.float16), integers(16, 8, dtype=torch.float16)
    store = integers(16, dtype=torch.float16)
    for bias in (store[:8], store[:8].reshape(1, 8), store[::2], store[::2].reshape(1, 8)):
        assert torch.equal(gemmsmith.gemm(a, b, bias), exact(a, b, bias))


@pytest.mark.parametrize(
    ("bias", "words"),
    [
        (torch.ones(8), r"bias is torch.float32, the output is torch.float16"),
        (torch.ones(8, dtype=BF16), r"bias is torch.bfloat16, the output is torch.float16"),
        (torch.ones(8, 1, dtype=torch.float16), r"bias is \(8, 1\); \(8,\) or \(1, 8\) is needed"),
        (torch.ones(9, dtype=torch.float16), r"bias is \(9,\); \(8,\) or \(1, 8\) is needed"),
        (torch.ones((), dtype=torch.float16), r"bias is \(\); \(8,\) or \(1, 8\) is needed"),
        (torch.ones(8, dtype=torch.float16, device="meta"), r"bias is on meta, a is on cpu"),
        ([1.0] * 8, r"bias is a list, not a torch.Tensor"),
    ],
)
def test_x22_other_biases_are_refused_and_the_next_call_works(bias: Any, words: str) -> None:
    a, b = integers(8, 16, dtype=torch.float16), integers(16, 8, dtype=torch.float16)
    with pytest.raises(ArgumentError, match=words):
        gemmsmith.gemm(a, b, bias)
    assert torch.equal(gemmsmith.gemm(a, b), exact(a, b))


@pytest.mark.parametrize(
    ("a", "words"),
    [
        (numpy.ones((8, 16), numpy.float16), r"a is a ndarray, not a torch.Tensor"),
        (None, r"a is a NoneType, not a torch.Tensor"),
        (torch.ones(8, 16), r"b is torch.bfloat16, a is torch.float32"),
        (torch.ones(8, 16, dtype=torch.float16), r"b is torch.bfloat16, a is torch.float16"),
        (torch.ones(8, 16, dtype=torch.float64), r"a is torch.float64; float16, .* are legal"),
        (torch.ones(8, 16, dtype=torch.complex64), r"a is torch.complex64; .* are legal"),
        (torch.ones(8, 16, dtype=torch.int16), r"a is torch.int16; .* are legal"),
        (torch.ones(8, 16, dtype=torch.int8), r"b is torch.bfloat16, a is torch.int8"),
    ],
)
def test_x23_what_is_no_operand_is_a_type_error_naming_it(a: Any, words: str) -> None:
    b = integers(16, 8)
    with pytest.raises(TypeError, match=words) as caught:
        gemmsmith.gemm(a, b)
    assert isinstance(caught.value, ArgumentTypeError)
    good = integers(8, 16)
    assert torch.equal(gemmsmith.gemm(good, b), exact(good, b))


def test_x23_a_gradient_is_refused_not_lost() -> None:
    a, w, bias = integers(8, 16), integers(24, 16), integers(24)
    w.requires_grad_()
    for call in (
        lambda: gemmsmith.gemm(a, w.t(), bias),
        lambda: gemmsmith.gemm(a, w.t(), out=torch.empty(8, 24, dtype=BF16)),
        lambda: gemmsmith.gemm(a, w.detach().t(), bias.clone().requires_grad_()),
    ):
        with pytest.raises(ArgumentError, match=r"forward only: call it under torch\.no_grad"):
            call()
    right = exact(a, w.detach().t(), bias)
    with torch.no_grad():
        assert torch.equal(gemmsmith.gemm(a, w.t(), bias), right)
    with torch.inference_mode():
        result = gemmsmith.gemm(a.clone(), w.t(), bias)
        assert torch.equal(result, right)
        out = torch.empty(8, 24, dtype=BF16)
        assert torch.equal(gemmsmith.gemm(a, w.t(), bias, out=out), right)
    assert torch.equal(gemmsmith.gemm(a, w.detach().t(), bias), right)


@pytest.mark.parametrize(
    ("out", "words"),
    [
        (torch.empty(8, 9, dtype=BF16), r"out is \(8, 9\), the result is \(8, 8\)"),
        (torch.empty(64, dtype=BF16), r"out is \(64,\), the result is \(8, 8\)"),
        (
            torch.empty(8, 8, dtype=torch.float64),
            r"out is torch.float64; from torch.bfloat16 the kernels write bfloat16, float16",
        ),
        (torch.empty(8, 8, dtype=BF16, device="meta"), r"out is on meta, a is on cpu"),
        ("here", r"out is a str, not a torch.Tensor"),
        (
            torch.empty(1, 8, dtype=BF16).expand(8, 8),
            r"out has elements in one place \(strides \(0, 1\)\)",
        ),
    ],
)
def test_an_output_that_does_not_fit_is_refused(out: Any, words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        gemmsmith.gemm(integers(8, 16), integers(16, 8), out=out)


def test_a_handle_of_another_process_is_refused() -> None:
    with pytest.raises(NoKernelError, match=r"'gemm_x@1f' is no kernel set of this process"):
        gemmsmith.gemm(integers(8, 16), integers(16, 8), kernels="gemm_x@1f")


def test_l04_cuda_is_left_alone() -> None:
    gemmsmith.gemm(integers(5, 16), integers(16, 24))
    assert not torch.cuda.is_initialized()


@pytest.mark.parametrize("derivative", ["grad", "vmap of grad", "jvp", "forward mode"])
def test_a_derivative_is_refused_and_never_zero(derivative: str) -> None:
    a, b = torch.ones(4, 8, dtype=BF16), torch.ones(8, 8, dtype=BF16)

    def loss(x: torch.Tensor) -> torch.Tensor:
        return gemmsmith.gemm(x, b).float().sum()

    def forward_mode() -> object:
        with forward_ad.dual_level():
            return gemmsmith.gemm(forward_ad.make_dual(a, torch.ones_like(a)), b)

    calls: dict[str, Callable[[], object]] = {
        "grad": lambda: torch.func.grad(loss)(a),
        "vmap of grad": lambda: torch.func.vmap(torch.func.grad(loss))(a.expand(3, 4, 8)),
        "jvp": lambda: torch.func.jvp(loss, (a,), (torch.ones_like(a),)),
        "forward mode": forward_mode,
    }
    with pytest.raises(ArgumentError, match="forward only"):
        calls[derivative]()
    assert torch.equal(gemmsmith.gemm(a, b), torch.full((4, 8), 8, dtype=BF16))


@pytest.mark.parametrize("operand", ["a", "b"])
def test_an_output_that_is_an_operand_is_refused(operand: str) -> None:
    square = {"a": torch.ones(8, 8, dtype=BF16), "b": torch.ones(8, 8, dtype=BF16)}
    with pytest.raises(ArgumentError, match=r"out overlaps [ab]"):
        gemmsmith.gemm(square["a"], square["b"], out=square[operand])


def test_an_output_that_overlaps_what_is_read_is_refused_and_one_beside_it_is_not() -> None:
    rows = torch.randn(16, 64).to(BF16)
    a, b, bias = rows[:8, :16], torch.randn(16, 16).to(BF16), rows[12, 40:56]
    right = gemmsmith.gemm(a, b)
    for name, out in (("a", rows[1:9, 8:24]), ("bias", rows[8:, 48:]), ("bias", rows[5:13, 32:48])):
        with pytest.raises(ArgumentError, match=f"out overlaps {name}: "):
            gemmsmith.gemm(a, b, bias=bias, out=out)
    beside = rows[:8, 16:32]
    gemmsmith.gemm(a, b, out=beside)
    assert torch.equal(beside, right)
    with pytest.raises(ArgumentError, match="out overlaps residual"):
        gemmsmith.gemm(a, b, residual=rows[1:9, 16:32], out=beside)
    gemmsmith.gemm(a, b, residual=rows[1:9, 16:32], beta=0.0, out=beside)
    kept = beside.clone()
    gemmsmith.gemm(a, b, residual=beside, out=beside)
    assert torch.equal(beside, (right.float() + kept.float()).to(BF16))
    lines = torch.randn(4, 3, 16).to(BF16)  # one row, whose strides torch tells in two ways
    gemmsmith.gemm(a[:1], b, residual=lines[:1, -1], out=lines[0, -1:])


def test_an_output_that_overlaps_scales_is_refused() -> None:
    a, b = torch.ones(8, 32, dtype=torch.int8), torch.ones(32, 16, dtype=torch.int8)
    memory = torch.ones(128)
    out, scales = memory.view(BF16)[:128].view(8, 16), memory[32:48]
    with pytest.raises(ArgumentError, match="out overlaps b_scale: "):
        gemmsmith.gemm(a, b, b_scale=scales, out=out)
    gemmsmith.gemm(a, b, b_scale=memory[64:80], out=out)
    assert torch.equal(out, torch.full((8, 16), 32, dtype=BF16))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"a": torch.ones(8, 8).to_sparse()}, "a is torch.sparse_coo; only dense tensors"),
        ({"alpha": "2"}, "alpha is a str, not a number"),
        ({"alpha": None}, "alpha is a NoneType, not a number"),
        ({"alpha": 1 + 2j}, "alpha is a complex, not a number"),
        ({"beta": "1"}, "beta is a str, not a number"),
        ({"activation": None}, "activation is a NoneType, not a word"),
        ({"out_dtype": "bf16"}, "out_dtype is a str, not a torch.dtype"),
        (
            {"kernels": gemmsmith},
            "kernels is a module, not the handle of a set or of a kernel",
        ),
    ],
)
def test_x23_what_is_no_dense_tensor_or_number_is_named(change: dict[str, Any], words: str) -> None:
    call: dict[str, Any] = {"a": torch.ones(8, 8), "b": torch.ones(8, 8), **change}
    with pytest.raises(ArgumentTypeError, match=words):
        gemmsmith.gemm(**call)


def test_out_dtype_is_that_of_the_result_and_may_not_contradict_out() -> None:
    a, w = integers(9, 32), integers(8, 32)
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        result = gemmsmith.gemm(a, w.t(), out_dtype=dtype)
        assert result.dtype == dtype
        assert torch.equal(result.double(), a.double() @ w.double().t())
    with pytest.raises(ArgumentError, match=r"out_dtype is torch.float32, out is torch.bfloat16"):
        gemmsmith.gemm(a, w.t(), out=torch.empty(9, 8, dtype=BF16), out_dtype=torch.float32)
