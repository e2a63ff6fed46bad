"""Activation functions of transformers, and blocks that apply one in a product's kernel."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from gemmsmith.blocks.block import Block
from gemmsmith.nn import Linear
from gemmsmith.nn.feed_forward import HALF_TYPES, why_apart

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["ActivatedBlock", "function_of"]

IN_TORCH: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": functional.relu,
    "gelu": functional.gelu,
    "gelu_tanh": partial(functional.gelu, approximate="tanh"),
    "silu": functional.silu,
}

_FUNCTIONS = {
    "SiLUActivation": "silu",
    "SiLU": "silu",
    "GELUActivation": "gelu",
    "NewGELUActivation": "gelu_tanh",
    "FastGELUActivation": "gelu_tanh",
    "GELUTanh": "gelu_tanh",
    "PytorchGELUTanh": "gelu_tanh",
    "AccurateGELUActivation": "gelu_tanh",
    "ReLU": "relu",
}
"""Classes of transformers and torch, and the function in the words of :func:`gemmsmith.gemm`."""


def function_of(module: Any) -> str:
    """Return the function that an activation module computes; empty where it is not known."""
    if isinstance(module, torch.nn.GELU):
        return {"none": "gelu", "tanh": "gelu_tanh"}.get(module.approximate, "")
    kind = type(module)
    if kind.__module__ not in ("transformers.activations", "torch.nn.modules.activation"):
        return ""
    return _FUNCTIONS.get(kind.__name__, "")


class ActivatedBlock(Block):
    """A block whose first product applies an activation, in one kernel where the GPU has one."""

    does = "activation in the product"
    activated: ClassVar[str]
    """Name of the layer that is activated."""
    held: ClassVar[str]
    """Name of the module that a block of transformers activates it with."""

    function: str
    """What :func:`gemmsmith.gemm` calls the activation."""
    apart: dict[torch.dtype, str]
    """Input types for which a product and a further kernel do it, and why."""

    @classmethod
    def function_in(cls, module: torch.nn.Module) -> str:
        """Return the activation of a block of transformers; empty where it is not known."""
        return function_of(getattr(module, cls.held, None))

    @classmethod
    def obstacle(cls, module: torch.nn.Module, above: torch.nn.Module | None) -> str:
        """Return why the block cannot be swapped, beside its linear layers; or nothing."""
        found = getattr(module, cls.held, None)
        return "" if function_of(found) else f"its activation is a {type(found).__qualname__}"

    @classmethod
    def contents(
        cls, module: torch.nn.Module, above: torch.nn.Module | None
    ) -> tuple[dict[str, torch.nn.Module], dict[str, Any]]:
        """Return the block's linear layers as they are, and what the first's activation needs."""
        layers = {name: getattr(module, name) for name in cls.parts}
        function = cls.function_in(module)
        return layers, {"function": function, "apart": _apart(layers[cls.activated], function)}

    def first(self, x: Tensor) -> Tensor:
        """Return the activated product (..., N) of ``x`` (..., K)."""
        layer = getattr(self, self.activated)
        if x.dtype in self.apart:
            return IN_TORCH[self.function](layer(x))
        y: Tensor = layer.activated(x, self.function)
        return y

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self.apart = _apart(getattr(self, self.activated), self.function)
        return self

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        # it may have come from a machine with another GPU
        self.apart = _apart(getattr(self, self.activated), self.function)


def _apart(layer: Linear, function: str) -> dict[torch.dtype, str]:
    n, k = layer.weight.shape
    device, int8 = layer.weight.device, layer.weight.dtype == torch.int8
    reasons = {
        dtype: why_apart(device, dtype, int8, n, k, layer.bias is not None, activation=function)
        for dtype in HALF_TYPES
    }
    return {dtype: reason for dtype, reason in reasons.items() if reason}
