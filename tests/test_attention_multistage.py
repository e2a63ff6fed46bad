"""Attention kernels from Volta to Ada: which can exist, which ship, which take a call."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import gemmsmith.render
from attention_calls import PROMPT
from gemmsmith import resources
from gemmsmith.arch import SM_70, SM_75, SM_80, SM_86, SM_89, SM_90A, Architecture, portable
from gemmsmith.attn.choose import misfit, ranked, why_none
from gemmsmith.attn.config import load_attention
from gemmsmith.attn.cost_multistage import multistage_clocks
from gemmsmith.attn.explain import explain_attention
from gemmsmith.attn.rules import shared_bytes, threads
from gemmsmith.attn.spec import AttentionSpec, AttentionTile, AttentionWarps
from gemmsmith.dtypes import BF16, FP16
from gemmsmith.errors import IllegalKernelError, ToolchainError
from gemmsmith.identity import identity
from gemmsmith.inspection import inspect_kernel
from gemmsmith.render import render
from gemmsmith.resources import configs_dir
from gemmsmith.spec_dict import spec_from_dict, spec_to_dict

AMPERE = AttentionSpec(
    arch=SM_80,
    dtype=BF16,
    head_dim=128,
    tile=AttentionTile(64, 128),
    schedule="multistage",
    stages=4,
)
TURING = replace(AMPERE, arch=SM_75, dtype=FP16, tile=AttentionTile(32, 128), stages=2)
VOLTA = replace(TURING, arch=SM_70)


def test_what_a_kernel_is_called_and_takes() -> None:
    assert AMPERE.name == "attention_bf16_d128_64x128_s4_ms_sm80"
    assert (threads(AMPERE), threads(TURING)) == (256, 128)
    assert not AMPERE.dependent_launch
    report = explain_attention(AMPERE)
    assert (report.stages, report.stages_that_fit, report.shared_memory) == (4, 4, 52_224)
    assert inspect_kernel(AMPERE, None).occupancy.blocks == 2


@pytest.mark.parametrize(
    ("spec", "size", "bytes_"),
    [
        (AMPERE, (64, 64, 64), 18_944),
        (AMPERE, (128, 64, 128), 52_224),
        (AMPERE, (256, 64, 128), 69_632),
        (TURING, (64, 64, 64), 18_944),
        (TURING, (128, 32, 128), 26_112),
        (TURING, (128, 64, 128), 35_840),
        (TURING, (256, 32, 128), 34_816),
        (VOLTA, (64, 64, 64), 17_920),
        (VOLTA, (128, 32, 128), 25_600),
        (VOLTA, (256, 32, 128), 33_920),
    ],
    ids=str,
)
def test_shared_memory_is_what_compiled_kernels_ask_for(
    spec: AttentionSpec, size: tuple[int, int, int], bytes_: int
) -> None:
    head_dim, query, key = size
    assert shared_bytes(replace(spec, head_dim=head_dim, tile=AttentionTile(query, key))) == bytes_


@pytest.mark.parametrize("spec", [AMPERE, VOLTA, replace(AMPERE, arch=portable(SM_86))])
def test_specs_survive_the_way_through_json(spec: AttentionSpec) -> None:
    assert spec_from_dict(json.loads(json.dumps(spec_to_dict(spec)))) == spec


WRONG: list[tuple[AttentionSpec, dict[str, Any], str]] = [
    (AMPERE, {"arch": SM_90A}, "multistage attention is for Volta to Ada; sm_90a has wgmma; ping"),
    (TURING, {"dtype": BF16}, "sm_75 tensor cores take fp16, not bf16; bf16 needs sm_80"),
    (AMPERE, {"tile": AttentionTile(96, 128)}, "tile 96x128 is none of 32, 64 or 128 queries"),
    (AMPERE, {"tile": AttentionTile(64, 96)}, "and 64 or 128 keys, which CUTLASS's kernel has"),
    (AMPERE, {"stages": 3}, "stages 3: .* copies in the background on sm_80, with 4; 4 is legal"),
    (VOLTA, {"stages": 4}, "stages 4: .* copies through registers on sm_70, with 2; 2 is legal"),
    (AMPERE, {"warps": AttentionWarps(1, 4)}, "warps goes with schedule split_kv; leave it out"),
    (AMPERE, {"constant_cache": True}, "constant_cache goes with schedule split_kv"),
    (
        TURING,
        {"head_dim": 256, "tile": AttentionTile(128, 128)},
        "tile 128x128 of head_dim 256 needs 90,112 B of shared memory, sm_75 has 65,536; lower",
    ),
]


@pytest.mark.parametrize(("spec", "change", "words"), WRONG, ids=[words for *_, words in WRONG])
def test_what_cannot_be_is_refused_with_numbers_and_the_nearest_that_can(
    spec: AttentionSpec, change: dict[str, Any], words: str
) -> None:
    with pytest.raises(IllegalKernelError, match=words):
        replace(spec, **change)


def shipped(arch: Architecture) -> tuple[AttentionSpec, ...]:
    return load_attention(configs_dir() / "kernels", arch=[arch.name])


@pytest.mark.parametrize("arch", ["sm_70", "sm_75", "sm_80", "sm_86", "sm_87", "sm_89", "sm_90a"])
def test_kernels_of_many_queries_ship_for_every_head_and_gpu(arch: str) -> None:
    specs = load_attention(configs_dir() / "kernels", arch=[arch])
    many = [spec for spec in specs if spec.schedule != "split_kv"]
    dtypes = {FP16} if arch in ("sm_70", "sm_75") else {BF16, FP16}
    for dtype in dtypes:
        assert {64, 128, 256} <= {spec.head_dim for spec in many if spec.dtype == dtype}
    assert {spec.dtype for spec in many} == dtypes
    if arch != "sm_90a":
        assert {spec.schedule for spec in many} == {"multistage"}
        assert len(many) == 3 * len(dtypes)


@pytest.mark.parametrize(
    ("change", "head_dim", "schedule"),
    [
        ({}, 128, "multistage"),
        ({"queries": 65, "keys": 65}, 128, "multistage"),
        ({"head_dim": 64, "heads": 9, "kv_heads": 3}, 64, "multistage"),
        ({"head_dim": 80}, 128, "multistage"),
        ({"head_dim": 96}, 128, "multistage"),
        ({"head_dim": 256}, 256, "multistage"),
        ({"lengths": True}, 128, "multistage"),
        ({"head_dim": 80, "lengths": True}, 128, "multistage"),
        ({"packed": True, "batch": 4}, 128, "multistage"),
        ({"window": 2048}, 128, "multistage"),  # cuts nothing
        ({"window": 500}, 128, "split_kv"),
        ({"capped": True}, 128, "split_kv"),
        ({"paged": True}, 128, "split_kv"),
        ({"queries": 1, "keys": 4096}, 128, "split_kv"),
        ({"queries": 8, "keys": 4096}, 128, "split_kv"),
    ],
    ids=str,
)
@pytest.mark.parametrize(("arch", "sms"), [(SM_80, 108), (SM_86, 72), (SM_89, 128)], ids=str)
def test_prompts_run_in_tiles_of_queries_and_decoding_in_parts_of_keys(
    arch: Architecture, sms: int, change: dict[str, Any], head_dim: int, schedule: str
) -> None:
    best = ranked(shipped(arch), replace(PROMPT, **change), sms)[0]
    assert (best.schedule, best.head_dim) == (schedule, head_dim)


def test_older_gpus_have_tiles_of_queries_alone() -> None:
    for arch in (SM_70, SM_75):
        for change in ({}, {"queries": 1}, {"packed": True}):
            best = ranked(shipped(arch), replace(PROMPT, dtype=FP16, **change), 40)[0]
            assert best.name == f"attention_fp16_d128_32x128_s2_ms_{arch.suffix}"
        assert not ranked(shipped(arch), PROMPT, 40)
        assert "the call has bf16" in why_none(shipped(arch), PROMPT)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"window": 2047}, "does not cut keys to a window"),
        ({"capped": True}, "does not cap scores"),
        ({"paged": True}, "does not read a block table"),
        ({"keys": 0}, "there are no keys"),
        ({"head_dim": 136}, "takes heads up to 128, the call has 136"),
        ({"head_dim": 100}, "head_dim 100 is no multiple of 8"),
        ({"dtype": FP16}, "takes bf16, the call has fp16"),
    ],
    ids=str,
)
def test_what_a_kernel_does_not_take_is_said(change: dict[str, Any], words: str) -> None:
    assert misfit(AMPERE, PROMPT) == ""
    assert words in misfit(AMPERE, replace(PROMPT, **change))
    if "window" in change or "capped" in change:
        volta = replace(PROMPT, dtype=FP16, **change)
        assert words in why_none(shipped(SM_70), volta)


def test_the_cost_counts_the_keys_that_are_seen_and_the_longest_tile() -> None:
    full = multistage_clocks(AMPERE, replace(PROMPT, causal=False), 108)
    assert multistage_clocks(AMPERE, PROMPT, 108) == pytest.approx(full / 2, rel=0.1)
    one = replace(PROMPT, heads=1, kv_heads=1, queries=64, causal=False)
    assert multistage_clocks(AMPERE, one, 108) == multistage_clocks(AMPERE, one, 1000)


def test_headers_of_the_example_are_part_of_the_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    split = next(spec for spec in shipped(SM_80) if spec.schedule == "split_kv")
    before = [identity(render([spec]), None).parts for spec in (AMPERE, split)]
    (tmp_path / "kernel_forward.h").write_text("int a;\n")
    monkeypatch.setattr(gemmsmith.render, "cutlass_example_dir", lambda name: tmp_path)
    after = [identity(render([spec]), None).parts for spec in (AMPERE, split)]
    assert before[0]["cutlass_headers"] != after[0]["cutlass_headers"]
    assert before[1] == after[1]


def test_a_cutlass_without_the_example_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (resources.cutlass_example_dir("41_fused_multi_head_attention")).is_dir()
    monkeypatch.setattr(resources, "cutlass_include_dirs", lambda: (tmp_path / "include",))
    with pytest.raises(ToolchainError, match=r"has no .*examples/41_f.*pip install --force-re"):
        resources.cutlass_example_dir("41_fused_multi_head_attention")
