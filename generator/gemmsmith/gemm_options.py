"""What a call of kernels by name takes beside its matrices and factors."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class GemmOptions(TypedDict, total=False):
    """Keyword arguments of :func:`gemmsmith.gemm`, with its defaults, but for ``kernels``."""

    activation: str
    gate: str
    a_scale: Tensor | None
    b_scale: Tensor | None
    a_zero_point: Tensor | None
    b_sum: Tensor | None
    out_scale: float
    out_dtype: torch.dtype | None
    deterministic: str
    constant_b: bool
