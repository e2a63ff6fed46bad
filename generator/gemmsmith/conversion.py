"""Put gemmsmith's kernels under the blocks and linear layers of a whole model."""

from __future__ import annotations

import difflib
from collections.abc import Collection
from dataclasses import dataclass, field
from functools import cache, partial
from typing import TYPE_CHECKING, cast

import torch

from gemmsmith import nn
from gemmsmith.constant import is_promised
from gemmsmith.conversion_blocks import groups_of, plan_blocks, swap_blocks
from gemmsmith.conversion_fit import misfit_of_layer
from gemmsmith.conversion_int8 import Candidate, Limits, to_int8
from gemmsmith.conversion_layers import become, is_conv1d, linear_of, obstacles
from gemmsmith.conversion_report import BlockLeft, Conversion, Layer, Left, SwappedBlock
from gemmsmith.errors import ArgumentError, ArgumentTypeError
from gemmsmith.operands import TORCH_DTYPES
from gemmsmith.proof import Samples
from gemmsmith.row_math import padded

if TYPE_CHECKING:
    from gemmsmith.kernelset import KernelSet

__all__ = ["BlockLeft", "Conversion", "Layer", "Left", "SwappedBlock", "convert"]

MAX_ERROR = 0.04
"""Relative error of an int8 layer that is accepted. With column scales, which samples choose, the
layers of SmolLM2 are off by 0.2 to 2.6 % and all are swapped; without, by 1 to 13 %, and those up
to 4 % already cost it more than 2 % of its perplexity."""
MIN_SPEEDUP = 1.0
TIMED_TOKENS = (16, 2048)
"""Rows of x at which int8 layers are timed: a batch that decodes, and a prompt."""


def convert(
    model: torch.nn.Module,
    kernels: KernelSet | None = None,
    *,
    dtype: str | torch.dtype | None = None,
    samples: Samples = None,
    max_error: float = MAX_ERROR,
    min_speedup: float = MIN_SPEEDUP,
    tokens: Collection[int] = TIMED_TOKENS,
    skip: Collection[str] = (),
    constant_weights: bool = False,
    blocks: bool = True,
) -> Conversion:
    """Make a model's blocks and linear layers run on gemmsmith and say which could not.

    A layer is swapped where some kernel takes it: of ``kernels``, or of the default ones of the GPU
    that the model is on; for a model elsewhere those of this machine's first GPU, and without one
    those of any architecture.

    Works in place: a layer keeps its object and hooks, only its class becomes
    :class:`gemmsmith.nn.Linear`; parameters, tied weights and ``state_dict`` keys stay. The model
    is then good for inference only. Subclasses of ``torch.nn.Linear`` are left as they are; the
    ``Conv1D`` of transformers' GPT-2 gets a transposed weight and the same ``state_dict``.

    Attention and feed-forward blocks of transformers' Llama, Mistral, Qwen2, GPT-2 and BERT whose
    layers were swapped become :mod:`gemmsmith.blocks`: one product for query, key and value, one
    for gate and up, rope and attention in kernels, activations in the products that feed them.
    ``generate`` and its caches work as before, ``state_dict`` keys stay, modules and parameters
    within a block change. One that cannot be swapped stays as it is and the report says why.

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
        blocks: whether known blocks are swapped as a whole; False for linear layers alone.

    Raises:
        ArgumentTypeError: where an argument is of the wrong kind: a model that is no module, say.
        ArgumentError: where its value cannot be used, or would be without ``dtype="int8"``.
    """
    if not isinstance(model, torch.nn.Module):
        raise ArgumentTypeError(f"model is a {type(model).__name__}, not a torch.nn.Module")
    int8 = _is_int8(dtype)
    if is_promised("constant_weights", constant_weights) and kernels is not None:
        raise ArgumentError("constant_weights goes with the default kernels: drop one of them")
    is_promised("blocks", blocks)
    limits = Limits(
        max_error=max_error,
        min_speedup=min_speedup,
        tokens=tokens,
        constant_weights=constant_weights,
    )
    if not int8:
        _refuse_limits_of_int8(samples, limits)
    skipped = _named(model, skip)
    plans = plan_blocks(model) if blocks else []
    found = _sorted_out(model, kernels, skipped, int8)
    left = found.left
    if int8:
        groups = groups_of(plans)
        swapped = list(to_int8(model, found.ready, groups, left, kernels, samples, limits))
    else:
        swapped = [each.layer for each in found.ready]
        for each in found.ready:
            layer_of_ours = _in_place(each)
            if kernels is not None:
                layer_of_ours.use(kernels)
            layer_of_ours.constant_weight = constant_weights
    layers = {layer.name: layer for layer in (*left, *found.already, *swapped)}
    swapped_blocks, blocks_left = swap_blocks(plans, layers, kernels, constant_weights)
    return Conversion(
        swapped=tuple(swapped),
        already=tuple(found.already),
        left=tuple(left),
        blocks=tuple(swapped_blocks),
        blocks_left=tuple(blocks_left),
    )


