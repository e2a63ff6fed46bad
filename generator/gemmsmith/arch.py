"""The GPU architectures, one row each.

Facts per row are from NVIDIA's CUDA C++ Programming Guide (compute capabilities) and from what
CUTLASS 4.2 instantiates. A new architecture is a new row.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from gemmsmith.dtypes import BF16, FP16, FP32, INT8, INT32, DType
from gemmsmith.errors import UnknownArchitectureError

Schedule = Literal["multistage", "warp_specialized", "pingpong", "cooperative", "lean"]
Store = Literal["smem", "tma", "direct", "strip"]


@dataclass(frozen=True, kw_only=True)
class Multiprocessor:
    """What the blocks on one multiprocessor share."""

    shared_memory: int
    """Bytes of shared memory."""
    shared_memory_reserved: int
    """Bytes of it that the driver takes for each block."""
    shared_memory_unit: int = 128
    """Bytes by which it is handed out."""
    registers: int = 65_536
    """32-bit registers."""
    warps: int
    """Most warps that are resident at once."""
    blocks: int
    """Most blocks that are resident at once."""


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """What one GPU architecture offers to a tensor-core GEMM.

    Facts that depend on the element type of A and B are kept by that type's name.
    """

    name: str
    """Target name, for example ``sm_90a``."""
    suffix: str
    """The name's form inside kernel names, for example ``sm90a``."""
    capability: tuple[int, int]
    """CUDA compute capability (major, minor) of the devices that run it."""
    aliases: tuple[str, ...]
    """Spellings beside the number: the generation's name, well-known products."""
    gencode: str
    """Value of nvcc's ``-gencode``."""
    smem_per_block: int
    """Shared memory that one block may use, in bytes."""
    multiprocessor: Multiprocessor
    """What limits how many blocks run side by side."""
    api: Literal["2.x", "3.x"]
    """CUTLASS programming model of its kernels."""
    inputs: tuple[DType, ...]
    """Element types that its tensor cores take."""
    instructions: Mapping[str, tuple[int, int, int]] = field(hash=False)
    """Tensor-core instruction (m, n, k); on sm_90a n is a step of its width."""
    sass: Mapping[str, str] = field(hash=False)
    """Start of the tensor-core instruction's name in the machine code."""
    accumulators: Mapping[str, tuple[DType, ...]] = field(hash=False)
    """Types that products can be summed in, the usual one first."""
    outputs: Mapping[str, tuple[DType, ...]] = field(hash=False)
    """Types that the epilogues store."""
    schedules: tuple[Schedule, ...]
    """Main-loop schedules that have a template."""
    stores: tuple[Store, ...]
    """Ways in which an epilogue writes its tile."""
    async_copy: bool
    """Whether shared memory is filled without registers (cp.async, TMA); else 2 stages it is."""
    clusters: bool
    """Whether thread-block clusters exist."""
    dependent_launch: bool = False
    """Whether a kernel can start before the one ahead has ended (griddepcontrol)."""
    first_toolkit: tuple[int, int]
    """First CUDA toolkit (major, minor) that can target it."""
    last_toolkit: tuple[int, int] | None = None
    """Last CUDA toolkit that can target it; None where all newer ones can."""
    runs_on: str
    """Target that the kernels are compiled for; not ``name`` where made by :func:`portable`."""
    proves: str = ""
    """What a run of such kernels proves; empty for those on their own hardware."""


_FLOATS = (FP32, FP16)  # accumulators of fp16
_AMPERE_OUTPUTS = {
    "fp16": (FP16, BF16, FP32),
    "bf16": (BF16, FP16, FP32),
    "int8": (INT32, FP16, BF16, INT8),
}

