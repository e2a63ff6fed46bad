"""One checked call, carried out: by a kernel, by torch, or on the CPU; and what was run."""

from __future__ import annotations

import logging
from functools import cache

import torch
from torch import Tensor

from gemmsmith import direct
from gemmsmith.arch import architecture_of
from gemmsmith.arguments import Arguments
from gemmsmith.choose import Tuning
from gemmsmith.errors import UnknownArchitectureError
from gemmsmith.finish import Finish
from gemmsmith.kernelset import default_kernels
from gemmsmith.launch import LaunchRecord, Ready, on_device_of, prepare, queue
from gemmsmith.launcher import CHECKED
from gemmsmith.operands import TORCH_DTYPES, Operands, operands
from gemmsmith.problem import GemmProblem
from gemmsmith.selection import DeviceFacts, Plan, Selection, output_letter, selection
from gemmsmith.torch_gemm import fall_back, in_f32

__all__ = ["LaunchRecord", "last_kernel", "run_on_cpu", "run_on_cuda", "run_settled"]

_log = logging.getLogger(__name__)


def last_kernel() -> LaunchRecord | None:
    """Return what the last GEMM of this process ran; None before the first."""
    return direct.last[0]


def _record(record: LaunchRecord) -> None:
    direct.last[0] = record


def _without_kernel(name: str, reason: str) -> LaunchRecord:
    return LaunchRecord(name=name, reason=reason, tuning=Tuning(), copied=())


_ON_CPU = _without_kernel("cpu", "the tensors are on the CPU")
_EMPTY = _without_kernel("none", "the output is empty")


def run_on_cpu(call: Arguments, out: Tensor) -> None:
    """Write what the call asks for to ``out`` with torch, in fp32."""
    in_f32(call, call.finish(), out)
    _record(_ON_CPU)


def run_settled(call: Arguments, out: Tensor | None) -> Tensor | None:
    """Return the result of a call like one that was carried out before, None where none was.

    Unlike :func:`direct.launch` it runs on devices that are not the current one.
    """
    with on_device_of(call.a):
        return direct.launch(*_settled(call), out, CHECKED)


def run_on_cuda(call: Arguments, out: Tensor, *, fresh: bool) -> None:
    """Write what the call asks for to ``out`` on the current stream, and settle calls like it.

    Arguments are checked already. Queues work; never synchronises. ``fresh``: the caller gave no
    output.

    Raises:
        NoKernelError, LaunchError, ArgumentError: see :func:`gemmsmith.gemm`.
    """
    finish = call.finish()
    if out.numel() == 0:
        _record(_EMPTY)
        return
    with on_device_of(call.a):
        known = direct.table().find(*_settled(call), None if fresh else out, CHECKED)
        if known is not None and known.reason:  # torch takes it
            fall_back(call, finish, out)
            _record(known)
            return
        index = call.a.get_device()
        matrices, plan = _planned(call, finish, out)
        if matrices is None or isinstance(plan, str):
            record = _without_kernel("torch", str(plan))
            _say_once(record.reason)
            _settle(call, out, fresh, None, record)
            fall_back(call, finish, out)
        else:
            ready = prepare(plan, matrices, _device(index), index)
            record = ready.record
            if _whole(call, out) == matrices.addresses:  # nothing had to be copied
                _settle(call, out, fresh, ready, record)
            queue(ready, (call.alpha, _beta(call), finish.out_scale), out.device)
            if not fresh:
                torch.autograd.graph.increment_version(out)  # as torch's own in-place operations do
        _record(record)


_MOST_SETTLED = 8192  # call shapes; a dynamic batch over a model's layers stays far below


def _settle(
    call: Arguments, out: Tensor, fresh: bool, ready: Ready | None, record: LaunchRecord
) -> None:
    table = direct.table()
    if len(table) >= _MOST_SETTLED:
        table.clear()
    table.settle(
        (*_settled(call), None if fresh else out, CHECKED),
        None if ready is None else ready.kernel,
        None if ready is None else ready.call,
        0 if ready is None else ready.workspace,
        record,
        ready,
        (tuple(out.shape), out.stride(), out.dtype),
    )


def _beta(call: Arguments) -> float:
    return call.beta if call.residual is not None else 0.0


def _settled(call: Arguments) -> Arguments:
    """Return the arguments as the table has them: a beta of nothing is none."""
    return call if call.residual is not None else call._replace(beta=0.0)


def _whole(call: Arguments, out: Tensor) -> tuple[int, ...]:
    """Return the addresses of the call in the order of the interface, if nothing is copied."""
    addresses = call.addresses
    return (*addresses[:4], out.data_ptr(), *addresses[4:])


def _planned(call: Arguments, finish: Finish, out: Tensor) -> tuple[Operands | None, Plan | str]:
    """Return the operands and the kernel for them, or why torch has to take the call."""
    a, kernels = call.a, call.kernels
    if a.shape[-1] == 0:
        return None, "K is 0"
    if a.dtype == torch.float32:
        return None, "float32 inputs have no kernel"
    letter = output_letter(kernels, TORCH_DTYPES[a.dtype])
    residual = call.residual if call.beta else None
    matrices = operands(a, call.b, call.bias, residual, out, letter, finish)
    device = _device(a.get_device())
    chosen = _selection(kernels, device)
    return matrices, chosen.plan(matrices.problem(constant_b=chosen.constant_b), device)


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
    torch_may_run = True
    constant_b = False

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def plan(self, problem: GemmProblem, device: DeviceFacts) -> str:
        """Return the reason for which torch takes every call."""
        return self._reason
