"""Put gemmsmith's kernels under the linear layers of a whole model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, cast

import torch

from gemmsmith import nn
from gemmsmith.arch import ARCHITECTURES, architecture_of
from gemmsmith.dtypes import INT8, DType
from gemmsmith.errors import ArgumentTypeError, NoDeviceError, UnknownArchitectureError
from gemmsmith.fit import misfits
from gemmsmith.kernelset import default_kernels, output_letter
from gemmsmith.nvml import devices
from gemmsmith.operands import TORCH_DTYPES
from gemmsmith.problem import GemmProblem, alignment_of

if TYPE_CHECKING:
    from gemmsmith.kernelset import KernelSet
    from gemmsmith.spec import KernelSpec

__all__ = ["Conversion", "Layer", "Left", "convert"]

KERNEL_DEVICES = ("cuda", "cpu", "meta")
TOKENS = (1, 16)
"""Rows of x that a layer's kernels must take: one row has every layout, several have one."""


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
        noun = "linear layer" if len(self.swapped) == 1 else "linear layers"
        lines = [f"{len(self.swapped)} {noun} swapped, {len(self.left)} left: {share}"]
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

    A layer is swapped where some kernel takes it: of ``kernels``, or of the default ones of the GPU
    that the model is on; for a model elsewhere those of this machine's first GPU, and without one
    those of any architecture.

    Works in place and changes no parameter: a layer keeps its object, hooks, tied weights and
    ``state_dict`` keys, only its class becomes :class:`gemmsmith.nn.Linear`. The model is then good
    for inference only. Subclasses of ``torch.nn.Linear`` are left as they are.

    Args:
        model: any module, for example one of transformers.
        kernels: the kernels that the layers may run; None for the default ones of the GPU.

    Raises:
        ArgumentTypeError: where ``model`` is not a module.
    """
    if not isinstance(model, torch.nn.Module):
        raise ArgumentTypeError(f"model is a {type(model).__name__}, not a torch.nn.Module")
    ties = _parameter_names(model)
    misfit_of = cache(partial(_misfit, kernels))  # a model repeats a few kinds of layers
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
        if not reason:
            weight = module.weight
            dtype, bias = TORCH_DTYPES[weight.dtype], module.bias is not None
            reason = misfit_of(weight.device, n, k, dtype, bias)
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
    if TORCH_DTYPES.get(weight.dtype) not in _kernel_dtypes():
        yield f"dtype {weight.dtype} has no kernel; model.to(torch.bfloat16) first"
    elif module.bias is not None and module.bias.dtype != weight.dtype:
        yield f"bias is {module.bias.dtype}, weight is {weight.dtype}; give both one dtype"
    if weight.device.type not in KERNEL_DEVICES:
        yield f"device {weight.device} has no kernel; move the model to cuda"


@cache
def _kernel_dtypes() -> frozenset[DType]:
    every = frozenset(dtype for arch in ARCHITECTURES for dtype in arch.inputs)
    return every - {INT8}  # weights of whole numbers have scales, which nn.Linear has not


def _misfit(
    kernels: KernelSet | None, device: torch.device, n: int, k: int, dtype: DType, bias: bool
) -> str:
    """Return why no kernel takes x (M, k) @ weight (n, k).T on ``device``; empty where one does."""
    try:
        sets = _default_specs(device) if kernels is None else (kernels.specs,)
    except UnknownArchitectureError as error:
        return str(error)
    letter = output_letter("" if kernels is None else kernels.handle, dtype)
    reasons = [_why_none_takes(specs, n, k, dtype, bias, letter) for specs in sets]
    return "" if "" in reasons else "; ".join(dict.fromkeys(reasons))


def _default_specs(device: torch.device) -> tuple[tuple[KernelSpec, ...], ...]:
    """Return the default kernels of each architecture that a layer on ``device`` may meet.

    Raises:
        UnknownArchitectureError: where ``device`` is a GPU that there are no kernels for.
    """
    if device.type == "cuda":
        arch = architecture_of(torch.cuda.get_device_capability(device))
        return (default_kernels(arch.name).specs,)
    try:
        here = devices()
    except NoDeviceError:  # a driver without a working GPU is no hindrance to a model elsewhere
        here = ()
    known = [arch for arch in ARCHITECTURES if here and arch.capability == here[0].capability]
    return tuple(default_kernels(arch.name).specs for arch in known or ARCHITECTURES)


def _why_none_takes(
    specs: tuple[KernelSpec, ...], n: int, k: int, dtype: DType, bias: bool, letter: str
) -> str:
    kind = (dtype, dtype, f"rc{letter}")
    # of another type or layout says nothing of this layer, unless all are
    alike = [spec for spec in specs if (spec.a, spec.d, spec.layout) == kind]
    for m in TOKENS:
        problem = GemmProblem(
            m=m,
            n=n,
            k=k,
            a=dtype,
            b=dtype,
            d=dtype,
            layout=f"rc{letter}",
            a_align=alignment_of(k * dtype.bytes),
            b_align=alignment_of(k * dtype.bytes),
            d_align=alignment_of((n if letter == "r" else m) * dtype.bytes),
            bias=bias,
        )
        reasons = misfits(alike or specs, problem)
        if reasons or not specs:
            return "; ".join(reasons) or "the set has no kernels"
    return ""