SM_70 = Architecture(
    name="sm_70",
    suffix="sm70",
    capability=(7, 0),
    aliases=("volta", "v100"),
    gencode="arch=compute_70,code=sm_70",
    smem_per_block=98_304,
    multiprocessor=Multiprocessor(
        shared_memory=98_304,
        shared_memory_reserved=0,
        shared_memory_unit=256,
        warps=64,
        blocks=32,
    ),
    api="2.x",
    inputs=(FP16,),
    instructions={"fp16": (8, 8, 4)},
    sass={"fp16": "HMMA.884"},
    accumulators={"fp16": _FLOATS},
    outputs={"fp16": (FP16, FP32)},
    schedules=("multistage",),
    stores=("smem",),
    async_copy=False,
    clusters=False,
    first_toolkit=(11, 4),
    last_toolkit=(12, 9),
    runs_on="sm_70",
)
SM_75 = Architecture(
    name="sm_75",
    suffix="sm75",
    capability=(7, 5),
    aliases=("turing", "t4"),
    gencode="arch=compute_75,code=sm_75",
    smem_per_block=65_536,
    multiprocessor=Multiprocessor(
        shared_memory=65_536,
        shared_memory_reserved=0,
        shared_memory_unit=256,
        warps=32,
        blocks=16,
    ),
    api="2.x",
    inputs=(FP16, INT8),
    instructions={"fp16": (16, 8, 8), "int8": (8, 8, 16)},
    sass={"fp16": "HMMA.1688", "int8": "IMMA.8816"},
    accumulators={"fp16": _FLOATS, "int8": (INT32,)},
    outputs={"fp16": (FP16, FP32), "int8": (INT32, FP16, INT8)},
    schedules=("multistage",),
    stores=("smem",),
    async_copy=False,
    clusters=False,
    first_toolkit=(11, 4),
    runs_on="sm_75",
)
SM_80 = Architecture(
    name="sm_80",
    suffix="sm80",
    capability=(8, 0),
    aliases=("ampere", "a100"),
    gencode="arch=compute_80,code=sm_80",
    smem_per_block=166_912,
    multiprocessor=Multiprocessor(
        shared_memory=167_936, shared_memory_reserved=1024, warps=64, blocks=32
    ),
    api="2.x",
    inputs=(FP16, BF16, INT8),
    instructions={"fp16": (16, 8, 16), "bf16": (16, 8, 16), "int8": (16, 8, 32)},
    sass={"fp16": "HMMA.16816", "bf16": "HMMA.16816", "int8": "IMMA.16832"},
    accumulators={"fp16": _FLOATS, "bf16": (FP32,), "int8": (INT32,)},
    outputs=_AMPERE_OUTPUTS,
    schedules=("multistage",),
    stores=("smem",),
    async_copy=True,
    clusters=False,
    first_toolkit=(11, 4),
    runs_on="sm_80",
)
SM_86 = replace(
    SM_80,
    name="sm_86",
    suffix="sm86",
    capability=(8, 6),
    aliases=("a10", "a40", "rtx30"),
    gencode="arch=compute_86,code=sm_86",
    smem_per_block=101_376,
    multiprocessor=Multiprocessor(
        shared_memory=102_400, shared_memory_reserved=1024, warps=48, blocks=16
    ),
    runs_on="sm_86",
)
SM_87 = replace(
    SM_80,
    name="sm_87",
    suffix="sm87",
    capability=(8, 7),
    aliases=("orin",),
    gencode="arch=compute_87,code=sm_87",
    multiprocessor=Multiprocessor(
        shared_memory=167_936, shared_memory_reserved=1024, warps=48, blocks=16
    ),
    runs_on="sm_87",
)
SM_89 = replace(
    SM_80,
    name="sm_89",
    suffix="sm89",
    capability=(8, 9),
    aliases=("ada", "l4", "l40", "rtx40"),
    gencode="arch=compute_89,code=sm_89",
    smem_per_block=101_376,
    multiprocessor=Multiprocessor(
        shared_memory=102_400, shared_memory_reserved=1024, warps=48, blocks=24
    ),
    first_toolkit=(11, 8),
    runs_on="sm_89",
)
SM_90A = Architecture(
    name="sm_90a",
    suffix="sm90a",
    capability=(9, 0),
    aliases=("hopper", "h100", "h200"),
    gencode="arch=compute_90a,code=sm_90a",
    smem_per_block=232_448,
    multiprocessor=Multiprocessor(
        shared_memory=233_472, shared_memory_reserved=1024, warps=64, blocks=32
    ),
    api="3.x",
    inputs=(FP16, BF16, INT8),
    instructions={"fp16": (64, 8, 16), "bf16": (64, 8, 16), "int8": (64, 16, 32)},
    sass={"fp16": "HGMMA.64x", "bf16": "HGMMA.64x", "int8": "IGMMA.64x"},
    accumulators={"fp16": _FLOATS, "bf16": (FP32,), "int8": (INT32,)},
    outputs=_AMPERE_OUTPUTS,
    schedules=("warp_specialized", "pingpong", "cooperative", "lean"),
    stores=("tma", "direct", "strip", "smem"),
    async_copy=True,
    clusters=True,
    dependent_launch=True,
    first_toolkit=(12, 0),
    runs_on="sm_90a",
)

