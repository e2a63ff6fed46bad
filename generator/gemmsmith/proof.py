"""What an int8 layer costs in accuracy and gains in time, beside the layer that it replaces."""

from __future__ import annotations

import copy
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from gemmsmith import nn
from gemmsmith.bench.measure import ROTATED_BYTES, compare
from gemmsmith.bench.rounds import Policy
from gemmsmith.conversion_layers import linear_of
from gemmsmith.errors import ArgumentError, ArgumentTypeError
from gemmsmith.ops import last_kernel
from gemmsmith.smoothing import MOST_ROWS, Smoothing, smooth, spread

__all__ = [
    "Proof",
    "Sample",
    "Samples",
    "Timing",
    "is_finite",
    "measure_times",
    "prove",
    "sample_inputs",
]

RANDOM_ROWS = 64
AT_ONCE = 1 << 24
"""Weights that the exact product widens at a time."""
MOST_COPIES = 64
"""Copies of a layer that are timed in turns; small ones stay in a cache, as in their model."""

Samples = Tensor | Mapping[str, Tensor] | None
"""What a model is called with, or the inputs of layers by name; None for random ones."""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """What is kept of a layer's input."""

    rows: Tensor
    """Some of the rows without NaN and infinity (at most MOST_ROWS, K)."""
    largest: Tensor | None
    """Largest finite magnitude of each channel over all rows (K,); None for random numbers."""
    overflows: bool = False
    """Whether the layer's output held NaN or infinity for a row that does not."""

    def smoothing(self, layer: torch.nn.Linear) -> Smoothing | None:
        """Return the column scale that is best for the layer; None where nothing says so.

        Random numbers have no outliers, and of rows that hold NaN or infinity nothing is proven.
        """
        if self.largest is None or not len(self.rows) or not bool(self.rows.isfinite().all()):
            return None
        return smooth(layer.weight, self.rows, largest=self.largest)


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Times of both layers in one run, in turns."""

    tokens: int
    """Rows of the input."""
    before_us: float
    """Median µs of the layer that is replaced."""
    after_us: float
    """Median µs of the int8 layer, with the quantising of its input."""

    @property
    def speedup(self) -> float:
        """How many times as long the replaced layer takes."""
        return self.before_us / self.after_us


@dataclass(frozen=True, kw_only=True)
class Proof:
    """An int8 layer against the exact product of the weights and inputs that it had."""

    rows: int
    """Rows of the sample input."""
    random: bool
    """Whether that was standard normal numbers, for lack of samples."""
    smoothing: float | None = None
    """Exponent of the layer's column scale (:mod:`gemmsmith.smoothing`), which the same rows chose
    and larger ones of the same text bound; None where it has none."""
    largest_error: float
    """Largest absolute difference."""
    largest_output: float
    """Largest magnitude of the exact product, to compare that with."""
    relative_error: float
    """Root mean square of the differences over that of the exact product."""
    kernel: str
    """What ran the product: a kernel's name, ``cpu`` or ``torch``."""
    torch_reason: str = ""
    """Why torch ran it on a GPU; else empty."""
    timings: tuple[Timing, ...] = ()
    """Times on the GPU; empty elsewhere."""

    @property
    def speedup(self) -> float | None:
        """Geometric mean over the numbers of tokens; None where nothing was timed."""
        if not self.timings:
            return None
        logs = [math.log(timing.speedup) for timing in self.timings]
        return math.exp(sum(logs) / len(logs))

    def objection(self, max_error: float, min_speedup: float) -> str:
        """Return why the layer should stay as it was; empty where it should not."""
        if self.torch_reason:
            return f"no kernel takes it: {self.torch_reason}"
        if not math.isfinite(self.largest_error):
            return "its output holds NaN or infinity where its input holds none"
        if not self.relative_error <= max_error:  # NaN is no proof
            return (
                f"int8 is off by {self.relative_error:.2%} of the output's root mean square"
                f" (max_error {max_error:.2%})"
            )
        if self.speedup is not None and self.speedup < min_speedup:
            times = ", ".join(
                f"{timing.after_us:.1f} µs against {timing.before_us:.1f} at {timing.tokens} tokens"
                for timing in self.timings
            )
            return f"int8 is no faster: {times} (min_speedup {min_speedup:g})"
        return ""


