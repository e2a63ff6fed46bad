"""One checked call, carried out: which kernel, which workspace, which stream, and what was run."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from gemmsmith.arch import architecture_of
from gemmsmith.choose import Tuning
from gemmsmith.errors import LaunchError, UnknownArchitectureError
from gemmsmith.kernelset import DeviceFacts, Plan, Selection, default_kernels, selection
from gemmsmith.launcher import Call
from gemmsmith.operands import Matrix, Operands, operands
from gemmsmith.problem import GemmProblem

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class LaunchRecord:
    """What the last GEMM of this process ran."""

    name: str
    """The kernel's name; ``torch`` where torch took the call, ``cpu`` for CPU tensors."""
    reason: str
    """Why torch took it; empty where a kernel ran."""
    tuning: Tuning
    """The run-time knobs."""
    copied: tuple[str, ...]
    """Arguments that were copied because their strides cannot be expressed."""


_last: LaunchRecord | None = None


def last_kernel() -> LaunchRecord | None:
    """Return what the last GEMM of this process ran; None before the first."""
    return _last


def _record(
    name: str, reason: str = "", tuning: Tuning | None = None, copied: tuple[str, ...] = ()
) -> None:
    global _last
    _last = LaunchRecord(name=name, reason=reason, tuning=tuning or Tuning(), copied=copied)


def _in_torch(
    a: Tensor,
    b: Tensor,
    bias: Tensor | None,
    residual: Tensor | None,
    alpha: float,
    beta: float,
    out: Tensor,
) -> None:
    """Compute in fp32 and round once, whatever the device."""
    product = torch.matmul(a.float(), b.float())
    if alpha != 1.0:
        product *= alpha
    if bias is not None:
        product += bias.reshape(-1).float()
    if residual is not None and beta != 0.0:
        product += beta * residual.float()
    out.copy_(product)


def run_on_cpu(
    a: Tensor,
    b: Tensor,
    bias: Tensor | None,
    residual: Tensor | None,
    alpha: float,
    beta: float,
    out: Tensor,
) -> None:
    """Write ``alpha * a @ b + beta * residual + bias`` to ``out`` with torch, in fp32."""
    _in_torch(a, b, bias, residual, alpha, beta, out)
    _record("cpu", "the tensors are on the CPU")


def run_on_cuda(
    a: Tensor,
    b: Tensor,
    bias: Tensor | None,
    residual: Tensor | None,
    alpha: float,
    beta: float,
    kernels: str,
    out: Tensor,
) -> None:
    """Write ``alpha * a @ b + beta * residual + bias`` to ``out`` on the current stream.

    Arguments are checked already. Queues work; never synchronises.

    Raises:
        NoKernelError, LaunchError, ArgumentError: see :func:`gemmsmith.gemm`.
    """
    if out.numel() == 0:
        _record("none", "the output is empty")
        return
    if beta == 0.0:
        residual = None
    index = a.device.index
    device = _device(index)
    if a.shape[-1] == 0:
        plan: Plan | str = "K is 0"
    elif a.dtype == torch.float32:
        plan = "float32 inputs have no kernel"
    else:
        matrices = operands(a, b, bias, residual, out)
        plan = _plan(matrices.problem(), kernels, device)
    if isinstance(plan, str):
        _say_once(plan)
        _fall_back(a, b, bias, residual, alpha, beta, out)
        _record("torch", plan)
        return
    if torch.cuda.current_device() == index:
        _launch(plan, matrices, alpha, beta, index, device)
    else:
        with torch.cuda.device(index):
            _launch(plan, matrices, alpha, beta, index, device)
    _record(plan.spec.name, "", plan.tuning, matrices.copied)


def _fall_back(
    a: Tensor,
    b: Tensor,
    bias: Tensor | None,
    residual: Tensor | None,
    alpha: float,
    beta: float,
    out: Tensor,
) -> None:
    """Compute with torch's own GEMM; with an epilogue in fp32, so that it is rounded once."""
    if bias is None and residual is None and alpha == 1.0:
        torch.matmul(a, b, out=out)
    else:
        _in_torch(a, b, bias, residual, alpha, beta, out)


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


_plans: dict[tuple[GemmProblem, str, DeviceFacts], Plan | str] = {}


def _plan(problem: GemmProblem, kernels: str, device: DeviceFacts) -> Plan | str:
    key = (problem, kernels, device)
    found = _plans.get(key)
    if found is None:
        found = _plans[key] = _selection(kernels, device).plan(problem, device)
    return found


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


def _address(matrix: Matrix | None) -> int:
    return 0 if matrix is None else matrix.tensor.data_ptr()


def _launch(
    plan: Plan, views: Operands, alpha: float, beta: float, index: int, device: DeviceFacts
) -> None:
    a, b, c, d = views.a, views.b, views.c, views.d
    call = Call(
        a.tensor.shape[-2],
        b.tensor.shape[-1],
        a.tensor.shape[-1],
        a.tensor.shape[0] if a.tensor.dim() == 3 else 1,
        _address(a),
        _address(b),
        _address(c),
        0 if views.bias is None else views.bias.data_ptr(),
        _address(d),
        a.leading,
        b.leading,
        0 if c is None else c.leading,
        d.leading,
        a.batch_stride,
        b.batch_stride,
        0 if c is None else c.batch_stride,
        d.batch_stride,
        alpha,
        beta if c is not None else 0.0,
        plan.tuning.raster,
        plan.tuning.swizzle,
        plan.tuning.splits,
        index,
        device.sm_count,
    )
    kernel = plan.kernel
    status = kernel.can_run(call)
    workspace = 0
    if status == 0 and plan.spec.scheduler == "stream_k":
        status, size = kernel.workspace_bytes(call)
        if status == 0 and size:
            buffer = torch.empty(size, dtype=torch.uint8, device=d.tensor.device)
            workspace = buffer.data_ptr()
    if status == 0:
        status = kernel.launch(call, workspace, torch._C._cuda_getCurrentRawStream(index))
    if status != 0:
        raise LaunchError(
            f"{plan.spec.name}: {kernel.explain(status)} (M={call.m} N={call.n} K={call.k}"
            f" batch={call.batch}, strides a {a.leading} b {b.leading} d {d.leading},"
            f" alignment a {a.alignment} B b {b.alignment} B d {d.alignment} B;"
            f" needed {plan.spec.alignment.a}, {plan.spec.alignment.b}, {plan.spec.alignment.d}"
            " elements)"
        )
