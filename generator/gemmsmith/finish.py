"""What a call does with its sums beside alpha, bias and residual: functions and scales."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, get_args

import torch
from torch import Tensor

from gemmsmith.errors import ArgumentError, ArgumentTypeError
from gemmsmith.spec import GATE_BLOCK, Gate

ACTIVATIONS: tuple[str, ...] = ("none", "relu", "gelu", "gelu_tanh", "silu")
"""Functions of a result, by their number in the C interface."""
GATES: tuple[str, ...] = get_args(Gate)


class Finish(NamedTuple):
    """The part of an epilogue that most calls leave at its defaults."""

    activation: str = "none"
    gate: str = "none"
    a_scale: Tensor | None = None
    """(M,) f32."""
    b_scale: Tensor | None = None
    """(N,) f32."""
    a_zero: Tensor | None = None
    """(M,) int32."""
    b_sum: Tensor | None = None
    """(N,) int32: minus the sums of B's columns."""
    out_scale: float = 1.0

    @property
    def kind(self) -> tuple[object, ...]:
        """What of it decides which kernel runs."""
        return (self.activation, self.gate, self.scaled, self.a_zero is not None)

    @property
    def scaled(self) -> bool:
        """Whether there are scales of rows or columns."""
        return self.a_scale is not None or self.b_scale is not None

    @property
    def addresses(self) -> tuple[int, int, int, int]:
        """Where the vectors begin; 0 for what is absent."""
        if self is PLAIN:
            return (0, 0, 0, 0)
        vectors = (self.a_scale, self.b_scale, self.a_zero, self.b_sum)
        a_scale, b_scale, a_zero, b_sum = (0 if v is None else v.data_ptr() for v in vectors)
        return (a_scale, b_scale, a_zero, b_sum)


PLAIN = Finish()
"""No function, no scale."""


def make_finish(
    a: Tensor,
    b: Tensor,
    activation: str,
    gate: str,
    a_scale: Tensor | None,
    b_scale: Tensor | None,
    a_zero_point: Tensor | None,
    b_sum: Tensor | None,
    out_scale: float,
) -> Finish:
    """Return the checked arguments of a call, its vectors expanded and contiguous.

    Raises:
        ArgumentError, ArgumentTypeError: naming the argument, what was found and what is legal.
    """
    for name, word, legal in (("activation", activation, ACTIVATIONS), ("gate", gate, GATES)):
        if word not in legal:
            raise ArgumentError(f"{name} is {word!r}; {', '.join(legal)} are legal")
    if gate != "none" and activation != "none":
        raise ArgumentError(f"gate {gate} and activation {activation}: a call has one of them")
    rows, n = a.shape[:-1].numel(), b.shape[-1]
    if gate != "none" and n % (2 * GATE_BLOCK):
        raise ArgumentError(f"b has {n} columns; a gate wants blocks of 16: 8 of the gate, 8 of up")
    if a_zero_point is not None and a.dtype != torch.int8:
        raise ArgumentTypeError(f"a_zero_point goes with int8, a is {a.dtype}")
    if a_zero_point is not None and b_sum is None:
        b_sum = -b.sum(0, dtype=torch.int32)
    return Finish(
        activation=activation,
        gate=gate,
        a_scale=_vector("a_scale", a_scale, rows, torch.float32, a.device),
        b_scale=_vector("b_scale", b_scale, n, torch.float32, a.device),
        a_zero=_vector("a_zero_point", a_zero_point, rows, torch.int32, a.device),
        b_sum=_vector("b_sum", b_sum, n, torch.int32, a.device),
        out_scale=out_scale,
    )


def _vector(
    name: str, values: Tensor | None, size: int, dtype: torch.dtype, device: torch.device
) -> Tensor | None:
    if values is None:
        return None
    if values.dtype != dtype:
        raise ArgumentTypeError(f"{name} is {values.dtype}, {dtype} is needed")
    if values.device != device:
        raise ArgumentTypeError(f"{name} is on {values.device}, a is on {device}")
    if values.numel() == 1:
        return values.reshape(1).expand(size).contiguous()
    if values.numel() != size:
        raise ArgumentError(f"{name} is {tuple(values.shape)}; {size} values or one are needed")
    return values.reshape(-1).contiguous()


def finished(
    sums: Tensor,
    finish: Finish,
    alpha: float,
    bias: Tensor | None,
) -> Tensor:
    """Return what a kernel makes of ``sums`` (…, M, N) before the residual, in f32 (or f64).

    int8 sums are whole numbers in f64, so that zero points are taken off exactly.
    """
    shape = sums.shape
    rows = sums.reshape(-1, shape[-1]) if finish is not PLAIN else sums
    if finish.a_zero is not None and finish.b_sum is not None:
        rows = rows + finish.a_zero[:, None].to(rows.dtype) * finish.b_sum.to(rows.dtype)
    if finish is PLAIN:
        result = rows * alpha if alpha != 1.0 else rows
    else:
        rows = rows.float()
        scale = torch.full((1, 1), alpha, dtype=torch.float32, device=rows.device)
        if finish.a_scale is not None:
            scale = scale * finish.a_scale[:, None]
        if finish.b_scale is not None:
            scale = scale * finish.b_scale
        result = rows * scale
    if bias is not None:
        result = result + bias.reshape(-1).to(result.dtype)
    if finish.gate != "none":
        blocks = result.reshape(-1, shape[-1] // (2 * GATE_BLOCK), 2, GATE_BLOCK)
        result = _FUNCTIONS[finish.gate](blocks[..., 0, :]) * blocks[..., 1, :]
        return result.reshape(*shape[:-1], shape[-1] // 2)
    return _FUNCTIONS[finish.activation](result).reshape(shape)


_FUNCTIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "none": lambda x: x,
    "relu": torch.relu,
    "gelu": torch.nn.functional.gelu,
    "gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    "silu": torch.nn.functional.silu,
}

__all__ = ["ACTIVATIONS", "GATES", "PLAIN", "Finish", "finished", "make_finish"]
