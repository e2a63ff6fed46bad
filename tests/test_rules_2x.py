"""What holds for the kernels of architectures before Hopper, and for int8 on them."""

from __future__ import annotations

from typing import Any

import pytest

from gemmsmith.arch import SM_70, portable
from gemmsmith.dtypes import BF16, FP32, INT8, INT32
from gemmsmith.spec import Alignment, KernelSpec, Tile
from rule_data import AMPERE, HOPPER, INTEGERS, VOLTA, objections


@pytest.mark.parametrize(
    ("tile", "warp", "words"),
    [
        ((128, 128, 32), (48, 64, 32), "tile.m=128 is not a multiple of warp.m=48"),
        ((128, 100, 32), (64, 64, 32), "tile.n=100 is not a multiple of warp.n=64"),
        ((64, 128, 32), (128, 64, 32), "tile.m=64 is not a multiple of warp.m=128"),
        ((128, 128, 24), (64, 64, 24), "warp.k=24 is not a multiple of the instruction's 16"),
        ((128, 128, 24), (64, 64, 16), "tile.k=24 is not a multiple of warp.k=16"),
    ],
)
def test_c11_failed_divisions(tile: tuple[int, ...], warp: tuple[int, ...], words: str) -> None:
    found = objections(AMPERE, tile=Tile(*tile), warp=Tile(*warp))
    assert words in [objection.reason for objection in found]


@pytest.mark.parametrize(
    ("base", "fields", "words"),
    [
        (VOLTA, {"stages": 3}, "stages: sm_70 has no cp.async: a main loop has 2 stages, not 3"),
        (
            VOLTA,
            {"tile": Tile(128, 128, 64), "warp": Tile(64, 64, 64)},
            "tile: tile.k=64 of fp16: 32 has a conflict-free layout in shared memory on sm_70",
        ),
        (VOLTA, {"a": BF16, "b": BF16, "d": BF16}, "not bf16; bf16 needs sm_80 or later"),
        (VOLTA, {"d": BF16}, "dtype: sm_70 stores fp16, fp32 from fp16, not bf16; set d: fp16"),
        (INTEGERS, {"layout": "rrr"}, "use b: col (store the weight as [N, K]): layout: rcr"),
        (INTEGERS, {"layout": "ccc", "bias": False}, "use a: row: layout: rcc"),
        (INTEGERS, {"acc": FP32}, "int8 products accumulate in int32, not fp32; set acc: int32"),
        (INTEGERS, {"d": FP32}, "sm_80 stores int32, fp16, bf16, int8 from int8, not fp32"),
        (INTEGERS, {"tile": Tile(128, 128, 32), "warp": Tile(64, 64, 32)}, "64 or 128 has a"),
        (INTEGERS, {"alignment": Alignment(2, 16, 4)}, "a power of two from 4 to 16 is legal"),
        (
            INTEGERS,
            {"d": INT8, "residual": True, "alignment": Alignment(16, 16, 16)},
            "epilogue: a residual of 8 bits has no scale; set epilogue: {residual: false}",
        ),
        (
            {**INTEGERS, "bias": False, "d": INT8},
            {"alignment": Alignment(16, 16, 2)},
            "d: int32 sums are stored as int8 by 4 or 8 or 16 elements, not 2; set d: 4",
        ),
        (
            {**INTEGERS, "bias": False, "d": INT8},
            {"warp": Tile(64, 32, 64), "alignment": Alignment(16, 16, 16)},
            "stores of 16 elements need warp.n=64 or more, not 32; set d: 8, or warp.n=64",
        ),
        (
            {**HOPPER, "a": INT8, "b": INT8, "acc": INT32, "d": INT32},
            {"tile": Tile(128, 128, 80), "alignment": Alignment(16, 16, 4)},
            "tile.k=80 is not a multiple of the instruction's 32; tile.k=64 is",
        ),
    ],
)
def test_rules_of_older_architectures_and_int8(
    base: dict[str, Any], fields: dict[str, Any], words: str
) -> None:
    found = "\n".join(str(objection) for objection in objections(base, **fields))
    assert words in found


def test_legal_kernels_of_older_architectures_and_int8() -> None:
    assert KernelSpec(**VOLTA).name == "gemm_fp16_rcr_128x128x32_w64x64_s2_sm70"
    assert KernelSpec(**INTEGERS).name == "gemm_int8_outint32_rcr_128x128x64_w64x64_s4_sm80"
    narrow = {**INTEGERS, "d": INT8, "bias": False, "alignment": Alignment(16, 16, 16)}
    assert KernelSpec(**narrow).name == "gemm_int8_rcr_128x128x64_w64x64_s4_nobias_sm80"
    there = KernelSpec(**{**VOLTA, "arch": portable(SM_70)})
    assert there.name == "gemm_fp16_rcr_128x128x32_w64x64_s2_sm70_on_sm90"
