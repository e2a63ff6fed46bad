"""Widths of Hopper's tensor-core instruction, as CuTe declares them."""

from __future__ import annotations

from gemmsmith.spec import KernelSpec

COMMON_WIDTHS = (8, 16, 32, 64, 96, 128, 192, 256)
"""Widths that CuTe always declares; others cost a compiler run seconds and must be asked for."""


def has_rare_width(spec: KernelSpec) -> bool:
    """Return whether ``spec`` needs an instruction of none of :data:`COMMON_WIDTHS`."""
    return spec.arch.api == "3.x" and spec.device_tile.n not in COMMON_WIDTHS
