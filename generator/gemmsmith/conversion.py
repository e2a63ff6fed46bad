"""Put gemmsmith's kernels under the linear layers of a whole model."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING, cast

import torch

from gemmsmith import nn
from gemmsmith.arch import ARCHITECTURES, architecture_of
from gemmsmith.constant import is_promised
from gemmsmith.conversion_report import Conversion, Layer, Left
from gemmsmith.dtypes import INT8, DType
from gemmsmith.errors import (
    ArgumentError,
    ArgumentTypeError,
    NoDeviceError,
    UnknownArchitectureError,
)
from gemmsmith.fit import misfits
from gemmsmith.kernelset import default_kernels
from gemmsmith.nvml import devices
from gemmsmith.operands import TORCH_DTYPES
from gemmsmith.problem import GemmProblem, alignment_of
from gemmsmith.proof import Samples, Timing, measure_times, prove, sample_inputs
from gemmsmith.row_math import padded
from gemmsmith.selection import output_letter

if TYPE_CHECKING:
    from gemmsmith.kernelset import KernelSet
    from gemmsmith.spec import KernelSpec

__all__ = ["Conversion", "Layer", "Left", "convert"]

KERNEL_DEVICES = ("cuda", "cpu", "meta")
MAX_ERROR = 0.04
"""Relative error of an int8 layer that is accepted. With column scales, which samples choose, the
layers of SmolLM2 are off by 0.2 to 2.6 % and all are swapped; without, by 1 to 13 %, and those up
to 4 % already cost it more than 2 % of its perplexity."""
TIMED_TOKENS = (16, 2048)
"""Rows of x at which int8 layers are timed: a batch that decodes, and a prompt."""
TOKENS = (1, 16)
"""Rows of x that a layer's kernels must take: one row has every layout, several have one."""


