"""Widths of Hopper's tensor-core instruction, as CuTe declares them."""

from __future__ import annotations

from typing import NamedTuple

from gemmsmith.dtypes import INT8
from gemmsmith.spec import KernelSpec

COMMON_WIDTHS = (8, 16, 32, 64, 96, 128, 192, 256)
"""Widths that CuTe always declares; others cost a compiler run seconds and must be asked for."""


def has_rare_width(spec: KernelSpec) -> bool:
    """Return whether ``spec`` needs an instruction of none of :data:`COMMON_WIDTHS`."""
    return (
        spec.arch.api == "3.x"
        and spec.schedule != "lean"  # which writes its instruction itself
        and spec.device_tile.n not in COMMON_WIDTHS
    )


class Wgmma(NamedTuple):
    """One instruction of a lean kernel, as inline assembly spells it."""

    instruction: str
    registers: int
    """Sums in each thread."""
    constraint: str
    """How the compiler is told of a sum's register."""
    flags: str
    """What follows the operands: add to the sums, signs, no transposition."""


def wgmma(spec: KernelSpec) -> Wgmma:
    """Return the instruction for the tile of ``spec``, both operands in shared memory along K."""
    width = spec.device_tile.n
    start = f"wgmma.mma_async.sync.aligned.m64n{width}"
    if spec.a == INT8:
        return Wgmma(f"{start}k32.s32.s8.s8", width // 2, "r", "p")
    kind = {"fp16": "f16", "bf16": "bf16"}[spec.a.name]
    return Wgmma(f"{start}k16.f32.{kind}.{kind}", width // 2, "f", "p, 1, 1, 0, 0")
