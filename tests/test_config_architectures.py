"""One family for several architectures: what each gets, what it skips and why."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from config_files import load, problem, problems, write
from gemmsmith.arch import ARCHITECTURES
from gemmsmith.cli.app import app
from gemmsmith.config import inspect_file, load_specs, skipped_entries
from gemmsmith.errors import ConfigError

EVERY = "[sm_70, sm_75, sm_80, sm_86, sm_87, sm_89, sm_90a]"


def family(keys: str, arch: str = EVERY, dtype: str = "fp16") -> str:
    """A family whose keys from line 5 on are ``keys``."""
    lines = "\n".join(f"    {line}" for line in keys.splitlines())
    return f"families:\n  - name: f\n    arch: {arch}\n    dtype: {dtype}\n{lines}\n"


def test_one_tile_is_a_family_of_every_architecture(tmp_path: Path) -> None:
    specs = load(tmp_path, family("tile: [128, 128, 32]"))
    assert [spec.name for spec in specs] == [
        "gemm_fp16_rcr_128x128x32_w64x64_s2_sm70",
        "gemm_fp16_rcr_128x128x32_w64x64_s2_sm75",
        "gemm_fp16_rcr_128x128x32_w64x64_s4_sm80",
        "gemm_fp16_rcr_128x128x32_w64x64_s4_sm86",
        "gemm_fp16_rcr_128x128x32_w64x64_s4_sm87",
        "gemm_fp16_rcr_128x128x32_w64x64_s4_sm89",
        "gemm_fp16_rcr_128x128x32_c1x1_coop_sm90a",
    ]
    assert [spec.arch for spec in specs] == list(ARCHITECTURES)


def test_what_one_architecture_lacks_is_skipped_with_its_reason(tmp_path: Path) -> None:
    path = write(tmp_path, family("tile: [128, 128, 32]", dtype="[fp16, bf16]"))
    names = [(spec.arch.name, spec.a.name) for spec in load_specs(path)]
    assert len(names) == 12
    assert ("sm_70", "fp16") in names
    skipped = skipped_entries(path)
    assert [(entry.arch.name, entry.a.name, entry.d.name, entry.layout) for entry in skipped] == [
        ("sm_70", "bf16", "bf16", "rcr"),
        ("sm_75", "bf16", "bf16", "rcr"),
    ]
    assert [entry.reason for entry in skipped] == [
        "dtype: sm_70 tensor cores take fp16, not bf16; bf16 needs sm_80 or later",
        "dtype: sm_75 tensor cores take fp16, int8, not bf16; bf16 needs sm_80 or later",
    ]
    assert all(entry.spec is None and entry.problems == () for entry in skipped)
    assert [entry.arch.name for entry in skipped_entries(path, arch=["turing"])] == ["sm_75"]


def test_shared_memory_skips_the_small_ones(tmp_path: Path) -> None:
    path = write(tmp_path, family("tile: [128, 256, 64]\nstages: 3", arch="[sm_80, sm_87, sm_89]"))
    assert [spec.arch.name for spec in load_specs(path)] == ["sm_80", "sm_87"]
    (entry,) = skipped_entries(path)
    assert entry.reason == (
        "stages: 128x256x64 with stages 3 needs 147,456 B of shared memory, sm_89 has 101,376;"
        " at most 2 stages fit: 98,304 B (for sm_89 alone: per_arch: {sm_89: {stages: ...}})"
    )


def test_what_no_architecture_of_the_entry_has_is_an_error(tmp_path: Path) -> None:
    """Elsewhere the entry is sound: bf16 is the mistake, on each architecture."""
    text = family("tile: [128, 128, 32]", arch="[sm_70, sm_75]", dtype="[fp16, bf16]")
    found = [(p.line, p.message) for p in problems(tmp_path, text)]
    assert [line for line, _ in found] == [4, 4]
    assert "(sm_70 bf16 rcr 128x128x32): dtype: sm_70 tensor cores take fp16" in found[0][1]
    assert "(sm_75 bf16 rcr 128x128x32): dtype: sm_75 tensor cores take fp16" in found[1][1]


def test_a_single_architecture_is_never_skipped(tmp_path: Path) -> None:
    text = family("tile: [128, 128, 32]", arch="sm_70", dtype="[fp16, bf16]")
    line, message = problem(tmp_path, text)
    assert line == 4
    assert message.endswith("not bf16; bf16 needs sm_80 or later")
    two = text + text.removeprefix("families:\n").replace("sm_70", "sm_80").replace(
        ": f\n", ": g\n"
    )
    assert problem(tmp_path, two) == (line, message)  # another entry's luck is not its own


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ("tile: [128, 100, 32]", "tile.n=100 is not a multiple of warp.n=64; tile.n=128 is"),
        ("tile: [128, 100, 32]", "tile.n=100 is not a multiple of 16 up to 256"),
        ("tile: [128, 128, 32]\ncluster: [0, 1]", "[0, 1] holds a number below 1"),
        ("tile: [128, 128, 32]\nstages: 40", "40 is outside 2 to 16"),
    ],
)
def test_a_bad_shape_is_an_error_on_all(tmp_path: Path, keys: str, message: str) -> None:
    found = problems(tmp_path, family(keys))
    assert len({p.message.split("(")[1].split()[0] for p in found}) == len(ARCHITECTURES)
    assert any(message in p.message for p in found)


def test_a_typo_is_told_once(tmp_path: Path) -> None:
    line, message = problem(tmp_path, family("tile: [128, 128, 32]\nstagse: 2"))
    assert line == 6
    assert message.startswith("unknown key 'stagse'; did you mean stages?")


def test_k13_a_key_of_one_api_says_how_the_others_go_without(tmp_path: Path) -> None:
    keys = "tile: [128, 128, 32]\nwarp: [64, 64, 32]"
    path = write(tmp_path, family(keys, arch="[sm_80, sm_90a]"))
    assert [spec.arch.name for spec in load_specs(path)] == ["sm_80"]
    (entry,) = skipped_entries(path)
    assert entry.lines == (6,)
    assert entry.reason == (
        "warp: 3.x kernels divide a tile by warpgroups, not by warps; remove warp"
        " (for sm_90a alone: per_arch: {sm_90a: {warp: ...}})"
    )


def test_c14_a_cluster_is_not_ignored_on_ampere(tmp_path: Path) -> None:
    path = write(
        tmp_path, family("tile: [128, 128, 32]\ncluster: [2, 1, 1]", arch="[sm_80, sm_90a]")
    )
    assert [spec.cluster for spec in load_specs(path)] == [(2, 1)]
    (entry,) = skipped_entries(path)
    assert "cluster [2, 1] needs sm_90a; sm_80 has no clusters" in entry.reason


def test_keys_per_architecture_replace_the_others(tmp_path: Path) -> None:
    keys = """\
