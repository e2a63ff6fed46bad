"""The two real kernels that tests compile: one of each CUTLASS API, quick to build."""

from __future__ import annotations

from gemmsmith.arch import SM_80, SM_90A
from gemmsmith.dtypes import FP16, FP32
from gemmsmith.spec import Alignment, KernelSpec, Tile

HOPPER = KernelSpec(
    arch=SM_90A,
    tile=Tile(16, 64, 64),
    schedule="warp_specialized",
    store="direct",
    swap=True,
    stages=4,
    alignment=Alignment(8, 8, 1),
)
"""sm_90a, bf16, ``rcr``, rows of D at any address."""
AMPERE = KernelSpec(
    arch=SM_80,
    tile=Tile(64, 64, 32),
    warp=Tile(32, 32, 32),
    stages=3,
    schedule="multistage",
    store="smem",
    a=FP16,
    b=FP16,
    d=FP32,
    layout="rcc",
    bias=False,
    alignment=Alignment(8, 8, 1),
)
"""sm_80, fp16 to a column-major fp32 D."""
