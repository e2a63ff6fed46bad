"""RMSNorm on gemmsmith's kernels, in one kernel with the quantisation that an int8 layer wants."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from gemmsmith.nn.int8 import Int8Linear, QuantizedRows
from gemmsmith.nn.linear import parameter
from gemmsmith.row_ops import rms_norm, rms_norm_quantize

__all__ = ["RMSNorm"]


class RMSNorm(torch.nn.Module):
    """``x / sqrt(mean(x²) + eps) * weight``, computed in f32 and rounded once, for inference.

    Args:
        weight: (K,), of the dtype of what is normalised; shared, not copied.
        eps: what is added to the mean of squares, above 0.
    """

    weight: Tensor
    """(K,)."""
    eps: float
    """What is added to the mean of squares."""

    def __init__(self, weight: Tensor, eps: float) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(weight.detach(), requires_grad=False)
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Return (..., K) from (..., K)."""
        return cast(Tensor, rms_norm(x, parameter(self, "weight"), self.eps))

    def ahead_of(self, reader: torch.nn.Module, x: Tensor) -> Tensor | QuantizedRows:
        """Return ``x`` (..., K) normalised in the form that the layer ``reader`` takes at once.

        That is int8 for a :class:`gemmsmith.nn.Int8Linear` which scales each row by itself.
        """
        if not isinstance(reader, Int8Linear) or reader.input_scale is not None:
            return self(x)  # type: ignore[no-any-return]
        weight = parameter(self, "weight")
        columns = reader.column_scale_of(x.shape[-1], x.dtype)
        if columns is not None:  # powers of two: exact
            weight = weight * columns
        q, scale = rms_norm_quantize(x, weight, self.eps)
        return QuantizedRows(q, scale, x.dtype)

    def extra_repr(self) -> str:
        """Return size and eps."""
        return f"{self.weight.shape[0]}, eps={self.eps}"