def sample_inputs(
    model: torch.nn.Module, layers: Mapping[str, torch.nn.Linear], samples: Samples
) -> dict[str, Sample]:
    """Return a sample of what each layer reads, by name; a layer that is not reached has none.

    Raises:
        ArgumentError: where ``samples`` names what is no layer, or is of another kind.
    """
    if samples is None:
        return {name: Sample(rows=_random(layer), largest=None) for name, layer in layers.items()}
    if isinstance(samples, Mapping):
        known = dict(model.named_modules())
        for name, x in samples.items():
            layer = linear_of(known.get(name))
            if layer is None:
                raise ArgumentError(f"samples has {name!r}, which is no linear layer of the model")
            if not isinstance(x, Tensor) or x.shape[-1:] != (layer.in_features,):
                raise ArgumentError(f"samples[{name!r}] must be (..., {layer.in_features})")
        return {name: _kept(x) for name, x in samples.items() if name in layers}
    if not isinstance(samples, Tensor):
        raise ArgumentTypeError(
            f"samples is a {type(samples).__name__}; token ids, or inputs of layers by name"
        )
    with _ids_read(model, samples), _kept_inputs(model, layers) as kept, torch.no_grad():
        model(samples)
    return kept


@contextmanager
def _ids_read(model: torch.nn.Module, samples: Tensor) -> Iterator[None]:
    """Say what ``samples`` should be where an embedding is about to look up fractions."""

    def refuse(name: str, _: torch.nn.Module, given: tuple[Tensor, ...]) -> None:
        if given and given[0].is_floating_point():
            raise ArgumentTypeError(
                f"samples is {samples.dtype}, which the embedding {name!r} reads; token ids"
                " (torch.int64), or inputs of layers by name, are legal"
            )

    with ExitStack() as hooks:
        for name, module in model.named_modules():
            if samples.is_floating_point() and isinstance(module, torch.nn.Embedding):
                hook = module.register_forward_pre_hook(partial(refuse, name))
                hooks.callback(hook.remove)
        yield


@contextmanager
def _kept_inputs(model: torch.nn.Module, layers: Collection[str]) -> Iterator[dict[str, Sample]]:
    """Keep what layers read while the model runs.

    Where a linear layer makes NaN or infinity of finite numbers, those behind it read 0 instead, so
    that they are judged on their own.
    """
    kept: dict[str, Sample] = {}

    def keep(
        name: str,
        _: torch.nn.Module,
        given: tuple[Tensor, ...],
        named: Mapping[str, Tensor],
        output: Tensor,
    ) -> Tensor | None:
        x = given[0] if given else next(iter(named.values()))  # torch calls it input, GPT-2 x
        spoilt = None
        if not is_finite(output):
            spoilt = x.isfinite().all(-1, keepdim=True) & ~output.isfinite()
        if name in layers:
            overflows = spoilt is not None and bool(spoilt.any())
            kept[name] = _kept(x, kept.get(name), overflows=overflows)
        return None if spoilt is None else output.masked_fill(spoilt, 0.0)

    with ExitStack() as hooks:
        for name, module in model.named_modules():
            if name in layers or type(module) is torch.nn.Linear:
                hook = module.register_forward_hook(
                    partial(keep, name), prepend=True, with_kwargs=True
                )
                hooks.callback(hook.remove)
        yield kept


