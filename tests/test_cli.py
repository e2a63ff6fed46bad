"""The verbs: what they print, how they end, and that each runs as a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

import gemmsmith
from gemmsmith.cli.app import app

ROOT = Path(__file__).resolve().parent.parent

KERNELS = """\
families:
  - name: hopper_pair
    arch: sm_90a
    dtype: bf16
    schedule: cooperative
    cluster: [2, 1]
    kernels:
      - tile: [128, 256, 64]
      - tile: [128, 128, 64]
  - name: small
    arch: sm_80
    dtype: fp16
    kernels:
      - {tile: [64, 64, 32], warp: [32, 32, 32], stages: 3}
"""
SM_80 = "gemm_fp16_rcr_64x64x32_w32x32_s3_sm80"
SM_90A = [
    "gemm_bf16_rcr_128x256x64_c2x1_coop_sm90a",
    "gemm_bf16_rcr_128x128x64_c2x1_coop_sm90a",
]


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of three kernels, and an empty cache."""
    monkeypatch.setenv("GEMMSMITH_CACHE_DIR", str(tmp_path / "cache"))
    path = tmp_path / "kernels.yaml"
    path.write_text(KERNELS)
    return path


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def facts(*arguments: object) -> dict[str, Any]:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert isinstance(found, dict)
    return found


def process(*arguments: str, code: str = "") -> subprocess.CompletedProcess[str]:
    command = ["-c", code] if code else ["-m", "gemmsmith", *arguments]
    return subprocess.run(
        [sys.executable, *command],
        cwd=ROOT / "generator",
        capture_output=True,
        text=True,
        check=False,
    )


def test_module_prints_the_version() -> None:
    done = process("--version")
    assert (done.returncode, done.stdout) == (0, f"gemmsmith {gemmsmith.__version__}\n")


@pytest.mark.parametrize(
    "verb",
    [
        "doctor",
        "list",
        "explain",
        "render",
        "build",
        "inspect",
        "run",
        "which",
        "which-attention",
        "tune",
        "reduce",
        "bench",
        "demo",
        "export",
    ],
)
def test_every_verb_has_help(verb: str) -> None:
    result = run(verb, "--help")
    assert result.exit_code == 0, result.output
    assert verb in result.stdout


def test_help_imports_neither_torch_nor_the_compiling_modules() -> None:
    code = (
        "import sys, gemmsmith.cli\n"
        "try: sys.argv[1:] = ['--help']; gemmsmith.cli.main()\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'cutlass_library', 'jinja2', 'yaml', 'pydantic', 'gemmsmith.build'}\n"
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr)"
    )
    assert process(code=code).stderr == "[]\n"


def test_list_tells_each_kernel_with_its_place(file: Path) -> None:
    kernels = facts("list", file)["kernels"]
    assert [kernel["name"] for kernel in kernels] == [*SM_90A, SM_80]
    assert kernels[1] == {
        "name": SM_90A[1],
        "arch": "sm_90a",
        "dtype": {"a": "bf16", "b": "bf16", "acc": "fp32", "d": "bf16"},
        "layout": "rcr",
        "tile": [128, 128, 64],
        "warp": None,
        "stages": None,
        "cluster": [2, 1],
        "split_k": 1,
        "schedule": "cooperative",
        "scheduler": "static",
        "store": "tma",
        "swap": False,
        "dependent_launch": False,
        "constant_b": False,
        "bias": True,
        "residual": False,
        "alignment": {"a": 8, "b": 8, "d": 8},
        "family": "hopper_pair",
        "file": str(file),
        "line": 9,
        "built": False,
        "library": None,
    }


def test_list_keeps_to_the_architectures_asked_for(file: Path) -> None:
    kernels = facts("list", file, "--arch", "ampere")["kernels"]
    assert [kernel["name"] for kernel in kernels] == [SM_80]


def test_list_without_json_is_a_table(file: Path) -> None:
    lines = run("list", file).stdout.splitlines()
    assert lines[0].split() == ["KERNEL", "ARCH", "FAMILY", "WHERE", "BUILT"]
    assert lines[3].split() == [SM_80, "sm_80", "small", f"{file}:14", "no"]


def test_wrong_file_is_told_with_line_and_ends_with_two(file: Path) -> None:
    file.write_text(KERNELS.replace("cluster", "clutser"))
    result = run("build", file)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"error: {file}:6: ")
    assert "cluster" in result.stderr
    assert "Traceback" not in result.output


def test_debug_shows_where_an_error_comes_from(file: Path) -> None:
    file.write_text("families: 3\n")
    result = run("--debug", "list", file)
    assert type(result.exception).__name__ == "ConfigError"


