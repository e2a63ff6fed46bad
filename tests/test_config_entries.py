"""Each kernel that a file asks for is judged, beside those that are broken."""

from __future__ import annotations

from pathlib import Path

import pytest

from config_files import AMPERE, HOPPER, load, problem, problems, write
from gemmsmith.config import inspect_file, load_specs
from gemmsmith.errors import ConfigError


@pytest.mark.parametrize(
    ("word", "needs"),
    [("int8", "sm_75"), ("{a: int8, b: int8, acc: int32, d: int32}", "sm_75"), ("bf16", "sm_80")],
)
def test_c09_element_types_that_volta_lacks(tmp_path: Path, word: str, needs: str) -> None:
    text = AMPERE.replace("sm_80", "sm_70").replace("stages: 4", "stages: 2")
    found = problems(tmp_path, text.replace("fp16", word))
    assert found[0].line == 4
    dtype = "bf16" if word == "bf16" else "int8"
    assert found[0].message.endswith(
        f"sm_70 tensor cores take fp16, not {dtype}; {dtype} needs {needs} or later"
    )


def test_c09_bf16_accumulates_in_fp32_alone(tmp_path: Path) -> None:
    line, message = problem(tmp_path, HOPPER.replace("bf16", "{a: bf16, acc: fp16}"))
    assert line == 4
    assert message.endswith("dtype: bf16 products accumulate in fp32, not fp16; set acc: fp32")


@pytest.mark.parametrize(
    ("tile", "warp", "key", "message"),
    [
        ("[128, 128, 32]", "[48, 64, 32]", 5, "tile.m=128 is not a multiple of warp.m=48"),
        ("[128, 100, 32]", "[64, 64, 32]", 5, "tile.n=100 is not a multiple of warp.n=64"),
        ("[64, 64, 32]", "[128, 64, 32]", 5, "tile.m=64 is not a multiple of warp.m=128"),
        (
            "[128, 128, 24]",
            "[64, 64, 24]",
            6,
            "warp.k=24 is not a multiple of the instruction's 16",
        ),
    ],
)
def test_c11_divisions_of_the_tile(
    tmp_path: Path, tile: str, warp: str, key: int, message: str
) -> None:
    text = AMPERE.replace("[64, 64, 32]", warp).replace("[128, 128, 32]", tile)
    assert any(p.line == key and message in p.message for p in problems(tmp_path, text))


def test_c11_offers_a_legal_size(tmp_path: Path) -> None:
    line, message = problem(tmp_path, AMPERE.replace("[128, 128, 32]", "[128, 100, 32]"))
    assert line == 5
    assert message == (
        "family 'small', kernel on line 2 (sm_80 fp16 rcr 128x100x32): tile: tile.n=100 is not a"
        " multiple of warp.n=64; tile.n=128 is"
    )
    (spec,) = load(tmp_path, AMPERE.replace("[128, 128, 32]", "[128, 128, 32]"))
    assert spec.tile.n == 128


def test_c12_shared_memory_at_load(tmp_path: Path) -> None:
    text = AMPERE.replace("[128, 128, 32]", "[128, 256, 64]").replace(", 32]", ", 64]")
    line, message = problem(tmp_path, text)
    assert line == 7
    assert message.endswith(
        "stages: 128x256x64 with stages 4 needs 196,608 B of shared memory, sm_80 has 166,912;"
        " at most 3 stages fit: 147,456 B"
    )
    (spec,) = load(tmp_path, HOPPER.replace("bf16", "fp16") + "    stages: 4\n")
    assert spec.stages == 4


@pytest.mark.parametrize("cluster", ["[2, 1, 1]", "[2, 1]"])
def test_c14_clusters_on_ampere(tmp_path: Path, cluster: str) -> None:
    line, message = problem(tmp_path, AMPERE + f"    cluster: {cluster}\n")
    assert line == 8
    assert "cluster [2, 1] needs sm_90a; sm_80 has no clusters" in message


def test_c14_schedules_of_hopper_on_ampere(tmp_path: Path) -> None:
    line, message = problem(tmp_path, AMPERE + "    schedule: pingpong\n")
    assert line == 8
    assert "sm_80 has multistage, not pingpong; set schedule: multistage" in message


@pytest.mark.parametrize(
    ("cluster", "message"),
    [
        ("[3, 1, 1]", "cluster.m=3; 1, 2, 4 and 8 have kernels"),
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


def test_c15_row_by_row_is_a_layout_of_16_bit_kernels(tmp_path: Path) -> None:
    (spec,) = load(tmp_path, AMPERE + "    layout: rrr\n")
    assert spec.layout == "rrr"


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