def _kept(x: Tensor, before: Sample | None = None, *, overflows: bool = False) -> Sample:
    """Return the sample of an input, or of one more call of a layer."""
    rows = x.detach().reshape(-1, x.shape[-1])
    size = rows.abs()
    fine = size.isfinite()
    largest = torch.where(fine, size, 0.0).amax(0) if len(rows) else size.sum(0)
    rows = spread(rows[fine.all(-1)], MOST_ROWS)
    if before is None or before.largest is None:
        return Sample(rows=rows.clone(), largest=largest, overflows=overflows)
    together = before.rows
    if len(together) < MOST_ROWS:
        together = spread(torch.cat((together, rows)), MOST_ROWS)
    return Sample(
        rows=together,
        largest=torch.maximum(before.largest, largest),
        overflows=before.overflows or overflows,
    )


def is_finite(values: Tensor) -> bool:
    """Return whether ``values`` hold neither NaN nor infinity, without a tensor of their size."""
    return not values.numel() or all(bool(end.isfinite()) for end in values.detach().aminmax())


def _random(layer: torch.nn.Linear) -> Tensor:
    weight = layer.weight
    numbers = torch.randn(
        RANDOM_ROWS, layer.in_features, generator=torch.Generator().manual_seed(0)
    )
    return numbers.to(weight.device, weight.dtype)


def prove(
    before: torch.nn.Linear,
    after: nn.Int8Linear,
    x: Tensor,
    *,
    random: bool,
    smoothing: float | None = None,
    timings: Sequence[Timing] = (),
) -> Proof:
    """Return how far ``after`` is off on ``x`` (rows, K), and what ran it."""
    x = x.to(before.weight.device, before.weight.dtype)
    with torch.no_grad():
        found = after(x)
        record = last_kernel()
        assert record is not None, "a product was just made"
        exact = _exact(before, x)
        difference = found.to(exact.dtype) - exact
        size = float(exact.square().mean().sqrt())
        off = float(difference.square().mean().sqrt())
    return Proof(
        rows=len(x),
        random=random,
        smoothing=smoothing,
        largest_error=float(difference.abs().max()),
        largest_output=float(exact.abs().max()),
        relative_error=off / size if size else (0.0 if off == 0 else math.inf),
        kernel=record.name,
        torch_reason=record.reason if record.name == "torch" else "",
        timings=tuple(timings),
    )


def _exact(layer: torch.nn.Linear, x: Tensor) -> Tensor:
    """Return the product in f64; on a GPU in f32, a thousandth of int8's error."""
    wide = torch.float32 if x.is_cuda else torch.float64
    step = max(1, AT_ONCE // layer.in_features)
    parts = [
        x.to(wide) @ layer.weight[first : first + step].to(wide).t()
        for first in range(0, layer.out_features, step)
    ]
    product = torch.cat(parts, dim=-1)
    return product if layer.bias is None else product + layer.bias.to(wide)


def measure_times(
    before: torch.nn.Linear, after: nn.Int8Linear, tokens: Collection[int]
) -> tuple[Timing, ...]:
    """Return the times of both layers for each number of tokens; nothing where there is no GPU.

    As in a model, weights come from memory: copies of both layers take turns.
    """
    weight = before.weight
    if not weight.is_cuda:
        return ()
    count = min(MOST_COPIES, math.ceil(ROTATED_BYTES / weight.numel()))
    layers = {
        name: [layer, *(copy.deepcopy(layer) for _ in range(count - 1))]
        for name, layer in (("before", before), ("after", after))
    }
    timings = []
    with torch.no_grad(), torch.cuda.device(weight.device):
        for rows in tokens:
            x = torch.randn(rows, before.in_features, dtype=weight.dtype, device=weight.device)
            arms = {
                name: [partial(layer.forward, x) for layer in copies]
                for name, copies in layers.items()
            }
            found = compare(arms, policy=Policy(seconds=0.3, precision=0.02))
            before_us, after_us = found.median("before"), found.median("after")
            timings.append(Timing(tokens=rows, before_us=before_us, after_us=after_us))
    return tuple(timings)
