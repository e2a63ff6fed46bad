"""How torch does what gemmsmith's epilogues do: eagerly, and compiled by inductor."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

from gemmsmith.bench.graphs import Arm
from gemmsmith.bench.tasks import Task

INT_MM_ROWS = 17
"""Rows that ``torch._int_mm`` asks for; fewer have to be padded."""
_ROUNDED_BETWEEN = 0.1  # of unit normal elements

Function: TypeAlias = Callable[..., Tensor]

_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda x: x,
    "relu": functional.relu,
    "gelu": functional.gelu,
    "gelu_tanh": partial(functional.gelu, approximate="tanh"),
    "silu": functional.silu,
}


def eager_arm(task: Task) -> Arm:
    """Return torch's functions one after the other, as users write them."""
    function, arguments = _function(task)
    return [partial(function, *each) for each in arguments]


def compiled_arm(task: Task, *, any_m: bool = True) -> Arm:
    """Return the same functions as one, compiled for any number of rows from two up.

    Without ``any_m`` it is compiled for the task's rows alone.

    Inductor fuses all that follows the product into one kernel of its own; the product stays with
    cuBLAS. Call :func:`forget_compiled` where another weight is next: a variant is kept for each.
    """
    function, arguments = _function(task)
    ready: Function = torch.compile(function, fullgraph=True, dynamic=False)
    x, a_scale = arguments[0][0], arguments[0][2] if task.a_scale is not None else None
    for tensor in (x, a_scale, task.residual):
        if any_m and tensor is not None and tensor.shape[0] > 1:
            torch._dynamo.mark_dynamic(tensor, 0)
    return [partial(ready, *each) for each in arguments]


def forget_compiled() -> None:
    """Drop what was compiled: dynamo refuses more than eight variants of one function."""
    torch._dynamo.reset()


def fault_of(task: Task, arm: Arm) -> str:
    """Return what is wrong with an arm of this module; empty where it is right.

    torch rounds to 16 bits between its steps, so it may be off by more than gemmsmith.
    """
    result: Any = arm[0]()  # padded rows are behind the others
    return task.fault(result[: task.x.shape[0]], slack=_ROUNDED_BETWEEN)


def _function(task: Task) -> tuple[Function, list[tuple[Any, ...]]]:
    """Return torch's function for ``task`` and its arguments for each weight."""
    activation, gate = task.activation, task.gate

    def linear(x: Tensor, w: Tensor, bias: Tensor | None, residual: Tensor | None) -> Tensor:
        value = _finished(functional.linear(x, w, bias), activation, gate)
        return value if residual is None else value + residual

    def int8_linear(x: Tensor, w: Tensor, a_scale: Tensor, b_scale: Tensor) -> Tensor:
        value = torch._int_mm(x, w.t()).float() * a_scale[:, None] * b_scale
        return _finished(value, activation, gate).to(torch.bfloat16)

    if task.a_scale is None:
        rest = (task.bias, task.residual)
        return linear, [(task.x, weight.values, *rest) for weight in task.weights]
    x, a_scale = _padded(task.x), _padded(task.a_scale)
    return int8_linear, [(x, weight.values, a_scale, weight.scale) for weight in task.weights]


def _finished(value: Tensor, activation: str, gate: str) -> Tensor:
    if gate == "none":
        return _ACTIVATIONS[activation](value)
    first, second = value.chunk(2, -1)
    return _ACTIVATIONS[gate](first) * second


def _padded(rows: Tensor) -> Tensor:
    """Return ``rows`` with as many zero rows as ``torch._int_mm`` lacks; before any timing."""
    missing = INT_MM_ROWS - rows.shape[0]
    if missing <= 0:
        return rows
    return torch.cat([rows, rows.new_zeros(missing, *rows.shape[1:])])
