"""Tiles, stages, clusters and schedules that a file asks for are judged, on loading."""

from __future__ import annotations

from pathlib import Path

import pytest

from config_files import AMPERE, HOPPER, load, problem, problems, write
from gemmsmith.config import load_specs, skipped_entries


@pytest.mark.parametrize(
    ("tile", "warp", "told", "tile_told", "warp_told"),
    [
        (
            "[128, 128, 32]",
            "[48, 64, 32]",
            [
                (5, "tile: tile.m=128 is not a multiple of warp.m=48"),
                (
                    6,
                    "warp: warp.m=48 is not proven; warp tiles are 32 or 64 wide; set warp.m=64",
                ),
            ],
            "[128, 128, 32]",
            "[64, 64, 32]",
        ),
        (
            "[128, 100, 32]",
            "[64, 64, 32]",
            [(5, "tile: tile.n=100 is not a multiple of warp.n=64; tile.n=128 is")],
            "[128, 128, 32]",
            "[64, 64, 32]",
        ),
        (
            "[128, 100, 32]",
            "",
            [(5, "tile: tile.n=100 is not a multiple of warp.n=64; tile.n=128 is")],
            "[128, 128, 32]",
            "",
        ),
        (
            "[64, 64, 32]",
            "[64, 128, 32]",
            [
                (5, "tile: tile.n=64 is not a multiple of warp.n=128"),
                (
                    6,
                    "warp: warp.n=128 is not proven; warp tiles are 32 or 64 wide; set warp.n=64",
                ),
            ],
            "[64, 128, 32]",
            "[64, 64, 32]",
        ),
        (
            "[32, 128, 32]",
            "[64, 64, 32]",
            [(5, "tile: tile.m=32 is not a multiple of warp.m=64; tile.m=64 is")],
            "[64, 128, 32]",
            "[64, 64, 32]",
        ),
        (
            "[128, 128, 24]",
            "[64, 64, 24]",
            [
                (6, "warp: warp.k=24 is not a multiple of the instruction's 16; warp.k=32 is"),
                (
                    5,
                    (
                        "tile: tile.k=24 of fp16: 32 or 64 has a conflict-free layout in shared"
                        " memory on sm_80; set tile.k=32"
                    ),
                ),
            ],
            "[128, 128, 32]",
            "[64, 64, 32]",
        ),
    ],
)
def test_c11_failed_divisions_are_named_and_the_nearest_legal_tile_is_offered(
    tmp_path: Path,
    tile: str,
    warp: str,
    told: list[tuple[int, str]],
    tile_told: str,
    warp_told: str,
) -> None:
    def text(tile: str, warp: str) -> str:
        keys = "families:\n  - name: f\n    arch: sm_80\n    dtype: fp16\n"
        return keys + f"    tile: {tile}\n" + (f"    warp: {warp}\n" if warp else "")

    found = problems(tmp_path, text(tile, warp))
    assert set(told) <= {(p.line, p.message.split("): ", 1)[1]) for p in found}
    (spec,) = load(tmp_path, text(tile_told, warp_told))
    assert str(list(spec.tile)) == tile_told


def test_c11_offers_a_legal_size(tmp_path: Path) -> None:
    line, message = problem(tmp_path, AMPERE.replace("[128, 128, 32]", "[128, 100, 32]"))
    assert line == 5
    assert message == (
        "family 'small', kernel on line 2 (sm_80 fp16 rcr 128x100x32): tile: tile.n=100 is not a"
        " multiple of warp.n=64; tile.n=128 is"
    )
    (spec,) = load(tmp_path, AMPERE.replace("[128, 128, 32]", "[128, 128, 32]"))
    assert spec.tile.n == 128


