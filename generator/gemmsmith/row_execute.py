"""One checked call of a row kernel on a GPU: which kernel, with what, on which stream."""

from __future__ import annotations

import logging
from functools import cache

import torch
from torch import Tensor

from gemmsmith.arch import architecture_of, parse_architecture
from gemmsmith.errors import LaunchError, UnknownArchitectureError
from gemmsmith.launch import current_device, raw_stream
from gemmsmith.launcher import RopeCall, RowCall, RowKernel
from gemmsmith.operands import TORCH_DTYPES
from gemmsmith.rowspec import GATE_KINDS, GateKind, RowOperation, RowSpec, row_dtypes, row_specs
from gemmsmith.shelf import RowShelf
from gemmsmith.supply import Compiled

_log = logging.getLogger(__name__)

_last = ""


def last_row_kernel() -> str:
    """Return the name of what the last row operation of this process ran.

    ``torch`` where torch took the call, ``cpu`` for CPU tensors; empty before the first.
    """
    return _last


def record(name: str) -> None:
    """Note what a row operation ran."""
    global _last
    _last = name


def run_on_cuda(
    operation: RowOperation, dtype: torch.dtype, call: RowCall | RopeCall, index: int
) -> bool:
    """Queue ``call`` on the current stream of device ``index``; False where there is no kernel.

    Raises:
        LaunchError: where CUDA refuses.
    """
    kernel = _kernel(operation, dtype, index)
    if isinstance(kernel, str):
        say_once(f"{operation}: {kernel}")
        return False
    if index == current_device():
        status = kernel.launch(call, raw_stream(index))
    else:
        with torch.cuda.device(index):
            status = kernel.launch(call, raw_stream(index))
    if status != 0:
        values = ", ".join(f"{name} {value}" for name, value in call._asdict().items())
        raise LaunchError(f"{kernel.name}: {kernel.explain(status)} ({values})")
    record(kernel.name)
    return True


def rows_of(tensor: Tensor) -> Tensor:
    """Return ``tensor`` as (rows, columns) with contiguous rows; a copy where strides need one."""
    matrix = tensor if tensor.dim() == 2 else tensor.reshape(-1, tensor.shape[-1])
    return matrix if matrix.stride(1) == 1 or matrix.shape[1] == 1 else matrix.contiguous()


def row_stride(matrix: Tensor | None) -> int:
    """Return the elements between neighbouring rows; the width of a matrix that has only one."""
    if matrix is None:
        return 0
    return matrix.stride(0) if matrix.shape[0] > 1 else matrix.shape[1]


def row_call(
    x: Tensor,
    out: Tensor,
    scale: Tensor | None,
    *,
    columns: int,
    weight: Tensor | None = None,
    eps: float = 0.0,
    residual: Tensor | None = None,
    total: Tensor | None = None,
    kind: GateKind = "silu",
    interleaved: bool = False,
) -> RowCall:
    """Return the call on matrices whose rows are contiguous; ``total`` is packed.

    ``columns`` counts those of the result before padding, for a gate half of those of ``x``;
    ``weight`` is a norm's, or the column scale of what is quantised.
    """
    return RowCall(
        x.shape[0],
        columns,
        out.shape[1],
        x.data_ptr(),
        _address(residual),
        _address(weight),
        _address(total),
        out.data_ptr(),
        _address(scale),
        row_stride(x),
        row_stride(residual),
        columns,
        row_stride(out),
        eps,
        GATE_KINDS.index(kind),
        int(interleaved),
    )


def _address(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


@cache
def default_row_kernels(arch: str) -> RowShelf:
    """Return the row kernels for ``arch``; what is not built is, at first use."""
    return RowShelf(row_specs(parse_architecture(arch)), Compiled(""), build_on_use=True)


@cache
def _kernel(operation: RowOperation, dtype: torch.dtype, index: int) -> RowKernel | str:
    """Return the kernel for a device, or why there is none."""
    properties = torch.cuda.get_device_properties(index)
    try:
        arch = architecture_of((properties.major, properties.minor))
    except UnknownArchitectureError as error:
        return str(error)
    kind = TORCH_DTYPES[dtype]
    if kind not in row_dtypes(arch):
        return f"{arch.name} has no row kernels for {kind.name}"
    spec = RowSpec(arch=arch, operation=operation, dtype=kind)
    loaded = default_row_kernels(arch.name).kernels()
    return loaded.get(spec) or f"{spec.name} is not built"


@cache
def say_once(reason: str) -> None:
    """Log that torch computes something, and why."""
    _log.warning("torch computes this: %s", reason)