def test_unknown_architecture_ends_with_two(file: Path) -> None:
    result = run("list", file, "--arch", "sm_91")
    assert result.exit_code == 2
    assert "sm_91" in result.stderr


def test_kernel_asked_for_twice_is_warned_about_in_a_sentence(file: Path) -> None:
    file.write_text(KERNELS + "      - {tile: [64, 64, 32], warp: [32, 32, 32], stages: 3}\n")
    result = run("list", file)
    assert result.exit_code == 0
    assert result.stderr.startswith(f"warning: {file}:15: {SM_80}")


def test_explain_counts_waves(file: Path) -> None:
    found = facts("explain", file, "--arch", "sm_90a", "--problem", 512, 4096, 4096, "--sms", 100)
    first = found["kernels"][0]
    assert first["legal"] is True
    assert first["resources"]["shared_memory_limit"] == 232_448
    assert first["problem"]["tiles"] == 64
    assert first["problem"]["waves"] == 0.64
    text = run("explain", file, "--problem", 512, 4096, 4096, "--sms", 100).stdout
    assert "64 tiles, 0.64 waves" in text


def test_explain_gives_the_reason_of_an_illegal_kernel_and_ends_with_two(file: Path) -> None:
    file.write_text(KERNELS.replace("[128, 256, 64]", "[100, 256, 64]"))
    result = run("explain", file, "--json")
    assert result.exit_code == 2
    kernels = json.loads(result.stdout)["kernels"]
    assert [kernel["legal"] for kernel in kernels] == [False, True, True]
    assert kernels[0]["objections"][0]["key"] == "tile"
    assert f"{file}:8: illegal: " in run("explain", file).stdout


def test_explain_says_why_a_problem_does_not_fit(file: Path) -> None:
    text = run("explain", file, "--arch", "sm_80", "--problem", 64, 64, 63).stdout
    assert "cannot take the problem: " in text


@pytest.mark.parametrize("verb", ["list", "explain", "render", "build"])
def test_a_file_without_kernels_of_the_architecture_is_told_so(file: Path, verb: str) -> None:
    result = run(verb, file, "--arch", "sm_89")
    message = f"error: {file}: has kernels for sm_90a, sm_80, none for sm_89\n"
    assert (result.exit_code, result.output) == (2, message)


def test_render_prints_one_kernel(file: Path) -> None:
    result = run("render", file, "--kernel", SM_80)
    assert result.exit_code == 0
    assert SM_80 in result.stdout
    assert facts("render", file, "--kernel", SM_80)["kernels"][0]["text"] == result.stdout


def test_render_takes_a_name_and_suggests_the_nearest(file: Path) -> None:
    result = run("render", file, "--kernel", SM_80.replace("s3", "s4"))
    assert result.exit_code == 1
    assert f"did you mean {SM_80}?" in result.stderr


def test_render_of_many_kernels_needs_a_folder(file: Path) -> None:
    result = run("render", file)
    assert result.exit_code == 2
    assert "-o DIR" in result.stderr


