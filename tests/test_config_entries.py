"""Each kernel that a file asks for is judged, beside those that are broken."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from config_files import AMPERE, HOPPER, load, problem, problems, write
from gemmsmith.cli.app import app
from gemmsmith.config import inspect_file, load_specs, skipped_entries
from gemmsmith.errors import ConfigError


@pytest.mark.parametrize(
    ("word", "needs"),
    [
        ("int8", "int8; int8 needs sm_75 or later"),
        ("{a: int8, b: int8, acc: int32, d: int32}", "int8; int8 needs sm_75 or later"),
        ("bf16", "bf16; bf16 needs sm_80 or later"),
        ("{a: bf16, b: bf16, acc: fp32, d: bf16}", "bf16; bf16 needs sm_80 or later"),
    ],
)
@pytest.mark.parametrize("keys", ["", "    warp: [64, 64, 32]\n    stages: 2\n"])
def test_c09_element_types_that_volta_lacks(
    tmp_path: Path, word: str, needs: str, keys: str
) -> None:
    text = "families:\n  - name: f\n    arch: sm_70\n    dtype: fp16\n    tile: [128, 128, 32]\n"
    line, message = problem(tmp_path, text.replace("fp16", word) + keys)
    assert line == 4
    assert message.endswith(f": dtype: sm_70 tensor cores take fp16, not {needs}")
    smallest = needs.split()[3]
    depth = text.replace("32]", "64]") if "int8" in word else text
    (spec,) = load(tmp_path, depth.replace("fp16", word).replace("sm_70", smallest))
    assert spec.arch.name == smallest
    (spec,) = load(tmp_path, text + keys)
    assert (spec.arch.name, spec.a.name) == ("sm_70", "fp16")


@pytest.mark.parametrize(
    ("kernel", "words"),
    [
        pytest.param(
            "arch: sm_70, dtype: int8, tile: [128, 128, 32]",
            "dtype: sm_70 tensor cores take fp16, not int8; int8 needs sm_75 or later",
            id="c09",
        ),
        pytest.param(
            "arch: sm_80, dtype: fp16, tile: [128, 100, 32], warp: [64, 64, 32]",
            "tile: tile.n=100 is not a multiple of warp.n=64; tile.n=128 is",
            id="c11",
        ),
        pytest.param(
            "arch: sm_80, dtype: fp16, tile: [128, 256, 64], stages: 4",
            "stages: 128x256x64 with stages 4 needs 196,608 B of shared memory, sm_80 has 166,912;"
            " at most 3 stages fit: 147,456 B",
            id="c12",
        ),
        pytest.param(
            "arch: sm_80, dtype: fp16, tile: [128, 128, 32], cluster: [2, 1, 1]",
            "cluster [2, 1] needs sm_90a; sm_80 has no clusters; set cluster: [1, 1]",
            id="c14",
        ),
        pytest.param(
            "arch: sm_90a, dtype: int8, tile: [128, 128, 64], layout: {a: row, b: row}",
            "layout: {'a': 'row', 'b': 'row'} does not fit; one of rcr, rrr, ccr, crr, rcc",
            id="c15-words",
        ),
        pytest.param(
            "arch: sm_90a, dtype: int8, tile: [128, 128, 64], layout: rrr",
            "layout: rrr: int8 instructions read both operands along K; use b: col (store the"
            " weight as [N, K]): layout: rcr",
            id="c15",
        ),
    ],
)
def test_c09_c11_c12_c14_c15_are_refused_before_a_compiler_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kernel: str, words: str
) -> None:
    mark = tmp_path / "started"
    nvcc = tmp_path / "bin" / "nvcc"
    nvcc.parent.mkdir()
    nvcc.write_text(f"#!/bin/sh\ntouch '{mark}'\n")
    nvcc.chmod(0o755)
    monkeypatch.setenv("GEMMSMITH_NVCC", str(nvcc))
    monkeypatch.setenv("GEMMSMITH_CACHE_DIR", str(tmp_path / "cache"))
    sound = "families:\n  - {name: f, arch: sm_80, dtype: fp16, tile: [128, 128, 32]}\n"
    CliRunner().invoke(app, ["build", str(write(tmp_path, sound))])
    assert mark.exists()  # a sound file gets as far as the compiler
    mark.unlink()
    wrong = write(tmp_path, f"families:\n  - {{name: f, {kernel}}}\n")
    for verb in ("build", "matrix", "export"):
        refused = CliRunner().invoke(app, [verb, str(wrong)])
        assert refused.exit_code == 2
        assert f"{wrong}:2: " in refused.output
        assert words in refused.output
    assert not mark.exists()


def test_c09_bf16_accumulates_in_fp32_alone(tmp_path: Path) -> None:
    line, message = problem(tmp_path, HOPPER.replace("bf16", "{a: bf16, acc: fp16}"))
    assert line == 4
    assert message.endswith("dtype: bf16 products accumulate in fp32, not fp16; set acc: fp32")


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


INT8 = """\
families:
  - name: f
    arch: ARCH
    dtype: int8
    layout: LAYOUT
    tile: [128, 128, 64]
