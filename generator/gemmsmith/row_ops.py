"""Quantising, RMSNorm and gates as PyTorch ops: one pass over memory each, inference only.

An int8 matrix has its rows padded with zeros to a multiple of 16, and one f32 scale a row: a value
is about ``q * scale``. A zero row has scale 0. A row that holds NaN or infinity has such a scale
and zeros, so that a product with it is NaN in that row and in no other.

What is quantised may be multiplied by a value for each column, ``column_scale``, first, and the
weight that reads it divided by the same (:func:`quantize_weight`), so that a column of large values
does not cost the others their precision (:mod:`gemmsmith.smoothing` chooses them). They are of the
input's dtype; the product is taken in f32. A norm needs none: ``weight * column_scale`` as its
weight does that, exactly where the column scale consists of powers of two.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from gemmsmith.dense import check_dense
from gemmsmith.errors import ArgumentError
from gemmsmith.op_library import Op, register_ops
from gemmsmith.row_execute import (
    last_row_kernel,
    record,
    row_call,
    row_stride,
    rows_of,
    run_on_cuda,
)
from gemmsmith.row_math import gated, normalized, quantized
from gemmsmith.row_shapes import (
    DTYPES,
    check_quantize_rows_out,
    new_add_rms_norm,
    new_add_rms_norm_quantize,
    new_gate,
    new_gate_quantize,
    new_quantize_rows,
    new_rms_norm,
    new_rms_norm_quantize,
)
from gemmsmith.rowspec import GateKind, RowOperation
from gemmsmith.scalars import check_scalars

__all__ = [
    "gate",
    "gate_quantize",
    "last_row_kernel",
    "quantize_rows",
    "quantize_weight",
    "rms_norm",
    "rms_norm_quantize",
]

_AT_ONCE = 1 << 24  # weights that are quantised together: f64 copies of them are made


def quantize_rows(
    x: Tensor,
    out: tuple[Tensor, Tensor] | None = None,
    *,
    column_scale: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return ``x`` (…, K) as int8 (…, K rounded up to 16) and a scale for each row, f32 (…).

    Symmetric: scale = largest magnitude of the row / 127, rounded half to even. ``out`` is where to
    write both. With ``column_scale`` (K,), of ``x``'s dtype, it is their product in f32 that is
    quantised.

    Raises:
        ArgumentError: naming the argument, the value found and what is legal.
    """
    check_dense(x=x, column_scale=column_scale, optional=("column_scale",))
    ops = torch.ops.gemmsmith
    if out is None:
        return cast("tuple[Tensor, Tensor]", ops.quantize_rows.default(x, column_scale))
    check_dense(q=out[0], scale=out[1])
    ops.quantize_rows_out.default(x, column_scale, q=out[0], scale=out[1])
    return out