def convert(
    model: torch.nn.Module,
    kernels: KernelSet | None = None,
    *,
    dtype: str | torch.dtype | None = None,
    samples: Samples = None,
    max_error: float = MAX_ERROR,
    min_speedup: float = 1.0,
    tokens: Collection[int] = TIMED_TOKENS,
    skip: Collection[str] = (),
    constant_weights: bool = False,
) -> Conversion:
    """Make the ``torch.nn.Linear`` layers of ``model`` run on gemmsmith and say which could not.

    A layer is swapped where some kernel takes it: of ``kernels``, or of the default ones of the GPU
    that the model is on; for a model elsewhere those of this machine's first GPU, and without one
    those of any architecture.

    Works in place: a layer keeps its object and hooks, only its class becomes
    :class:`gemmsmith.nn.Linear`; parameters, tied weights and ``state_dict`` keys stay. The model
    is then good for inference only. Subclasses of ``torch.nn.Linear`` are left as they are.

    With ``dtype="int8"`` layers become :class:`gemmsmith.nn.Int8Linear`, with weights of their own,
    and each is proven (:class:`gemmsmith.proof.Proof`): how far it is off on sample inputs and, on
    a GPU, its kernel and its time beside the layer's before. Samples also choose a column scale for
    each layer that one makes more exact (:mod:`gemmsmith.smoothing`). One that is farther off than
    ``max_error``, or slower, stays as it was. The head is converted like the others; where it
    shares the embedding's weight, the embedding keeps that and the head gets an int8 copy;
    ``skip=("lm_head",)`` leaves it.

    Args:
        model: any module, for example one of transformers.
        kernels: the kernels that the layers may run; None for the default ones of the GPU.
        dtype: ``int8``; None for that of each layer.
        samples: for int8, token ids (or what else the model is called with), or inputs of layers by
            name, best of a text like those that the model will see; None proves them on standard
            normal numbers, which lack a model's extremes, and chooses no column scales.
        max_error: for int8, the largest root mean square of the error that is accepted, relative to
            that of the layer's output.
        min_speedup: for int8 on a GPU, by how much the layer must be faster, over ``tokens`` in the
            geometric mean; 0 swaps layers whatever their speed.
        tokens: rows of x at which layers are timed.
        skip: names of layers that stay as they are, whole or their ends.
        constant_weights: sets :attr:`gemmsmith.nn.Linear.constant_weight` of the layers that are
            swapped: a promise that no queued work writes a weight when its layer is called.

    Raises:
        ArgumentTypeError: where ``model`` is not a module, or ``constant_weights`` no bool.
        ArgumentError: where another argument cannot be used.
    """
    if not isinstance(model, torch.nn.Module):
        raise ArgumentTypeError(f"model is a {type(model).__name__}, not a torch.nn.Module")
    int8 = _is_int8(dtype)
    if is_promised("constant_weights", constant_weights) and kernels is not None:
        raise ArgumentError("constant_weights goes with the default kernels: drop one of them")
    if samples is not None and not int8:
        raise ArgumentError('samples prove int8 layers; pass dtype="int8" too')
    ties = _parameter_names(model)
    skipped = _named(model, skip)
    misfit_of = cache(partial(_misfit, kernels))  # a model repeats a few kinds of layers
    ready: list[tuple[Layer, torch.nn.Linear]] = []
    already: list[Layer] = []
    left: list[Left] = []
    for name, module in model.named_modules():
        if not isinstance(module, torch.nn.Linear):
            continue
        own = f"{name}.weight" if name else "weight"
        others = [other for other in ties.get(id(module.weight), ()) if other != own]
        layer = Layer(
            name=name,
            n=module.out_features,
            k=module.in_features,
            tied_to=others[0] if others else "",
        )
        done = nn.Int8Linear if int8 else nn.Linear
        if isinstance(module, done):
            already.append(layer)
            continue
        reason = "; ".join(["it is in skip"] if name in skipped else _obstacles(module))
        if not reason:
            weight, bias = module.weight, module.bias is not None
            reason = misfit_of(
                weight.device, layer.n, layer.k, TORCH_DTYPES[weight.dtype], bias, int8
            )
        if reason:
            left.append(layer.left(reason))
        else:
            ready.append((layer, module))
    if int8:
        limits = (max_error, min_speedup, tokens, constant_weights)
        swapped = list(_to_int8(model, ready, left, kernels, samples, *limits))
    else:
        swapped = [layer for layer, _ in ready]
        for _, module in ready:
            # the object stays, so whoever else holds it (a second parent, a hook) sees the swap too
            module.__class__ = nn.Linear
            layer_of_ours = cast(nn.Linear, module)
            if kernels is not None:
                layer_of_ours.use(kernels)
            layer_of_ours.constant_weight = constant_weights
    return Conversion(swapped=tuple(swapped), already=tuple(already), left=tuple(left))


def _is_int8(dtype: str | torch.dtype | None) -> bool:
    if dtype not in (None, "int8", torch.int8):
        raise ArgumentError(f"dtype is {dtype!r}; 'int8' or None is legal")
    return dtype is not None


def _named(model: torch.nn.Module, skip: Collection[str]) -> set[str]:
    if isinstance(skip, str):
        raise ArgumentTypeError(f"skip is the string {skip!r}; pass ({skip!r},)")
    linear = [name for name, each in model.named_modules() if isinstance(each, torch.nn.Linear)]
    found: set[str] = set()
    for word in skip:
        named = [name for name in linear if f".{name}".endswith(f".{word}")]
        if not named:
            near = difflib.get_close_matches(word, linear, n=1, cutoff=0.0)
            hint = f"; the nearest is {near[0]}" if near else ""
            raise ArgumentError(f"skip has {word!r}, which no linear layer is called{hint}")
        found.update(named)
    return found


