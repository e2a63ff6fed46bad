"""From a plan to work on a stream: what of a launch can be settled once for many calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from gemmsmith.choose import Tuning
from gemmsmith.errors import LaunchError
from gemmsmith.finish import ACTIVATIONS, Finish
from gemmsmith.kernelset import DeviceFacts, Plan
from gemmsmith.launcher import Call, Kernel
from gemmsmith.operands import Operands


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


class Ready(NamedTuple):
    """All of a launch but addresses and factors."""

    kernel: Kernel
    sizes: tuple[int, int, int, int]
    """M, N, K, batch."""
    strides: tuple[int, ...]
    """Leading dimensions of A, B, C, D, then their batch strides, in elements."""
    knobs: tuple[int, int, int, int, int, int]
    """Activation, raster, swizzle, splits, device, multiprocessors."""
    workspace: int
    """Bytes of device memory that a launch needs."""
    record: LaunchRecord
    """What :func:`gemmsmith.last_kernel` says of it."""


def signature(
    a: Tensor,
    b: Tensor,
    bias: Tensor | None,
    residual: Tensor | None,
    out: Tensor,
    finish: Finish,
    kernels: str,
) -> tuple[object, ...]:
    """Return all that decides a call's :class:`Ready`: sizes, strides, types, alignment, device."""
    return (
        kernels,
        finish.kind,
        out.device.index,
        a.dtype,
        out.dtype,
        a.shape,
        a.stride(),
        b.shape,
        b.stride(),
        out.stride(),
        a.data_ptr() & 15,
        b.data_ptr() & 15,
        out.data_ptr() & 15,
        None if bias is None else (bias.shape, bias.stride(), bias.data_ptr() & 15),
        None if residual is None else (residual.stride(), residual.data_ptr() & 15),
    )


def prepare(plan: Plan, operands: Operands, device: DeviceFacts, index: int) -> Ready:
    """Return what is settled for all calls like this one.

    Raises:
        LaunchError: where CUTLASS refuses the sizes.
    """
    a, b, c, d = operands.a, operands.b, operands.c, operands.d
    tuning = plan.tuning
    ready = Ready(
        kernel=plan.kernel,
        sizes=(
            a.tensor.shape[-2],
            b.tensor.shape[-1],
            a.tensor.shape[-1],
            a.tensor.shape[0] if a.tensor.dim() == 3 else 1,
        ),
        strides=(
            a.leading,
            b.leading,
            0 if c is None else c.leading,
            d.leading,
            a.batch_stride,
            b.batch_stride,
            0 if c is None else c.batch_stride,
            d.batch_stride,
        ),
        knobs=(
            ACTIVATIONS.index(operands.finish.activation),
            tuning.raster,
            tuning.swizzle,
            tuning.splits,
            index,
            device.sm_count,
        ),
        workspace=0,
        record=LaunchRecord(name=plan.spec.name, reason="", tuning=tuning, copied=operands.copied),
    )
    factors = (1.0, 0.0, 1.0)
    call = Call._make((*ready.sizes, *operands.addresses, *ready.strides, *factors, *ready.knobs))
    _check_status(plan.kernel, plan.kernel.can_run(call), call)
    if plan.spec.scheduler == "stream_k":
        status, size = plan.kernel.workspace_bytes(call)
        _check_status(plan.kernel, status, call)
        ready = ready._replace(workspace=size)
    return ready


def queue(
    ready: Ready,
    addresses: tuple[int, ...],
    factors: tuple[float, float, float],
    device: torch.device,
) -> None:
    """Queue the kernel on the current stream of ``device``; never synchronises.

    ``addresses`` are those of A, B, C, bias, D and of the four vectors of :class:`Finish`;
    ``factors`` are alpha, beta and the scale of an int8 output. The workspace comes from torch's
    allocator, which hands it out again only to what this stream runs later.

    Raises:
        LaunchError: where CUDA refuses.
    """
    call = Call._make((*ready.sizes, *addresses, *ready.strides, *factors, *ready.knobs))
    if device.index == current_device():
        status = _launch(ready, call, device)
    else:
        with torch.cuda.device(device):
            status = _launch(ready, call, device)
    _check_status(ready.kernel, status, call)


def _launch(ready: Ready, call: Call, device: torch.device) -> int:
    if not ready.workspace:
        return ready.kernel.launch(call, 0, raw_stream(device.index))
    buffer = torch.empty(ready.workspace, dtype=torch.uint8, device=device)
    return ready.kernel.launch(call, buffer.data_ptr(), raw_stream(device.index))


def current_device() -> int:
    """Return torch's current CUDA device, without the checks of ``torch.cuda.current_device``."""
    index: int = torch._C._cuda_getDevice()
    return index


def raw_stream(index: int) -> int:
    """Return the address of the current stream of a device."""
    stream: int = torch._C._cuda_getCurrentRawStream(index)
    return stream


def _check_status(kernel: Kernel, status: int, call: Call) -> None:
    if status != 0:
        raise LaunchError(
            f"{kernel.name}: {kernel.explain(status)} (M={call.m} N={call.n} K={call.k}"
            f" batch={call.batch}; leading dimensions a {call.lda}, b {call.ldb}, d {call.ldd};"
            f" addresses modulo 16 a {call.a % 16}, b {call.b % 16}, d {call.d % 16})"
        )
