"""What stands in for keys that a file leaves out."""

from __future__ import annotations

from pathlib import Path

import pytest

from config_files import load
from gemmsmith.arch import ARCHITECTURES, SM_70, SM_75, SM_80, SM_90A
from gemmsmith.config_defaults import default_output, default_schedule, stage_counts, warp_tiles
from gemmsmith.dtypes import BF16, FP16, INT8, INT32
from gemmsmith.spec import KernelSpec, Tile


@pytest.mark.parametrize(
    ("tile", "swap", "schedule"),
    [
        ((128, 256, 64), False, "cooperative"),
        ((256, 128, 64), False, "cooperative"),
        ((64, 256, 64), False, "pingpong"),
        ((192, 128, 64), False, "pingpong"),
        ((64, 128, 64), True, "cooperative"),
        ((128, 64, 64), True, "pingpong"),
    ],
)
def test_the_schedule_follows_the_side_of_wgmmas_rows(
    tile: tuple[int, int, int], swap: bool, schedule: str
) -> None:
    assert default_schedule(SM_90A, Tile(*tile), swap=swap) == schedule


def test_2x_architectures_have_one_schedule() -> None:
    rows = [row for row in ARCHITECTURES if row.api == "2.x"]
    assert {default_schedule(row, Tile(64, 64, 32), swap=False) for row in rows} == {"multistage"}


@pytest.mark.parametrize(
    ("m", "n", "warp"),
    [
        (256, 128, (64, 64)),  # 8 warps
        (128, 256, (64, 64)),
        (128, 128, (64, 64)),  # 4 warps
        (64, 128, (32, 64)),  # 2 x 2: 64x64 would be 2 warps, 64x32 1 x 4
        (128, 64, (64, 32)),
        (64, 64, (32, 32)),
        (256, 256, (64, 64)),  # 16 warps, the fewest there are
        (32, 128, (32, 32)),
        (64, 32, (32, 32)),  # 2 warps, the most there are
        (96, 64, (32, 64)),  # 3 warps
    ],
)
def test_the_warp_tile_makes_four_or_eight_warps(m: int, n: int, warp: tuple[int, int]) -> None:
    assert warp_tiles(Tile(m, n, 32))[0] == (*warp, 32)


def test_a_tile_that_no_warp_divides_keeps_one_to_be_refused_with() -> None:
    assert warp_tiles(Tile(128, 100, 32)) == ((64, 64, 32),)


def test_stages_without_cp_async_are_two() -> None:
    assert list(stage_counts(SM_80)) == [4, 3, 2]
    assert list(stage_counts(SM_70)) == list(stage_counts(SM_75)) == [2]


def test_sums_of_int8_stay_what_they_are() -> None:
    assert (default_output(INT8), default_output(FP16), default_output(BF16)) == (INT32, FP16, BF16)


def one(folder: Path, keys: str) -> KernelSpec:
    (spec,) = load(folder, f"families:\n  - {{name: f, {keys}}}\n")
    return spec


@pytest.mark.parametrize(
    ("arch", "keys", "stages"),
    [
        ("sm_80", "", 3),  # 4 x 49,152 B is over 166,912
        ("sm_86", "", 2),  # 98,304 of 101,376 B
        ("sm_87", "", 3),
        ("sm_89", "", 2),
        ("sm_89", ", stages: auto", 2),
        ("sm_80", ", alignment: {a: 1, b: 1, d: 1}", 2),  # cp.async copies 4 B or more
        ("sm_90a", "", None),
    ],
)
def test_as_many_stages_as_fit(tmp_path: Path, arch: str, keys: str, stages: int | None) -> None:
    spec = one(tmp_path, f"arch: {arch}, dtype: fp16, tile: [128, 256, 64]{keys}")
    assert spec.stages == stages


def test_what_is_given_is_kept(tmp_path: Path) -> None:
    spec = one(
        tmp_path,
        "arch: sm_80, dtype: fp16, tile: [128, 128, 32], warp: [64, 32, 32], stages: 2",
    )
    assert (spec.warp, spec.stages) == ((64, 32, 32), 2)
    spec = one(tmp_path, "arch: sm_90a, dtype: fp16, tile: [128, 128, 64], schedule: pingpong")
    assert spec.schedule == "pingpong"


@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_86", "sm_87", "sm_89", "sm_90a"])
def test_int8_gets_int32_sums_and_output(tmp_path: Path, arch: str) -> None:
    spec = one(tmp_path, f"arch: {arch}, dtype: int8, tile: [128, 128, 64]")
    assert (spec.a, spec.b, spec.acc, spec.d) == (INT8, INT8, INT32, INT32)
    assert spec.alignment == (16, 16, 4)
