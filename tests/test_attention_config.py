"""Attention kernels in YAML files: read, judged, explained, listed and rendered by each verb."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from fakes import FakeNvcc
from gemmsmith.arch import SM_80, SM_90A
from gemmsmith.attn.config import inspect_attention, load_attention
from gemmsmith.attn.explain import explain_attention
from gemmsmith.attn.spec import AttentionSpec, AttentionTile
from gemmsmith.cli.app import app
from gemmsmith.config import load_kernels, load_specs
from gemmsmith.dtypes import BF16, FP16, INT8
from gemmsmith.errors import ConfigError, IllegalKernelError
from gemmsmith.spec_dict import spec_from_dict, spec_to_dict

ALONE = """\
attention:
  - name: mine
    arch: sm_90a
    dtype: [bf16, fp16]
    head_dim: 128
    kernels:
      - tile: [128, 128]
      - {tile: [128, 80], head_dim: [64, 256], stages: 2, schedule: cooperative}
"""
GEMM = """\
families:
  - {name: small, arch: sm_80, dtype: fp16, tile: [64, 64, 32], warp: [32, 32, 32], stages: 3}
"""
NAMES = [
    "attention_bf16_d128_128x128_s2_pp_sm90a",
    "attention_fp16_d128_128x128_s2_pp_sm90a",
    "attention_bf16_d64_128x80_s2_coop_sm90a",
    "attention_bf16_d256_128x80_s2_coop_sm90a",
    "attention_fp16_d64_128x80_s2_coop_sm90a",
    "attention_fp16_d256_128x80_s2_coop_sm90a",
]
SPEC = AttentionSpec(
    arch=SM_90A,
    dtype=BF16,
    head_dim=128,
    tile=AttentionTile(128, 128),
    schedule="pingpong",
    stages=2,
)


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of attention kernels alone, and an empty cache."""
    monkeypatch.setenv("GEMMSMITH_CACHE_DIR", str(tmp_path / "cache"))
    path = tmp_path / "mine.yaml"
    path.write_text(ALONE)
    return path


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def facts(*arguments: object) -> Any:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_lists_are_crossed_and_a_kernel_goes_before_its_family(file: Path) -> None:
    assert [spec.name for spec in load_attention(file)] == NAMES
    assert [entry.line for entry in inspect_attention(file)] == [7, 7, 8, 8, 8, 8]
    assert load_attention(file, arch=["sm_80"]) == ()
    assert load_kernels(file) == ((), load_attention(file))


def test_a_kernel_asked_for_twice_is_there_once_with_a_warning(file: Path) -> None:
    file.write_text(ALONE + "      - tile: [128, 128]\n")
    with pytest.warns(UserWarning, match=r"yaml:9: \S+ is already asked for at \S+yaml:7"):
        assert [spec.name for spec in load_attention(file)] == NAMES


def test_gemms_and_attention_of_one_file_are_both_there(file: Path) -> None:
    file.write_text(GEMM + ALONE)
    gemms, attention = load_kernels(file)
    assert ([spec.arch for spec in gemms], len(attention)) == ([SM_80], 6)
    assert load_kernels(file, arch=["sm_80"]) == (gemms, ())
    assert load_kernels(file, arch=["hopper"]) == ((), attention)
    with pytest.raises(ConfigError, match="has kernels for sm_80, sm_90a, none for sm_75"):
        load_kernels(file, arch=["sm_75"])
    assert [kernel["name"] for kernel in facts("list", file)["kernels"]] == [gemms[0].name, *NAMES]


def test_what_is_about_gemms_says_so(file: Path) -> None:
    with pytest.raises(ConfigError, match="asks for attention kernels alone; this is about GEMMs"):
        load_specs(file)
    assert run("which", 1, 64, 64, file).exit_code == 2


MISTAKES = [
    ("tile: [128, 128]", "tile: [128, 128], stages: 8", "stages", "558,080 B", "stages 3 fits"),
    ("tile: [128, 128]", "tile: [192, 128]", "tile", "192 registers", "tile [192, 80] fits"),
    ("tile: [128, 128]", "tile: [128, 200]", "tile", "200 keys", "192 is"),
    ("tile: [128, 128]", "tile: [100, 128]", "tile", "100 queries", "tile [128, 128] is"),
    ("tile: [128, 128]", "tile: [128, 128], head_dim: 100", "head_dim", "no kernel", "128 takes"),
    ("tile: [128, 128]", "tile: [128, 128], stages: 1", "stages", "below 2", "2 is legal"),
    ("[bf16, fp16]", "[bf16, int8]", "dtype", "take bf16 and fp16, none takes int8", ""),
    ("arch: sm_90a", "arch: sm_80", "schedule", "needs wgmma and TMA, which sm_80 lacks", ""),
]


@pytest.mark.parametrize(("old", "new", "key", "reason", "fix"), MISTAKES, ids=str)
def test_a_mistake_is_told_with_its_line_key_reason_and_the_nearest_edit(
    file: Path, old: str, new: str, key: str, reason: str, fix: str
) -> None:
    text = ALONE.replace("- tile: [128, 128]", "- {tile: [128, 128]}").replace(old, new, 1)
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_kernels(file)
    first = caught.value.problems[0]
    assert (new if key != "schedule" else "tile") in text.splitlines()[first.line - 1]
    assert f": {key}: " in first.message
    assert reason in first.message
    assert fix in first.message
    assert run("build", file).exit_code == 2
    told = run("explain", file)
    assert told.exit_code == 2
    assert reason in told.stdout


