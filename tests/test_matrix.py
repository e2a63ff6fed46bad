"""The build matrix: what each cell says, and that the cache alone decides it."""

from __future__ import annotations

import dataclasses
import json
import platform
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from fake_tools import fake_gxx, lay_toolkit
from fakes import FakeNvcc, ampere, hopper, volta
from gemmsmith.arch import ARCHITECTURES, SM_70, SM_80, SM_87, SM_90A
from gemmsmith.cli.app import app
from gemmsmith.errors import GemmsmithError, UnknownArchitectureError
from gemmsmith.matrix import Cell, Matrix, make_matrix
from gemmsmith.matrix_table import read_matrix
from gemmsmith.resources import build_dir

SCRIPT = build_dir() / "toolchains" / "cuda-11.8.sh"
KERNELS = """\
families:
  - {name: one, arch: sm_80, dtype: bf16, kernels: [{tile: [64, 64, 32], warp: [32, 32, 32], %s}]}
"""


@pytest.fixture(autouse=True)
def nvcc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeNvcc:
    """A quick nvcc 13.0 as the usual one, no further toolkit, and an empty cache."""
    monkeypatch.setenv("GEMMSMITH_CACHE_DIR", str(tmp_path / "cache"))
    for name in ("CXX", "GEMMSMITH_CXX", "GEMMSMITH_NEVER_COMPILE", "GEMMSMITH_TOOLKITS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("gemmsmith.toolchains.made_toolkits", lambda: ())
    monkeypatch.setattr("gemmsmith.toolchain.find_binary_tool", lambda *_: None)
    made = FakeNvcc(tmp_path / "13.0")
    monkeypatch.setenv("GEMMSMITH_NVCC", str(made.path))
    return made


def cell(matrix: Matrix, arch: str, dtype: str) -> Cell:
    (found,) = [each for each in matrix.cells if (each.arch, each.dtype) == (arch, dtype)]
    return found


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["matrix", *map(str, arguments)])


def test_the_table_agrees_with_the_architectures() -> None:
    table = read_matrix()
    assert tuple(row.arch for row in table.rows) == ARCHITECTURES
    for row in table.rows:
        assert row.dtypes == tuple(dtype.name for dtype in row.arch.inputs)
        for release in row.releases:
            major, minor = map(int, release.split("."))
            assert row.arch.first_toolkit <= (major, minor)
            assert row.arch.last_toolkit is None or (major, minor) <= row.arch.last_toolkit
            assert release in table.ways
    assert table.ways["11.8"] == f"bash {SCRIPT}"
    assert [row.host for row in table.rows if row.host] == ["aarch64"]


def test_a_table_of_another_form_is_refused(tmp_path: Path) -> None:
    (tmp_path / "matrix.yaml").write_text("architectures: [{arch: sm_80}]\ntoolkits: []\n")
    with pytest.raises(GemmsmithError, match=r"matrix\.yaml is no build matrix: KeyError"):
        read_matrix(tmp_path / "matrix.yaml")


def test_plan_shows_each_state_and_compiles_nothing(nvcc: FakeNvcc) -> None:
    specs = [volta(), ampere(64), ampere(128), hopper()]
    make_matrix([ampere(64)])
    runs = nvcc.runs()
    matrix = make_matrix(specs, plan=True)
    assert nvcc.runs() == runs
    assert not matrix.failed
    assert matrix.lacks_toolkit
    half = cell(matrix, "sm_80", "bf16")
    assert (half.state, half.built, half.missing) == (
        "to build",
        (ampere(64).name,),
        (ampere(128).name,),
    )
    assert (half.toolkit, half.nvcc) == ("13.0", str(nvcc.path))
    said = {
        (each.arch, each.dtype): each.reason for each in matrix.cells if each.state == "skipped"
    }
    assert said["sm_70", "fp16"] == f"no CUDA 11.8 here: bash {SCRIPT}"
    assert said["sm_70", "int8"] == "sm_70 has no tensor cores for int8"
    assert said["sm_75", "bf16"] == "sm_75 has no tensor cores for bf16"
    assert said["sm_80", "fp16"] == "no kernel asks for it"
    assert len(matrix.cells) == len(ARCHITECTURES) * 3
    assert matrix.as_dict()["totals"] == {"built": 0, "to build": 2, "skipped": 19, "failed": 0}


