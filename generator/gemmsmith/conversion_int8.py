"""The int8 half of a conversion: each layer proven, those that read one input scaled alike."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from gemmsmith import nn
from gemmsmith.conversion_layers import become, is_conv1d, side_by_side
from gemmsmith.conversion_report import Layer, Left
from gemmsmith.errors import ArgumentError, ArgumentTypeError
from gemmsmith.proof import Sample, Samples, Timing, is_finite, measure_times, prove, sample_inputs

if TYPE_CHECKING:
    from gemmsmith.kernelset import KernelSet

__all__ = ["Candidate", "Limits", "to_int8"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Candidate:
    """A linear layer of a model that kernels take."""

    layer: Layer
    module: torch.nn.Module
    linear: torch.nn.Linear
    """The module itself, or its numbers as a linear layer of torch."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What an int8 layer must be, and what its kernels are told."""

    max_error: float
    min_speedup: float
    tokens: Collection[int]
    constant_weights: bool

    def __post_init__(self) -> None:
        """Refuse what no layer can be measured by."""
        for name, least in (("max_error", self.max_error), ("min_speedup", self.min_speedup)):
            if isinstance(least, bool) or not isinstance(least, (int, float)):
                raise ArgumentTypeError(f"{name} is {least!r}; a number is legal")
            if not least >= 0:  # nor is NaN
                raise ArgumentError(f"{name} is {least}; 0 or more is legal")
        if isinstance(self.tokens, (str, bytes)) or not isinstance(self.tokens, Collection):
            raise ArgumentTypeError(f"tokens is {self.tokens!r}; a tuple of whole numbers is legal")
        if not self.tokens:
            raise ArgumentError("tokens is empty; numbers of rows, one at least, are legal")
        for rows in self.tokens:
            if isinstance(rows, bool) or not isinstance(rows, int):
                raise ArgumentTypeError(f"tokens holds {rows!r}; whole numbers are legal")
            if rows < 1:
                raise ArgumentError(f"tokens holds {rows}; 1 or more is legal")


def to_int8(
    model: torch.nn.Module,
    ready: Sequence[Candidate],
    groups: Mapping[str, str],
    left: list[Left],
    kernels: KernelSet | None,
    samples: Samples,
    limits: Limits,
) -> Iterator[Layer]:
    """Swap what is proven, one after the other, and give it; add the others to ``left``.

    Args:
        model: the model.
        ready: layers that kernels take, in the order of the model.
        groups: layer to what it has in common with others that read the same input and become one
            product: they get one column scale, and are timed together.
        left: what stays.
        kernels: as :func:`gemmsmith.convert` has them.
        samples: likewise.
        limits: what a layer must be to be swapped.
    """
    real = {each.layer.name: each.linear for each in ready if not each.linear.weight.is_meta}
    inputs = sample_inputs(model, real, samples) if real else {}
    timings: dict[object, tuple[Timing, ...]] = {}  # a model repeats a few kinds of layers
    for members in _grouped(ready, groups):
        found = {each.layer.name: inputs.pop(each.layer.name, None) for each in members}
        reasons = [_unproven(each.linear, found[each.layer.name]) for each in members]
        judged = [each for each, reason in zip(members, reasons, strict=True) if not reason]
        left += [each.layer.left(why) for each, why in zip(members, reasons, strict=True) if why]
        for group in [judged] if len(judged) == len(members) else [[each] for each in judged]:
            sample = found[group[0].layer.name]
            yield from _proven(group, sample, found, left, kernels, limits, timings)


def _unproven(layer: torch.nn.Linear, sample: Sample | None) -> str:
    """Return why nothing can be proven of a layer; empty where something can, or on ``meta``."""
    if layer.weight.is_meta:
        return ""
    for name, values in (("weight", layer.weight), ("bias", layer.bias)):
        if values is not None and not is_finite(values):
            return f"its {name} holds NaN or infinity"
    if sample is None:
        return "no sample input reaches it, so that nothing is proven"
    if sample.overflows:
        return "its output holds NaN or infinity where its input holds none"
    if not len(sample.rows):
        return "no row of finite numbers of the sample input reaches it, so that nothing is proven"
    if not bool(sample.rows.any()):
        return "its sample input is all zeros, so that nothing is proven"
    return ""


def _grouped(ready: Sequence[Candidate], groups: Mapping[str, str]) -> Iterator[list[Candidate]]:
    """Give the layers of each group together, others alone; a group's part is no group."""
    sizes: dict[str, int] = {}
    for group in groups.values():
        sizes[group] = sizes.get(group, 0) + 1
    together: dict[str, list[Candidate]] = {}
    for each in ready:
        together.setdefault(groups.get(each.layer.name, ""), []).append(each)
    done: set[str] = set()
    for each in ready:
        group = groups.get(each.layer.name, "")
        if not group or len(together[group]) < sizes[group]:
            yield [each]
        elif group not in done:
            done.add(group)
            yield together[group]


def _proven(
    group: Sequence[Candidate],
    sample: Sample | None,
    samples: Mapping[str, Sample | None],
    left: list[Left],
    kernels: KernelSet | None,
    limits: Limits,
    timings: dict[object, tuple[Timing, ...]],
) -> Iterator[Layer]:
    together = side_by_side([each.linear for each in group])
    smoothing = None if sample is None else sample.smoothing(together)
    scale = None if smoothing is None else smoothing.column_scale
    afters = [_quantised(each, scale, kernels, limits) for each in group]
    measured: tuple[Timing, ...] = ()
    if sample is not None:
        weight, sizes = together.weight, [each.layer.n for each in group]
        kind = (*sizes, group[0].layer.k, together.bias is None, scale is None, weight.dtype)
        if (kind, weight.device) not in timings:
            timings[kind, weight.device] = _times(together, afters, kernels, limits)
        measured = timings[kind, weight.device]
    for each, after in zip(group, afters, strict=True):
        proof, own = None, samples[each.layer.name]
        if own is not None:
            proof = prove(
                each.linear,
                after,
                own.rows,
                random=own.largest is None,
                smoothing=None if smoothing is None else smoothing.exponent,
                timings=measured,
            )
        objection = "" if proof is None else proof.objection(limits.max_error, limits.min_speedup)
        proven = replace(each.layer, proof=proof, preparation=str(after.preparation))
        if objection:
            left.append(proven.left(objection))
            continue
        become(each.module, after)
        yield proven


def _quantised(
    each: Candidate,
    scale: torch.Tensor | None,
    kernels: KernelSet | None,
    limits: Limits,
) -> nn.Int8Linear:
    bias, transposed = each.linear.bias, is_conv1d(each.module)
    weight = each.module.get_parameter("weight")
    after = nn.Int8Linear.from_weight(weight, bias, transposed=transposed, column_scale=scale)
    after.train(each.module.training)
    if kernels is not None:
        after.use(kernels)
    after.constant_weight = limits.constant_weights
    return after


def _times(
    before: torch.nn.Linear,
    afters: Sequence[nn.Int8Linear],
    kernels: KernelSet | None,
    limits: Limits,
) -> tuple[Timing, ...]:
    """Return the times of one layer, or of the product that several become."""
    if len(afters) == 1:
        return measure_times(before, afters[0], limits.tokens)
    if not before.weight.is_cuda:
        return ()
    after = nn.Int8Linear.joined({str(index): each for index, each in enumerate(afters)})
    if kernels is not None:
        after.use(kernels)
    after.constant_weight = limits.constant_weights
    return measure_times(before, after, limits.tokens)
