"""Linear layers of a model, as torch and as transformers have them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from gemmsmith import nn
from gemmsmith.conversion_fit import kernel_dtypes
from gemmsmith.operands import TORCH_DTYPES

__all__ = ["become", "is_conv1d", "linear_of", "obstacles", "side_by_side"]

KERNEL_DEVICES = ("cuda", "cpu", "meta")
CONV1D = ("transformers.pytorch_utils", "Conv1D")
"""GPT-2's linear layer, whose weight is [K, N]."""
_TAKEN = ("in_features", "out_features", "preparation", "part_names", "kernels")


def is_conv1d(module: torch.nn.Module) -> bool:
    """Return whether a module is exactly the ``Conv1D`` of transformers."""
    return (type(module).__module__, type(module).__qualname__) == CONV1D


def linear_of(module: torch.nn.Module | None) -> torch.nn.Linear | None:
    """Return a module as a linear layer that shares its numbers; None where it is none."""
    if isinstance(module, torch.nn.Linear):
        return module
    if module is None or not is_conv1d(module):
        return None
    weight, bias = module.get_parameter("weight"), module.get_parameter("bias")
    return _linear(weight.detach().t(), bias.detach())


def side_by_side(layers: Sequence[torch.nn.Linear]) -> torch.nn.Linear:
    """Return one layer, of torch, with the outputs of several that read one input."""
    if len(layers) == 1:
        return layers[0]
    biases = [layer.bias.detach() for layer in layers if layer.bias is not None]
    weight = torch.cat([layer.weight.detach() for layer in layers])
    return _linear(weight, torch.cat(biases) if len(biases) == len(layers) else None)


def _linear(weight: torch.Tensor, bias: torch.Tensor | None) -> torch.nn.Linear:
    n, k = weight.shape
    layer = torch.nn.Linear(k, n, bias=False, device="meta")
    layer.weight = torch.nn.Parameter(weight, requires_grad=False)
    if bias is not None:
        layer.bias = torch.nn.Parameter(bias, requires_grad=False)
    return layer


def obstacles(module: torch.nn.Module, linear: torch.nn.Linear) -> Iterator[str]:
    """Give why a layer stays as it is, whatever kernels there are.

    Args:
        module: the layer.
        linear: the same, as :func:`linear_of` returns it.
    """
    if type(module) not in (torch.nn.Linear, nn.Linear) and not is_conv1d(module):
        kind = f"{type(module).__module__}.{type(module).__qualname__}"
        yield f"is a {kind}, not exactly a torch.nn.Linear"
        return
    if "forward" in vars(module):
        yield "its forward is replaced on the object, as accelerate's hooks do; remove that first"
    weight, bias = linear.weight, linear.bias
    if TORCH_DTYPES.get(weight.dtype) not in kernel_dtypes():
        yield f"dtype {weight.dtype} has no kernel; model.to(torch.bfloat16) first"
    elif bias is not None and bias.dtype != weight.dtype:
        yield f"bias is {bias.dtype}, weight is {weight.dtype}; give both one dtype"
    if weight.device.type not in KERNEL_DEVICES:
        yield f"device {weight.device} has no kernel; move the model to cuda"


def become(module: torch.nn.Module, made: nn.Linear) -> None:
    """Make a layer of the model ``made``: its object stays, with hooks, and with it its holders."""
    module.__class__ = type(made)
    taken = {name: value for name, value in vars(made).items() if name in _TAKEN}
    vars(module).update(taken, kernels=made.kernels)
    module._parameters.clear()
    module._parameters.update(made._parameters)