per_arch:
  hopper: {cluster: [2, 1], tile: [128, 256, 64], stages: auto}
  sm_80: {warp: [32, 64, 32], stages: 5}
kernels:
  - {tile: [128, 128, 32], stages: 3, cluster: [1, 1]}
  - tile: [64, 128, 32]
    per_arch: {'8.0': {stages: 6}, sm_90a: {tile: [64, 256, 64]}}
"""
    specs = load(tmp_path, family(keys, arch="[sm_80, sm_86, sm_90a]"))
    assert [(s.arch.name, s.tile, s.warp, s.stages, s.cluster, s.schedule) for s in specs] == [
        ("sm_80", (128, 128, 32), (32, 64, 32), 5, (1, 1), "multistage"),
        ("sm_86", (128, 128, 32), (64, 64, 32), 3, (1, 1), "multistage"),
        ("sm_90a", (128, 256, 64), None, None, (2, 1), "cooperative"),
        ("sm_80", (64, 128, 32), (32, 64, 32), 6, (1, 1), "multistage"),
        ("sm_86", (64, 128, 32), (32, 64, 32), 4, (1, 1), "multistage"),
        ("sm_90a", (64, 256, 64), None, None, (2, 1), "pingpong"),
    ]


def test_an_objection_stands_at_the_key_of_its_architecture(tmp_path: Path) -> None:
    keys = """\
per_arch:
  sm_80: {stages: 4}
  ada: {stages: 40}
kernels:
  - tile: [128, 128, 32]
    stages: 3
    per_arch:
      sm_80:
        stages: 50