def _to_int8(
    model: torch.nn.Module,
    ready: Sequence[tuple[Layer, torch.nn.Linear]],
    left: list[Left],
    kernels: KernelSet | None,
    samples: Samples,
    max_error: float,
    min_speedup: float,
    tokens: Collection[int],
    constant_weights: bool,
) -> Iterator[Layer]:
    """Swap what is proven, one after the other, and give it; add the others to ``left``."""
    real = {layer.name: module for layer, module in ready if not module.weight.is_meta}
    inputs = sample_inputs(model, real, samples) if real else {}
    timings: dict[object, tuple[Timing, ...]] = {}  # a model repeats a few kinds of layers
    for layer, module in ready:
        if layer.name in real and layer.name not in inputs:
            left.append(layer.left("no sample input reaches it, so that nothing is proven"))
            continue
        weight = module.weight
        sample = inputs.pop(layer.name, None)
        smoothing = None if sample is None else sample.smoothing(module)
        scale = None if smoothing is None else smoothing.column_scale
        after = nn.Int8Linear.from_weight(weight, module.bias, column_scale=scale)
        after.train(module.training)
        if kernels is not None:
            after.use(kernels)
        after.constant_weight = constant_weights
        proof = None
        if sample is not None:
            sizes = (layer.n, layer.k, module.bias is None, scale is None)
            kind = (*sizes, weight.dtype, weight.device)
            if kind not in timings:
                timings[kind] = measure_times(module, after, tokens)
            proof = prove(
                module,
                after,
                sample.rows,
                random=sample.largest is None,
                smoothing=None if smoothing is None else smoothing.exponent,
                timings=timings[kind],
            )
        objection = "" if proof is None else proof.objection(max_error, min_speedup)
        proven = replace(layer, proof=proof, preparation=str(after.preparation))
        if objection:
            left.append(proven.left(objection))
            continue
        module.__class__ = nn.Int8Linear
        vars(module).update(preparation=after.preparation, kernels=after.kernels)
        module._parameters.clear()
        module._parameters.update(after._parameters)
        yield proven


def _parameter_names(model: torch.nn.Module) -> dict[int, list[str]]:
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    return names


def _obstacles(module: torch.nn.Linear) -> Iterator[str]:
    if type(module) not in (torch.nn.Linear, nn.Linear):
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
    kernels: KernelSet | None,
    device: torch.device,
    n: int,
    k: int,
    dtype: DType,
    bias: bool,
    int8: bool,
) -> str:
    """Return why no kernel takes x (M, k) @ weight (n, k).T on ``device``; empty where one does.

    With ``int8`` both factors are that, padded and scaled, and ``dtype`` is what is written.
    """
    a = INT8 if int8 else dtype
    if int8:
        n, k = padded(n), padded(k)
    try:
        sets = _default_specs(device) if kernels is None else (kernels.specs,)
    except UnknownArchitectureError as error:
        return str(error)
    letter = output_letter("" if kernels is None else kernels.handle, a)
    promised = kernels is not None and kernels.constant_b
    reasons = [_why_none_takes(specs, n, k, a, dtype, bias, letter, promised) for specs in sets]
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
    specs: tuple[KernelSpec, ...],
    n: int,
    k: int,
    a: DType,
    d: DType,
    bias: bool,
    letter: str,
    constant_b: bool,
) -> str:
    kind = (a, d, f"rc{letter}")
    # of another type or layout says nothing of this layer, unless all are
    alike = [spec for spec in specs if (spec.a, spec.d, spec.layout) == kind]
    for m in TOKENS:
        problem = GemmProblem(
            m=m,
            n=n,
            k=k,
            a=a,
            b=a,
            d=d,
            layout=f"rc{letter}",
            a_align=alignment_of(k * a.bytes),
            b_align=alignment_of(k * a.bytes),
            d_align=alignment_of((n if letter == "r" else m) * d.bytes),
            bias=bias,
            scaled=a == INT8,
            constant_b=constant_b,
        )
        reasons = misfits(alike or specs, problem)
        if reasons or not specs:
            return "; ".join(reasons) or "the set has no kernels"
    return ""
