"""How PyTorch ops are registered: for CPU and CUDA, with a fake implementation, forward only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from gemmsmith.errors import ArgumentError

Op = tuple[str, Callable[..., Any], Callable[..., Any]]
"""The schema of an op without its name, what runs it, and its fake implementation."""

_DERIVATIVES = (torch._C._functorch.TransformType.Grad, torch._C._functorch.TransformType.Jvp)


def register_ops(ops: Mapping[str, Op]) -> torch.library.Library:
    """Return the library that owns the ops, by name; they live as long as it does."""
    library: Any = torch.library.Library("gemmsmith", "FRAGMENT")  # type: ignore[no-untyped-call]
    for name, (schema, run, fake) in ops.items():
        library.define(f"{name}{schema}", tags=(torch.Tag.pt2_compliant_tag,))
        for device in ("CPU", "CUDA"):
            library.impl(name, run, device)
        library.impl(name, _forward_only(name), "Autograd")
        torch.library.register_fake(f"gemmsmith::{name}", fake, lib=library)
    registered: torch.library.Library = library
    return registered


def _forward_only(name: str) -> Callable[..., Any]:
    """Return an op's autograd implementation: refuse a derivative, else go on below autograd."""
    op = getattr(torch.ops.gemmsmith, name).default

    def refuse_derivative(*args: Any, **kwargs: Any) -> Any:
        if _derivative_wanted((*args, *kwargs.values())):
            raise ArgumentError(
                f"gemmsmith.{name.removesuffix('_out')} is forward only: call it under "
                "torch.no_grad() or torch.inference_mode(), or with inputs that do not require grad"
            )
        with torch._C._AutoDispatchBelowAutograd():
            return op(*args, **kwargs)

    return refuse_derivative


def _derivative_wanted(values: tuple[Any, ...]) -> bool:
    """Whether a backward, a forward-mode or a torch.func derivative of the call would be taken."""
    interpreter = torch._C._functorch.peek_interpreter_stack()
    if interpreter is not None and interpreter.key() in _DERIVATIVES:
        return True
    tensors = [value for value in values if isinstance(value, Tensor)]
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        return True
    return forward_ad._current_level >= 0 and any(
        forward_ad.unpack_dual(tensor).tangent is not None  # type: ignore[no-untyped-call]
        for tensor in tensors
    )