ARCHITECTURES: tuple[Architecture, ...] = (SM_70, SM_75, SM_80, SM_86, SM_87, SM_89, SM_90A)


def portable(row: Architecture, run_on: str = "sm_90") -> Architecture:
    """Return ``row`` with its kernels compiled for sm_90, so that a Hopper GPU can prove them.

    mma.sync code of older architectures means the same there, except Volta's instruction, which
    is emulated: the order of its fragments on Volta itself is not proven.

    Raises:
        UnknownArchitectureError: where the kernels are not of CUTLASS's 2.x model, or ``run_on``
            is not ``sm_90``.
    """
    if run_on != "sm_90":
        raise UnknownArchitectureError(f"run_on is {run_on!r}; sm_90 alone proves older kernels")
    if row.api != "2.x":
        raise UnknownArchitectureError(
            f"{row.name} kernels run on {row.name} alone; 2.x kernels can be run on sm_90"
        )
    return replace(
        row,
        suffix=f"{row.suffix}_on_sm90",
        capability=(9, 0),
        gencode="arch=compute_90,code=sm_90",
        first_toolkit=(11, 8),
        last_toolkit=None,
        runs_on="sm_90",
        proves="correctness only" if row is not SM_70 else "indexing, epilogue and layouts only",
    )


_NUMBER = re.compile(r"(?:sm_?)?(?P<major>[0-9]+)(?:\.(?P<minor>[0-9])0*)?(?P<a>a?)\Z")


def parse_architecture(word: str) -> Architecture:
    """Return the row that ``word`` names: ``sm_90a``, ``sm90a``, ``90a``, ``9.0``, ``hopper``.

    The number may be written with a point or without, and with ``sm``, ``sm_`` or nothing before
    it. Text that YAML made of a number is fine: 8.0, 80 and 8.60 name what they look like. sm_90
    (without ``a``) is sm_90a, because wgmma and TMA kernels exist for that target alone.

    Raises:
        UnknownArchitectureError: where no row answers to ``word``.
    """
    lowered = str(word).strip().lower()
    row = _numbered(lowered) or next((row for row in ARCHITECTURES if lowered in row.aliases), None)
    if row is None:
        names = ", ".join(row.name for row in ARCHITECTURES)
        raise UnknownArchitectureError(
            f"arch {word!r} is not known{_hint(lowered)} (known: {names})"
        )
    return row


def _numbered(lowered: str) -> Architecture | None:
    found = _NUMBER.match(lowered)
    if found is None:
        return None
    digits = found["major"] + (found["minor"] or "")
    exact = f"sm_{digits}{found['a']}"
    return next((row for row in ARCHITECTURES if row.name in (exact, f"sm_{digits}a")), None)


def _hint(lowered: str) -> str:
    """What may be meant, or is asked for and never made; empty where nothing comes near."""
    several = [word for word in re.split(r"[;,\s]+", lowered) if word]
    if len(several) > 1 and all(_numbered(word.removesuffix("+ptx")) for word in several):
        return "; name one architecture at a time, or write a list: [8.0, 9.0]"
    if lowered.endswith("+ptx") and (row := _numbered(lowered.removesuffix("+ptx"))):
        return f"; kernels are machine code without PTX: write {row.name}"
    if lowered.isdecimal():
        near = [row.name for row in ARCHITECTURES if lowered == str(row.capability[0])]
    elif number := re.search(
        r"[0-9]{2,}|[0-9]\.[0-9]", lowered
    ):  # sm_70 is no misspelling of sm_80
        near = [row.name] if (row := _numbered(number.group())) else []
    else:
        words = [word for row in ARCHITECTURES for word in (row.name, *row.aliases)]
        near = difflib.get_close_matches(lowered, words, n=1)
    return f"; did you mean {' or '.join(near)}?" if near else ""


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
