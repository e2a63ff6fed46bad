"""The check that comes before an op: its numbers, switches and handles are of their kinds."""

from __future__ import annotations

from math import prod
from typing import Any, Literal

import torch

from gemmsmith.errors import ArgumentError, ArgumentTypeError

Kind = Literal["switch", "count", "number", "handle"]

_USUAL: dict[Kind, type[Any]] = {"switch": bool, "count": int, "number": float, "handle": str}
_LEGAL: dict[Kind, tuple[tuple[type[Any], ...], tuple[str, ...], str]] = {
    "switch": ((torch.SymBool,), ("bool",), "True or False"),
    "count": ((int, torch.SymInt), ("int", "uint"), "a whole number"),
    "number": (
        (float, int, torch.SymFloat, torch.SymInt),
        ("int", "uint", "float", "bfloat"),
        "a number",
    ),
    "handle": ((str,), (), "the handle of a set or of a kernel"),
}
"""Of each kind: types, dtypes of scalars of numpy and torch, and words."""
_MOST_COUNT = 2**63 - 1
_MOST_FLOAT32 = 3.4028234663852886e38


def check_scalars(kind: Kind, *, optional: bool = False, **named: object) -> None:
    """Raise ArgumentTypeError where one is not of ``kind``; None is where they are optional.

    A switch is also 0 or 1, and True or False is no number. Scalars of numpy and torch are left to
    torch's own conversion, but those of another kind or without a value.

    Raises:
        ArgumentError: where a whole number is too large for an op.
    """
    usual = _USUAL[kind]
    for name, value in named.items():
        found = type(value)
        if found is usual and usual is not int:
            continue
        if value is None and optional:
            continue
        if found is not usual and not _is_of(kind, value):
            raise ArgumentTypeError(f"{name} is {value!r}; {_LEGAL[kind][2]} is needed")
        if kind == "count" and isinstance(value, int) and abs(value) > _MOST_COUNT:
            raise ArgumentError(f"{name} is {value}; a number of 64 bits is needed")
        if kind == "number" and isinstance(value, int):
            check_finite(name, value)


def check_finite(name: str, value: float) -> None:
    """Raise ArgumentError where a number is NaN, infinite or beyond float32's range."""
    if not abs(value) <= _MOST_FLOAT32:
        raise ArgumentError(f"{name} is {value}: a finite number within float32's range is needed")


def _is_of(kind: Kind, value: object) -> bool:
    if kind == "switch" and isinstance(value, int):
        return value in (0, 1)
    types, dtypes, _ = _LEGAL[kind]
    if isinstance(value, types):
        return not isinstance(value, bool)
    dtype = str(getattr(value, "dtype", "")).removeprefix("torch.").rstrip("0123456789")
    if dtype not in dtypes or getattr(value, "is_meta", False):
        return False
    return prod(getattr(value, "shape", ())) == 1