def test_what_is_missing_gets_built_and_the_cache_says_so(nvcc: FakeNvcc) -> None:
    nvcc.fault("slow", ampere(64))
    matrix = make_matrix([ampere(64), ampere(128), hopper()], jobs=2)
    assert [each.state for each in matrix.cells if each.state != "skipped"] == ["built"] * 2
    made = cell(matrix, "sm_80", "bf16")
    assert made.built == (ampere(64).name, ampere(128).name)
    assert made.missing == ()
    assert 0.3 <= made.seconds < 60  # told in tenths
    assert 5_000 < made.size < 200_000
    runs = nvcc.runs()
    again = make_matrix([ampere(64), ampere(128), hopper()])
    assert again == matrix
    assert nvcc.runs() == runs


def test_a_failed_cell_tells_its_first_error_and_others_are_built(nvcc: FakeNvcc) -> None:
    nvcc.fault("broken", ampere(128))
    matrix = make_matrix([ampere(64), ampere(128), hopper()])
    failed = cell(matrix, "sm_80", "bf16")
    assert (failed.state, failed.built, failed.missing) == (
        "failed",
        (ampere(64).name,),
        (ampere(128).name,),
    )
    assert failed.reason.endswith('.cu(7): error: identifier "oops" is undefined')
    assert cell(matrix, "sm_90a", "bf16").state == "built"
    assert matrix.failed
    assert not make_matrix([hopper()], [SM_90A]).failed


