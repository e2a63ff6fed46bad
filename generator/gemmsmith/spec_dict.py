"""Kernel specs as plain JSON values and back, for manifests that outlive the YAML files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, get_args

from gemmsmith.arch import Architecture, parse_architecture, portable
from gemmsmith.attn.spec import (
    ATTENTION_SCHEDULES,
    AttentionSpec,
    AttentionTile,
    AttentionWarps,
)
from gemmsmith.dtypes import DType, parse_dtype
from gemmsmith.rowspec import ROW_OPERATIONS, AnySpec, RowSpec
from gemmsmith.spec import Activation, Alignment, Cluster, Gate, KernelSpec, Tile

_TUPLES: dict[str, Callable[..., Any]] = {
    "tile": Tile,
    "warp": Tile,
    "cluster": Cluster,
    "alignment": Alignment,
}
_ATTENTION_TUPLES: dict[str, Callable[..., Any]] = {
    "tile": AttentionTile,
    "warps": AttentionWarps,
}
_DTYPES = ("a", "b", "acc", "d", "dtype")
_WORDS = {"activation": get_args(Activation), "gate": get_args(Gate)}


def spec_to_dict(spec: AnySpec) -> dict[str, Any]:
    """Return all fields of ``spec`` as JSON values, for :func:`spec_from_dict`."""
    values = {field.name: _plain(getattr(spec, field.name)) for field in fields(spec)}
    return {**values, "runs_on": spec.arch.runs_on}


def spec_from_dict(values: Mapping[str, Any]) -> AnySpec:
    """Return the spec that :func:`spec_to_dict` gave.

    Raises:
        ValueError: naming what this gemmsmith does not know, or what breaks its rules.
    """
    kind = _kind(values)
    known = {field.name for field in fields(kind)}
    unknown = sorted(set(values) - known - {"runs_on"})
    if unknown:
        raise ValueError(f"unknown {', '.join(unknown)}")
    try:
        tuples = _ATTENTION_TUPLES if kind is AttentionSpec else _TUPLES
        rich = {name: _rich(name, values[name], tuples) for name in known & set(values)}
        rich["arch"] = _architecture(values["arch"], values["runs_on"])
        spec: AnySpec = kind(**rich)
        hash(spec)  # TypeError where a list stands for a word
    except (ArithmeticError, AttributeError, LookupError, TypeError) as error:  # wrong kinds
        raise ValueError(f"{type(error).__name__}: {error}") from error
    if isinstance(spec, RowSpec) and spec.operation not in ROW_OPERATIONS:
        raise ValueError(f"unknown operation {spec.operation!r}")
    if isinstance(spec, AttentionSpec) and spec.schedule not in ATTENTION_SCHEDULES:
        raise ValueError(f"unknown schedule {spec.schedule!r}")
    for field in fields(spec):
        value = getattr(spec, field.name)
        if value not in _WORDS.get(field.name, (value,)):
            raise ValueError(f"{field.name} is {value!r}, not {' or '.join(_WORDS[field.name])}")
        if isinstance(field.default, bool) and not isinstance(value, bool):
            raise ValueError(f"{field.name} is {value!r}, not true or false")
    return spec


def _kind(values: Mapping[str, Any]) -> type[KernelSpec] | type[RowSpec] | type[AttentionSpec]:
    if "operation" in values:
        return RowSpec
    return AttentionSpec if "head_dim" in values else KernelSpec


def _plain(value: Any) -> Any:
    if isinstance(value, (Architecture, DType)):
        return value.name
    return list(value) if isinstance(value, tuple) else value


def _architecture(name: str, runs_on: str) -> Architecture:
    row = parse_architecture(name)
    if runs_on != row.runs_on:
        row = portable(row)
    if runs_on != row.runs_on:
        raise ValueError(f"no kernels of {name} for {runs_on}")
    return row


def _rich(name: str, value: Any, tuples: Mapping[str, Callable[..., Any]]) -> Any:
    if name in _DTYPES:
        return parse_dtype(value)
    if name in tuples and value is not None:
        return tuples[name](*value)
    return value