@pytest.mark.parametrize(
    ("arch", "limit", "fitting"),
    [
        ("sm_75", "65,536", "only 1 stage fits, 49,152 B; tile k 32 halves it"),
        ("sm_80", "166,912", "at most 3 stages fit: 147,456 B"),
        ("sm_86", "101,376", "at most 2 stages fit: 98,304 B"),
        ("sm_89", "101,376", "at most 2 stages fit: 98,304 B"),
    ],
)
@pytest.mark.parametrize("warp", ["", "    warp: [64, 64, 64]\n"])
def test_c12_shared_memory_at_load(
    tmp_path: Path, arch: str, limit: str, fitting: str, warp: str
) -> None:
    text = "families:\n  - name: f\n    dtype: fp16\n    tile: [128, 256, 64]\n    stages: 4\n"
    text += f"    arch: {arch}\n{warp}"
    found = [(p.line, p.message) for p in problems(tmp_path, text)]
    line, message = found[-1]
    assert line == 5
    assert message == (
        f"family 'f', kernel on line 2 ({arch} fp16 rcr 128x256x64): stages: 128x256x64 with"
        f" stages 4 needs 196,608 B of shared memory, {arch} has {limit}; {fitting}"
    )
    assert len(found) == 1 or arch == "sm_75"  # which has no cp.async: stages and tile k, too


def test_c12_the_same_tile_is_legal_on_hopper(tmp_path: Path) -> None:
    text = "families:\n  - {name: f, dtype: fp16, tile: [128, 256, 64], stages: 4, arch: ARCH}\n"
    (spec,) = load(tmp_path, text.replace("ARCH", "sm_90a"))
    assert (spec.tile, spec.stages, spec.schedule) == ((128, 256, 64), 4, "cooperative")
    path = write(tmp_path, text.replace("ARCH", "[sm_75, sm_80, sm_89, sm_90a]"))
    assert [spec.arch.name for spec in load_specs(path)] == ["sm_90a"]
    assert [entry.arch.name for entry in skipped_entries(path)] == ["sm_75", "sm_80", "sm_89"]


@pytest.mark.parametrize("arch", ["sm_70", "sm_75", "sm_80", "sm_86", "sm_87", "sm_89"])
@pytest.mark.parametrize("cluster", ["[2, 1, 1]", "[2, 1]"])
def test_c14_clusters_need_hopper(tmp_path: Path, arch: str, cluster: str) -> None:
    text = AMPERE.replace("sm_80", arch).replace("stages: 4", "stages: 2")
    line, message = problem(tmp_path, text + f"    cluster: {cluster}\n")
    assert line == 8
    assert message.endswith(
        f"cluster: cluster [2, 1] needs sm_90a; {arch} has no clusters; set cluster: [1, 1]"
    )


@pytest.mark.parametrize("arch", ["sm_80", "sm_89"])
@pytest.mark.parametrize("schedule", ["pingpong", "cooperative", "warp_specialized"])
def test_c14_schedules_of_hopper_elsewhere(tmp_path: Path, arch: str, schedule: str) -> None:
    text = AMPERE.replace("sm_80", arch) + f"    schedule: {schedule}\n"
    line, message = problem(tmp_path, text)
    assert line == 8
    assert message.endswith(
        f"schedule: {arch} has multistage, not {schedule}, which needs sm_90a;"
        " set schedule: multistage"
    )


@pytest.mark.parametrize(
    ("cluster", "message"),
    [
        ("[3, 1, 1]", "cluster.m=3; 1, 2, 4 and 8 have kernels"),
        ("[4, 3, 1]", "cluster.n=3; 1, 2, 4 and 8 have kernels"),
        ("[4, 4, 1]", "[4, 4] is 16 blocks; 8 is the most"),
        ("[4, 4, 2]", "has 2 along its third axis; D has rows and columns only: write [m, n]"),
        ("[0, 1, 1]", "[0, 1] holds a number below 1"),
        ("[2]", "[2] has 1 entries; write cluster: [2, 1]"),
    ],
)
def test_c14_clusters_on_hopper(tmp_path: Path, cluster: str, message: str) -> None:
    found = problems(tmp_path, HOPPER + f"    cluster: {cluster}\n")
    assert all(p.line == 7 for p in found)
    assert message in found[0].message