"""
WEIGHT = "use b: col (store the weight as [N, K])"


@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_90a"])
@pytest.mark.parametrize(
    ("layout", "fix"),
    [
        ("rrr", f"{WEIGHT}: layout: rcr"),
        ("ccr", "use a: row: layout: rcr"),
        ("crr", f"use a: row and {WEIGHT}: layout: rcr"),
        ("rrc", f"{WEIGHT}: layout: rcc"),
    ],
)
def test_c15_int8_operands_are_contiguous_along_k(
    tmp_path: Path, arch: str, layout: str, fix: str
) -> None:
    found = problems(tmp_path, INT8.replace("ARCH", arch).replace("LAYOUT", layout))
    told = [(p.line, p.message.split("): ", 1)[1]) for p in found]
    assert (5, f"layout: {layout}: int8 instructions read both operands along K; {fix}") in told
    (spec,) = load(tmp_path, INT8.replace("ARCH", arch).replace("LAYOUT", "rcr"))
    assert (spec.a.name, spec.layout) == ("int8", "rcr")


@pytest.mark.parametrize("arch", ["sm_70", "sm_75", "sm_80", "sm_90a"])
@pytest.mark.parametrize("layout", ["rrr", "ccr", "crr", "rcr"])
def test_c15_fp16_takes_every_layout(tmp_path: Path, arch: str, layout: str) -> None:
    text = INT8.replace("ARCH", arch).replace("LAYOUT", layout).replace("int8", "fp16")
    (spec,) = load(tmp_path, text.replace("64]", "32]"))
    assert spec.layout == layout


def test_c15_a_layout_in_other_words(tmp_path: Path) -> None:
    line, message = problem(tmp_path, AMPERE + "    layout: {a: row, b: row}\n")
    assert line == 8
    assert "one of rcr, rrr, ccr, crr, rcc, rrc, ccc, crc does" in message


def test_all_files_of_a_folder_are_judged(tmp_path: Path) -> None:
    write(tmp_path, AMPERE.replace("stages: 4", "stages: 40"), "a.yaml")
    write(tmp_path, HOPPER.replace("bf16", "bf17"), "b.yaml")
    write(tmp_path, "families: [", "c.yaml")
    with pytest.raises(ConfigError) as caught:
        load_specs(tmp_path)
    places = [(Path(p.file).name, p.line) for p in caught.value.problems]
    assert places[:2] == [("a.yaml", 7), ("b.yaml", 4)]
    assert places[2][0] == "c.yaml"
    assert str(caught.value).startswith(f"{tmp_path / 'a.yaml'}:7: family 'small'")


def test_sound_kernels_are_judged_beside_broken_ones(tmp_path: Path) -> None:
    found = problems(
        tmp_path,
        """\
        families:
          - name: f
            arch: sm_90a
            dtype: bf16
            kernels:
              - {tile: [128, 192], schedule: pingpong}
              - {tile: [128, 200, 64], schedule: pingpong}
              - {tile: [128, 128, 64]}
              - {schedule: pingpong}
              - {tile: [128, 128, 64], schedule: pingpong}
        """,
    )
    assert [p.line for p in found] == [6, 7, 9]
    schema_error, illegal, no_tile = [p.message for p in found]
    assert schema_error == "tile: [128, 192] has 2 entries; write tile: [128, 128, 64]"
    assert illegal.startswith("family 'f', kernel on line 7 (sm_90a bf16 rcr 128x200x64): tile: ")
    assert no_tile == (
        "family 'f': key 'tile' is missing, here and in the family;"
        " for example tile: [128, 128, 64]"
    )


def test_an_objection_stands_at_the_key_of_the_kernel_or_family(tmp_path: Path) -> None:
    found = problems(
        tmp_path,
        """\
        families:
          - name: f
            arch: sm_90a
            dtype: bf16
            schedule: pingpong
            cluster: [3, 1]
            kernels:
              - tile: [128, 96, 64]
              - tile: [128, 96, 64]
                cluster: [5, 1]
        """,
    )
    assert {p.line for p in found} == {6, 10}


def test_inspect_keeps_illegal_kernels(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        """\
        families:
          - name: f
            arch: sm_90a
            dtype: bf16
            schedule: pingpong
            kernels:
              - {tile: [128, 192, 64]}
              - {tile: [256, 256, 64]}
        """,
    )
    legal, illegal = inspect_file(path)
    assert legal.spec is not None
    assert (legal.line, legal.family, legal.objections) == (7, "f", ())
    assert illegal.spec is None
    assert (illegal.line, illegal.title) == (8, "sm_90a bf16 rcr 256x256x64")
    (objection,) = illegal.objections
    assert (objection.key, illegal.lines) == ("tile", (8,))
    assert "keeps 512 accumulator registers a thread" in objection.reason
    with pytest.raises(ConfigError, match="unknown key 'x'"):
        inspect_file(write(tmp_path, HOPPER + "    x: 1\n"))


@pytest.mark.parametrize("kernel", ["{tile: [128, 192]}", "{tile: [128, 128, 64], 9: 1}"])
def test_a_familys_only_kernel_may_be_broken(tmp_path: Path, kernel: str) -> None:
    line, _ = problem(tmp_path, HOPPER + f"    kernels:\n      - {kernel}\n")
    assert line == 8