def test_render_writes_only_what_changed(file: Path, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    written = run("render", file, "-o", folder).stdout.split()
    assert written == [str(folder / f"{name}.cu") for name in (*SM_90A, SM_80)]
    before = [Path(name).stat().st_mtime_ns for name in written]
    run("render", file, "-o", folder)
    assert [Path(name).stat().st_mtime_ns for name in written] == before


def test_inspect_estimates_what_is_not_built(file: Path) -> None:
    seen = facts("inspect", file)
    assert seen["cards"] == []
    assert [kernel["name"] for kernel in seen["not_built"]] == [*SM_90A, SM_80]
    assert seen["not_built"][1]["occupancy"] == {
        "blocks": 1,
        "limited_by": ["registers", "shared memory"],
        "warps": 12,
        "warps_available": 64,
        "estimated": True,
    }
    told = run("inspect", file)
    assert "3 of 3 not built yet (gemmsmith build): ~ is an estimate" in told.stderr
    line = next(line for line in told.stdout.splitlines() if line.startswith(SM_90A[1]))
    assert line.split()[1:9] == ["~1", "registers", "and", "shared", "memory", "~12", "of", "64"]
    one = facts("inspect", file, "--arch", "sm_80")
    assert [kernel["name"] for kernel in one["not_built"]] == [SM_80]


def test_build_without_a_compiler_says_what_to_do(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GEMMSMITH_NVCC", "/no/such/nvcc")
    result = run("build", file)
    assert result.exit_code == 1
    assert "/no/such/nvcc" in result.stderr


@pytest.mark.nvcc
def test_build_makes_what_list_and_inspect_then_show(file: Path) -> None:
    built = facts("build", file, "--kernel", SM_80)
    assert [(kernel["name"], kernel["cached"]) for kernel in built["built"]] == [(SM_80, False)]
    assert built["failed"] == []
    library = built["built"][0]["library"]
    assert Path(library).is_file()
    listed = {kernel["name"]: kernel["library"] for kernel in facts("list", file)["kernels"]}
    assert listed == {SM_90A[0]: None, SM_90A[1]: None, SM_80: library}
    (card,) = facts("inspect", file, "--kernel", SM_80)["cards"]
    assert (card["threads"], card["stages"], card["shared_bytes"]) == (128, 3, 3 * 64 * 32 * 2 * 2)
    assert card["registers"] > 0
    assert card["occupancy"]["estimated"] is False
    assert 1 <= card["occupancy"]["blocks"] <= 6
    again = run("build", file, "--kernel", SM_80)
    assert again.stdout.startswith("0 compiled, 1 already there, 0 failed")


@pytest.mark.parametrize("place", ["taken", "/proc/x"])
def test_render_says_where_it_cannot_write(file: Path, place: str) -> None:
    (file.parent / "taken").write_text("mine")
    folder = file.parent / place
    result = run("render", file, "-o", folder)
    assert result.exit_code == 2
    assert isinstance(result.exception, SystemExit)
    assert f"-o {folder}" in " ".join(result.output.replace("│", "").split())


def test_the_benchmark_and_its_self_test_need_a_gpu_alike(
    monkeypatch: pytest.MonkeyPatch, file: Path
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    told = [run("bench", file), run("bench", "--self-test")]
    assert [result.exit_code for result in told] == [1, 1]
    (sentence,) = {result.output for result in told}
    assert sentence.startswith("error: a benchmark needs a GPU and a CUDA build of torch; ")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("--ffn", "llama3-8b", "--dtype", "bf16", "--model", "llama3-70b"),
            "error: --ffn names all that is measured: leave out --model, --dtype\n",
        ),
        (
            ("--epilogues", "llama3-8b", "--all-kernels"),
            "error: --epilogues names all that is measured: leave out --all-kernels\n",
        ),
        (
            ("--ffn", "llama3-8b", "--epilogues", "llama3-8b"),
            "error: --ffn names all that is measured: leave out --epilogues\n",
        ),
        (
            ("--grid", "llm", "--model", "llama3-8b", "--ffn", "llama3-8b"),
            "error: --grid names all that is measured: leave out --model, --ffn\n",
        ),
        (
            ("--layer", "llama3-8b", "--epilogues", "llama3-8b"),
            "error: --epilogues names all that is measured: leave out --layer\n",
        ),
        (
            ("--attention", "--layer", "llama3-8b", "--model", "llama3-8b"),
            "error: --layer names all that is measured: leave out --model, --attention\n",
        ),
        (
            ("--attention", "--dtype", "fp16"),
            "error: --attention names all that is measured: leave out --dtype\n",
        ),
        (
            ("--attention", "--m", "16"),
            "error: --attention has numbers of tokens of its own: leave out --m\n",
        ),
        (("--constant-b", "--ffn", "llama3-8b"), "error: --constant-b goes with --grid\n"),
        (
            ("--dtype", "fp32"),
            "error: --dtype fp32: use one of bf16, fp16, int8\n",
        ),
        (
            ("--dtype", "int8", "--all-kernels"),
            (
                "error: --all-kernels goes with bf16 and fp16: benchmarks/sweep.py times single"
                " int8 kernels\n"
            ),
        ),
    ],
)
def test_benchmarks_that_do_not_go_together_are_refused(
    words: tuple[str, ...], message: str
) -> None:
    result = run("bench", *words)
    assert (result.exit_code, result.output) == (1, message)


@pytest.mark.parametrize(
    "words",
    [
        ("--dtype", "s8"),
        ("--ffn", "llama3-8b"),
        ("--epilogues", "llama3-8b"),
        ("--layer", "llama3-8b"),
        ("--attention",),
        ("--dtype", "bf16"),
    ],
)
def test_every_benchmark_needs_a_gpu(
    monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    result = run("bench", *words)
    assert result.exit_code == 1
    assert result.output.startswith("error: a benchmark needs a GPU and a CUDA build of torch; ")


def test_the_demo_refuses_an_empty_prompt(file: Path) -> None:
    result = run("demo", "--prompt", "")
    assert (result.exit_code, result.output) == (
        1,
        "error: prompt is empty; give the beginning of a text\n",
    )