def quantize_weight(w: Tensor, column_scale: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return ``w`` (N, K) as int8 (N, K rounded up to 16) and a scale for each output channel (N,).

    By torch, once: the numbers are those of :func:`quantize_rows`. With ``column_scale`` (K,) it is
    ``w`` divided by it, in f32: for inputs that are multiplied by it.

    Raises:
        ArgumentError: where ``w`` is no matrix of floating-point numbers, or ``column_scale`` does
            not fit it.
    """
    check_dense(w=w, column_scale=column_scale, optional=("column_scale",))
    if w.dim() != 2 or w.dtype not in DTYPES:
        raise ArgumentError(f"w is {w.dtype} {tuple(w.shape)}; a floating-point (N, K) is needed")
    if column_scale is not None and tuple(column_scale.shape) != (w.shape[1],):
        raise ArgumentError(
            f"column_scale is {tuple(column_scale.shape)}; ({w.shape[1]},) is needed"
        )
    with torch.no_grad():
        step = max(1, _AT_ONCE // max(1, w.shape[1]))
        parts = [w[first : first + step] for first in range(0, w.shape[0], step)] or [w]
        divisor = None if column_scale is None else column_scale.float()
        floats = (part.float() for part in parts)
        pairs = [quantized(part if divisor is None else part / divisor) for part in floats]
        return torch.cat([q for q, _ in pairs]), torch.cat([scale for _, scale in pairs])


def rms_norm(
    x: Tensor, weight: Tensor, eps: float, residual: Tensor | None = None
) -> Tensor | tuple[Tensor, Tensor]:
    """Return the RMSNorm of ``x`` (…, K) in its dtype; with a residual of the sum, and the sum.

    The sum is rounded to ``x``'s dtype before it is normalised; the rest is computed in f32 and
    rounded once.

    Raises:
        ArgumentError: naming the argument, the value found and what is legal.
    """
    check_dense(x=x, weight=weight, residual=residual, optional=("residual",))
    if residual is None:
        return cast(Tensor, torch.ops.gemmsmith.rms_norm.default(x, weight, eps))
    return cast(
        "tuple[Tensor, Tensor]",
        torch.ops.gemmsmith.add_rms_norm.default(x, weight, eps, residual),
    )


def rms_norm_quantize(
    x: Tensor, weight: Tensor, eps: float, residual: Tensor | None = None
) -> tuple[Tensor, ...]:
    """Return :func:`rms_norm` of ``x`` (…, K) quantised from f32: int8, scales, with a residual the
    sum.

    Raises:
        ArgumentError: naming the argument, the value found and what is legal.
    """
    check_dense(x=x, weight=weight, residual=residual, optional=("residual",))
    ops = torch.ops.gemmsmith
    if residual is None:
        return cast("tuple[Tensor, ...]", ops.rms_norm_quantize.default(x, weight, eps))
    return cast("tuple[Tensor, ...]", ops.add_rms_norm_quantize.default(x, weight, eps, residual))


def gate(x: Tensor, kind: GateKind = "silu", interleaved: bool = False) -> Tensor:
    """Return ``activation(gate) * up`` (…, N) of ``x`` (…, 2N), in its dtype, rounded once.

    Args:
        x: gates, then factors; ``interleaved``: 8 gates, 8 factors, 8 gates and so on.
        kind: ``silu``, ``gelu`` or ``gelu_tanh``.
        interleaved: the order in ``x``.

    Raises:
        ArgumentError: naming the argument, the value found and what is legal.
    """
    check_dense(x=x)
    check_scalars("switch", interleaved=interleaved)
    return cast(Tensor, torch.ops.gemmsmith.gate.default(x, kind, interleaved))


def gate_quantize(
    x: Tensor,
    kind: GateKind = "silu",
    interleaved: bool = False,
    *,
    column_scale: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return :func:`gate` of ``x`` (…, 2N) quantised from f32: int8 (…, padded N) and scales (…).

    With ``column_scale`` (N,), of ``x``'s dtype, it is their product in f32 that is quantised.

    Raises:
        ArgumentError: naming the argument, the value found and what is legal.
    """
    check_dense(x=x, column_scale=column_scale, optional=("column_scale",))
    check_scalars("switch", interleaved=interleaved)
    result = torch.ops.gemmsmith.gate_quantize.default(x, kind, interleaved, column_scale)
    return cast("tuple[Tensor, Tensor]", result)


def _written(name: str, tensor: Tensor) -> Tensor:
    """Return an output as (rows, columns) that shares its memory."""
    try:
        matrix = tensor.view(-1, tensor.shape[-1]) if tensor.numel() else tensor.flatten(0, -2)
    except RuntimeError:
        matrix = None
    if matrix is None or (
        matrix.numel()
        and (
            (matrix.shape[1] > 1 and matrix.stride(1) != 1) or row_stride(matrix) < matrix.shape[1]
        )
    ):
        raise ArgumentError(
            f"{name}: strides {tuple(tensor.stride())} of shape {tuple(tensor.shape)} are no matrix"
            " with contiguous rows; pass a contiguous tensor or a slice of one"
        )
    return matrix


def _run(
    operation: RowOperation,
    x: Tensor,
    out: Tensor,
    scale: Tensor | None = None,
    *,
    weight: Tensor | None = None,
    eps: float = 0.0,
    residual: Tensor | None = None,
    total: Tensor | None = None,
    kind: GateKind = "silu",
    interleaved: bool = False,
    column_scale: Tensor | None = None,
) -> None:
    """Compute ``out`` and what else there is to write, by a kernel or in torch."""
    columns = x.shape[-1] // 2 if "gate" in operation else x.shape[-1]
    if columns == 0 or x.numel() == 0:
        if scale is not None:
            scale.zero_()
        return
    rows, target = rows_of(x), _written("q" if scale is not None else "out", out)
    added = None if residual is None else rows_of(residual)
    if x.is_cuda:
        vector = column_scale if weight is None else weight
        call = row_call(
            rows,
            target,
            scale,
            columns=columns,
            weight=None if vector is None else vector.contiguous(),
            eps=eps,
            residual=added,
            total=total,
            kind=kind,
            interleaved=interleaved,
        )
        if run_on_cuda(operation, x.dtype, call, x.device.index):
            return
    if weight is not None:
        values, sums = normalized(rows, weight, eps, added)
        if total is not None:
            total.view(-1, columns).copy_(sums)
    elif "gate" in operation:
        values = gated(rows, kind, interleaved)
    else:
        values = rows.float()
    if column_scale is not None:
        values = values * column_scale.float()
    if scale is None:
        target.copy_(values)
    else:
        q, scales = quantized(values)
        target.copy_(q)
        scale.view(-1).copy_(scales)
    record("torch" if x.is_cuda else "cpu")


def _quantize_rows(x: Tensor, column_scale: Tensor | None = None) -> tuple[Tensor, Tensor]:
    q, scale = new_quantize_rows(x, column_scale)
    _run("quantize", x, q, scale, column_scale=column_scale)
    return q, scale


def _quantize_rows_out(
    x: Tensor, column_scale: Tensor | None = None, *, q: Tensor, scale: Tensor
) -> None:
    check_quantize_rows_out(x, column_scale, q=q, scale=scale)
    if not scale.is_contiguous():
        raise ArgumentError(f"scale has strides {tuple(scale.stride())}; pass a contiguous tensor")
    _run("quantize", x, q, scale, column_scale=column_scale)
    if x.is_cuda:
        for written in (q, scale):
            torch.autograd.graph.increment_version(written)


def _rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    out = new_rms_norm(x, weight, eps)
    _run("rms_norm", x, out, weight=weight, eps=eps)
    return out


def _add_rms_norm(x: Tensor, weight: Tensor, eps: float, residual: Tensor) -> tuple[Tensor, Tensor]:
    out, total = new_add_rms_norm(x, weight, eps, residual)
    _run("rms_norm", x, out, weight=weight, eps=eps, residual=residual, total=total)
    return out, total


def _rms_norm_quantize(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    q, scale = new_rms_norm_quantize(x, weight, eps)
    _run("rms_norm_quantize", x, q, scale, weight=weight, eps=eps)
    return q, scale


def _add_rms_norm_quantize(
    x: Tensor, weight: Tensor, eps: float, residual: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    q, scale, total = new_add_rms_norm_quantize(x, weight, eps, residual)
    operation: RowOperation = "rms_norm_quantize"
    _run(operation, x, q, scale, weight=weight, eps=eps, residual=residual, total=total)
    return q, scale, total


def _gate(x: Tensor, kind: GateKind, interleaved: bool) -> Tensor:
    out = new_gate(x, kind, interleaved)
    _run("gate", x, out, kind=kind, interleaved=interleaved)
    return out


def _gate_quantize(
    x: Tensor, kind: GateKind, interleaved: bool, column_scale: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    q, scale = new_gate_quantize(x, kind, interleaved, column_scale)
    operation: RowOperation = "gate_quantize"
    columns = column_scale
    _run(operation, x, q, scale, kind=kind, interleaved=interleaved, column_scale=columns)
    return q, scale


_NORM = "Tensor x, Tensor weight, float eps"
_GATE = "Tensor x, str kind, bool interleaved"
_COLUMNS = "Tensor? column_scale=None"
_OPS: dict[str, Op] = {
    "quantize_rows": (
        f"(Tensor x, {_COLUMNS}) -> (Tensor, Tensor)",
        _quantize_rows,
        new_quantize_rows,
    ),
    "quantize_rows_out": (
        f"(Tensor x, {_COLUMNS}, *, Tensor(a!) q, Tensor(b!) scale) -> ()",
        _quantize_rows_out,
        check_quantize_rows_out,
    ),
    "rms_norm": (f"({_NORM}) -> Tensor", _rms_norm, new_rms_norm),
    "add_rms_norm": (
        f"({_NORM}, Tensor residual) -> (Tensor, Tensor)",
        _add_rms_norm,
        new_add_rms_norm,
    ),
    "rms_norm_quantize": (
        f"({_NORM}) -> (Tensor, Tensor)",
        _rms_norm_quantize,
        new_rms_norm_quantize,
    ),
    "add_rms_norm_quantize": (
        f"({_NORM}, Tensor residual) -> (Tensor, Tensor, Tensor)",
        _add_rms_norm_quantize,
        new_add_rms_norm_quantize,
    ),
    "gate": (f"({_GATE}) -> Tensor", _gate, new_gate),
    "gate_quantize": (
        f"({_GATE}, {_COLUMNS}) -> (Tensor, Tensor)",
        _gate_quantize,
        new_gate_quantize,
    ),
}

_library = register_ops(_OPS)
