"""The limits that the sweep steps over."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from gemmsmith.arch import SM_70, SM_75, SM_80, SM_86, SM_87, SM_89, SM_90A, Architecture
from gemmsmith.dtypes import BF16, FP16, FP32, INT8, INT32, DType
from gemmsmith.footprint import MAX_STAGES, stages_that_fit
from gemmsmith.spec import Alignment, Cluster, KernelSpec, Tile
from sweep_specs import Limit

Step = Callable[[KernelSpec], dict[str, Any]]
Fields = dict[str, Any]


def _ampere(name: str, key: str, step: Step, arch: Architecture = SM_80, **fixed: Any) -> Limit:
    return Limit(name=name, key=key, arch=arch, schedule="multistage", fixed=fixed, step=step)


def _hopper(name: str, key: str, step: Step, schedule: Any = "cooperative", **fixed: Any) -> Limit:
    return Limit(name=name, key=key, arch=SM_90A, schedule=schedule, fixed=fixed, step=step)


def _tile(**sides: int) -> Step:
    return lambda spec: {"tile": spec.tile._replace(**sides)}


def _warps(m: int, n: int, rows: int = 2, columns: int = 2) -> Step:
    """``rows`` x ``columns`` warps of m x n."""
    return lambda spec: {
        "warp": Tile(m, n, spec.tile.k),
        "tile": Tile(m * rows, n * columns, spec.tile.k),
    }


def _depth(k: int) -> Step:
    def step(spec: KernelSpec) -> Fields:
        warp = spec.warp and {"warp": spec.warp._replace(k=k)}
        return {"tile": spec.tile._replace(k=k), **(warp or {})}

    return step


def _aligned(**elements: int) -> Step:
    return lambda spec: {"alignment": spec.alignment._replace(**elements)}


def _fields(**fields: Any) -> Step:
    return lambda spec: fields


def _one_stage_more(spec: KernelSpec) -> Fields:
    return {"stages": min(stages_that_fit(spec), MAX_STAGES - 1) + 1}


def _with(arch: Architecture, dtype: DType, like: DType) -> Architecture:
    """Make believe that ``arch`` multiplies ``dtype`` as it does ``like``."""
    return replace(
        arch,
        instructions={**arch.instructions, dtype.name: arch.instructions[like.name]},
        sass={**arch.sass, dtype.name: arch.sass[like.name]},
    )


def _bf16(arch: Architecture) -> Step:
    return _fields(arch=_with(arch, BF16, FP16), a=BF16, b=BF16, acc=FP32, d=BF16)


_VOLTA_INT8 = _fields(
    arch=replace(SM_70, instructions={"int8": (8, 8, 16)}, sass={"int8": "IMMA"}),
    a=INT8,
    b=INT8,
    acc=INT32,
    d=INT32,
    layout="rcr",
    alignment=Alignment(16, 16, 4),
)

_PLAIN: Fields = {"layout": "rcr", "bias": False, "residual": False}
_BF16: Fields = {**_PLAIN, "a": BF16, "b": BF16, "acc": FP32, "d": BF16}
_FP16: Fields = {**_PLAIN, "a": FP16, "b": FP16, "acc": FP32, "d": FP16}
_INT8: Fields = {**_PLAIN, "a": INT8, "b": INT8, "acc": INT32, "d": INT32}
_INT8_BF16: Fields = {**_INT8, "d": BF16}
_INT8_OUT: Fields = {**_INT8, "d": INT8, "warp": Tile(32, 32, 64), "stages": 3}
_WIDEST: Fields = {"alignment": Alignment(8, 8, 8)}
_ALONE: Fields = {"cluster": Cluster(1, 1), "scheduler": "static", "swap": False}
_FEW: Fields = {**_FP16, **_WIDEST, "warp": Tile(32, 32, 32), "stages": 2}

LIMITS: tuple[Limit, ...] = (
    _ampere("shared memory", "stages", _one_stage_more, SM_80),
    _ampere("shared memory", "stages", _one_stage_more, SM_86),
    _ampere("shared memory", "stages", _one_stage_more, SM_87, a=INT8),
    _ampere("shared memory", "stages", _one_stage_more, SM_89, a=BF16),
    _ampere("shared memory", "stages", _warps(64, 64, 8, 1), SM_75, **_FP16, **_WIDEST),
    _ampere("row of a tile", "tile", _warps(32, 32, 1, 2), SM_70, a=FP16, layout="crr"),
    _ampere("loads of a tile", "warp", _warps(32, 32, 1, 8), SM_80, **_BF16, **_WIDEST),
    _ampere("registers of a block", "warp", _warps(64, 64, 4, 4), SM_80, **_BF16, stages=3),
    _ampere("tile.n not whole warps", "tile", _tile(n=96), warp=Tile(64, 64, 32), stages=3),
    _ampere("tile.m not whole warps", "tile", _tile(m=96), SM_75, warp=Tile(64, 64, 32), a=FP16),
    _ampere("tile below warp", "tile", _tile(m=32), SM_89, warp=Tile(64, 64, 32), a=BF16),
    _ampere("cp.async of 2 B", "alignment", _aligned(a=1), a=BF16, stages=3),
    _ampere("cp.async of 2 B", "alignment", _aligned(b=2), SM_87, **_INT8, stages=3),
    _ampere("loads of a thread", "alignment", _aligned(b=1), SM_86, a=FP16, stages=2,
            tile=Tile(32, 128, 64), warp=Tile(32, 64, 64)),
    _ampere("access of 32 B", "alignment", _aligned(a=16), SM_86, a=FP16, stages=3),
    _ampere("int8 not along K", "layout", _fields(layout="rrr"), SM_75, **_INT8,
            tile=Tile(128, 128, 64), warp=Tile(64, 64, 64)),
    _ampere("int8 not along K", "layout", _fields(layout="ccr"), SM_80, **_INT8, stages=3),
    _ampere("bf16 on Volta", "dtype", _bf16(SM_70), SM_70, **_FP16),
    _ampere("int8 on Volta", "dtype", _VOLTA_INT8, SM_70, **_FP16),
    _ampere("bf16 on Turing", "dtype", _bf16(SM_75), SM_75, **_FP16),
    _ampere("bf16 sums", "dtype", _fields(acc=FP16), **_BF16),
    _ampere("two input types", "dtype", _fields(b=FP16), SM_86, **_BF16),
    _ampere("stages without cp.async", "stages", _fields(stages=3), SM_75, a=FP16),
    _ampere("stages without cp.async", "stages", _fields(stages=3), SM_70),
    _ampere("depth of a tile", "tile", _depth(16), SM_80, **_FEW),
    _ampere("warp tile", "warp", _warps(128, 64), SM_80, **_BF16, **_WIDEST, stages=2),
    _ampere("warps of a block", "warp", _warps(32, 32, 8, 8), SM_80, **_FEW),
    _ampere("d wider than a warp's row", "alignment", _aligned(d=16), SM_89, **_INT8_OUT,
            tile=Tile(64, 64, 64)),
    _hopper("cooperative rows", "tile", _tile(m=192), **_BF16, **_ALONE, store="tma"),
    _hopper("pingpong rows", "tile", _tile(m=96), "pingpong", **_FP16, **_ALONE, store="tma"),
    _hopper("warp-specialised rows", "tile", _tile(m=32), "warp_specialized", **_BF16, **_ALONE),
    _hopper("wgmma width", "tile", _tile(n=264), **_BF16, **_ALONE),
    _hopper("wgmma width", "tile", _tile(n=8), "pingpong", **_BF16, **_ALONE, store="tma"),
    _hopper("wgmma depth", "tile", _tile(k=24), "pingpong", **_FP16, **_ALONE),
    _hopper("accumulators", "tile", _tile(m=128, n=256), "pingpong", **_BF16, **_ALONE),
    _hopper("cluster", "cluster", _fields(cluster=Cluster(3, 1)), **_BF16, tile=Tile(128, 128, 64),
            swap=False),
    _hopper("TMA of 8 B", "alignment", _aligned(a=4), "warp_specialized", **_BF16),
    _hopper("TMA store of 8 B", "alignment", _aligned(d=4), **_BF16, store="tma"),
    _hopper("int8 not along K", "layout", _fields(layout="rrr"), **_INT8, scheduler="static"),
    _hopper("stream-K schedule", "scheduler", _fields(scheduler="stream_k"), "pingpong",
            **_BF16, store="tma"),
    _hopper("shared memory", "stages", _one_stage_more, **_BF16, store="direct", stages=3),
    _hopper("bf16 sums", "dtype", _fields(acc=FP16), "warp_specialized", **_BF16),
    _hopper("lean rows", "tile", _tile(m=96), "lean", **_BF16, **_ALONE, split_k=1),
    _hopper("lean width", "tile", _tile(n=36), "lean", **_FP16, **_ALONE, split_k=1),
    _hopper("lean width of int8", "tile", _tile(n=40), "lean", **_INT8_BF16, **_ALONE),
    _hopper("lean registers", "tile", _tile(m=192, n=208), "lean", **_BF16, **_ALONE),
    _hopper("lean registers", "tile", _tile(m=256, n=144), "lean", **_BF16, **_ALONE),
    _hopper("lean depth", "tile", _tile(k=96), "lean", **_BF16, **_ALONE),
    _hopper("lean cluster", "cluster", _fields(cluster=Cluster(4, 4)), "lean", **_BF16,
            tile=Tile(64, 64, 64), split_k=1),
    _hopper("lean split of K", "split_k", _fields(split_k=16), "lean", **_BF16, **_ALONE),
    _hopper("uneven share of a tile", "cluster", _fields(cluster=Cluster(1, 3)), "lean", **_BF16,
            tile=Tile(64, 64, 64), split_k=1),
    _hopper("shared memory", "stages", _one_stage_more, "lean", **_BF16, tile=Tile(128, 128, 64),
            stages=3),
)  # fmt: skip
"""What the predicate refuses and what fails when forced: compiling, by its card or when called."""

CHOICES: tuple[Limit, ...] = (
    _ampere("one buffer", "stages", _fields(stages=1), **_FEW),
    _ampere("depth with bank conflicts", "tile", _depth(64), SM_75, **_FEW),
    _ampere("warp tile", "warp", _warps(16, 32), **_FEW),
    _ampere("warps of a block", "warp", _warps(32, 32, 1, 1), **_FEW),
    _hopper("stages", "stages", _fields(stages=MAX_STAGES + 1), "warp_specialized", **_BF16,
            **_ALONE, tile=Tile(64, 16, 64), store="direct"),
    # int8 through the ldmatrix iterator of 16-bit elements, which other tiles do not match
    _ampere("int8 not along K", "layout", _fields(layout="rrr"), SM_75, **_INT8,
            tile=Tile(64, 64, 64), warp=Tile(64, 32, 64)),
    # four of the sixteen parts of B are never loaded
    _ampere("loads of a tile", "warp", _warps(32, 64, 3, 2), SM_86, **_BF16, **_WIDEST, stages=3),
    # half of a warp's lanes are left with rows beyond the eight that it stores at a time
    _ampere("d wider than a warp's row", "alignment", _aligned(d=16), SM_89, **_INT8_OUT,
            tile=Tile(64, 32, 64)),
)  # fmt: skip
"""What the predicate refuses although it compiles and is not refused when called.

Slow, or not proven on integer data; the three with a comment must compute wrongly, as CUTLASS's
source has it.
"""
