"""What a kernel costs and how it meets a problem, checked by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gemmsmith.arch import ARCHITECTURES, SM_80, SM_90A
from gemmsmith.cli.app import app
from gemmsmith.config import load_specs
from gemmsmith.errors import ArgumentError
from gemmsmith.explain import FLOP_PER_BYTE, WARPGROUPS, explain_problem, explain_spec
from gemmsmith.spec import Alignment, Cluster, KernelSpec, Tile

HOPPER: dict[str, Any] = {"arch": SM_90A, "tile": Tile(128, 256, 64), "schedule": "cooperative"}
LEAN: dict[str, Any] = {"schedule": "lean", "store": "smem"}
AMPERE: dict[str, Any] = {
    "arch": SM_80,
    "tile": Tile(128, 256, 64),
    "warp": Tile(64, 64, 64),
    "stages": 3,
    "schedule": "multistage",
    "store": "smem",
}


def test_a_2x_kernel() -> None:
    report = explain_spec(KernelSpec(**AMPERE))
    assert report.name == "gemm_bf16_rcr_128x256x64_w64x64_s3_sm80"
    assert (report.stages, report.stages_automatic, report.stages_that_fit) == (3, False, 3)
    assert (report.stage_bytes, report.epilogue_bytes) == (49_152, 0)
    assert (report.shared_memory, report.shared_memory_limit) == (147_456, 166_912)
    assert (report.accumulator_registers, report.threads) == (128, 256)
    assert report.device_tile == (128, 256, 64)


def test_a_3x_kernel_with_automatic_stages() -> None:
    report = explain_spec(KernelSpec(**HOPPER))
    assert (report.stages, report.stages_automatic, report.stages_that_fit) == (4, True, 4)
    assert report.epilogue_bytes == 2 * 128 * 32 * 2 + (128 + 256) * 2
    assert report.shared_memory == 4 * 49_152 + report.epilogue_bytes + 1024
    assert report.shared_memory <= report.shared_memory_limit == 232_448
    assert (report.accumulator_registers, report.threads) == (128, 384)


def test_swap_and_plain_warp_specialisation() -> None:
    spec = KernelSpec(arch=SM_90A, tile=Tile(16, 64, 64), schedule="warp_specialized", swap=True)
    report = explain_spec(spec)
    assert (report.device_tile, report.threads) == ((64, 16, 64), 256)
    assert report.accumulator_registers == 8


def test_a_lean_kernel() -> None:
    spec = KernelSpec(
        arch=SM_90A, tile=Tile(128, 128, 64), cluster=Cluster(2, 1), split_k=2, **LEAN
    )
    report = explain_spec(spec)
    assert (report.threads, report.accumulator_registers) == (288, 64)  # 2 warpgroups and a warp
    assert (report.stages, report.stage_bytes) == (7, 32_768)
    assert report.epilogue_bytes == 128 * (128 + 8) * 4
    assert report.shared_memory == 7 * 32_768 + 256  # sums take the place of the buffers
    met = explain_problem(spec, 256, 128 * 14, 4096, 132)
    assert (met.tiles, met.blocks, met.waves) == (28, 56, 56 / 116)
    assert met.wave_efficiency == pytest.approx(56 / 132)


@pytest.mark.parametrize(("n", "threads"), [(64, 160), (128, 288), (192, 416), (256, 288)])
def test_threads_of_lean_kernels(n: int, threads: int) -> None:
    spec = KernelSpec(arch=SM_90A, tile=Tile(16, n, 64), swap=True, **LEAN)
    assert explain_spec(spec).threads == threads


def test_every_architecture_and_schedule_has_its_figures() -> None:
    assert set(FLOP_PER_BYTE) == {row.name for row in ARCHITECTURES}
    assert set(WARPGROUPS) == set(SM_90A.schedules) - {"lean"}  # which has a warp that loads


def test_waves_of_a_static_kernel() -> None:
    spec = KernelSpec(**HOPPER)
    report = explain_problem(spec, 128 * 7, 256 * 19, 4096, 132)
    assert report.tiles == 133
    assert report.waves == pytest.approx(133 / 132)
    assert report.wave_efficiency == pytest.approx(133 / 264)
    assert report.tile_efficiency == 1.0
    assert (report.fits, report.misfit) == (True, "")
    full = explain_problem(spec, 128 * 12, 256 * 11, 4096, 132)
    assert (full.tiles, full.waves, full.wave_efficiency) == (132, 1.0, 1.0)


def test_stream_k_deals_steps_along_k() -> None:
    spec = KernelSpec(**HOPPER, scheduler="stream_k")
    report = explain_problem(spec, 128 * 7, 256 * 19, 4096, 132)
    steps = 133 * 64  # 4096 / 64 steps a tile; 65 for the busiest SM
    assert report.wave_efficiency == pytest.approx(steps / (65 * 132))


def test_tiles_are_rounded_up_to_clusters() -> None:
    spec = KernelSpec(**HOPPER, cluster=Cluster(2, 1))
    report = explain_problem(spec, 129, 256, 64, 132)
    assert report.tiles == 2
    assert explain_problem(spec, 100, 256, 64, 132).tiles == 2
    assert explain_problem(spec, 257, 257, 64, 132).tiles == 8
    assert report.tile_efficiency == pytest.approx(129 / 256)


def test_waves_count_the_multiprocessors_that_clusters_can_use() -> None:
    """132 SMs hold 15 clusters of eight: a wave is 120 tiles, as for the choice of a kernel."""
    spec = KernelSpec(
        arch=SM_90A, tile=Tile(64, 64, 64), schedule="warp_specialized", cluster=Cluster(1, 8)
    )
    one = explain_problem(spec, 64, 64 * 120, 64, 132)
    assert (one.tiles, one.waves) == (120, 1.0)
    assert one.wave_efficiency == pytest.approx(120 / 132)
    two = explain_problem(spec, 64, 64 * 121, 64, 132)
    assert (two.tiles, two.waves) == (128, 128 / 120)
    assert two.wave_efficiency == pytest.approx(128 / 264)
    tiny = explain_problem(spec, 64, 64 * 8, 64, 4)
    assert (tiny.waves, tiny.wave_efficiency) == (1.0, 1.0)


def test_intensity_and_bound() -> None:
    spec = KernelSpec(**HOPPER)
    decode = explain_problem(spec, 1, 4096, 4096, 132)
    assert decode.intensity == pytest.approx(2 * 4096**2 / (2 * (4096**2 + 2 * 4096)))
    assert decode.bound == "memory"
    prefill = explain_problem(spec, 4096, 4096, 4096, 132)
    assert prefill.intensity == pytest.approx(4096 / 3)
    assert prefill.bound == "math"


@pytest.mark.parametrize(
    ("layout", "size", "operand"),
    [
        ("rcr", (8, 8, 36), "a: K=36 is not a multiple of 8"),
        ("rcr", (8, 50257, 768), "d: N=50257 is not a multiple of 8"),
        ("rrr", (8, 12, 64), "b: N=12 is not a multiple of 8"),
        ("ccr", (4, 64, 64), "a: M=4 is not a multiple of 8"),
    ],
)
def test_a_misfit_names_the_operand(layout: Any, size: tuple[int, int, int], operand: str) -> None:
    report = explain_problem(KernelSpec(**HOPPER, layout=layout), *size, sm_count=132)
    assert not report.fits
    assert report.misfit.startswith(operand)


def test_a_smaller_alignment_fits() -> None:
    spec = KernelSpec(**AMPERE, alignment=Alignment(2, 2, 1))
    assert explain_problem(spec, 3, 5, 6, 108).fits
    assert not explain_problem(spec, 3, 5, 7, 108).fits


def test_empty_problems_have_no_tiles() -> None:
    report = explain_problem(KernelSpec(**HOPPER), 0, 256, 64, 132)
    assert (report.tiles, report.waves, report.wave_efficiency) == (0, 0.0, 0.0)
    empty = explain_problem(KernelSpec(**HOPPER), 128, 256, 0, 132)
    assert (empty.tiles, empty.tile_efficiency, empty.intensity) == (1, 0.0, 0.0)
    nothing = explain_problem(KernelSpec(**HOPPER), 0, 0, 0, 132)
    assert nothing.bound == "memory"


@pytest.mark.parametrize(
    ("size", "words"),
    [
        ((-1, 1, 1, 132), "m is -1; it must be 0 or more"),
        ((1, 1, 1, 0), "sm_count is 0; it must be 1 or more"),
        ((1, 2**31, 1, 132), "n is 2147483648; it must be 2147483647 or less"),
    ],
)
def test_sizes_out_of_range_are_refused(size: tuple[int, int, int, int], words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        explain_problem(KernelSpec(**HOPPER), *size)


def test_naming_a_file_is_the_promise_of_a_constant_b(tmp_path: Path) -> None:
    file = tmp_path / "one.yaml"
    file.write_text(
        "families:\n  - {name: own, arch: sm_90a, dtype: bf16, schedule: lean, swap: true,"
        " tile: [16, 64, 64], dependent_launch: true, constant_b: true}\n"
    )
    told = CliRunner().invoke(app, ["explain", str(file), "--problem", "8", "4608", "3584"])
    assert told.exit_code == 0
    assert "cannot take" not in told.stdout
    told = CliRunner().invoke(app, ["explain", str(file), "--problem", "8", "4608", "100"])
    assert "cannot take the problem: a: K=100 is not a multiple of 8" in told.stdout
    (spec,) = load_specs(file)
    assert "pass constant_b=True" in explain_problem(spec, 8, 4608, 3584, 132).misfit
    assert explain_problem(spec, 8, 4608, 3584, 132, constant_b=True).misfit == ""
