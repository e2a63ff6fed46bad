"""Which split-KV attention kernels can exist, what the files ask for, and which takes a call."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from attention_calls import STEP
from gemmsmith.arch import SM_75, SM_80, SM_86, SM_90A, Architecture
from gemmsmith.attn.choose import misfit, ranked
from gemmsmith.attn.config import inspect_attention, load_attention
from gemmsmith.attn.rules import launch_registers, shared_bytes, threads
from gemmsmith.attn.spec import AttentionSpec, AttentionTile, AttentionWarps
from gemmsmith.dtypes import BF16, FP16, INT8
from gemmsmith.errors import ConfigError, IllegalKernelError
from gemmsmith.inspection import inspect_kernel
from gemmsmith.resources import configs_dir
from gemmsmith.spec_dict import spec_from_dict, spec_to_dict

DECODE = AttentionSpec(
    arch=SM_90A,
    dtype=BF16,
    head_dim=128,
    tile=AttentionTile(8, 128),
    schedule="split_kv",
    stages=1,
    warps=AttentionWarps(1, 8),
)
PREFILL = AttentionSpec(
    arch=SM_90A,
    dtype=BF16,
    head_dim=128,
    tile=AttentionTile(128, 128),
    schedule="pingpong",
    stages=2,
)


def test_what_a_kernel_is_called_and_takes() -> None:
    assert DECODE.name == "attention_bf16_d128_8x128_w1x8_s1_split_sm90a"
    clustered = replace(DECODE, cluster=4, tile=AttentionTile(8, 64), warps=AttentionWarps(1, 4))
    assert clustered.name == "attention_bf16_d128_8x64_w1x4_s1_c4_split_sm90a"
    assert (threads(DECODE), shared_bytes(DECODE)) == (256, 2 * 128 * 256 + 4 * 128 + 10 * 272)
    assert launch_registers(DECODE) == 48 + 6 + 72
    occupancy = inspect_kernel(DECODE, None).occupancy
    assert (occupancy.blocks, occupancy.warps) == (2, 16)
    assert (threads(PREFILL), launch_registers(PREFILL)) == (384, 168)


@pytest.mark.parametrize("spec", [DECODE, replace(DECODE, cluster=8), PREFILL])
def test_specs_survive_the_way_through_json(spec: AttentionSpec) -> None:
    back = spec_from_dict(json.loads(json.dumps(spec_to_dict(spec))))
    assert back == spec
    assert isinstance(back, AttentionSpec)
    assert type(back.warps) is type(spec.warps)


WRONG: list[tuple[AttentionSpec, dict[str, Any], str]] = [
    (DECODE, {"dtype": INT8}, "attention kernels take bf16 and fp16, none takes int8"),
    (DECODE, {"arch": SM_75}, "copies in the background, which sm_75 cannot; sm_80 and later can"),
    (DECODE, {"cluster": 3}, "cluster 3 is none of 1, 2, 4, 8 blocks; 2 is legal"),
    (DECODE, {"arch": SM_80, "cluster": 2}, "sm_80 has no clusters, cluster 2 needs them"),
    (DECODE, {"stages": 0}, "stages 0 is below 1; 2 is legal"),
    (DECODE, {"warps": None}, r"split_kv attention needs warps: .*; warps: \[1, 4\]"),
    (DECODE, {"warps": AttentionWarps(1, 16)}, "warps 1x16 are 512 threads; a block has up to"),
    (DECODE, {"warps": AttentionWarps(3, 11)}, "warps 3x11 are 1056 threads; a block has up to"),
    (DECODE, {"tile": AttentionTile(12, 128)}, "tile 12x128 has 12 queries.*; 16 is"),
    (DECODE, {"tile": AttentionTile(8, 64)}, "tile 8x64 has 64 keys; .*; 128 or 256 is legal"),
    (
        DECODE,
        {"tile": AttentionTile(24, 128)},
        "24 queries a warp of head_dim 128 are more sums .*; up to 16 are legal",
    ),
    (
        replace(DECODE, head_dim=64),
        {"tile": AttentionTile(96, 128), "warps": AttentionWarps(3, 8)},
        "768 threads have 85 registers each, tile 96x128 of head_dim 64 takes 192; lower the warps",
    ),
    (
        replace(DECODE, arch=SM_86),
        {"stages": 2},
        "tile 8x128 of head_dim 128 with 2 stages needs 134,304 B .* sm_86 has 101,376; lower",
    ),
    (PREFILL, {"warps": AttentionWarps(1, 4)}, "warps goes with schedule split_kv; leave it out"),
    (PREFILL, {"cluster": 2}, "cluster goes with schedule split_kv; leave it out"),
]


@pytest.mark.parametrize(("spec", "change", "words"), WRONG, ids=[words for *_, words in WRONG])
def test_what_cannot_be_is_refused_with_numbers_and_the_nearest_that_can(
    spec: AttentionSpec, change: dict[str, Any], words: str
) -> None:
    with pytest.raises(IllegalKernelError, match=words):
        replace(spec, **change)


@pytest.mark.parametrize(
    ("arch", "count"), [("sm_90a", 30), ("sm_80", 20), ("sm_86", 20), ("sm_87", 20), ("sm_89", 20)]
)
def test_decode_kernels_ship_for_every_head_and_gpu_that_copies_in_the_background(
    arch: str, count: int
) -> None:
    specs = load_attention(configs_dir() / "kernels", arch=[arch])
    specs = tuple(spec for spec in specs if spec.schedule == "split_kv")
    assert len(specs) == count
    few = {(spec.dtype, spec.head_dim) for spec in specs if spec.tile.query == 8}
    many = {(spec.dtype, spec.head_dim) for spec in specs if spec.tile.query > 8}
    assert few == many
    assert few == {(dtype, size) for dtype in (BF16, FP16) for size in (64, 80, 96, 128, 256)}


def test_a_file_gives_warps_and_clusters(tmp_path: Path) -> None:
    file = tmp_path / "decode.yaml"
    block = """\