@dataclass(frozen=True, kw_only=True)
class _Found:
    """The linear layers of a model."""

    ready: list[Candidate] = field(default_factory=list)
    already: list[Layer] = field(default_factory=list)
    left: list[Left] = field(default_factory=list)


def _sorted_out(
    model: torch.nn.Module, kernels: KernelSet | None, skipped: set[str], int8: bool
) -> _Found:
    """Return the linear layers that kernels take, those that run on them, and the others."""
    ties = _parameter_names(model)
    misfit_of = cache(partial(misfit_of_layer, kernels))  # a model repeats a few kinds of layers
    found = _Found()
    for name, module in model.named_modules():
        linear = linear_of(module)
        if linear is None:
            continue
        own = f"{name}.weight" if name else "weight"
        others = [other for other in ties.get(id(module.weight), ()) if other != own]
        n, k = linear.out_features, linear.in_features
        layer = Layer(name=name, n=n, k=k, tied_to=others[0] if others else "")
        if isinstance(module, nn.Int8Linear if int8 else nn.Linear):
            found.already.append(layer)
            continue
        reason = "; ".join(["it is in skip"] if name in skipped else obstacles(module, linear))
        if is_conv1d(module) and others:
            reason = reason or f"is tied to {others[0]}, which a transposed copy would part it from"
        if not reason:
            weight, bias = linear.weight, linear.bias is not None
            n, k = (padded(n), padded(k)) if is_conv1d(module) else (n, k)
            reason = misfit_of(weight.device, n, k, TORCH_DTYPES[weight.dtype], bias, int8)
        if reason:
            found.left.append(layer.left(reason))
        else:
            found.ready.append(Candidate(layer=layer, module=module, linear=linear))
    return found


def _in_place(each: Candidate) -> nn.Linear:
    """Make a layer one of ours; its object stays, so that whoever else holds it sees that too."""
    if is_conv1d(each.module):
        made = nn.PreparedLinear.from_weight(
            each.module.get_parameter("weight"), each.linear.bias, transposed=True
        )
        become(each.module, made.train(each.module.training))
    else:
        each.module.__class__ = nn.Linear
    return cast(nn.Linear, each.module)


def _is_int8(dtype: str | torch.dtype | None) -> bool:
    if dtype not in (None, "int8", torch.int8):
        raise ArgumentError(f"dtype is {dtype!r}; 'int8' or None is legal")
    return dtype is not None


def _refuse_limits_of_int8(samples: Samples, limits: Limits) -> None:
    """Raise ArgumentError where something is asked that only int8 layers are measured by."""
    if samples is not None:
        raise ArgumentError('samples prove int8 layers; pass dtype="int8" too')
    for name, found, default in (
        ("max_error", limits.max_error, MAX_ERROR),
        ("min_speedup", limits.min_speedup, MIN_SPEEDUP),
        ("tokens", tuple(limits.tokens), TIMED_TOKENS),
    ):
        if found != default:
            raise ArgumentError(f'{name} is {found}, for int8 layers; pass dtype="int8" too')


def _named(model: torch.nn.Module, skip: Collection[str]) -> set[str]:
    if isinstance(skip, str):
        raise ArgumentTypeError(f"skip is the string {skip!r}; pass ({skip!r},)")
    linear = [name for name, each in model.named_modules() if linear_of(each) is not None]
    found: set[str] = set()
    for word in skip:
        named = [name for name in linear if f".{name}".endswith(f".{word}")]
        if not named:
            near = difflib.get_close_matches(word, linear, n=1, cutoff=0.0)
            hint = f"; the nearest is {near[0]}" if near else ""
            raise ArgumentError(f"skip has {word!r}, which no linear layer is called{hint}")
        found.update(named)
    return found


def _parameter_names(model: torch.nn.Module) -> dict[int, list[str]]:
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    return names
