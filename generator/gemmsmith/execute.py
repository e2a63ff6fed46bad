"""One checked call, carried out: by a kernel, by torch, or on the CPU; and what was run."""

from __future__ import annotations

import logging
from functools import cache

import torch
from torch import Tensor

from gemmsmith.arch import architecture_of
from gemmsmith.choose import Tuning
from gemmsmith.errors import UnknownArchitectureError
from gemmsmith.finish import PLAIN, Finish, finished
from gemmsmith.kernelset import (
    DeviceFacts,
    Plan,
    Selection,
    default_kernels,
    output_letter,
    selection,
)
from gemmsmith.launch import LaunchRecord, Ready, prepare, queue, signature
from gemmsmith.operands import TORCH_DTYPES, Operands, operands
from gemmsmith.problem import GemmProblem

__all__ = ["LaunchRecord", "last_kernel", "run_on_cpu", "run_on_cuda"]

_log = logging.getLogger(__name__)

_last: LaunchRecord | None = None


def last_kernel() -> LaunchRecord | None:
    """Return what the last GEMM of this process ran; None before the first."""
    return _last


def _record(record: LaunchRecord) -> None:
    global _last
    _last = record


def _without_kernel(name: str, reason: str) -> LaunchRecord:
    return LaunchRecord(name=name, reason=reason, tuning=Tuning(), copied=())


def _in_torch(
    a: Tensor,
    b: Tensor,
    bias: Tensor | None,
    residual: Tensor | None,
    alpha: float,
    beta: float,
    finish: Finish,
    out: Tensor,
) -> None:
    """Compute in fp32 and round once, whatever the device; sums of int8 products are exact."""
    exactly = torch.float64 if a.dtype == torch.int8 else torch.float32  # holds every int8 sum
    sums = torch.matmul(a.to(exactly), b.to(exactly))
    if a.dtype == torch.int8 and out.dtype != torch.int32 and finish.a_zero is None:
        sums = sums.float()
    result = finished(sums, finish, alpha, bias)
    if residual is not None and beta != 0.0:
        result = result + beta * residual.to(result.dtype)
    if out.dtype == torch.int8:
        result = (result * finish.out_scale).round().clamp(-128, 127)
    out.copy_(result)


_ON_CPU = _without_kernel("cpu", "the tensors are on the CPU")
_EMPTY = _without_kernel("none", "the output is empty")


def run_on_cpu(
    a: Tensor,
    b: Tensor,
    bias: Tensor | None,
    residual: Tensor | None,
    alpha: float,
    beta: float,
    finish: Finish,
    out: Tensor,
) -> None:
    """Write what the call asks for to ``out`` with torch, in fp32."""
    _in_torch(a, b, bias, residual, alpha, beta, finish, out)
    _record(_ON_CPU)


def run_on_cuda(
    a: Tensor,
    b: Tensor,
    bias: Tensor | None,
    residual: Tensor | None,
    alpha: float,
    beta: float,
    finish: Finish,
    kernels: str,
    out: Tensor,
) -> None:
    """Write what the call asks for to ``out`` on the current stream.

    Arguments are checked already. Queues work; never synchronises.

    Raises:
        NoKernelError, LaunchError, ArgumentError: see :func:`gemmsmith.gemm`.
    """
    if out.numel() == 0:
        _record(_EMPTY)
        return
    if beta == 0.0:
        residual = None
    addresses: tuple[int, ...] = (
        a.data_ptr(),
        b.data_ptr(),
        0 if residual is None else residual.data_ptr(),
        0 if bias is None else bias.data_ptr(),
        out.data_ptr(),
        *finish.addresses,
    )
    key = signature(a, b, bias, residual, out, finish, kernels)
    settled = _settled.get(key)
    if settled is None:
        matrices, plan = _planned(a, b, bias, residual, out, finish, kernels)
        if matrices is None or isinstance(plan, str):
            settled = _without_kernel("torch", str(plan))
            _say_once(settled.reason)
        else:
            settled = prepare(plan, matrices, _device(a.device.index), a.device.index)
        if matrices is None or matrices.addresses == addresses:  # nothing had to be copied
            if len(_settled) >= _MOST_SETTLED:
                _settled.clear()
            _settled[key] = settled
        else:
            addresses = matrices.addresses
    if isinstance(settled, LaunchRecord):
        _fall_back(a, b, bias, residual, alpha, beta, finish, out)
        _record(settled)
        return
    queue(settled, addresses, (alpha, beta, finish.out_scale), out.device)
    torch.autograd.graph.increment_version(out)  # as torch's own in-place operations do
    _record(settled.record)


_settled: dict[tuple[object, ...], Ready | LaunchRecord] = {}
_MOST_SETTLED = 8192  # call shapes; a dynamic batch over a model's layers stays far below


def _planned(
    a: Tensor,
    b: Tensor,
    bias: Tensor | None,
    residual: Tensor | None,
    out: Tensor,
    finish: Finish,
    kernels: str,
) -> tuple[Operands | None, Plan | str]:
    """Return the operands and the kernel for them, or why torch has to take the call."""
    if a.shape[-1] == 0:
        return None, "K is 0"
    if a.dtype == torch.float32:
        return None, "float32 inputs have no kernel"
    letter = output_letter(kernels, TORCH_DTYPES[a.dtype])
    matrices = operands(a, b, bias, residual, out, letter, finish)
    device = _device(a.device.index)
    return matrices, _selection(kernels, device).plan(matrices.problem(), device)


def _fall_back(
    a: Tensor,
    b: Tensor,
    bias: Tensor | None,
    residual: Tensor | None,
    alpha: float,
    beta: float,
    finish: Finish,
    out: Tensor,
) -> None:
    """Compute with torch's own GEMM; with an epilogue in fp32, so that it is rounded once."""
    plain = bias is None and residual is None and alpha == 1.0 and finish is PLAIN
    if plain and out.dtype == a.dtype and a.shape[-1] and a.is_floating_point():
        torch.matmul(a, b, out=out)
    else:
        _in_torch(a, b, bias, residual, alpha, beta, finish, out)


@cache
def _say_once(reason: str) -> None:
    _log.warning("torch computes this GEMM: %s", reason)


@cache
def _device(index: int) -> DeviceFacts:
    properties = torch.cuda.get_device_properties(index)
    return DeviceFacts(
        name=properties.name,
        capability=(properties.major, properties.minor),
        sm_count=properties.multi_processor_count,
    )


def _selection(kernels: str, device: DeviceFacts) -> Selection:
    if kernels:
        return selection(kernels)
    try:
        return default_kernels(architecture_of(device.capability).name)
    except UnknownArchitectureError as error:
        return _NoKernels(str(error))


class _NoKernels:
    """The selection of a GPU that gemmsmith has no kernels for."""

    specs = ()

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def plan(self, problem: GemmProblem, device: DeviceFacts) -> str:
        """Return the reason for which torch takes every call."""
        return self._reason
