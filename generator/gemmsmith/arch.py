"""The GPU architectures, one row each.

Facts per row are from NVIDIA's CUDA C++ Programming Guide (compute capabilities) and from what
CUTLASS 4.2 instantiates. A new architecture is a new row.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field
from typing import Literal

from gemmsmith.dtypes import BF16, FP16, FP32, DType
from gemmsmith.errors import UnknownArchitectureError

Schedule = Literal["multistage", "warp_specialized", "pingpong", "cooperative"]
Store = Literal["smem", "tma", "direct"]


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """What one GPU architecture offers to a tensor-core GEMM."""

    name: str
    """Target name, for example ``sm_90a``."""
    suffix: str
    """The name's form inside kernel names, for example ``sm90a``."""
    capability: tuple[int, int]
    """CUDA compute capability (major, minor) of the devices that run it."""
    nickname: str
    """The generation's name, a legal spelling too."""
    gencode: str
    """Value of nvcc's ``-gencode``."""
    smem_per_block: int
    """Shared memory that one block may use, in bytes."""
    api: Literal["2.x", "3.x"]
    """CUTLASS programming model of its kernels."""
    inputs: tuple[DType, ...]
    """Element types that its tensor cores take."""
    accumulators: dict[str, tuple[DType, ...]] = field(hash=False)
    """Accumulator types for each input type's name."""
    outputs: tuple[DType, ...]
    """Element types that the epilogues store."""
    instruction: tuple[int, int, int]
    """Tensor-core instruction (m, n, k) for 16-bit inputs; on sm_90a n is a step of its width."""
    schedules: tuple[Schedule, ...]
    """Main-loop schedules that have a template."""
    stores: tuple[Store, ...]
    """Ways in which an epilogue writes its tile."""
    clusters: bool
    """Whether thread-block clusters exist."""
    first_toolkit: tuple[int, int]
    """First CUDA toolkit (major, minor) that can target it."""
    last_toolkit: tuple[int, int] | None = None
    """Last CUDA toolkit that can target it; None where all newer ones can."""
    sass_instruction: str
    """Start of the tensor-core instruction's name in the machine code."""


SM_80 = Architecture(
    name="sm_80",
    suffix="sm80",
    capability=(8, 0),
    nickname="ampere",
    gencode="arch=compute_80,code=sm_80",
    smem_per_block=166_912,
    api="2.x",
    inputs=(FP16, BF16),
    accumulators={"fp16": (FP32, FP16), "bf16": (FP32,)},
    outputs=(FP16, BF16, FP32),
    instruction=(16, 8, 16),
    schedules=("multistage",),
    stores=("smem",),
    clusters=False,
    first_toolkit=(11, 4),
    sass_instruction="HMMA.16816",
)
SM_90A = Architecture(
    name="sm_90a",
    suffix="sm90a",
    capability=(9, 0),
    nickname="hopper",
    gencode="arch=compute_90a,code=sm_90a",
    smem_per_block=232_448,
    api="3.x",
    inputs=(FP16, BF16),
    accumulators={"fp16": (FP32, FP16), "bf16": (FP32,)},
    outputs=(FP16, BF16, FP32),
    instruction=(64, 8, 16),
    schedules=("warp_specialized", "pingpong", "cooperative"),
    stores=("tma", "direct"),
    clusters=True,
    first_toolkit=(12, 0),
    sass_instruction="HGMMA.64x",
)

ARCHITECTURES: tuple[Architecture, ...] = (SM_80, SM_90A)


def _spellings(row: Architecture) -> tuple[str, ...]:
    major, minor = row.capability
    digits = row.name.removeprefix("sm_")
    return (row.name, row.suffix, digits, f"{major}.{minor}", f"{major}.{minor}a", row.nickname)


def parse_architecture(word: str) -> Architecture:
    """Return the row that ``word`` names: ``sm_90a``, ``sm90a``, ``90a``, ``9.0``, ``hopper``.

    Raises:
        UnknownArchitectureError: where no row answers to ``word``; ``sm_90`` (without ``a``) is
            taken as sm_90a, because wgmma and TMA kernels exist for that target alone.
    """
    lowered = str(word).strip().lower()
    for row in ARCHITECTURES:
        spellings = _spellings(row)
        if lowered in spellings or lowered + "a" in spellings[:3]:
            return row
    known = [spelling for row in ARCHITECTURES for spelling in _spellings(row)]
    digits = any(letter.isdigit() for letter in lowered)  # sm_70 is no misspelling of sm_80
    near = [] if digits else difflib.get_close_matches(lowered, known, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    names = ", ".join(row.name for row in ARCHITECTURES)
    raise UnknownArchitectureError(f"arch {word!r} is not known{hint} (known: {names})")


def architecture_of(capability: tuple[int, int]) -> Architecture:
    """Return the row whose kernels a device of compute capability ``(major, minor)`` runs.

    Raises:
        UnknownArchitectureError: where no row's machine code runs on such a device.
    """
    for row in ARCHITECTURES:
        if row.capability == capability:
            return row
    names = ", ".join(
        f"{row.name} ({row.capability[0]}.{row.capability[1]})" for row in ARCHITECTURES
    )
    raise UnknownArchitectureError(
        f"no kernels for compute capability {capability[0]}.{capability[1]} (have: {names})"
    )
