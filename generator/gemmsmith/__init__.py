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
    from gemmsmith.attn.ops import attention, attention_varlen
    from gemmsmith.attn.with_kvcache import attention_with_kvcache
    from gemmsmith.choose import Tuning
    from gemmsmith.conversion import convert
    from gemmsmith.kernelset import KernelSet, load
    from gemmsmith.ops import gemm, last_kernel
    from gemmsmith.rope_ops import rope, rope_frequencies, rope_to_cache
    from gemmsmith.row_ops import (
        gate,
        gate_quantize,
        quantize_rows,
        quantize_weight,
        rms_norm,
        rms_norm_quantize,
    )
    from gemmsmith.smoothing import smooth
    from gemmsmith.weights import interleave

__version__ = "0.1.0"

__all__ = [
    "KernelSet",
    "Tuning",
    "attention",
    "attention_varlen",
    "attention_with_kvcache",
    "convert",
    "errors",
    "gate",
    "gate_quantize",
    "gemm",
    "interleave",
    "last_kernel",
    "load",
    "nn",
    "quantize_rows",
    "quantize_weight",
    "rms_norm",
    "rms_norm_quantize",
    "rope",
    "rope_frequencies",
    "rope_to_cache",
    "smooth",
]

_HOMES = {
    "KernelSet": "kernelset",
    "Tuning": "choose",
    "attention": "attn.ops",
    "attention_varlen": "attn.ops",
    "attention_with_kvcache": "attn.with_kvcache",
    "convert": "conversion",
    "errors": "errors",
    "gate": "row_ops",
    "gate_quantize": "row_ops",
    "gemm": "ops",
    "interleave": "weights",
    "last_kernel": "ops",
    "load": "kernelset",
    "nn": "nn",
    "quantize_rows": "row_ops",
    "quantize_weight": "row_ops",
    "rms_norm": "row_ops",
    "rms_norm_quantize": "row_ops",
    "rope": "rope_ops",
    "rope_frequencies": "rope_ops",
    "rope_to_cache": "rope_ops",
    "smooth": "smoothing",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'gemmsmith' has no attribute {name!r}")
    try:
        module = importlib.import_module(f"gemmsmith.{_HOMES[name]}")
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        from gemmsmith.errors import MissingPackageError

        message = f"gemmsmith.{name} needs torch: pip install torch"
        raise MissingPackageError(message, name="torch") from None
    found = module if _HOMES[name] == name else getattr(module, name)
    globals()[name] = found  # the next use is a look into a dictionary
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
