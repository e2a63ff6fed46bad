"""Calls with addresses that are never read: for what a kernel says before it is launched."""

from __future__ import annotations

from typing import Any

from gemmsmith.launcher import Call
from gemmsmith.spec import KernelSpec


def call_of(spec: KernelSpec, **changes: float) -> Call:
    """A call that ``spec`` can take, as far as one can say without a GPU."""
    m, n, k = 64, 128, 72
    values: dict[str, Any] = {
        **dict.fromkeys(Call._fields, 0),
        "m": m,
        "n": n,
        "k": k,
        "batch": 1,
        "a": 1 << 20,
        "b": 1 << 21,
        "d": 1 << 22,
        "lda": k,
        "ldb": k,
        "ldd": n if spec.layout[2] == "r" else m,
        "alpha": 1.0,
        "beta": 0.0,
        "sm_count": 132,
    }
    return Call(**{**values, **changes})
