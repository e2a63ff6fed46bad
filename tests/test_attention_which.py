"""Which attention kernel takes a call, as ``gemmsmith which-attention`` tells it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gemmsmith.attn.choose import AttentionProblem, ranked
from gemmsmith.attn.config import load_attention
from gemmsmith.attn.which import explain_attention, text
from gemmsmith.cli.app import app
from gemmsmith.dtypes import BF16
from gemmsmith.resources import configs_dir

STEP = AttentionProblem(
    dtype=BF16,
    batch=4,
    queries=1,
    keys=4096,
    heads=32,
    kv_heads=8,
    head_dim=128,
    causal=False,
    window=0,
    paged=False,
    lengths=False,
    packed=False,
)
DECODE, EARLY = (
    f"attention_bf16_d128_8x128_w1x8_s2_split{word}_sm90a" for word in ("", "_constkv")
)
OWN = """
attention:
  - {name: early, arch: sm_90a, dtype: bf16, schedule: split_kv, stages: 2, constant_cache: true,
     kernels: [{head_dim: 128, tile: [8, 128], warps: [1, 8]}]}
"""


def which(*words: str, **environment: str) -> Any:
    """Return the result of the verb on an H200 that is named, not there."""
    return CliRunner().invoke(app, ["which-attention", *words], env=environment)


def told(*words: str) -> dict[str, Any]:
    result = which(*words, "--arch", "sm_90a", "--gpu", "NVIDIA H200", "--json")
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"queries": 2048, "keys": 2048, "causal": True},
        {"batch": 16, "paged": True},
        {"lengths": True, "appends": True, "constant_cache": True},
        {"head_dim": 72, "queries": 300},
    ],
    ids=str,
)
def test_the_choice_is_the_one_that_calls_get(change: dict[str, Any]) -> None:
    specs = load_attention(configs_dir() / "kernels", arch=["sm_90a"])
    problem = replace(STEP, **change)
    found = explain_attention(specs, problem, gpu="a GPU", sm_count=132)
    order = ranked(specs, problem, 132)
    assert found.choice == order[0].name
    assert [each.kernel for each in found.candidates] == [spec.name for spec in order]
    costs = [each.cost for each in found.candidates]
    assert costs == sorted(costs)
    assert costs[0] == 1.0


def test_a_promise_lets_the_kernel_that_reads_early_take_the_call() -> None:
    plain, promised = told("1", "1", "4096"), told("1", "1", "4096", "--constant-cache")
    assert (plain["choice"], promised["choice"]) == (DECODE, EARLY)
    reasons = [why for why, _ in plain["misfits"]]
    assert any("pass constant_cache=True" in why for why in reasons)
    assert not any("pass constant_cache=True" in why for why, _ in promised["misfits"])


def test_kernels_of_a_file_are_named_which_is_their_promise(tmp_path: Path) -> None:
    file = tmp_path / "own.yaml"
    file.write_text(OWN)
    assert told("1", "1", "4096", str(file))["choice"] == EARLY
    wide = told("1", "1", "4096", str(file), "--head-dim", "256")
    assert wide["choice"] == ""
    assert "head_dim 256 has no kernel: 128 have" in wide["reason"]


def test_torch_takes_what_no_kernel_does_and_says_why() -> None:
    found = told("1", "1", "4096", "--head-dim", "300", "--appends")
    assert (found["choice"], found["candidates"]) == ("torch", [])
    assert "head_dim 300 has no kernel" in found["reason"]
    assert "RoPE and the cache take a kernel of their own" in found["reason"]


def test_text_says_what_is_built_and_what_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GEMMSMITH_CACHE_DIR", str(tmp_path))
    specs = load_attention(configs_dir() / "kernels", arch=["sm_90a"])
    found = explain_attention(specs, STEP, gpu="NVIDIA H200", sm_count=132)
    assert not found.built
    lines = text(found).splitlines()
    assert lines[0] == (
        "4 sequences of 1 query and 4096 keys, 32/8 heads of 128, bf16 on NVIDIA H200 with 132"
        " multiprocessors"
    )
    assert lines[1] == f"choice: {DECODE}, not built yet"
    assert f"    1.00  {DECODE} (not built)" in lines
    assert text(replace(found, built=True)).splitlines()[1] == f"choice: {DECODE}, built"


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--kv-heads", "5"), "32 heads are no multiple of it"),
        (("--packed", "--paged"), "such calls have no lengths, block table or cache"),
        (("--window", "9"), "goes with --causal"),
        (("--dtype", "int8"), "use bf16 or fp16"),
        (("--dtype", "word"), "use bf16 or fp16"),
        (("--arch", "sm_80", "--gpu", "NVIDIA H200"), "drop one of them"),
    ],
)
def test_what_makes_no_call_is_refused(words: tuple[str, ...], reason: str) -> None:
    result = which("1", "1", "64", *words)
    assert result.exit_code == 2
    assert reason in " ".join(result.output.replace("│", " ").split())


def test_a_step_that_appends_has_one_query() -> None:
    result = which("1", "2", "64", "--appends")
    assert result.exit_code == 2
    assert "one query a sequence" in " ".join(result.output.replace("│", " ").split())