def test_the_edit_that_is_told_is_legal() -> None:
    assert replace(SPEC, stages=3)
    assert replace(SPEC, tile=AttentionTile(192, 80))
    for wrong in ({"stages": 4}, {"tile": AttentionTile(192, 96)}):
        with pytest.raises(IllegalKernelError):
            replace(SPEC, **wrong)  # type: ignore[arg-type]
    with pytest.raises(IllegalKernelError, match=r"takes \d+ registers.*lower the queries"):
        replace(SPEC, head_dim=256, tile=AttentionTile(192, 176))
    with pytest.raises(IllegalKernelError, match=r"stages: .*tile \[128, 80\] fits"):
        replace(SPEC, head_dim=256, tile=AttentionTile(128, 96))
    with pytest.raises(IllegalKernelError, match="dtype"):
        replace(SPEC, dtype=INT8)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (ALONE.replace("    dtype: [bf16, fp16]\n", ""), "key 'dtype' is missing"),
        (ALONE.replace("tile: [128, 128]", "stages: 2"), "'tile' is missing.*for example tile"),
        (ALONE.replace("head_dim: 128", "head_dims: 128"), "head_dims.*head_dim"),
        (ALONE.replace("cooperative", "coop"), "schedule.*cooperative"),
        (ALONE.replace("[128, 80]", "[128, 80, 64]"), "tile"),
        (ALONE + ALONE.partition("\n")[2], "two families are named 'mine'"),
    ],
    ids=["dtype", "tile", "unknown", "word", "numbers", "names"],
)
def test_what_cannot_be_read_is_told_once(file: Path, text: str, message: str) -> None:
    file.write_text(text)
    with pytest.raises(ConfigError, match=message) as caught:
        load_kernels(file)
    assert len(set(caught.value.problems)) == len(caught.value.problems)


def test_what_one_architecture_cannot_have_is_skipped_where_another_can(file: Path) -> None:
    hopper = "arch: [sm_90a, sm_80]\n    schedule: pingpong"
    file.write_text(ALONE.replace("arch: sm_90a", hopper))
    assert {spec.arch for spec in load_attention(file)} == {SM_90A}
    listed = facts("list", file)
    assert len(listed["kernels"]) == len(listed["skipped"]) == 6
    assert "needs wgmma and TMA, which sm_80 lacks" in listed["skipped"][0]["reason"]
    assert facts("list", file, "--arch", "sm_90a")["skipped"] == []
    assert "illegal" not in run("explain", file).stdout


def test_list_tells_each_kernel_with_its_place(file: Path) -> None:
    told = facts("list", file)["kernels"][2]
    assert (
        told.items()
        >= {
            "name": NAMES[2],
            "arch": "sm_90a",
            "dtype": "bf16",
            "head_dim": 64,
            "tile": [128, 80],
            "stages": 2,
            "schedule": "cooperative",
            "dependent_launch": True,
            "family": "mine",
            "file": str(file),
            "line": 8,
            "built": False,
            "library": None,
        }.items()
    )
    assert f"{file}:7" in run("list", file).stdout


def test_explain_tells_registers_and_shared_memory(file: Path) -> None:
    text = run("explain", file).stdout
    assert f"{file}:7: legal: {NAMES[0]}" in text
    assert "384 threads, 192 of 240 registers each that multiplies: 64 sums, 64 scores" in text
    assert "shared memory 164,864 of 232,448 B: 2 stages of keys and of values (3 fit)" in text
    resources = facts("explain", file)["kernels"][0]["resources"]
    assert (resources["registers"], resources["stages_that_fit"]) == (192, 3)
    wide = explain_attention(replace(SPEC, head_dim=80, dtype=FP16))
    # a row of 80 elements takes two of 64 in shared memory
    assert wide.shared_memory == explain_attention(SPEC).shared_memory


def test_render_prints_a_kernel_by_name(file: Path, tmp_path: Path) -> None:
    result = run("render", file, "--kernel", NAMES[3])
    assert result.exit_code == 0
    assert f"struct {NAMES[3]}_traits" in result.stdout
    assert "static constexpr int kTileKeys = 80;" in result.stdout
    assert f"struct {NAMES[0]}_traits" in run("render", NAMES[0]).stdout  # of the default ones
    assert f"did you mean {NAMES[0]}?" in run("render", NAMES[0][:-1]).output
    written = run("render", file, "-o", tmp_path / "sources")
    assert written.exit_code == 0
    assert {path.stem for path in (tmp_path / "sources").iterdir()} == set(NAMES)


def test_inspect_and_matrix_count_them(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = facts("inspect", file)["not_built"]
    assert [kernel["name"] for kernel in missing] == NAMES
    assert missing[0]["occupancy"]["blocks"] == 1
    monkeypatch.setenv("GEMMSMITH_NVCC", str(FakeNvcc(tmp_path / "13.0").path))
    cells = {cell["dtype"]: cell for cell in facts("matrix", file, "--plan")["cells"]}
    assert cells["bf16"]["missing"] == [name for name in NAMES if "bf16" in name]
    assert cells["fp16"]["state"] == "to build"
    assert cells["int8"]["state"] == "skipped"


def test_a_spec_survives_a_manifest() -> None:
    assert spec_from_dict(json.loads(json.dumps(spec_to_dict(SPEC)))) == SPEC