"""
    path = write(tmp_path, family(keys, arch="[sm_80, sm_89, sm_90a]"))
    legal = [entry.arch.name for entry in inspect_file(path) if entry.spec]
    assert legal == ["sm_90a"]
    assert [(e.arch.name, e.lines, e.reason) for e in skipped_entries(path)] == [
        (
            "sm_80",
            (13,),
            (
                "stages: 50 is outside 2 to 16: loads overlap with math from 2 buffers on;"
                " set stages: 16"
            ),
        ),
        (
            "sm_89",
            (7,),
            (
                "stages: 40 is outside 2 to 16: loads overlap with math from 2 buffers on;"
                " set stages: 16"
            ),
        ),
    ]


def test_a_tile_may_be_given_per_architecture_alone(tmp_path: Path) -> None:
    keys = "per_arch: {sm_75: {tile: [128, 128, 32]}, sm_80: {tile: [128, 256, 64]}}"
    specs = load(tmp_path, family(keys, arch="[sm_75, sm_80]"))
    assert [spec.tile for spec in specs] == [(128, 128, 32), (128, 256, 64)]
    line, message = problem(tmp_path, family(keys, arch="[sm_75, sm_80, sm_90a]"))
    assert (line, message.split(";")[0]) == (
        2,
        "family 'f': key 'tile' is missing, here and in the family",
    )


@pytest.mark.parametrize(
    ("block", "message"),
    [
        ("{sm_80: {stagse: 3}}", "per_arch.sm_80: unknown key 'stagse'; did you mean stages?"),
        ("{sm_80: {dtype: fp16}}", "per_arch.sm_80: unknown key 'dtype'"),
        ("{sm_80: {stages: many}}", "per_arch.sm_80.stages: 'many' is not a whole number or auto"),
        ("{sm_81: {stages: 3}}", "per_arch.sm_81: arch 'sm_81' is not known"),
        ("{a100: {stages: 3}, ampere: {stages: 2}}", "per_arch: a100 and ampere are both sm_80"),
        ("{sm_89: {stages: 3}}", "per_arch: sm_89 is not under arch (sm_80, sm_90a); add it or"),
        ("[sm_80]", "per_arch: ['sm_80'] does not fit; write per_arch: {sm_90a: {cluster:"),
        ("{on: {stages: 3}}", "key on is a boolean in YAML; put it in quotes: 'on'"),
        ("{80: {stages: 3}}", "key 80 is a number in YAML; put it in quotes: '80'"),
        ("{sm_80: 3}", "per_arch.sm_80: 3 does not fit; write per_arch:"),
    ],
)
@pytest.mark.parametrize("place", ["family", "kernel"])
def test_mistakes_in_per_arch(tmp_path: Path, block: str, message: str, place: str) -> None:
    keys = f"per_arch: {block}\nkernels:\n  - tile: [128, 128, 32]"
    if place == "kernel":
        keys = f"kernels:\n  - tile: [128, 128, 32]\n    per_arch: {block}"
    line, told = problem(tmp_path, family(keys, arch="[sm_80, sm_90a]"))
    assert line == (5 if place == "family" else 7)
    assert told.startswith(message)


def test_a_familys_per_arch_may_serve_some_kernels(tmp_path: Path) -> None:
    keys = """\
per_arch: {sm_90a: {cluster: [2, 1]}}
kernels:
  - {tile: [128, 128, 64]}
  - {tile: [128, 128, 64], arch: sm_90a}
"""
    specs = load(tmp_path, family(keys, arch="sm_80"))
    assert [(spec.arch.name, spec.cluster) for spec in specs] == [
        ("sm_80", (1, 1)),
        ("sm_90a", (2, 1)),
    ]


def test_nothing_left_tells_why_it_was_skipped(tmp_path: Path) -> None:
    path = write(tmp_path, family("tile: [128, 128, 32]", arch="[sm_75, sm_80]", dtype="bf16"))
    with pytest.raises(ConfigError) as caught:
        load_specs(path, arch=["sm_75"])
    assert str(caught.value).splitlines() == [
        f"{path}: has kernels for sm_80, none for sm_75",
        (
            "  skipped sm_75 bf16 rcr 128x128x32: dtype: sm_75 tensor cores take fp16, int8,"
            " not bf16; bf16 needs sm_80 or later"
        ),
    ]


@pytest.fixture
def half_legal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GEMMSMITH_CACHE_DIR", str(tmp_path / "cache"))
    return write(tmp_path, family("tile: [128, 128, 32]", arch="[sm_75, sm_80]", dtype="bf16"))


def test_list_shows_what_is_skipped(half_legal: Path) -> None:
    shown = CliRunner().invoke(app, ["list", str(half_legal)])
    assert shown.exit_code == 0
    head, row = shown.stdout.splitlines()[-2:]
    assert head.split() == ["SKIPPED", "FAMILY", "WHERE", "BECAUSE"]
    assert row.startswith("sm_75 bf16 rcr 128x128x32  f ")
    assert row.endswith("not bf16; bf16 needs sm_80 or later")
    facts = json.loads(CliRunner().invoke(app, ["list", str(half_legal), "--json"]).stdout)
    assert [kernel["arch"] for kernel in facts["kernels"]] == ["sm_80"]
    assert facts["skipped"] == [
        {
            "title": "sm_75 bf16 rcr 128x128x32",
            "family": "f",
            "file": str(half_legal),
            "line": 2,
            "arch": "sm_75",
            "reason": "dtype: sm_75 tensor cores take fp16, int8, not bf16;"
            " bf16 needs sm_80 or later",
        }
    ]


def test_explain_ends_well_where_kernels_are_only_skipped(half_legal: Path) -> None:
    shown = CliRunner().invoke(app, ["explain", str(half_legal)])
    assert shown.exit_code == 0
    assert f"{half_legal}:2: skipped: sm_75 bf16 rcr 128x128x32\n    dtype: sm_75" in shown.stdout
    facts = json.loads(CliRunner().invoke(app, ["explain", str(half_legal), "--json"]).stdout)
    assert [(found["legal"], found["skipped"]) for found in facts["kernels"]] == [
        (False, True),
        (True, False),
    ]
    wrong = write(half_legal.parent, family("tile: [128, 100, 32]"), "wrong.yaml")
    refused = CliRunner().invoke(app, ["explain", str(wrong)])
    assert refused.exit_code == 2
    assert f"{wrong}:2: illegal: sm_70 fp16 rcr 128x100x32" in refused.stdout
