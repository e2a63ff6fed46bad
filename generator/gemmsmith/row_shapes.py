"""Outputs of row operations: checked arguments in, tensors of the right shape out.

They serve as the ops' fake implementations too.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gemmsmith.errors import ArgumentError, ArgumentTypeError
from gemmsmith.row_math import padded
from gemmsmith.rowspec import GATE_KINDS
from gemmsmith.spec import GATE_BLOCK

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
"""What row operations read."""


def _check_input(x: Tensor) -> None:
    if x.dtype not in DTYPES:
        words = ", ".join(str(dtype).removeprefix("torch.") for dtype in DTYPES)
        raise ArgumentTypeError(f"x is {x.dtype}; {words} are legal")
    if x.dim() == 0:
        raise ArgumentError("x has no dimension, a row has one: unsqueeze it")


def _check_columns(x: Tensor, columns: int, name: str, tensor: Tensor) -> None:
    if tensor.dtype != x.dtype or tensor.device != x.device:
        raise ArgumentTypeError(
            f"{name} is {tensor.dtype} on {tensor.device}, x is {x.dtype} on {x.device}"
        )
    if tuple(tensor.shape) != (columns,):
        raise ArgumentError(f"{name} is {tuple(tensor.shape)}; ({columns},) is needed")


def _check_norm(x: Tensor, weight: Tensor, eps: float, residual: Tensor | None) -> None:
    _check_input(x)
    _check_columns(x, x.shape[-1], "weight", weight)
    if residual is not None:
        if residual.dtype != x.dtype or residual.device != x.device:
            raise ArgumentTypeError(
                f"residual is {residual.dtype} on {residual.device}, x is {x.dtype} on {x.device}"
            )
        if residual.shape != x.shape:
            raise ArgumentError(f"residual is {tuple(residual.shape)}, x is {tuple(x.shape)}")
    if not eps > 0:
        raise ArgumentError(f"eps is {eps}: it must be above 0, or a zero row becomes NaN")


def _check_gate(x: Tensor, kind: str, interleaved: bool) -> None:
    _check_input(x)
    if kind not in GATE_KINDS:
        raise ArgumentError(f"kind is {kind!r}; {', '.join(GATE_KINDS)} are legal")
    step = 2 * GATE_BLOCK if interleaved else 2
    if x.shape[-1] % step:
        blocks = f" in blocks of {GATE_BLOCK}" if interleaved else ""
        raise ArgumentError(
            f"x has {x.shape[-1]} columns; gates and factors{blocks} need a multiple of {step}"
        )


def _check_quantized(x: Tensor, q: Tensor, scale: Tensor) -> None:
    _check_input(x)
    shape = (*x.shape[:-1], padded(x.shape[-1]))
    for name, tensor, dtype, wanted in (
        ("q", q, torch.int8, shape),
        ("scale", scale, torch.float32, shape[:-1]),
    ):
        if tensor.dtype != dtype or tensor.device != x.device:
            raise ArgumentTypeError(
                f"{name} is {tensor.dtype} on {tensor.device}; {dtype} on {x.device} is needed"
            )
        if tuple(tensor.shape) != wanted:
            raise ArgumentError(f"{name} is {tuple(tensor.shape)}; {tuple(wanted)} is needed")


def _new_quantized(
    x: Tensor, columns: int, column_scale: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    if column_scale is not None:
        _check_columns(x, columns, "column_scale", column_scale)
    q = x.new_empty((*x.shape[:-1], padded(columns)), dtype=torch.int8)
    return q, x.new_empty(x.shape[:-1], dtype=torch.float32)


def new_quantize_rows(x: Tensor, column_scale: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return q and scale."""
    _check_input(x)
    return _new_quantized(x, x.shape[-1], column_scale)


def check_quantize_rows_out(
    x: Tensor, column_scale: Tensor | None = None, *, q: Tensor, scale: Tensor
) -> None:
    """Raise ArgumentError where ``q`` and ``scale`` cannot take the result."""
    _check_quantized(x, q, scale)
    if column_scale is not None:
        _check_columns(x, x.shape[-1], "column_scale", column_scale)


def new_rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return the output."""
    _check_norm(x, weight, eps, None)
    return x.new_empty(x.shape)


def new_add_rms_norm(
    x: Tensor, weight: Tensor, eps: float, residual: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the output and the sum."""
    _check_norm(x, weight, eps, residual)
    return x.new_empty(x.shape), x.new_empty(x.shape)


def new_rms_norm_quantize(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return q and scale."""
    _check_norm(x, weight, eps, None)
    return _new_quantized(x, x.shape[-1])


def new_add_rms_norm_quantize(
    x: Tensor, weight: Tensor, eps: float, residual: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return q, scale and the sum."""
    _check_norm(x, weight, eps, residual)
    return (*_new_quantized(x, x.shape[-1]), x.new_empty(x.shape))


def new_gate(x: Tensor, kind: str, interleaved: bool) -> Tensor:
    """Return the output."""
    _check_gate(x, kind, interleaved)
    return x.new_empty((*x.shape[:-1], x.shape[-1] // 2))


def new_gate_quantize(
    x: Tensor, kind: str, interleaved: bool, column_scale: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return q and scale."""
    _check_gate(x, kind, interleaved)
    return _new_quantized(x, x.shape[-1] // 2, column_scale)
