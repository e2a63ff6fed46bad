"""The short way of an eager call: what was settled before is launched again, past the dispatcher.

:func:`launch` looks a call up in the table of settled calls, and does what is found, where nothing
but the kernel has to see the call: no tracer, no mode, no transform, no subclass, no derivative.
Everything else it leaves to the op, which checks, plans and settles.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.compiler import is_dynamo_compiling

from gemmsmith import launch as launching
from gemmsmith.arguments import Arguments
from gemmsmith.launch import LaunchRecord, Ready
from gemmsmith.launcher import TRANSPOSED, Host, Output, Settled, settled_calls
from gemmsmith.torch_gemm import fall_back

last: list[LaunchRecord | None] = [None]
"""What the last GEMM of this process ran."""


def _nothing(*arguments: Any) -> None:
    return None


launch: Callable[..., Tensor | None] = _nothing
"""Returns the result of a settled call, None where nothing was done; see :class:`Settled`.

To be called as ``direct.launch``: the table comes with the first call on a GPU.
"""

_table: Settled | None = None


def table() -> Settled:
    """Return the table of settled calls of this process."""
    global _table, launch
    if _table is None:
        _table = settled_calls(host())
        launch = _table.launch
    return _table


def host() -> Host:
    """Return what the table asks of torch."""
    return Host(
        exchange=getattr(Tensor, "__dlpack_c_exchange_api__", None),
        tensor=Tensor,
        parameter=torch.nn.Parameter,
        watchers=(
            torch._C._len_torch_dispatch_stack,
            torch._C._len_torch_function_stack,
            torch._C._functorch.peek_interpreter_stack,
            torch._C._is_tracing,
            torch._C._autograd._profiler_enabled,
            _forward_derivatives,
        ),
        grad_enabled=torch.is_grad_enabled,
        current_device=launching.current_device,
        raw_stream=launching.raw_stream,
        allocate=_allocate,
        written=torch._C._increment_version,
        byte=torch.uint8,
        refuse=_refuse,
        in_torch=_in_torch,
        last=last,
    )


def _forward_derivatives() -> bool:
    return forward_ad._current_level >= 0


def _empty(shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    return torch.empty_strided(shape, strides, dtype=dtype, device="cuda")


_allocate: Callable[..., Tensor] = getattr(torch._C._dynamo.guards, "_empty_strided_cuda", _empty)


def _refuse(ready: Ready, status: int) -> NoReturn:
    launching.refuse(ready.kernel, status, ready.call)


def _in_torch(output: Output, *arguments: Any) -> Tensor:
    """Compute a call that torch takes; ``arguments`` are those of :class:`Settled`."""
    a, b, bias, residual, alpha, beta, *rest, out, flags = arguments
    if flags & TRANSPOSED:
        b = b.t()
    if beta is None:
        beta = float(residual is not None)
    call = Arguments(a, b, bias, residual, alpha, beta, *rest)
    written: Tensor = _allocate(*output) if out is None else out
    fall_back(call, call.finish(), written)
    return written


def linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    kernels: str,
    gate: str = "none",
    a_scale: Tensor | None = None,
    b_scale: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    residual: Tensor | None = None,
) -> Tensor:
    """Return ``x @ weight.T + bias + residual`` as :func:`gemmsmith.gemm` does, of a weight (N, K).

    What a gate makes takes no residual.
    """
    beta = 0.0 if residual is None else 1.0
    if not is_dynamo_compiling():
        y = launch(
            x,
            weight,
            bias,
            residual,
            1.0,
            beta,
            kernels,
            "none",
            gate,
            a_scale,
            b_scale,
            None,
            None,
            1.0,
            out_dtype,
            None,
            TRANSPOSED,
        )
        if y is not None:
            return y
    made: Tensor = torch.ops.gemmsmith.gemm.default(
        x,
        weight.t(),
        bias,
        residual,
        1.0,
        beta,
        kernels=kernels,
        gate=gate,
        a_scale=a_scale,
        b_scale=b_scale,
        out_dtype=out_dtype,
    )
    return made
