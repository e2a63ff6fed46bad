"""Which attention kernel takes a call: never one that measured more than 3 % slower."""

from __future__ import annotations

from dataclasses import replace

import pytest

from attention_calls import PROMPT
from attention_times import MEASURED, Cell
from gemmsmith.arch import SM_90A
from gemmsmith.attn.choose import AttentionProblem, misfit, ranked, why_none
from gemmsmith.attn.config import load_attention
from gemmsmith.attn.cost import tile_clocks
from gemmsmith.attn.spec import AttentionSpec, AttentionTile
from gemmsmith.dtypes import BF16, FP16, FP32
from gemmsmith.resources import configs_dir

DEFAULTS = tuple(
    spec
    for spec in load_attention(configs_dir() / "kernels")
    if spec.schedule in ("pingpong", "cooperative")
)
SMS = 132


def call_of(cell: Cell) -> AttentionProblem:
    return replace(
        PROMPT,
        queries=cell.tokens,
        keys=cell.tokens,
        head_dim=cell.head_dim,
        causal=cell.causal,
    )


def short(spec: AttentionSpec) -> str:
    """Return the part of a name that the measurements have."""
    return spec.name.split(f"_d{spec.head_dim}_")[1].removesuffix("_sm90a")


def named(word: str, head_dim: int) -> AttentionSpec:
    tile, stages, schedule = word.split("_")
    return AttentionSpec(
        arch=SM_90A,
        dtype=BF16,
        head_dim=head_dim,
        tile=AttentionTile(*map(int, tile.split("x"))),
        schedule="pingpong" if schedule == "pp" else "cooperative",
        stages=int(stages.removeprefix("s")),
    )


@pytest.mark.parametrize("cell", MEASURED, ids=lambda cell: f"{cell[:3]}")
def test_the_default_kernel_of_a_call_is_as_fast_as_any_that_was_timed(cell: Cell) -> None:
    chosen = short(ranked(DEFAULTS, call_of(cell), SMS)[0])
    best_default = min(cell.times[short(spec)] for spec in DEFAULTS if fits(spec, cell))
    assert cell.times[chosen] <= best_default / 0.99
    assert cell.times[chosen] <= min(cell.times.values()) / 0.98


def fits(spec: AttentionSpec, cell: Cell) -> bool:
    return spec.head_dim == cell.head_dim and not misfit(spec, call_of(cell))


@pytest.mark.parametrize("cell", MEASURED, ids=lambda cell: f"{cell[:3]}")
def test_of_all_kernels_that_were_timed_a_fast_one_is_chosen(cell: Cell) -> None:
    specs = [named(word, cell.head_dim) for word in cell.times]
    chosen = short(ranked(specs, call_of(cell), SMS)[0])
    assert cell.times[chosen] <= min(cell.times.values()) / 0.94


@pytest.mark.parametrize("cell", MEASURED, ids=lambda cell: f"{cell[:3]}")
def test_the_cost_of_a_default_kernel_is_its_time(cell: Cell) -> None:
    for spec in DEFAULTS:
        if fits(spec, cell):
            told = tile_clocks(spec, call_of(cell), SMS) / 1750 + 3.9  # clocks a us; the launch
            assert told == pytest.approx(cell.times[short(spec)], rel=0.15)


def test_smaller_heads_take_the_next_larger_kernel_and_odd_ones_none() -> None:
    for size, kernel in ((8, 64), (72, 80), (88, 96), (104, 128), (136, 256)):
        found = ranked(DEFAULTS, replace(PROMPT, head_dim=size), SMS)
        assert {spec.head_dim for spec in found} == {kernel}
    assert not ranked(DEFAULTS, replace(PROMPT, head_dim=100), SMS)
    assert not ranked(DEFAULTS, replace(PROMPT, head_dim=264), SMS)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"dtype": FP16}, "takes bf16, the call has fp16"),
        ({"head_dim": 136}, "takes heads up to 128, the call has 136"),
        ({"head_dim": 100}, "head_dim 100 is no multiple of 8"),
        ({"paged": True}, "does not read a block table"),
        ({"keys": 0}, "there are no keys"),
    ],
)
def test_why_a_kernel_does_not_take_a_call_is_said(change: dict[str, object], reason: str) -> None:
    spec = named("128x128_s2_pp", 128)
    assert not misfit(spec, PROMPT)
    assert reason in misfit(spec, replace(PROMPT, **change))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            {"head_dim": 264},
            "head_dim 264 has no kernel: 64, 80, 96, 128, 256 have, and multiples of 8 below",
        ),
        ({"head_dim": 100}, "head_dim 100 is no multiple of 8, which 16-byte copies need"),
        ({"keys": 0}, "there are no keys"),
        ({"dtype": FP32}, "takes bf16, the call has fp32"),
        ({"paged": True, "head_dim": 256}, "_d256_128x80_s2_pp_sm90a does not read a block table"),
    ],
)
def test_y05_why_no_kernel_takes_a_call_is_what_the_nearest_says(
    change: dict[str, object], reason: str
) -> None:
    problem = replace(PROMPT, **change)  # type: ignore[arg-type]
    assert not ranked(DEFAULTS, problem, SMS)
    assert reason in why_none(DEFAULTS, problem)


def test_a_window_costs_its_keys_only() -> None:
    spec = named("128x128_s2_pp", 128)
    long = replace(PROMPT, queries=16384, keys=16384)
    whole = tile_clocks(spec, long, SMS)
    assert tile_clocks(spec, replace(long, window=16384), SMS) == pytest.approx(whole)
    assert tile_clocks(spec, replace(long, window=1024), SMS) < whole / 5


def test_few_queries_behind_a_cache_see_all_its_keys() -> None:
    spec = named("128x128_s2_pp", 128)
    few = replace(PROMPT, queries=128, keys=4096)
    assert tile_clocks(spec, few, SMS) == pytest.approx(
        tile_clocks(spec, replace(few, causal=False), SMS)
    )
