"""Kernels drawn at random: legal ones near the limits, and what lies one step beyond a limit."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from gemmsmith.arch import ARCHITECTURES, SM_90A, Architecture, Schedule, Store
from gemmsmith.dtypes import BF16, INT8
from gemmsmith.errors import IllegalKernelError
from gemmsmith.footprint import stages_that_fit
from gemmsmith.legality import objections
from gemmsmith.spec import Alignment, Cluster, KernelSpec, Tile, widest_alignment

FAMILIES: tuple[tuple[Architecture, Schedule], ...] = tuple(
    (arch, schedule) for arch in ARCHITECTURES for schedule in arch.schedules
)
"""Every architecture with every schedule that it has."""
_LAYOUTS = ("rcr", "rrr", "ccr", "crr", "rcc", "rrc", "ccc", "crc")
_FINISHES: tuple[tuple[Schedule, dict[str, Any]], ...] = (
    ("cooperative", {"store": "tma", "activation": "any", "scaled": True}),
    ("pingpong", {"store": "strip", "gate": "silu", "residual": False, "d": BF16}),
)
_TRIES = 20_000


def accepted(seed: int, count: int) -> tuple[KernelSpec, ...]:
    """Return ``count`` legal kernels, as many of each architecture and schedule as can be.

    The first ones finish their results with a function, scales and a gate.
    """
    rng = random.Random(seed)
    found = dict.fromkeys(draw(rng, SM_90A, *finish) for finish in _FINISHES)
    while len(found) < count:
        for arch, schedule in FAMILIES:
            if len(found) < count:
                found[draw(rng, arch, schedule)] = None
    return tuple(found)


def draw(
    rng: random.Random,
    arch: Architecture,
    schedule: Schedule,
    fixed: Mapping[str, Any] | None = None,
) -> KernelSpec:
    """Return a legal kernel with these ``fixed`` fields; half of the others are at a limit."""
    given = fixed or {}
    part = _part_2x if arch.api == "2.x" else _part_lean if schedule == "lean" else _part_3x
    for _ in range(_TRIES):
        try:
            spec = KernelSpec(**{**part(rng, arch, schedule, given), **given})
        except IllegalKernelError:
            continue
        if spec.stages is None or not arch.async_copy or "stages" in given or rng.random() < 0.5:
            return spec
        try:
            return replace(spec, stages=stages_that_fit(spec))
        except IllegalKernelError:  # cp.async takes no narrow alignment
            return spec
    raise AssertionError(f"no legal kernel of {arch.name}, {schedule} with {given}")


@dataclass(frozen=True, kw_only=True)
class Limit:
    """A limit of the predicate, and the step beyond it."""

    name: str
    key: str
    """Field that the refusal is about."""
    arch: Architecture
    schedule: Schedule
    fixed: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the legal kernel from which the step is made; the others are drawn."""
    step: Callable[[KernelSpec], dict[str, Any]]
    """The fields that change."""


def beyond(rng: random.Random, limit: Limit) -> KernelSpec:
    """Return a kernel that breaks the rules of ``limit`` alone, made past the predicate."""
    for _ in range(_TRIES):
        legal = draw(rng, limit.arch, limit.schedule, limit.fixed)
        spec = _unchecked(legal, limit.step(legal))
        if {objection.key for objection in objections(spec)} == {limit.key}:
            return spec
    raise AssertionError(f"{limit.name}: no step from a legal kernel breaks this rule alone")


def as_yaml(name: str, spec: KernelSpec) -> str:
    """Return the family of one kernel whose file asks for ``spec``."""
    values = {
        "arch": spec.arch.name,
        "dtype": {key: getattr(spec, key).name for key in ("a", "b", "acc", "d")},
        "layout": spec.layout,
        "schedule": spec.schedule,
        "store": spec.store,
        "scheduler": spec.scheduler,
        "swap": spec.swap,
        "tile": list(spec.tile),
        "cluster": list(spec.cluster),
        "split_k": spec.split_k,
        "stages": spec.stages or "auto",
        "alignment": spec.alignment._asdict(),
        "epilogue": {"bias": spec.bias, "residual": spec.residual},
    }
    if spec.warp:
        values["warp"] = list(spec.warp)
    return "\n".join(
        [f"  - name: {json.dumps(name)}", *(f"    {k}: {json.dumps(v)}" for k, v in values.items())]
    )


