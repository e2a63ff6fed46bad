"""The check that comes before an op: its numbers and switches are of a kind that it takes."""

from __future__ import annotations

from typing import Any, Literal

import torch

from gemmsmith.errors import ArgumentTypeError

Kind = Literal["switch", "count", "number"]

_LEGAL: dict[Kind, tuple[tuple[type[Any], ...], str]] = {
    "switch": ((bool, int, torch.SymBool), "True or False"),
    "count": ((int, torch.SymInt), "a whole number"),
    "number": ((float, int, torch.SymFloat, torch.SymInt), "a number"),
}


def check_scalars(kind: Kind, *, optional: bool = False, **named: object) -> None:
    """Raise ArgumentTypeError where one is not of ``kind``; None is where they are optional.

    Scalars of numpy and torch are left to torch's own conversion, but those without a value.
    """
    legal, words = _LEGAL[kind]
    for name, value in named.items():
        if isinstance(value, legal) or (value is None and optional):
            continue
        if not hasattr(value, "dtype") or getattr(value, "is_meta", False):
            raise ArgumentTypeError(f"{name} is {value!r}; {words} is needed")
