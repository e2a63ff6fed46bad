"""What ``gemmsmith which`` says, with a table and without, and that it needs no torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import gemmsmith
from gemmsmith.cli.app import app
from gemmsmith.config import load_specs
from gemmsmith.dtypes import BF16
from gemmsmith.kinds import first_fitting, kind_of
from gemmsmith.problem import packed_problem
from gemmsmith.resources import configs_dir
from gemmsmith.spec import KernelSpec
from gemmsmith.tables import forget_tables, own_tables
from gemmsmith.tuned import TORCH
from tuned_data import entry, table, timing

KERNELS = """
families:
  - name: mine
    arch: sm_90a
    schedule: cooperative
    dtype: [bf16, fp16]
    kernels:
      - tile: [128, 128, 64]
      - tile: [128, 256, 64]
"""


pytestmark = pytest.mark.usefixtures("no_tables")


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gemmsmith.nvml.devices", lambda: ())
    monkeypatch.setattr("gemmsmith.software.devices", lambda: ())


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.yaml"
    path.write_text(KERNELS)
    return path


def specs(file: Path) -> tuple[KernelSpec, ...]:
    return load_specs(file, arch=["sm_90a"])


def asked(*words: object) -> dict[str, Any]:
    forget_tables()
    result = CliRunner().invoke(app, ["which", *map(str, words), "--json"])
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_without_a_table_the_estimate_chooses_and_says_what_binds(file: Path) -> None:
    told = asked(8192, 8192, 8192, file)
    assert (told["gpu"], told["sm_count"]) == ("NVIDIA H200", 132)
    assert told["source"] == "estimate"
    assert told["choice"] == told["candidates"][0]["kernel"]
    assert [each["us"] for each in told["candidates"]] == sorted(
        each["us"] for each in told["candidates"]
    )
    assert told["candidates"][0]["bound"] == "tensor cores"
    assert asked(16, 57344, 8192)["candidates"][0]["bound"] == "HBM"
    assert told["fitting"] == 2
    assert told["misfits"] == []
    assert asked(8, 50257, 768, file)["misfits"] == [
        ["d: N=50257 is not a multiple of 8, which the kernel's 16 B accesses need", 2]
    ]


def test_estimates_are_said_to_rank_only(file: Path) -> None:
    command = ["which", "8192", "8192", "8192", str(file)]
    text = CliRunner().invoke(app, command).stdout
    assert "\n2 kernels fit; by estimate (for ranking only, not times)\n" in text
    file.write_text(KERNELS.replace("      - tile: [128, 256, 64]\n", ""))
    text = CliRunner().invoke(app, command).stdout
    assert "\n1 kernel fits; by estimate (for ranking only, not times)\n" in text


def test_a_known_gpu_brings_its_architecture() -> None:
    told = asked(512, 4096, 4096, "--gpu", "NVIDIA A100-SXM4-80GB")
    assert (told["gpu"], told["sm_count"]) == ("NVIDIA A100-SXM4-80GB", 108)
    assert told["candidates"][0]["kernel"].endswith("_sm80")
    told = asked(512, 4096, 4096, "--gpu", "NVIDIA A100-PCIE-40GB", "--sms", 108)
    assert told["candidates"][0]["kernel"].endswith("_sm80")
    told = asked(512, 4096, 4096, "--gpu", "NVIDIA H800", "--sms", 132)  # unknown: a Hopper
    assert not told["candidates"][0]["kernel"].endswith("_sm80")


def test_torch_takes_untimed_calls_that_leave_much_of_their_tiles_empty() -> None:
    """170 tokens are two tiles of 88, and 9,216 features 48 of 192 or 72 of 128: no full wave."""
    told = asked(170, 9216, 7168)
    assert (told["source"], told["choice"]) == ("estimate", TORCH)
    assert "170x9216x7168: the best, gemm_bf16_rcr_" in told["reason"]
    assert "gemmsmith tune --weight 9216x7168" in told["reason"]
    assert asked(140, 7168, 5120)["choice"].startswith("gemm_bf16_rcr_72x128")  # 112 blocks
    for m in (256, 3000, 8192):  # whole tiles, or so many that the last counts little
        assert asked(m, 4096, 4096)["choice"].startswith("gemm_bf16_rcr_"), m
    assert asked(300, 576, 576)["choice"].startswith("gemm_bf16_rcr_")  # too short to be judged


def test_types_that_no_kernel_of_the_hardware_takes_are_the_reason() -> None:
    told = asked(512, 4608, 3584, "--arch", "sm_70", "--sms", "80")
    assert told["reason"] == "no kernel fits: none here for sm_70 computes bf16 to bf16"


def test_limits_have_the_names_that_the_hardware_has() -> None:
    names = {
        row: set(asked(512, 4096, 4096, "--arch", row)["candidates"][0]["limits"])
        for row in ("sm_80", "sm_90a")
    }
    assert names["sm_80"] ^ names["sm_90a"] == {"TMA", "loads"}
    assert "loads" in names["sm_80"]


def test_who_names_kernels_gets_them_whatever_the_estimate_says(file: Path) -> None:
    assert asked(300, 7168, 5120, file)["choice"].startswith("gemm_bf16_rcr_128x")


def test_an_entry_is_shown_with_its_timings_and_bucket(file: Path) -> None:
    small, large = specs(file)[0], specs(file)[2]
    assert (small.a, large.a) == (BF16, BF16)
    rows = [timing(large, 1.25, swizzle=4, low=1.24, high=1.26), timing(small, 1.1)]
    path = table(own_tables() / "h200.yaml", entry(rows))
    told = asked(66, 4096, 4096, file)
    assert (told["source"], told["choice"], told["bucket"]) == ("table", large.name, 64)
    assert told["tuning"] == {"raster": 0, "swizzle": 4, "splits": 0}
    assert told["table"] == str(path)
    assert [each["ratio"] for each in told["timings"]] == [1.25, 1.1]
    assert asked(66, 4096, 4096, file, "--sms", 114)["source"] == "estimate"
    beside = asked(76, 4096, 4096, file)
    assert (beside["source"], beside["bucket"]) == ("estimate", 64)
    assert "the entry does not count at 76 rows: other widths may fit better" in beside["notes"]
    text = CliRunner().invoke(app, ["which", "66", "4096", "4096", str(file)]).stdout
    assert f"choice: {large.name} swizzle=4, not built yet" in text
    assert f"     16.0 µs  1.250 [1.240, 1.260]  {large.name} swizzle=4" in text
    gone = timing(large, 1.25).model_copy(update={"kernel": "gone@12345678"})
    table(own_tables() / "h200.yaml", entry([gone]))
    assert not any("does not count" in note for note in asked(76, 4096, 4096, file)["notes"])


def test_who_promises_a_constant_weight_is_told_of_the_kernels_for_it(tmp_path: Path) -> None:
    path = tmp_path / "early.yaml"
    path.write_text(
        "families:\n  - {name: own, arch: sm_90a, dtype: bf16, schedule: lean, swap: true,"
        " dependent_launch: true, kernels: [{tile: [16, 64, 64]},"
        " {tile: [16, 64, 64], constant_b: true}]}\n"
    )
    late, early = specs(path)
    assert (late.constant_b, early.constant_b) == (False, True)
    table(own_tables() / "h200.yaml", entry([timing(late, 1.1)], m=16))
    told = asked(16, 4096, 4096, path)  # naming them is the promise
    assert (told["choice"], told["fitting"]) == (late.name, 2)
    assert "it was measured without constant_b" in told["notes"]
    assert told["call"] == "16x4096x4096 bf16 rcr constant"
    table(own_tables() / "h200.yaml", entry([timing(early, 1.2)], m=16, epilogue="constant"))
    told = asked(16, 4096, 4096, path)
    assert told["choice"] == early.name
    assert "it was measured without constant_b" not in told["notes"]
    assert asked(16, 4096, 4096, "--constant-b")["call"] == "16x4096x4096 bf16 rcr constant"
    assert asked(16, 4096, 4096)["call"] == "16x4096x4096 bf16 rcr plain"


def test_torch_is_the_choice_of_default_kernels_alone(file: Path) -> None:
    row = timing(specs(file)[0], 0.9)
    table(own_tables() / "h200.yaml", entry([row], winner=TORCH))
    told = asked(64, 4096, 4096)
    assert (told["source"], told["choice"]) == ("table", TORCH)
    assert told["reason"] == "torch is faster here, as the tuned table h200.yaml says"
    assert asked(64, 4096, 4096, file)["choice"] == row.name


def test_other_software_and_edited_kernels_are_noted(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small, large = specs(file)[0], specs(file)[2]
    edited = timing(large, 1.2).model_copy(update={"kernel": f"{large.name}@00000000"})
    gone = timing(large, 1.2).model_copy(update={"kernel": "gemm_gone@00000000"})
    table(own_tables() / "h200.yaml", entry([edited, gone, timing(small, 1.1)]), cutlass="4.1.0")
    told = asked(64, 4096, 4096, file)
    assert told["choice"] == small.name
    assert f"{large.name} was edited since it was timed" in told["notes"]
    assert "gemm_gone was timed and is not among these kernels" in told["notes"]
    assert any(
        note.startswith("h200.yaml was measured with cutlass 4.1.0, here is 4.2")
        for note in told["notes"]
    )


def test_what_cannot_be_asked_is_refused(file: Path) -> None:
    for words, part in [
        (["8", "64", "64", "--dtype", "fp8"], "use bf16, fp16 or int8"),
        (["8", "64", "64", "--dtype", "fp32"], "--dtype fp32: use bf16, fp16 or int8"),
        (["8", "64", "64", "--dtype", "int32"], "--dtype int32: use bf16, fp16 or int8"),
        (["8", "64", "64", "--layout", "tn"], "use one of rcr"),
        (["8", "64", "64", "--gpu", "NVIDIA H800"], "--sms"),
        (["8", "64", "64", "--arch", "sm_89"], "--sms"),
        (
            ["8", "64", "64", "--arch", "sm_90a", "--gpu", "NVIDIA A100-SXM4-80GB"],
            "NVIDIA A100-SXM4-80GB is of sm_80, --arch is sm_90a: drop one of them",
        ),
    ]:
        result = CliRunner().invoke(app, ["which", *words], env={"COLUMNS": "200"})
        assert result.exit_code == 2
        assert part in result.output


@pytest.mark.parametrize("sizes", [("8", "2147483648", "64"), ("1" + "0" * 400, "64", "64")])
def test_sizes_beyond_32_bits_are_refused_as_explain_refuses_them(
    file: Path, sizes: tuple[str, str, str]
) -> None:
    told = [
        CliRunner().invoke(app, words)
        for words in (["which", *sizes, str(file)], ["explain", str(file), "--problem", *sizes])
    ]
    assert told[0].output == told[1].output
    assert told[0].output.endswith("; it must be 2147483647 or less\n")
    assert [each.exit_code for each in told] == [1, 1]


def test_the_plainest_kind_that_fits_is_chosen_from_as_a_call_does() -> None:
    every = load_specs(configs_dir() / "kernels", arch=["sm_90a"])
    call = packed_problem(512, 4608, 3584, BF16)
    assert {kind_of(spec)[3] for spec in first_fitting(every, call)} == {False}
    silu = packed_problem(512, 4608, 3584, BF16, activation="silu")
    assert {kind_of(spec)[3] for spec in first_fitting(every, silu)} == {True}


def test_it_needs_no_torch(file: Path, tmp_path: Path) -> None:
    code = (
        "import sys, runpy\nsys.modules['torch'] = None\n"
        f"sys.argv = ['gemmsmith', 'which', '64', '4096', '4096', {str(file)!r}]\n"
        "runpy.run_module('gemmsmith', run_name='__main__')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(Path(gemmsmith.__file__).parent.parent)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "choice: gemm_bf16_rcr_128x" in done.stdout
