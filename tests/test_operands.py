"""What kernels are told of tensors: layouts, leading dimensions, alignment, and copies."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from gemmsmith.dtypes import BF16, FP16, FP32
from gemmsmith.errors import ArgumentError, ArgumentTypeError
from gemmsmith.operands import Matrix, Operands, check, operands


def tensor(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """Values of which neighbours differ, along any dimension."""
    count = torch.Size(shape).numel()
    return torch.arange(count).remainder(251).to(dtype).reshape(shape)


def of(
    a: Tensor,
    b: Tensor,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    out: Tensor | None = None,
) -> Operands:
    if out is None:
        out = torch.zeros(*a.shape[:-1], b.shape[-1], dtype=a.dtype)
    return operands(a, b, bias, residual, out)


def read_back(matrix: Matrix) -> Tensor:
    """Return what a kernel reads: from the address alone, by letter, leading and batch stride."""
    *batch, rows, columns = matrix.tensor.shape
    inner = (matrix.leading, 1) if matrix.letter == "r" else (1, matrix.leading)
    strides = (*([matrix.batch_stride] * len(batch)), *inner)
    return matrix.tensor.as_strided((*batch, rows, columns), strides)


def facts(matrix: Matrix) -> tuple[str, int, int, bool]:
    return matrix.letter, matrix.leading, matrix.batch_stride, matrix.copied


def test_contiguous_and_transposed() -> None:
    x, w = tensor(5, 24), tensor(16, 24)
    found = of(x, w.t())
    assert facts(found.a) == ("r", 24, 0, False)
    assert facts(found.b) == ("c", 24, 0, False)
    assert facts(found.d) == ("r", 16, 0, False)
    assert found.copied == ()
    assert torch.equal(read_back(found.b), w.t())
    problem = found.problem()
    assert (problem.m, problem.n, problem.k, problem.batch) == (5, 16, 24, 1)
    assert (problem.a, problem.b, problem.d) == (BF16, BF16, BF16)
    assert problem.layout == "rcr"
    assert (problem.a_align, problem.b_align, problem.d_align) == (16, 16, 16)
    assert not problem.bias
    assert not problem.residual


@pytest.mark.parametrize("layout", ["rrr", "rcr", "crr", "ccr", "rrc", "rcc", "crc", "ccc"])
def test_every_layout_is_read_off_the_strides(layout: str) -> None:
    def stored(rows: int, columns: int, letter: str) -> Tensor:
        return tensor(rows, columns) if letter == "r" else tensor(columns, rows).t()

    a, b, d = (
        stored(rows, columns, letter)
        for rows, columns, letter in zip((8, 24, 8), (24, 16, 16), layout, strict=True)
    )
    found = of(a, b, out=d)
    assert found.problem().layout == layout
    packed = {"r": (24, 16, 16), "c": (8, 24, 8)}
    for index, (matrix, given) in enumerate(((found.a, a), (found.b, b), (found.d, d))):
        assert matrix.leading == packed[layout[index]][index]
        assert torch.equal(read_back(matrix), given)


@pytest.mark.parametrize("rows", [slice(None, 512), slice(512, None)])
@pytest.mark.parametrize("columns", [slice(None, 512), slice(512, None)])
def test_x04_corners_keep_the_stride_of_the_whole(rows: slice, columns: slice) -> None:
    big_a, big_w, big_d = (tensor(1024, 1024, dtype=torch.float16) for _ in range(3))
    a, w, d = big_a[rows, columns], big_w[rows, columns], big_d[rows, columns]
    found = of(a, w.t(), out=d)
    assert facts(found.a) == ("r", 1024, 0, False)
    assert facts(found.b) == ("c", 1024, 0, False)
    assert facts(found.d) == ("r", 1024, 0, False)
    assert found.a.tensor.data_ptr() == a.data_ptr()
    assert torch.equal(read_back(found.a), a)
    assert found.problem().a == FP16
    assert (found.problem().a_align, found.problem().d_align) == (16, 16)


def test_x02_an_address_off_by_one_element_is_seen() -> None:
    store = tensor(256 * 256 + 1)
    shifted, whole = store[1:].view(256, 256), tensor(256, 256)
    assert shifted.is_contiguous()
    assert of(shifted, whole.t()).problem().a_align == 2
    assert of(whole, shifted.t()).problem().b_align == 2
    assert of(whole, whole.t(), out=shifted).problem().d_align == 2
    assert of(whole, whole.t(), residual=shifted).problem().d_align == 2
    assert of(whole, whole.t(), bias=store[1:257]).problem().d_align == 2
    aligned = of(whole, whole.t(), bias=store[8:264], residual=whole).problem()
    assert (aligned.a_align, aligned.b_align, aligned.d_align) == (16, 16, 16)
    assert aligned.bias
    assert aligned.residual


@pytest.mark.parametrize(("columns", "bytes_"), [(24, 16), (20, 8), (22, 4), (23, 2)])
def test_row_strides_count_for_alignment(columns: int, bytes_: int) -> None:
    a = tensor(8, columns)[:, :16]
    assert of(a, tensor(16, 16).t()).problem().a_align == bytes_
    fp32 = tensor(8, columns, dtype=torch.float32)[:, :16]
    assert of(fp32, tensor(16, 16, dtype=torch.float32).t()).problem().a_align == min(
        16, 2 * bytes_
    )


def test_batch_strides_count_for_alignment() -> None:
    a = tensor(2 * 68).as_strided((2, 4, 16), (68, 16, 1))
    problem = of(a, tensor(2, 16, 8)).problem()
    assert (problem.batch, problem.a_align, problem.b_align) == (2, 8, 16)


def test_strides_that_no_kernel_has_make_a_copy_of_the_right_values() -> None:
    w = tensor(16, 24).t()
    for a in (
        tensor(5, 48)[:, ::2],
        tensor(1, 24).expand(5, 24),
        tensor(5, 1).expand(5, 24),
        tensor(64).as_strided((5, 24), (8, 1)),
    ):
        found = of(a, w)
        assert found.copied == ("a",)
        assert facts(found.a) == ("r", 24, 0, True)
        assert torch.equal(read_back(found.a), a)
    found = of(tensor(5, 24), tensor(1, 16).expand(24, 16), residual=tensor(5, 32)[:, ::2])
    assert found.copied == ("b", "residual")
    assert torch.equal(read_back(found.b), tensor(1, 16).expand(24, 16))
    assert found.c is not None
    assert torch.equal(read_back(found.c), tensor(5, 32)[:, ::2])


def test_one_row_or_column_is_packed_whatever_its_stride() -> None:
    w = tensor(16, 24).t()
    for a in (
        tensor(1, 24),
        tensor(9, 24)[4:5],
        tensor(24, 1).t(),
        tensor(24).as_strided((1, 24), (7, 1)),
    ):
        found = of(a, w)
        assert facts(found.a) == ("r", 24, 0, False)
        assert torch.equal(read_back(found.a), a)
    one_feature = of(tensor(5, 24), tensor(24, 1))
    assert facts(one_feature.b) == ("c", 24, 0, False)
    assert facts(one_feature.d) == ("r", 1, 0, False)
    strided = of(tensor(5, 24), tensor(24, 9)[:, 3:4])  # a column inside a row-major matrix
    assert facts(strided.b) == ("r", 9, 0, False)
    assert torch.equal(read_back(strided.b), tensor(24, 9)[:, 3:4])
    one_deep = of(tensor(5, 1), tensor(1, 16))
    assert (one_deep.a.leading, one_deep.b.letter, one_deep.b.leading) == (1, "c", 1)
    assert one_deep.problem().k == 1


def test_batches_keep_their_stride() -> None:
    a, b = tensor(3, 5, 24), tensor(3, 16, 24).mT
    found = of(a, b)
    assert facts(found.a) == ("r", 24, 5 * 24, False)
    assert facts(found.b) == ("c", 24, 16 * 24, False)
    assert facts(found.d) == ("r", 16, 5 * 16, False)
    assert found.problem().batch == 3
    heads = tensor(5, 3, 24).transpose(0, 1)  # (heads, tokens, dim) out of (tokens, heads, dim)
    found = of(heads, b)
    assert facts(found.a) == ("r", 72, 24, False)
    assert torch.equal(read_back(found.a), heads)
    assert facts(of(tensor(1, 5, 24), tensor(1, 24, 16)).a)[2] == 0


def test_a_weight_shared_by_a_batch_is_read_with_stride_zero() -> None:
    a, b = tensor(3, 5, 24), tensor(24, 16).expand(3, 24, 16)
    found = of(a, b)
    assert facts(found.b) == ("r", 16, 0, False)
    assert found.copied == ()
    assert torch.equal(read_back(found.b), b)


def test_leading_dimensions_become_rows_or_one_batch() -> None:
    a = tensor(2, 3, 5, 24)
    rows = of(a, tensor(16, 24).t())
    assert (rows.problem().m, rows.problem().batch) == (30, 1)
    assert facts(rows.a) == ("r", 24, 0, False)
    assert facts(rows.d) == ("r", 16, 0, False)
    batch = of(a, tensor(2, 3, 24, 16))
    assert (batch.problem().m, batch.problem().batch) == (5, 6)
    assert facts(batch.a) == ("r", 24, 120, False)
    assert facts(batch.d) == ("r", 16, 80, False)
    cut = tensor(4, 3, 32)[:, :, :24]  # (batch, tokens, features) of a wider tensor: still rows
    assert facts(of(cut, tensor(16, 24).t()).a) == ("r", 32, 0, False)


def test_leading_dimensions_that_do_not_collapse_make_a_copy() -> None:
    a = tensor(2, 5, 3, 24).transpose(1, 2)
    found = of(a, tensor(2, 3, 24, 16))
    assert found.copied == ("a",)
    assert torch.equal(read_back(found.a).reshape(a.shape), a)
    tokens = tensor(4, 6, 24)[:, :5]
    assert of(tokens, tensor(16, 24).t()).copied == ("a",)


def test_an_output_that_is_no_matrix_is_refused() -> None:
    a, b = tensor(4, 24), tensor(24, 16)
    for out in (
        tensor(4, 32)[:, ::2],
        tensor(1, 16).expand(4, 16),
        tensor(64).as_strided((4, 16), (8, 1)),
    ):
        with pytest.raises(ArgumentError, match=r"out: strides \(\d+, \d\) of shape \(4, 16\)"):
            of(a, b, out=out)
    with pytest.raises(ArgumentError, match=r"out: strides \(96, 16, 1\) of shape \(2, 5, 16\)"):
        of(tensor(2, 5, 24), b, out=tensor(2, 6, 16)[:, :5])  # would be written to a copy
    batched = tensor(3, 4, 24), tensor(3, 24, 16)
    for out in (tensor(4, 16).expand(3, 4, 16), tensor(256).as_strided((3, 4, 16), (32, 16, 1))):
        with pytest.raises(ArgumentError, match=r"of shape \(3, 4, 16\) are .* no element twice"):
            of(*batched, out=out)
    of(*batched, out=tensor(4, 3, 16).transpose(0, 1))
    of(a, b, out=tensor(4, 32)[:, 16:])
    of(a, b, out=tensor(16, 4).t())


def test_the_residual_comes_in_the_layout_of_the_output() -> None:
    a, b = tensor(4, 24), tensor(24, 16)
    residual = tensor(4, 32)[:, :16]
    found = of(a, b, residual=residual)
    assert found.c is not None
    assert facts(found.c) == ("r", 32, 0, False)
    turned = of(a, b, residual=tensor(16, 4).t())
    assert turned.c is not None
    assert facts(turned.c) == ("r", 16, 0, True)
    assert turned.copied == ("residual",)
    assert torch.equal(read_back(turned.c), tensor(16, 4).t())
    columns = of(a, b, residual=tensor(16, 4).t(), out=tensor(16, 4).t())
    assert columns.c is not None
    assert facts(columns.c) == ("c", 4, 0, False)


def test_the_bias_becomes_contiguous() -> None:
    a, b = tensor(4, 24), tensor(24, 16)
    strided = tensor(32)[::2]
    for bias in (strided, strided.reshape(1, 16)):
        found = of(a, b, bias=bias)
        assert found.bias is not None
        assert found.bias.stride() == (1,)
        assert torch.equal(found.bias, strided)


def test_check_returns_the_shape_of_the_result() -> None:
    for a, b, shape in (
        ((5, 24), (24, 16), (5, 16)),
        ((2, 7, 24), (24, 16), (2, 7, 16)),
        ((2, 3, 7, 24), (2, 3, 24, 16), (2, 3, 7, 16)),
        ((0, 24), (24, 16), (0, 16)),
    ):
        assert check(tensor(*a), tensor(*b), None, None, torch.bfloat16) == shape


def test_check_names_what_does_not_go_together() -> None:
    a, b = tensor(5, 24), tensor(24, 16)

    def refuse(words: str, *arguments: Tensor | None, dtype: torch.dtype = torch.bfloat16) -> None:
        a, b, bias, residual = (*arguments, None, None)[:4]
        assert a is not None
        assert b is not None
        with pytest.raises(ArgumentError, match=words):
            check(a, b, bias, residual, dtype)

    refuse(r"K=24, b is .* K=25", a, tensor(25, 16))
    refuse(r"a has 1 dimension", tensor(24), b)
    refuse(r"b has 1 dimension", a, tensor(24))
    refuse(r"batch dimensions \(2,\), a has \(3,\)", tensor(3, 5, 24), tensor(2, 24, 16))
    refuse(r"batch dimensions \(2,\), a has \(\)", a, tensor(2, 24, 16))
    refuse(r"b is torch.float16, a is torch.bfloat16", a, tensor(24, 16, dtype=torch.float16))
    refuse(r"a is torch.int16; float16, bfloat16, float32, int8 are legal", a.to(torch.int16), b)
    refuse(r"bias is \(17,\); \(16,\) or \(1, 16\) is needed", a, b, tensor(17))
    refuse(r"residual is \(5, 15\), the output is \(5, 16\)", a, b, None, tensor(5, 15))
    refuse(
        r"residual is torch.bfloat16, the output is torch.float32",
        a,
        b,
        None,
        tensor(5, 16),
        dtype=torch.float32,
    )
    with pytest.raises(ArgumentTypeError, match=r"b is on meta, a is on cpu"):
        check(a, b.to("meta"), None, None, torch.bfloat16)
    assert check(a.float(), b.float(), None, None, torch.float32) == (5, 16)
    assert of(a.float(), b.float()).problem().a == FP32
