"""Shared memory, stages and registers that kernels take, and what of them fits."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from gemmsmith.arch import SM_90A, Architecture
from gemmsmith.dtypes import BF16, FP16, FP32
from gemmsmith.errors import Objection
from gemmsmith.footprint import (
    MAX_STAGES,
    accumulator_registers,
    epilogue_bytes,
    lean_blocks,
    shared_memory,
    stage_bytes,
    stages_that_fit,
)
from gemmsmith.spec import Alignment, KernelSpec, Tile
from rule_data import AMPERE, HOPPER, LEAN, PINGPONG, objections


def test_c12_four_stages_do_not_fit_on_sm_80() -> None:
    fields: dict[str, Any] = {"tile": Tile(128, 256, 64), "warp": Tile(64, 64, 64)}
    (objection,) = objections(AMPERE, **fields, stages=4)
    assert objection == Objection(
        key="stages",
        reason="128x256x64 with stages 4 needs 196,608 B of shared memory, sm_80 has 166,912",
        fix="at most 3 stages fit: 147,456 B",
    )
    spec = KernelSpec(**{**AMPERE, **fields, "stages": 3})
    assert (stages_that_fit(spec), shared_memory(spec, 3), stage_bytes(spec)) == (
        3,
        147_456,
        49_152,
    )


def test_c12_four_stages_fit_on_sm_90a() -> None:
    spec = KernelSpec(**HOPPER, stages=4)
    assert stage_bytes(spec) * 4 == 196_608
    assert 196_608 < shared_memory(spec, 4) <= 232_448


def test_epilogue_bytes() -> None:
    assert epilogue_bytes(KernelSpec(**AMPERE)) == 0
    assert epilogue_bytes(KernelSpec(**HOPPER, store="direct")) == 0
    bias = (128 + 256) * 2
    staged = 128 * 32 * 2
    assert epilogue_bytes(KernelSpec(**HOPPER)) == 2 * staged + bias
    assert epilogue_bytes(KernelSpec(**HOPPER, bias=False)) == 2 * staged
    assert epilogue_bytes(KernelSpec(**HOPPER, residual=True)) == 4 * staged + bias


def test_shared_memory_of_a_block() -> None:
    loads = 2 * 49_152
    assert shared_memory(KernelSpec(**{**AMPERE, "tile": Tile(128, 128, 32)}), 4) == 4 * 16_384
    assert shared_memory(KernelSpec(**HOPPER), 2) == loads + 2 * 128 * 32 * 2 + 384 * 2 + 1024
    assert shared_memory(KernelSpec(**HOPPER, store="direct"), 2) == loads + 1024
    reused = KernelSpec(arch=SM_90A, tile=Tile(64, 128, 64), schedule="warp_specialized")
    assert shared_memory(reused, 2) == 2 * (64 + 128) * 2 * 64 + 1024


def test_accumulator_registers() -> None:
    assert accumulator_registers(KernelSpec(**AMPERE)) == 128
    assert accumulator_registers(KernelSpec(**HOPPER)) == 128
    assert accumulator_registers(KernelSpec(**PINGPONG)) == 96
    half: dict[str, Any] = {"a": FP16, "b": FP16, "acc": FP16, "d": FP16}
    assert accumulator_registers(KernelSpec(**PINGPONG, **half)) == 48
    assert accumulator_registers(KernelSpec(**AMPERE, **half)) == 64


@pytest.mark.parametrize(
    ("fields", "bytes_"),
    [
        ({"tile": Tile(128, 256, 64), "stages": 2}, 128 * (256 + 8) * 4),  # 2 stages: 98,304
        ({"tile": Tile(64, 24, 64), "stages": 2}, 2 * (64 + 24) * 128),
        ({"tile": Tile(64, 128, 64), "swap": True, "stages": 2}, 2 * (64 + 128) * 128),
        ({"tile": Tile(128, 64, 64), "swap": True, "stages": 2}, 2 * (64 + 128) * 128),
        ({"tile": Tile(64, 64, 64)}, 14 * (64 + 64) * 128),
        ({"tile": Tile(8, 64, 64), "swap": True}, MAX_STAGES * (64 + 8) * 128),
    ],
)
def test_shared_memory_of_lean_kernels(fields: dict[str, Any], bytes_: int) -> None:
    spec = KernelSpec(**{**LEAN, **fields})
    assert shared_memory(spec, spec.stages or stages_that_fit(spec)) == bytes_ + 256


@pytest.mark.parametrize(
    ("n", "swap", "pitch"), [(8, False, 8), (16, False, 40), (64, False, 72), (64, True, 68)]
)
def test_sums_of_lean_kernels_lie_in_rows_that_spread_over_banks(
    n: int, swap: bool, pitch: int
) -> None:
    spec = KernelSpec(**{**LEAN, "tile": Tile(64, n, 64), "swap": swap})
    assert epilogue_bytes(spec) == 64 * pitch * 4


@pytest.mark.parametrize(
    ("fields", "blocks"), [({}, 1), ({"stages": 6}, 2), ({"stages": 4}, 3), ({"stages": 2}, 6)]
)
def test_blocks_of_a_lean_kernel_that_share_a_multiprocessor(
    fields: dict[str, Any], blocks: int
) -> None:
    assert lean_blocks(KernelSpec(**{**LEAN, "tile": Tile(64, 64, 64), **fields})) == blocks


def sweep() -> list[dict[str, Any]]:
    """Kernels legal but for their number of stages, over both architectures."""
    ampere = [
        {**AMPERE, "tile": Tile(m, n, k), "warp": Tile(wm, wn, k), "d": d}
        for m in (64, 128, 256)
        for n in (64, 128, 256)
        for k in (32, 64)
        for wm in (32, 64)
        for wn in (32, 64)
        for d in (BF16, FP32)
        if 2 <= (m // wm) * (n // wn) <= 8 and min(m, n) * k * 2 >= 512 * (m // wm) * (n // wn)
    ]
    hopper = [
        {
            "arch": SM_90A,
            "tile": Tile(m, n, k),
            "schedule": schedule,
            "store": store,
            "residual": residual,
            "d": d,
        }
        for schedule, m in (("cooperative", 128), ("pingpong", 64), ("warp_specialized", 64))
        for n in (16, 48, 128, 192)
        for k in (16, 32, 64)
        for store in ("tma", "direct")
        for residual in (False, True)
        for d in (BF16, FP32)
    ]
    return ampere + hopper


def test_stages_that_fit_agrees_with_the_objections() -> None:
    """Each number of stages up to the largest that fits is legal, the next one is not."""
    counts = set()
    for fields in sweep():
        alignment = Alignment(8, 8, 16 // fields["d"].bytes)
        smallest = KernelSpec(**{**fields, "alignment": alignment, "stages": 2})
        most = stages_that_fit(smallest)
        counts.add(most)
        arch: Architecture = fields["arch"]
        for stages in range(2, most + 1):
            legal = dataclasses.replace(smallest, stages=stages)
            assert shared_memory(legal, stages) <= arch.smem_per_block
        (objection,) = objections(
            {**fields, "alignment": alignment},
            stages=most + 1,
        )
        assert objection.key == "stages"
        if most < MAX_STAGES:
            assert objection.fix.startswith(f"at most {most} stages fit: ")
            assert f"{shared_memory(smallest, most + 1):,} B" in objection.reason
            assert shared_memory(smallest, most + 1) > arch.smem_per_block
    assert min(counts) >= 2
    assert max(counts) == MAX_STAGES