def _unchecked(legal: KernelSpec, changes: Mapping[str, Any]) -> KernelSpec:
    spec = object.__new__(KernelSpec)
    for each in fields(KernelSpec):
        object.__setattr__(spec, each.name, changes.get(each.name, getattr(legal, each.name)))
    return spec


def _types(rng: random.Random, arch: Architecture, given: Mapping[str, Any]) -> dict[str, Any]:
    a = given.get("a") or rng.choice(arch.inputs)
    return {
        "a": a,
        "b": a,
        "acc": rng.choice(arch.accumulators[a.name]),
        "d": given.get("d") or rng.choice(arch.outputs[a.name]),
        "layout": rng.choice(("rcr", "rcc") if a == INT8 else _LAYOUTS),
        "bias": rng.random() < 0.5,
        "residual": rng.random() < 0.5,
    }


def _part_2x(
    rng: random.Random, arch: Architecture, schedule: Schedule, given: Mapping[str, Any]
) -> dict[str, Any]:
    types = _types(rng, arch, given)
    k = (rng.choice((64, 128)) if arch.async_copy else 64) // types["a"].bytes
    warp = given.get("warp") or Tile(rng.choice((32, 64)), rng.choice((32, 64)), k)
    rows, columns = rng.choice((1, 2, 4)), rng.choice((1, 2, 4))
    widest = widest_alignment(types["a"], types["b"], types["d"], "smem")
    return {
        **types,
        "arch": arch,
        "schedule": schedule,
        "store": "smem",
        "tile": Tile(warp.m * rows, warp.n * columns, warp.k),
        "warp": warp,
        "stages": rng.choice((2, 3, 4, 5)) if arch.async_copy else 2,
        "alignment": Alignment(*(_power_of_two(rng, most) for most in widest)),
    }


def _power_of_two(rng: random.Random, most: int) -> int:
    """A power of two up to ``most``, itself in half of all cases."""
    return most if rng.random() < 0.5 else 1 << rng.randrange(most.bit_length())


def _part_3x(
    rng: random.Random, arch: Architecture, schedule: Schedule, given: Mapping[str, Any]
) -> dict[str, Any]:
    types = _types(rng, arch, given)
    swap = given.get("swap", rng.random() < 0.5)
    rows = rng.choice((128, 256) if schedule == "cooperative" else (64, 128))
    columns = 16 * rng.choice((1, 2, 4, 6, 8, 12, 16))  # other widths' headers cost seconds
    k = rng.choice((64, 128, 256)) // types["a"].bytes
    store: Store = given.get("store") or rng.choice(("tma", "direct"))
    return {
        **types,
        "arch": arch,
        "schedule": schedule,
        "store": store,
        "swap": swap,
        "tile": Tile(columns, rows, k) if swap else Tile(rows, columns, k),
        "cluster": Cluster(rng.choice((1, 2, 4)), rng.choice((1, 2, 4))),
        "stages": rng.choice((None, 2, 3, 4)),
        "scheduler": "stream_k" if schedule == "cooperative" and rng.random() < 0.3 else "static",
        "alignment": widest_alignment(types["a"], types["b"], types["d"], store),
    }


def _part_lean(
    rng: random.Random, arch: Architecture, schedule: Schedule, given: Mapping[str, Any]
) -> dict[str, Any]:
    types = _types(rng, arch, given)
    swap = given.get("swap", rng.random() < 0.5)
    rows, columns = rng.choice((64, 128, 192, 256)), 8 * rng.randrange(1, 33)
    k = rng.choice((128, 256)) // types["a"].bytes
    return {
        **types,
        "layout": "rcr",
        "arch": arch,
        "schedule": schedule,
        "store": "smem",
        "swap": swap,
        "tile": Tile(columns, rows, k) if swap else Tile(rows, columns, k),
        "cluster": Cluster(rng.choice((1, 2, 4)), rng.choice((1, 2, 4))),
        "split_k": rng.choice((1, 2, 4)),
        "stages": rng.choice((None, 2, 3, 4)),
        "alignment": widest_alignment(types["a"], types["b"], types["d"], "smem"),
    }
