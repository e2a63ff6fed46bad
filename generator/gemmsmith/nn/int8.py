"""A linear layer with int8 weights and int8 activations (W8A8)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional

from gemmsmith.direct import linear
from gemmsmith.errors import ArgumentError, ArgumentTypeError
from gemmsmith.nn.linear import parameter
from gemmsmith.nn.prepared import PreparedLinear
from gemmsmith.row_ops import quantize_rows, quantize_weight
from gemmsmith.weights import Preparation

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Int8Linear"]

_OUTPUTS = (torch.bfloat16, torch.float16)


class Int8Linear(PreparedLinear):
    """``y = x @ weight.T + bias`` of int8 numbers, for inference; int32 sums are exact.

    ``weight`` is int8, one byte an element, with one f32 scale for each output feature in
    ``weight_scale``; each row of the input is quantised by its own largest magnitude. The product
    is multiplied by both scales in f32, the bias is added, and the result is rounded once to the
    input's dtype, bf16 or fp16. A zero row gives the bias; NaN and infinity stay in their row.

    ``.to(dtype)`` casts the bias alone: scales stay f32. A ``state_dict`` holds ``weight`` (N, K),
    ``weight_scale`` (N,) and ``bias``, without padding, and comes back bit by bit.
    """

    weight_scale: Tensor
    """(padded N,) f32."""
    input_scale: Tensor | None
    """(), f32: what every row of the input is divided by, if that is not found anew for each."""

    def hold(self, weight: Tensor, bias: Tensor | None, preparation: Preparation) -> None:
        """Make the prepared weight, quantised, and bias those of the layer."""
        q, scale = quantize_weight(weight.detach())
        super().hold(q, bias, preparation)
        self.weight_scale = torch.nn.Parameter(scale, requires_grad=False)
        self.register_parameter("input_scale", None)

    def use_input_scale(self, scale: float | Tensor | None) -> Self:
        """Return the layer itself, which from now on divides its input by ``scale``.

        A static scale saves the search for each row's largest magnitude and costs accuracy: a value
        beyond 127 times the scale is clipped. None goes back to one scale for each row.

        Raises:
            ArgumentError: where it is not one positive finite number.
        """
        if scale is None:
            self.register_parameter("input_scale", None)
            return self
        value = float(scale)
        if not 0 < value < float("inf"):
            raise ArgumentError(f"scale is {value}; a positive finite number is needed")
        tensor = torch.tensor(value, dtype=torch.float32, device=self.weight.device)
        self.register_parameter("input_scale", torch.nn.Parameter(tensor, requires_grad=False))
        return self

    def quantize(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return ``x`` (..., K) as int8 (..., padded K) and the scale of each row (...)."""
        if self.input_scale is None:
            return quantize_rows(x)
        values = x.float()
        missing = self.weight.shape[1] - x.shape[-1]
        q = (values / self.input_scale).round().clamp(-128, 127).nan_to_num(0.0)
        # int8 has no NaN, so that the row's scale says it
        scale = torch.where(values.isfinite().all(-1), self.input_scale, torch.nan)
        return functional.pad(q.to(torch.int8), (0, missing)), scale

    def quantized(self, q: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
        """Return (..., N) of ``dtype`` from int8 rows (..., padded K) and their scales (...).

        What several layers read is quantised once: ``q, scale = gemmsmith.quantize_rows(x)``.
        """
        return self.unpadded(self.quantized_product(q, scale, dtype))

    def product(self, x: Tensor, gate: str = "none") -> Tensor:
        """Return all columns that the prepared weight makes of ``x`` (..., K), in its dtype."""
        q, scale = self.quantize(x)
        return self.quantized_product(q, scale, x.dtype, gate)

    def quantized_product(
        self, q: Tensor, scale: Tensor, dtype: torch.dtype, gate: str = "none"
    ) -> Tensor:
        """Return all columns that the prepared weight makes of int8 rows, in ``dtype``."""
        weight, bias = parameter(self, "weight"), parameter(self, "bias")
        if bias is not None and bias.dtype != dtype:
            bias = bias.to(dtype)
        scales = (scale, parameter(self, "weight_scale"))
        return linear(q, weight, bias, self.kernels, gate, *scales, dtype)

    def padded(self, x: Tensor) -> Tensor:
        """Return ``x`` (..., K), checked: quantising adds the zero columns."""
        if x.shape[-1] != self.in_features:
            raise ArgumentError(f"input has {x.shape[-1]} columns; {self.in_features} fit")
        if x.dtype not in _OUTPUTS:
            raise ArgumentTypeError(f"input is {x.dtype}; an int8 layer takes bfloat16 or float16")
        return x

    def extra_repr(self) -> str:
        """Return sizes, what was done to the weight, and how inputs are quantised."""
        how = "each row's own" if self.input_scale is None else "static"
        return f"{super().extra_repr()}, int8, input scale: {how}"

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        scales = (self.weight_scale, self.input_scale)

        def keep_f32(tensor: Tensor) -> Tensor:
            moved = fn(tensor)
            if moved.dtype == tensor.dtype or not any(tensor is scale for scale in scales):
                return moved
            return tensor.to(moved.device)

        super()._apply(keep_f32, recurse)  # type: ignore[no-untyped-call]
        return self

    def _prepared_names(self) -> tuple[str, ...]:
        return (*super()._prepared_names(), "weight_scale")

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *rest: Any, **named: Any
    ) -> None:
        static = state_dict.get(f"{prefix}input_scale")
        if static is not None and self.input_scale is None:
            self.use_input_scale(1.0)  # room for the stored one
        super()._load_from_state_dict(state_dict, prefix, *rest, **named)
