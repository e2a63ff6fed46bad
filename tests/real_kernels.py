"""The real kernels that tests compile: of each kind, quick to build."""

from __future__ import annotations

from dataclasses import replace

from gemmsmith.arch import SM_80, SM_90A
from gemmsmith.dtypes import FP16, FP32, INT8, INT32
from gemmsmith.spec import Alignment, Cluster, KernelSpec, Tile

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
HOPPER_FP16 = replace(HOPPER, a=FP16, b=FP16, d=FP16)
HOPPER_INT8 = replace(
    HOPPER,
    a=INT8,
    b=INT8,
    acc=INT32,
    d=INT32,
    tile=Tile(16, 64, 128),
    alignment=Alignment(16, 16, 1),
)
HOPPER_DEPENDENT = replace(HOPPER, dependent_launch=True)
"""The same, started before the kernel ahead has ended."""
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
LEAN = KernelSpec(
    arch=SM_90A,
    tile=Tile(16, 64, 64),
    cluster=Cluster(1, 2),
    split_k=2,
    schedule="lean",
    store="smem",
    swap=True,
    residual=True,
)
"""sm_90a, bf16, ``rcr``, two blocks to a tile."""
LEAN_DEPENDENT = replace(
    LEAN,
    split_k=1,
    swap=False,
    tile=Tile(128, 24, 64),
    cluster=Cluster(2, 1),
    stages=4,
    residual=False,
    dependent_launch=True,
)
"""Tokens on the instruction's M side, a width of few, started before the one ahead has ended."""
LEAN_CONSTANT = replace(LEAN, dependent_launch=True, constant_b=True)
"""Reads B before the one ahead has ended."""
LEANS = (LEAN, LEAN_DEPENDENT, LEAN_CONSTANT)
EVERY = (AMPERE, HOPPER, HOPPER_FP16, HOPPER_INT8, HOPPER_DEPENDENT, *LEANS)