attention:
  - name: decode
    arch: [sm_90a, sm_80]
    dtype: bf16
    head_dim: 128
    schedule: split_kv
    stages: 1
    tile: [8, 128]
    warps: [1, 8]
"""
    file.write_text(block)
    assert load_attention(file) == (DECODE, replace(DECODE, arch=SM_80))
    file.write_text(block + "    cluster: 2\n")
    (entry,) = (each for each in inspect_attention(file) if each.objections)
    assert (entry.arch, entry.skipped) == (SM_80, True)
    assert "sm_80 has no clusters, cluster 2 needs them; leave it out" in entry.reason
    file.write_text(block.replace("[1, 8]", "8"))
    with pytest.raises(ConfigError, match=r"8 is not \[queries, keys\]; write warps: \[1, 4\]"):
        load_attention(file)


def shipped(arch: Architecture = SM_90A) -> tuple[AttentionSpec, ...]:
    return load_attention(configs_dir() / "kernels", arch=[arch.name])


@pytest.mark.parametrize(
    ("change", "tile", "schedule"),
    [
        ({}, (8, 128), "split_kv"),
        ({"keys": 1}, (8, 128), "split_kv"),
        ({"batch": 64}, (8, 128), "split_kv"),
        ({"queries": 2}, (8, 128), "split_kv"),
        ({"queries": 8}, (32, 64), "split_kv"),
        ({"window": 1024}, (8, 128), "split_kv"),
        ({"head_dim": 64, "heads": 71, "kv_heads": 1}, (32, 128), "split_kv"),
        ({"head_dim": 64, "heads": 71, "kv_heads": 1, "batch": 8}, (72, 64), "split_kv"),
        ({"head_dim": 64, "heads": 14, "kv_heads": 2, "keys": 131072}, (8, 256), "split_kv"),
        ({"head_dim": 72, "heads": 8, "kv_heads": 8}, (8, 256), "split_kv"),
        ({"head_dim": 256, "heads": 8, "kv_heads": 4}, (8, 64), "split_kv"),
        ({"queries": 2048, "keys": 2048}, None, "pingpong"),
        ({"queries": 4096, "batch": 4}, None, "pingpong"),
        ({"queries": 2048, "paged": True}, (32, 64), "split_kv"),
    ],
    ids=str,
)
def test_few_queries_share_their_keys_among_blocks_and_many_do_not(
    change: dict[str, Any], tile: tuple[int, int] | None, schedule: str
) -> None:
    best = ranked(shipped(), replace(STEP, **change), 132)[0]
    assert best.schedule == schedule
    assert tile is None or best.tile == tile


def test_torch_keeps_many_queries_where_tiles_of_queries_have_no_kernel() -> None:
    specs = tuple(spec for spec in shipped(SM_80) if spec.schedule == "split_kv")
    many = replace(STEP, queries=65)
    assert ranked(specs, replace(STEP, queries=64), 108)
    assert not ranked(specs, many, 108)
    assert misfit(replace(DECODE, arch=SM_80), many) == (
        "attention_bf16_d128_8x128_w1x8_s1_split_sm80 is for few queries: torch is faster with more"
        " than 64"
    )
    assert ranked(specs, replace(many, named=True), 108)


@pytest.mark.parametrize(
    "asked", ["lengths", "paged", "packed", "appends", "window", "capped", "named"]
)
def test_torch_has_fast_kernels_for_nothing_but_plain_calls(asked: str) -> None:
    more: dict[str, Any] = {asked: 16 if asked == "window" else True}
    assert STEP.torch_is_fast
    assert not replace(STEP, **more).torch_is_fast


def test_what_no_kernel_takes_is_said() -> None:
    packed = replace(STEP, packed=True)
    assert "does not take packed sequences" in misfit(DECODE, packed)
    assert "does not read a block table" in misfit(PREFILL, replace(STEP, paged=True))
    assert misfit(DECODE, replace(STEP, paged=True)) == ""
    assert "there are no keys" in misfit(DECODE, replace(STEP, keys=0))
    assert "takes heads up to 128" in misfit(DECODE, replace(STEP, head_dim=256))
    assert "takes bf16, the call has fp16" in misfit(DECODE, replace(STEP, dtype=FP16))