def test_each_architecture_gets_its_toolkit(
    nvcc: FakeNvcc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = FakeNvcc(tmp_path / "11.8" / "bin", release="11.8.89")
    fake_gxx(old.folder / "g++-11", "11.3.0")
    monkeypatch.setenv("GEMMSMITH_TOOLKITS", str(tmp_path / "11.8"))
    matrix = make_matrix([volta(), ampere()])
    built = cell(matrix, "sm_70", "fp16")
    assert (built.state, built.toolkit, built.nvcc) == ("built", "11.8", str(old.path))
    assert (old.runs(), nvcc.runs()) == ([[volta().name]], [[ampere().name]])
    monkeypatch.delenv("GEMMSMITH_TOOLKITS")
    gone = cell(make_matrix([volta()], plan=True), "sm_70", "fp16")
    assert (gone.state, gone.nvcc) == ("built", "")  # the cache has it, whatever is installed


def test_one_architecture_by_two_toolkits(
    nvcc: FakeNvcc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = FakeNvcc(tmp_path / "11.8" / "bin", release="11.8.89")
    fake_gxx(old.folder / "g++-11", "11.3.0")
    monkeypatch.setenv("GEMMSMITH_TOOLKITS", str(tmp_path / "11.8"))
    (row,) = [row for row in read_matrix().rows if row.arch is SM_80]
    table = dataclasses.replace(
        read_matrix(), rows=(dataclasses.replace(row, releases=("13.0", "11.8")),)
    )
    matrix = make_matrix([ampere()], table=table)
    made = [(each.toolkit, each.state) for each in matrix.cells if each.dtype == "bf16"]
    assert made == [("13.0", "built"), ("11.8", "built")]
    assert (len(old.runs()), len(nvcc.runs())) == (1, 1)


def test_another_toolkit_than_the_tables_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GEMMSMITH_NVCC", str(FakeNvcc(tmp_path / "12.8", release="12.8.61").path))
    matrix = make_matrix([volta()], [SM_70], plan=True)
    states = {each.toolkit: each.state for each in matrix.cells if each.dtype == "fp16"}
    assert states == {"12.8": "to build", "11.8": "skipped"}


def test_a_toolkit_that_cannot_be_used_is_a_failure_even_in_a_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GEMMSMITH_CXX", str(fake_gxx(tmp_path / "g++-16", "16.1.0")))
    matrix = make_matrix([ampere()], [SM_80], plan=True)
    refused = cell(matrix, "sm_80", "bf16")
    assert refused.state == "failed"
    assert "CUDA 13.0 accepts gcc up to 15; found 16.1.0" in refused.reason
    assert matrix.failed


def test_run_on_sm_90_builds_variants_and_labels_them(nvcc: FakeNvcc) -> None:
    matrix = make_matrix([volta(), ampere(), hopper()], run_on="sm_90")
    old, usual = cell(matrix, "sm_70", "fp16"), cell(matrix, "sm_80", "bf16")
    assert old.note == "runs on sm_90: indexing, epilogue and layouts only"
    assert usual.note == "runs on sm_90: correctness only"
    assert (old.state, old.toolkit, usual.state) == ("built", "13.0", "built")
    assert old.built == (f"{volta().name}_on_sm90",)
    assert cell(matrix, "sm_90a", "bf16").reason == "sm_90a kernels run on sm_90a alone"
    assert {name for run in nvcc.runs() for name in run} == {*old.built, *usual.built}
    with pytest.raises(UnknownArchitectureError, match=r"--run-on sm_80: .* for sm_90 alone"):
        make_matrix([ampere()], run_on="sm_80")


@pytest.mark.skipif(platform.machine() == "aarch64", reason="this is such a host")
def test_an_aarch64_host_is_told() -> None:
    spec = dataclasses.replace(ampere(), arch=SM_87)
    found = cell(make_matrix([spec], plan=True), "sm_87", "bf16")
    assert found.note == (
        "device code only: a library that loads on its aarch64 host is built there"
    )


def test_the_verb_prints_and_ends_as_a_ci_wants(nvcc: FakeNvcc, tmp_path: Path) -> None:
    file = tmp_path / "one.yaml"
    file.write_text(KERNELS % "stages: 3")
    planned = run(file, "--plan")
    assert planned.exit_code == 0, planned.output
    assert "sm_80" in planned.stdout
    assert "1 to build" in planned.stdout
    assert "sm_90a" not in planned.stdout  # the file asks for none
    done = run(file, "--json")
    assert done.exit_code == 0, done.output
    said = json.loads(done.stdout)
    assert said["totals"] == {"built": 1, "to build": 0, "skipped": 2, "failed": 0}
    assert said["run_on"] is None
    assert [each["state"] for each in said["cells"]] == ["skipped", "built", "skipped"]
    assert "1 built" in run(file).stdout
    assert run(file, "--strict").exit_code == 0
    file.write_text(KERNELS % "stages: 4")
    (spec_name,) = json.loads(run(file, "--plan", "--json").stdout)["cells"][1]["missing"]
    (nvcc.folder / "broken").write_text(spec_name)
    broken = run(file)
    assert broken.exit_code == 1
    assert "1 of 1 failed" in broken.stdout
    assert "failed: gemm_bf16" in broken.stdout
    file.write_text(KERNELS % "stagess: 4")
    assert run(file).exit_code == 2
    assert run("--arch", "sm_70", "--plan").exit_code == 0


def test_strict_fails_where_a_toolkit_is_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "volta.yaml"
    file.write_text(
        "families:\n  - {name: v, arch: sm_70, dtype: fp16, kernels: "
        "[{tile: [128, 128, 32], warp: [64, 64, 32], stages: 2}]}\n"
    )
    assert run(file).exit_code == 0
    strict = run(file, "--strict")
    assert strict.exit_code == 1
    assert f"sm_70 fp16: skipped: because no CUDA 11.8 here: bash {SCRIPT}" in strict.stdout
    monkeypatch.setenv("GEMMSMITH_TOOLKITS", str(lay_toolkit(tmp_path / "11.8")))
    assert run(file, "--strict", "--plan").exit_code == 0


def test_a_cell_tells_why_its_kernels_cannot_exist(tmp_path: Path) -> None:
    file = tmp_path / "two.yaml"
    file.write_text(
        "families:\n"
        "  - {name: two, arch: [sm_75, sm_80], dtype: [fp16, int8], tile: [64, 64, 64],\n"
        "     per_arch: {sm_75: {tile: [64, 64, 32]}}}\n"
    )
    cells = json.loads(run(file, "--plan", "--json").stdout)["cells"]
    (turing,) = [each for each in cells if (each["arch"], each["dtype"]) == ("sm_75", "int8")]
    assert turing["state"] == "skipped"
    assert "tile.k=32 of int8: 64 has a conflict-free layout" in turing["reason"]
