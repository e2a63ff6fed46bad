"""The check that what an op is given are dense tensors."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch

import gemmsmith
from gemmsmith.dense import check_dense
from gemmsmith.errors import ArgumentTypeError

ONES = torch.ones(1, 8, 2, 16)
SPARSE = torch.ones(2, 2).to_sparse()
AT = torch.arange(8).expand(1, 8)
BY = torch.ones(8)

REFUSED: list[tuple[Callable[[], object], str]] = [
    (lambda: check_dense(x=ONES, y=None), "y is a NoneType, not a torch.Tensor"),
    (lambda: check_dense(x=[1.0], y=SPARSE), "x is a list, not a torch.Tensor"),
    (lambda: check_dense(x=SPARSE), "x is torch.sparse_coo; only dense tensors have kernels"),
    (lambda: check_dense(x=None, y=None, optional=("x",)), "y is a NoneType, not a torch.Tensor"),
    (lambda: check_dense(x="here", y=ONES, optional=("x",)), "x is a str, not a torch.Tensor"),
    (lambda: check_dense(x=None, y=SPARSE, optional=("x", "y")), "y is torch.sparse_coo; only"),
]
OPS: list[tuple[Callable[..., object], str]] = [
    (lambda bad: gemmsmith.gemm(BY.view(1, 8), bad), "b"),
    (lambda bad: gemmsmith.gemm(BY.view(1, 8), BY.view(8, 1), b_sum=bad), "b_sum"),
    (lambda bad: gemmsmith.attention(bad, ONES, ONES), "q"),
    (lambda bad: gemmsmith.attention(ONES, ONES, ONES, mask=bad), "mask"),
    (lambda bad: gemmsmith.attention_varlen(ONES, ONES, ONES, bad, AT, 8, 8), "cu_q"),
    (lambda bad: gemmsmith.rope(ONES, ONES, AT, bad), "inv_freq"),
    (lambda bad: gemmsmith.rope_to_cache(ONES, ONES, ONES, ONES, ONES, AT, BY, slots=bad), "slots"),
    (lambda bad: gemmsmith.rms_norm(ONES, bad, 1e-6), "weight"),
    (lambda bad: gemmsmith.rms_norm(ONES, BY, 1e-6, bad), "residual"),
    (lambda bad: gemmsmith.quantize_rows(ONES, column_scale=bad), "column_scale"),
]


@pytest.mark.parametrize(("call", "message"), REFUSED)
def test_what_is_no_dense_tensor_is_refused(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ArgumentTypeError, match="^" + re.escape(message)):
        call()


def test_dense_tensors_pass() -> None:
    check_dense(x=ONES, y=ONES[:, ::2].mT)
    check_dense(x=None, y=ONES, optional=("x", "y"))


@pytest.mark.parametrize(("op", "name"), OPS)
def test_ops_say_which_argument_it_is(op: Callable[..., object], name: str) -> None:
    with pytest.raises(ArgumentTypeError, match=rf"^{name} is a list, not a torch\.Tensor$"):
        op([1.0])
    with pytest.raises(ArgumentTypeError, match=rf"^{name} is torch\.sparse_coo; only dense"):
        op(SPARSE)
