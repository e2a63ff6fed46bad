"""Tensor-core GEMMs described in YAML, generated as CUTLASS kernels, called from PyTorch.

``gemmsmith.load`` reads a file of kernels, ``gemmsmith.gemm`` multiplies with the default ones,
``gemmsmith.nn`` and ``gemmsmith.convert`` bring them into models. torch is imported when one of the
names that need it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gemmsmith import errors, nn
    from gemmsmith.choose import Tuning
    from gemmsmith.conversion import convert
    from gemmsmith.kernelset import KernelSet, load
    from gemmsmith.ops import gemm, last_kernel

__version__ = "0.1.0"

__all__ = ["KernelSet", "Tuning", "convert", "errors", "gemm", "last_kernel", "load", "nn"]

_HOMES = {
    "KernelSet": "kernelset",
    "Tuning": "choose",
    "convert": "conversion",
    "gemm": "ops",
    "last_kernel": "ops",
    "load": "kernelset",
}


def __getattr__(name: str) -> Any:
    if name in ("errors", "nn"):
        return importlib.import_module(f"gemmsmith.{name}")
    if name in _HOMES:
        return getattr(importlib.import_module(f"gemmsmith.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'gemmsmith' has no attribute {name!r}")
