"""Put gemmsmith's kernels under the linear layers of a whole model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import torch

from gemmsmith import nn

if TYPE_CHECKING:
    from gemmsmith.kernelset import KernelSet

__all__ = ["Conversion", "Layer", "Left", "convert"]

ALIGNMENT = 8
"""Elements of 16 bits in 16 bytes, by which the rows of a weight and of an output must divide."""

KERNEL_DTYPES = (torch.float16, torch.bfloat16)
KERNEL_DEVICES = ("cuda", "cpu", "meta")


@dataclass(frozen=True, kw_only=True)
class Layer:
    """One linear layer of a model: y (..., N) = x (..., K) @ weight.T."""

    name: str
    """Path of the module inside the model; empty for the model itself."""
    n: int
    """Output features."""
    k: int
    """Input features."""
    tied_to: str = ""
    """Path of another parameter that is the same tensor as the weight; empty where none is."""

    @property
    def flops_per_token(self) -> int:
        """Floating-point operations of the product for one row of x."""
        return 2 * self.n * self.k


@dataclass(frozen=True, kw_only=True)
class Left(Layer):
    """A linear layer that still runs on torch."""

    reason: str
    """Why, and what to change where something can be changed."""


@dataclass(frozen=True, kw_only=True)
class Conversion:
    """What :func:`convert` did to a model."""

    swapped: tuple[Layer, ...]
    """Layers that now run on gemmsmith."""
    already: tuple[Layer, ...]
    """Layers that did before."""
    left: tuple[Left, ...]
    """Layers that still run on torch, with the reason."""

    @property
    def converted_flops_share(self) -> float:
        """Share of the linear layers' FLOPs per token that runs on gemmsmith, 0 to 1."""
        ours = sum(layer.flops_per_token for layer in (*self.swapped, *self.already))
        total = ours + sum(layer.flops_per_token for layer in self.left)
        return ours / total if total else 0.0

    def __str__(self) -> str:
        share = f"{self.converted_flops_share:.1%} of the linear FLOPs run on gemmsmith"
        lines = [f"{len(self.swapped)} linear layers swapped, {len(self.left)} left: {share}"]
        if self.already:
            lines.append(f"  {len(self.already)} ran on gemmsmith before")
        shapes: dict[tuple[int, int], list[Layer]] = {}
        for layer in self.swapped:
            shapes.setdefault((layer.n, layer.k), []).append(layer)
        for (n, k), layers in shapes.items():
            leaves = ", ".join(dict.fromkeys(_leaf(layer) for layer in layers))
            lines.append(f"  swapped {len(layers):>3} of N={n} K={k}: {leaves}")
        lines += [f"  left {layer.name or '(the model)'}: {layer.reason}" for layer in self.left]
        return "\n".join(lines)


def _leaf(layer: Layer) -> str:
    leaf = layer.name.rpartition(".")[2] or "(the model)"
    return f"{leaf} (tied to {layer.tied_to})" if layer.tied_to else leaf


def convert(model: torch.nn.Module, kernels: KernelSet | None = None) -> Conversion:
    """Make the ``torch.nn.Linear`` layers of ``model`` run on gemmsmith and say which could not.

    Works in place and changes no parameter: a layer keeps its object, hooks, tied weights and
    ``state_dict`` keys, only its class becomes :class:`gemmsmith.nn.Linear`. The model is then good
    for inference only. Subclasses of ``torch.nn.Linear`` are left as they are.

    Args:
        model: any module, for example one of transformers.
        kernels: the kernels that the layers may run; None for the default ones of the GPU.
    """
    ties = _parameter_names(model)
    swapped: list[Layer] = []
    already: list[Layer] = []
    left: list[Left] = []
    for name, module in model.named_modules():
        if not isinstance(module, torch.nn.Linear):
            continue
        n, k = module.out_features, module.in_features
        own = f"{name}.weight" if name else "weight"
        others = [other for other in ties.get(id(module.weight), ()) if other != own]
        tied_to = others[0] if others else ""
        if type(module) is nn.Linear:
            already.append(Layer(name=name, n=n, k=k, tied_to=tied_to))
            continue
        reason = "; ".join(_obstacles(module))
        if reason:
            left.append(Left(name=name, n=n, k=k, tied_to=tied_to, reason=reason))
            continue
        # the object stays, so whoever else holds it (a second parent, a hook) sees the swap too
        module.__class__ = nn.Linear
        if kernels is not None:
            cast(nn.Linear, module).use(kernels)
        swapped.append(Layer(name=name, n=n, k=k, tied_to=tied_to))
    return Conversion(swapped=tuple(swapped), already=tuple(already), left=tuple(left))


def _parameter_names(model: torch.nn.Module) -> dict[int, list[str]]:
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    return names


def _obstacles(module: torch.nn.Linear) -> Iterator[str]:
    if type(module) is not torch.nn.Linear:
        kind = f"{type(module).__module__}.{type(module).__qualname__}"
        yield f"is a {kind}, not exactly a torch.nn.Linear"
        return
    if "forward" in vars(module):
        yield "its forward is replaced on the object, as accelerate's hooks do; remove that first"
    weight = module.weight
    if weight.dtype not in KERNEL_DTYPES:
        yield f"dtype {weight.dtype} has no kernel; model.to(torch.bfloat16) first"
    elif module.bias is not None and module.bias.dtype != weight.dtype:
        yield f"bias is {module.bias.dtype}, weight is {weight.dtype}; give both one dtype"
    if weight.device.type not in KERNEL_DEVICES:
        yield f"device {weight.device} has no kernel; move the model to cuda"
    for letter, size in (("N", module.out_features), ("K", module.in_features)):
        if size % ALIGNMENT:
            padded = -(-size // ALIGNMENT) * ALIGNMENT
            yield f"{letter}={size} is not a multiple of {ALIGNMENT}; pad the weight to {padded}"
