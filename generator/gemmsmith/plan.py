"""How to share out the compiling of missing kernels: which together in one file, in what order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby, pairwise

from gemmsmith.arch import Store
from gemmsmith.attn.spec import AttentionSchedule, AttentionSpec
from gemmsmith.card import Card
from gemmsmith.render import template_name
from gemmsmith.rowspec import AnySpec, RowSpec
from gemmsmith.spec import KernelSpec
from gemmsmith.wgmma import has_rare_width

LARGEST_GROUP = 8
"""Kernels of one translation unit; 16 would save another second each and lose more to a failure."""

LARGEST_LEAN_GROUP = 16
"""The same of lean kernels, a failure among which costs seconds."""

_SECONDS: dict[Store, tuple[float, float]] = {
    "smem": (11.0, 1.5),
    "direct": (18.0, 7.0),
    "strip": (18.0, 8.0),
    "tma": (18.0, 9.0),
}
"""By store: what CUTLASS's headers and shared templates cost nvcc, and what each kernel adds.

Measured with nvcc 13.0; the first is paid once for each translation unit.
"""
_LEAN_SECONDS = (5.0, 0.4)
"""The same of lean kernels, which include little of CUTLASS."""
_ROW_SECONDS = (1.0, 0.8)
"""The same of row kernels, which include no CUTLASS."""
_ATTENTION_SECONDS: dict[AttentionSchedule, tuple[float, float]] = {
    "pingpong": (12.0, 6.0),
    "cooperative": (12.0, 6.0),
    "split_kv": (1.5, 4.8),
    "multistage": (6.0, 2.0),
}
"""The same of attention kernels, by schedule; those of split_kv include no CUTLASS."""
_RARE_WIDTHS_SECONDS = 9.0
"""What the headers of further wgmma widths add to a translation unit."""


@dataclass(frozen=True, kw_only=True)
class Group:
    """Kernels to compile in one run of nvcc."""

    specs: tuple[AnySpec, ...]
    seconds: float
    """Expected wall time."""


def plan(
    specs: Sequence[AnySpec],
    jobs: int,
    last_card: Callable[[str], Card | None] = lambda name: None,
) -> tuple[Group, ...]:
    """Return groups that finish soonest with ``jobs`` compilers at once, longest first.

    A group is of one architecture and schedule: kernels of one tile share nearly all that nvcc has
    to do, those of two schedules little beside headers. ``last_card`` gives the card of a kernel of
    that name that was compiled before, if there was one.
    """
    families = [list(kernels) for _, kernels in groupby(sorted(specs, key=_family), key=_headers)]
    plans = [
        [
            Group(specs=part, seconds=_seconds(part, last_card))
            for kernels in families
            for part in _split(kernels, min(size, _largest(kernels[0])))
        ]
        for size in range(max(LARGEST_GROUP, LARGEST_LEAN_GROUP), 0, -1)
    ]
    best = min(plans, key=lambda groups: makespan([group.seconds for group in groups], jobs))
    return tuple(sorted(best, key=lambda group: -group.seconds))


def makespan(seconds: Sequence[float], jobs: int) -> float:
    """Return when the last of these tasks ends if the longest start first on ``jobs`` workers."""
    workers = [0.0] * jobs
    for each in sorted(seconds, reverse=True):
        workers[workers.index(min(workers))] += each
    return max(workers)


def _headers(spec: AnySpec) -> tuple[str, ...]:
    """What all kernels of a translation unit share."""
    if isinstance(spec, RowSpec):
        return (spec.arch.suffix, "rows", template_name(spec))
    if isinstance(spec, AttentionSpec):
        return (spec.arch.suffix, "attention", template_name(spec))
    return (spec.arch.suffix, spec.schedule, spec.store)


def _family(spec: AnySpec) -> tuple[object, ...]:
    """Order in which neighbours share most template instances: types alone change the fewest."""
    if isinstance(spec, RowSpec):
        return (*_headers(spec), spec.dtype.name, spec.operation)
    if isinstance(spec, AttentionSpec):
        return (*_headers(spec), spec.head_dim, spec.tile, spec.stages)
    return (
        *_headers(spec),
        has_rare_width(spec),
        spec.scheduler,
        spec.residual,
        spec.device_tile,
        spec.device_cluster,
        spec.layout,
    )


def _largest(spec: AnySpec) -> int:
    lean = isinstance(spec, KernelSpec) and spec.schedule == "lean"
    return LARGEST_LEAN_GROUP if lean else LARGEST_GROUP


def _split(kernels: Sequence[AnySpec], size: int) -> list[tuple[AnySpec, ...]]:
    """Parts of at most ``size`` neighbours, as even as can be without parting next of kin."""
    parts = -(-len(kernels) // size)
    even = [len(kernels) * part // parts for part in range(parts + 1)]
    kin = [0, *accumulate(len(list(family)) for _, family in groupby(kernels, key=_family))]
    edges = [min((abs(edge - ideal), edge) for edge in kin)[1] for ideal in even]
    if not all(0 < last - first <= size for first, last in pairwise(edges)):
        edges = even
    return [tuple(kernels[first:last]) for first, last in pairwise(edges)]


def _seconds(kernels: Sequence[AnySpec], last_card: Callable[[str], Card | None]) -> float:
    shared = max(_costs(kernel)[0] for kernel in kernels)
    if any(isinstance(kernel, KernelSpec) and has_rare_width(kernel) for kernel in kernels):
        shared += _RARE_WIDTHS_SECONDS
    seconds = shared
    for kernel in kernels:
        card = last_card(kernel.name)
        if card is None:
            seconds += _costs(kernel)[1]
        else:
            seconds += max(0.0, card.compile_seconds - shared) / card.compiled_with
    return seconds


def _costs(kernel: AnySpec) -> tuple[float, float]:
    if isinstance(kernel, RowSpec):
        return _ROW_SECONDS
    if isinstance(kernel, AttentionSpec):
        return _ATTENTION_SECONDS[kernel.schedule]
    return _LEAN_SECONDS if kernel.schedule == "lean" else _SECONDS[kernel.store]
