"""Operands of the op on the CPU, and its right results."""

from __future__ import annotations

import torch
from torch import Tensor

from gemm_data import rounded, small_integers

BF16 = torch.bfloat16
HALVES = (torch.bfloat16, torch.float16)


def integers(*shape: int, dtype: torch.dtype = BF16) -> Tensor:
    return small_integers(*shape, dtype=dtype, device="cpu")


def exact(
    a: Tensor,
    b: Tensor,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    alpha: float = 1.0,
    beta: float = 1.0,
) -> Tensor:
    """Return the result in f64, rounded once."""
    result = alpha * (a.double() @ b.double())
    if bias is not None:
        result = result + bias.reshape(-1).double()
    if residual is not None:
        result = result + beta * residual.double()
    return rounded(result, a.dtype)
