"""Each kernel that a file asks for is judged, beside those that are broken."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from config_files import AMPERE, HOPPER, problem, problems, write
from gemmsmith.cli.app import app
from gemmsmith.config import inspect_file, load_specs
from gemmsmith.errors import ConfigError


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
