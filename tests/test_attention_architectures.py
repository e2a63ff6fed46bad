"""One family of attention kernels for several architectures: what each gets by rule and apart."""

from __future__ import annotations

from pathlib import Path

import pytest

from gemmsmith.arch import SM_70, SM_75, SM_80, SM_90A, Architecture
from gemmsmith.attn.config import inspect_attention, load_attention
from gemmsmith.attn.defaults import default_schedule, default_stages
from gemmsmith.attn.spec import AttentionTile
from gemmsmith.config import load_kernels
from gemmsmith.errors import ConfigError


def write(folder: Path, keys: str, *kernels: str) -> Path:
    """Return a file with one family, and these kernels where there are any."""
    lines = ["attention:", "  - name: a", *(f"    {key}" for key in keys.split("; "))]
    if kernels:
        lines += ["    kernels:", *(f"      - {{{kernel}}}" for kernel in kernels)]
    path = folder / "several.yaml"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_schedule_and_stages_are_by_rule_on_each_architecture(tmp_path: Path) -> None:
    keys = "arch: [sm_75, sm_80, sm_90a]; dtype: [bf16, fp16]; head_dim: 64; tile: [64, 64]"
    file = write(tmp_path, keys)
    names = {spec.name.removeprefix("attention_") for spec in load_attention(file)}
    assert names == {
        "fp16_d64_64x64_s2_ms_sm75",
        *(f"{dtype}_d64_64x64_s4_ms_sm80" for dtype in ("bf16", "fp16")),
        *(f"{dtype}_d64_64x64_s2_pp_sm90a" for dtype in ("bf16", "fp16")),
    }
    skipped = [entry.reason for entry in inspect_attention(file) if entry.skipped]
    assert len(skipped) == 1
    assert "sm_75 tensor cores take fp16, not bf16" in skipped[0]


@pytest.mark.parametrize(("arch", "stages"), [("sm_70", 2), ("sm_80", 4), ("sm_89", 4)])
@pytest.mark.parametrize("given", ["", "; stages: auto"])
def test_multistage_has_its_own_stages(tmp_path: Path, arch: str, stages: int, given: str) -> None:
    keys = f"arch: {arch}; dtype: fp16; head_dim: 64; tile: [64, 64]; schedule: multistage"
    assert [spec.stages for spec in load_attention(write(tmp_path, keys + given))] == [stages]


@pytest.mark.parametrize(
    ("arch", "queries", "warps", "schedule"),
    [
        (SM_70, 32, False, "multistage"),
        (SM_80, 64, False, "multistage"),
        (SM_80, 8, False, "split_kv"),
        (SM_80, 64, True, "split_kv"),
        (SM_90A, 64, False, "pingpong"),
        (SM_90A, 8, True, "split_kv"),
    ],
    ids=str,
)
def test_the_tile_and_warps_tell_the_schedule(
    arch: Architecture, queries: int, warps: bool, schedule: str
) -> None:
    assert default_schedule(arch, AttentionTile(queries, 64), warps=warps) == schedule
    assert default_stages(SM_75, "multistage") == default_stages(SM_80, "split_kv") == 2


def test_per_arch_replaces_keys_of_one_architecture(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        "arch: [sm_80, sm_90a]; dtype: bf16; head_dim: 128; per_arch: {hopper: {tile: [128, 80]}}",
        "tile: [64, 128]",
        "tile: [128, 128], per_arch: {sm_90a: {schedule: cooperative, stages: 3}}",
        "tile: [64, 64], per_arch: {sm_90a: {tile: [64, 64]}}",
    )
    assert [spec.name.removeprefix("attention_bf16_d128_") for spec in load_attention(file)] == [
        "64x128_s4_ms_sm80",
        "128x80_s2_pp_sm90a",
        "128x128_s4_ms_sm80",
        "128x80_s3_coop_sm90a",
        "64x64_s4_ms_sm80",
        "64x64_s2_pp_sm90a",
    ]


def test_a_mistake_on_one_architecture_is_told_with_its_line_and_how_to_part_it(
    tmp_path: Path,
) -> None:
    file = write(
        tmp_path,
        "arch: [sm_80, sm_90a]; dtype: bf16; head_dim: 128; per_arch: {hopper: {tile: [128, 200]}}",
        "tile: [64, 50]",
        "tile: [64, 128], per_arch: {sm_75: {stages: 2}}",
        "tile: [64, 128], per_arch: {sm_80: {tyle: [64, 64]}}",
    )
    with pytest.raises(ConfigError) as caught:
        load_kernels(file)
    told = [str(problem) for problem in caught.value.problems]
    assert len(told) == 4
    assert ":6: " in told[0]
    assert "tile 128x200" in told[0]
    assert "(for sm_80 alone: per_arch: {sm_80: {tile: ...}})" in told[1]
    assert "per_arch: sm_75 is not under arch (sm_80, sm_90a)" in told[2]
    assert "per_arch.sm_80: unknown key 'tyle'; did you mean tile? Legal keys: tile, st" in told[3]


@pytest.mark.parametrize(
    ("arch", "fix"),
    [
        ("sm_80", "multistage is for many queries there, split_kv for few"),
        ("sm_75", "multistage is its schedule"),
    ],
)
def test_a_schedule_of_hopper_elsewhere_is_answered_with_those_that_are_there(
    tmp_path: Path, arch: str, fix: str
) -> None:
    keys = f"arch: {arch}; dtype: fp16; head_dim: 64; tile: [64, 64]; schedule: pingpong"
    with pytest.raises(ConfigError, match=f"needs wgmma and TMA, which {arch} lacks; {fix}"):
        load_attention(write(tmp_path, keys))


def test_what_is_illegal_is_told_with_the_unknown_keys_of_the_file(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        "arch: sm_90a; dtype: bf16; head_dim: 64",
        "tile: [-128, 0]",
        "tile: [128, 128], heads: 3",
    )
    with pytest.raises(ConfigError) as caught:
        load_kernels(file)
    first, second = (problem.message for problem in caught.value.problems)
    assert first.endswith("tile [64, 16] is")
    assert "unknown key 'heads'; did you mean head_dim?" in second
