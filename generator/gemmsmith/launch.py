"""From a plan to work on a stream: what of a launch can be settled once for many calls."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import NamedTuple, NoReturn

import torch
from torch import Tensor

from gemmsmith.choose import Tuning
from gemmsmith.errors import LaunchError
from gemmsmith.finish import ACTIVATIONS
from gemmsmith.launcher import Call, Kernel
from gemmsmith.operands import Operands
from gemmsmith.selection import DeviceFacts, Plan


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
    """All of a launch, for calls like the one that it was prepared for."""

    kernel: Kernel
    call: Call
    """That call; of another one like it, addresses and factors differ."""
    workspace: int
    """Bytes of device memory that a launch needs."""
    record: LaunchRecord
    """What :func:`gemmsmith.last_kernel` says of it."""


def prepare(plan: Plan, operands: Operands, device: DeviceFacts, index: int) -> Ready:
    """Return what is settled for all calls like this one, with factors that say nothing.

    Raises:
        LaunchError: where CUTLASS refuses the sizes.
    """
    a, b, c, d = operands.a, operands.b, operands.c, operands.d
    tuning = plan.tuning
    sizes = (
        a.tensor.shape[-2],
        b.tensor.shape[-1],
        a.tensor.shape[-1],
        a.tensor.shape[0] if a.tensor.dim() == 3 else 1,
    )
    strides = (
        a.leading,
        b.leading,
        0 if c is None else c.leading,
        d.leading,
        a.batch_stride,
        b.batch_stride,
        0 if c is None else c.batch_stride,
        d.batch_stride,
    )
    knobs = (
        ACTIVATIONS.index(operands.finish.activation),
        tuning.raster,
        tuning.swizzle,
        tuning.splits,
        index,
        device.sm_count,
    )
    call = Call._make((*sizes, *operands.addresses, *strides, 1.0, 0.0, 1.0, *knobs))
    _check_status(plan.kernel, plan.kernel.can_run(call), call)
    workspace = 0
    if plan.spec.scheduler == "stream_k":
        status, workspace = plan.kernel.workspace_bytes(call)
        _check_status(plan.kernel, status, call)
    record = LaunchRecord(name=plan.spec.name, reason="", tuning=tuning, copied=operands.copied)
    return Ready(kernel=plan.kernel, call=call, workspace=workspace, record=record)


def queue(ready: Ready, factors: tuple[float, float, float], device: torch.device) -> None:
    """Queue the very call that ``ready`` was prepared for; never synchronises.

    It goes to the current stream of ``device``, which is the current one. ``factors`` are alpha,
    beta and the scale of an int8 output. The workspace comes from torch's allocator, which hands it
    out again only to what this stream runs later.

    Raises:
        LaunchError: where CUDA refuses.
    """
    alpha, beta, out_scale = factors
    call = ready.call._replace(alpha=alpha, beta=beta, out_scale=out_scale)
    workspace = 0
    if ready.workspace:
        buffer = torch.empty(ready.workspace, dtype=torch.uint8, device=device)
        workspace = buffer.data_ptr()
    status = ready.kernel.launch(call, workspace, raw_stream(call.device))
    _check_status(ready.kernel, status, call)


def _without_cuda(*index: int) -> int:
    raise RuntimeError("this torch was built without CUDA")


current_device: Callable[[], int] = getattr(torch._C, "_cuda_getDevice", _without_cuda)
"""Returns torch's current CUDA device, without the checks of ``torch.cuda.current_device``."""
raw_stream: Callable[[int], int] = getattr(torch._C, "_cuda_getCurrentRawStream", _without_cuda)
"""Returns the address of the current stream of a device."""


def on_device_of(tensor: Tensor) -> AbstractContextManager[object]:
    """Return a context in which the GPU of ``tensor`` is the current one."""
    if tensor.get_device() == current_device():
        return nullcontext()
    return torch.cuda.device(tensor.device)


def refuse(kernel: Kernel, status: int, call: Call) -> NoReturn:
    """Raise the LaunchError of a launch that ended with ``status``."""
    raise LaunchError(
        f"{kernel.name}: {kernel.explain(status)} (M={call.m} N={call.n} K={call.k}"
        f" batch={call.batch}; leading dimensions a {call.lda}, b {call.ldb}, d {call.ldd};"
        f" addresses modulo 16 a {call.a % 16}, b {call.b % 16}, d {call.d % 16})"
    )


def _check_status(kernel: Kernel, status: int, call: Call) -> None:
    if status != 0:
        refuse(kernel, status, call)
