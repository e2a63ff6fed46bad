"""The choice of a kernel: lawful, repeatable, and sensible where no constant can turn it around."""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Sequence
from typing import Any

import pytest

from gemmsmith.arch import SM_70, SM_75, SM_80, SM_90A, Architecture
from gemmsmith.bench.model_shapes import load_model, model_names
from gemmsmith.choose import choose, costs, estimate, slots, tiles, tune, waves
from gemmsmith.config import load_specs
from gemmsmith.dtypes import BF16, FP16, FP32, DType
from gemmsmith.fit import misfit
from gemmsmith.problem import GemmProblem, packed_problem
from gemmsmith.resources import configs_dir
from gemmsmith.spec import Cluster, KernelSpec, Tile

SMS = {"sm_70": 80, "sm_75": 40, "sm_80": 108, "sm_90a": 132}
TOKENS = (
    *range(1, 66),
    *(size + step for size in (128, 256, 512, 1024, 2048, 4096) for step in (-1, 0, 1)),
    *(200, 777, 6000, 8191, 8192),
)


def problem(m: int, n: int, k: int, dtype: DType = BF16, **more: Any) -> GemmProblem:
    return dataclasses.replace(GemmProblem(m=m, n=n, k=k, a=dtype, b=dtype, d=dtype), **more)


def big(m: int = 128, n: int = 256, **more: Any) -> KernelSpec:
    basic = KernelSpec(arch=SM_90A, tile=Tile(m, n, 64), schedule="cooperative")
    return dataclasses.replace(basic, **more)


def small(m: int = 16, n: int = 64) -> KernelSpec:
    return KernelSpec(arch=SM_90A, tile=Tile(m, n, 64), schedule="warp_specialized", swap=True)


def lean(**more: Any) -> KernelSpec:
    basic = KernelSpec(arch=SM_90A, tile=Tile(16, 64, 64), schedule="lean", store="smem", swap=True)
    return dataclasses.replace(basic, **more)


def defaults(arch: Architecture) -> tuple[KernelSpec, ...]:
    return load_specs(configs_dir() / "kernels", arch=[arch.name])


def names(specs: Sequence[KernelSpec], *problems: GemmProblem) -> list[str]:
    chosen = [choose(specs, each, SMS["sm_90a"]) for each in problems]
    return [choice.spec.name if choice else "" for choice in chosen]


def test_tiles_fill_up_clusters() -> None:
    call = problem(300, 1000, 64)
    assert tiles(big(), call) == 3 * 4
    assert tiles(big(cluster=Cluster(2, 1)), call) == 4 * 4
    assert tiles(big(cluster=Cluster(1, 8)), call) == 3 * 8
    assert tiles(big(), dataclasses.replace(call, batch=5)) == 5 * 12
    assert tiles(small(), problem(1, 64, 64)) == 1


def test_slots_are_whole_clusters() -> None:
    assert [slots(big(cluster=Cluster(size, 1)), 132) for size in (1, 2, 4, 8)] == [
        132,
        132,
        116,
        120,
    ]
    assert slots(big(cluster=Cluster(8, 1)), 4) == 8
    assert waves(big(cluster=Cluster(8, 1)), problem(1024, 256 * 24, 64), 132) == 192 / 120


def test_slots_of_blocks_that_split_k_are_those_of_clusters() -> None:
    """On an H200 128 blocks in clusters of four took two waves, 116 one; of eight 120 took one."""
    assert slots(lean(cluster=Cluster(1, 2)), 132) == 132
    assert slots(lean(cluster=Cluster(1, 2), split_k=2), 132) == 116
    assert slots(lean(split_k=4), 132) == 116
    assert slots(lean(cluster=Cluster(1, 2), split_k=4), 132) == 120
    call = problem(16, 64 * 28, 4096)
    assert waves(lean(), call, 132) == 28 / 132
    assert waves(lean(split_k=4), call, 132) == 112 / 116
    assert waves(lean(split_k=4), problem(16, 64 * 32, 4096), 132) == 128 / 116


def test_k_is_split_where_tiles_are_few_and_deep_alone() -> None:
    one, four = lean(), lean(split_k=4)
    few, many, flat = (
        problem(16, 64 * 28, 16384),
        problem(16, 64 * 132, 16384),
        problem(16, 64 * 28, 256),
    )
    assert names([one, four], few, many, flat) == [four.name, one.name, one.name]


def test_k_counts_in_whole_steps_of_the_longest_part() -> None:
    """576 is three steps of 256: of two parts one has as many as both of 1024 have."""
    spec = lean(split_k=2, tile=Tile(16, 64, 256))
    loops = [costs(spec, problem(16, 960, k), 132).limits["TMA"] for k in (576, 1024, 512)]
    assert loops[0] == loops[1] == 2 * loops[2]


def test_a_dependent_launch_is_preferred_where_blocks_fill_the_gpu() -> None:
    early = lean(dependent_launch=True)
    full, empty = problem(16, 64 * 132, 4096), problem(16, 64 * 14, 16384)
    assert names([lean(), early], full, empty) == [early.name, lean().name]


def test_no_kernel_no_choice() -> None:
    assert choose([], problem(8, 64, 64), 132) is None
    assert choose([big()], problem(8, 64, 36), 132) is None
    assert choose([big()], problem(8, 64, 64, FP16), 132) is None


def test_the_order_of_the_kernels_does_not_matter() -> None:
    specs = list(defaults(SM_90A))
    calls = [problem(m, n, k) for m in (1, 17, 200, 4096) for n, k in ((4096, 4096), (1000, 712))]
    first = names(specs, *calls)
    assert all(first)
    for seed in range(5):
        random.Random(seed).shuffle(specs)
        assert names(specs, *calls) == first
    twins = [big(stages=3), big(stages=4)]  # equal in all that the estimate knows
    assert estimate(twins[0], calls[0], 132) == estimate(twins[1], calls[0], 132)
    assert names(twins, calls[0]) == names(twins[::-1], calls[0]) == [min(t.name for t in twins)]


def test_an_unequal_tile_lies_along_the_longer_side() -> None:
    pair = [big(128, 256), big(256, 128)]
    wide, tall = problem(128, 256 * 132, 4096), problem(256 * 132, 128, 4096)
    assert [waves(spec, wide, 132) for spec in pair] == [1.0, 2.0]
    assert names(pair, wide, tall) == [spec.name for spec in pair]


def test_one_full_wave_is_preferred_to_a_second_one_that_is_nearly_empty() -> None:
    narrow, wide = big(128, 128), big(128, 256)
    call = problem(128 * 6, 256 * 22, 8192)  # 132 wide tiles, or 264 narrow ones
    assert (waves(wide, call, 132), waves(narrow, call, 132)) == (1.0, 2.0)
    assert names([narrow, wide], call) == [wide.name]
    more = problem(128 * 7, 128 * 19, 8192)  # 133 narrow tiles: one multiprocessor works twice
    even = big(128, 144)
    assert (waves(narrow, more, 132), waves(even, more, 132)) == (133 / 132, 119 / 132)
    assert names([narrow, even], more) == [even.name]


def test_few_tokens_take_small_tiles_and_many_take_big_ones() -> None:
    specs = [small(), small(32), big(128, 128), big(128, 256)]
    one, many = problem(1, 4096, 4096), problem(8192, 8192, 4096)
    assert names(specs, one) == [small().name]
    assert names(specs, many) == [big(128, 256).name]


def test_a_nearly_empty_second_wave_is_shared_by_stream_k() -> None:
    static = big(128, 128)
    shared = big(128, 128, scheduler="stream_k")
    assert names([static, shared], problem(128, 128 * 133, 16384)) == [shared.name]


def test_larger_calls_never_take_less_time() -> None:
    for spec in (small(), big(), big(128, 128, scheduler="stream_k"), lean(split_k=2)):
        least = estimate(spec, problem(512, 4096, 4096), 132)
        for size in ((8192, 4096, 4096), (512, 16384, 4096), (512, 4096, 8192)):
            assert estimate(spec, problem(*size), 132) > least
        assert estimate(spec, problem(512, 4096, 4096, batch=4), 132) > least


def test_tuning_groups_tiles_of_persistent_kernels_on_large_outputs_only() -> None:
    large = problem(8192, 8192, 4096)
    assert tune(big(), large).swizzle > 1
    assert tune(big(), problem(16, 8192, 4096)).swizzle == 0
    assert tune(small(), large).swizzle == 0  # it has no tile scheduler
    assert tune(big(), large).splits == 0


@pytest.mark.parametrize("arch", [SM_80, SM_90A], ids=lambda arch: arch.name)
def test_a_choice_always_fits_and_is_made_wherever_one_can_be(arch: Architecture) -> None:
    draw = random.Random(7)
    specs = defaults(arch)
    made = 0
    for _ in range(1500):
        m, n, k = (draw.choice((1, 7, 8, 36, 64, 768, 1000, 4096, 8192, 50257)) for _ in range(3))
        dtype = draw.choice((BF16, FP16))
        call = problem(
            m,
            n,
            k,
            dtype,
            batch=draw.choice((1, 1, 6)),
            d=draw.choice((dtype, dtype, dtype, FP32)),
            layout=draw.choice(("rcr", "rcr", "rrr", "ccr", "crr", "rcc")),
            a_align=draw.choice((2, 4, 8, 16, 16, 16, 16, 16)),
            b_align=draw.choice((2, 16, 16, 16)),
            d_align=draw.choice((2, 16, 16, 16)),
            bias=draw.random() < 0.5,
            residual=draw.random() < 0.3,
        )
        choice = choose(specs, call, SMS[arch.name])
        fitting = [spec for spec in specs if not misfit(spec, call)]
        assert (choice is not None) == bool(fitting), call
        if choice is not None:
            assert choice.spec in fitting
            assert choice.microseconds == min(
                estimate(spec, call, SMS[arch.name]) for spec in fitting
            )
            made += 1
    assert 100 < made < 1400


@pytest.mark.parametrize("model", model_names())
@pytest.mark.parametrize("arch", [SM_80, SM_90A], ids=lambda arch: arch.name)
def test_every_layer_of_a_model_has_a_default_kernel(arch: Architecture, model: str) -> None:
    specs = defaults(arch)
    shapes = load_model(model).shapes
    assert shapes
    for shape, m in itertools.product(shapes, TOKENS):
        call = problem(m, shape.n, shape.k)
        choice = choose(specs, call, SMS[arch.name])
        assert choice is not None, (shape, m)
        assert misfit(choice.spec, call) == ""


@pytest.mark.parametrize("dtype", [BF16, FP16], ids=str)
@pytest.mark.parametrize("arch", [SM_80, SM_90A], ids=lambda arch: arch.name)
@pytest.mark.parametrize("extra", ["bias", "residual"])
def test_epilogues_have_default_kernels(arch: Architecture, dtype: DType, extra: str) -> None:
    for shape, m in itertools.product(load_model("llama3-8b").shapes, (1, 16, 100, 2048, 8192)):
        call = problem(m, shape.n, shape.k, dtype, **{extra: True})
        assert choose(defaults(arch), call, SMS[arch.name]) is not None, (shape, m)


@pytest.mark.parametrize("layout", ["rcr", "rrr", "ccr", "crr"])
@pytest.mark.parametrize("arch", [SM_80, SM_90A], ids=lambda arch: arch.name)
def test_every_layout_of_operands_has_a_default_kernel(arch: Architecture, layout: str) -> None:
    """No layer of a language model has transposed activations: they have kernels of bf16 alone."""
    dtypes = (BF16, FP16) if layout[0] == "r" else (BF16,)
    for dtype, m in itertools.product(dtypes, (8, 4096)):
        call = problem(m, 4096, 4096, dtype, layout=layout)
        assert choose(defaults(arch), call, SMS[arch.name]) is not None


@pytest.mark.parametrize("arch", [SM_80, SM_90A], ids=lambda arch: arch.name)
def test_an_odd_vocabulary_has_a_default_kernel(arch: Architecture) -> None:
    for m in (1, 8, 64, 4096):
        call = problem(m, 50257, 768, d_align=2)
        assert choose(defaults(arch), call, SMS[arch.name]) is not None, m


@pytest.mark.parametrize("arch", [SM_70, SM_75, SM_80], ids=lambda arch: arch.name)
def test_element_by_element_is_the_last_choice(arch: Architecture) -> None:
    for m in (1, 16, 64, 128, 512, 4096):
        for n, k in ((4608, 3584), (1024, 4096), (28672, 4096), (512, 64)):
            call = packed_problem(m, n, k, FP16)
            chosen = choose(defaults(arch), call, SMS[arch.name])
            assert chosen is not None
            assert chosen.spec.alignment.a == chosen.spec.alignment.b == 8, (m, n, k)
            odd = choose(defaults(arch), packed_problem(m, n, k + 1, FP16), SMS[arch.name])
            assert odd is not None
            assert odd.spec.alignment.a == 1


def test_what_a_kernel_can_do_beside_the_call_makes_it_the_second_choice() -> None:
    plain = KernelSpec(arch=SM_90A, tile=Tile(128, 128, 64), schedule="cooperative")
    able = dataclasses.replace(plain, activation="any")
    problem = GemmProblem(m=2048, n=4096, k=4096, a=BF16, b=BF16, d=BF16)
    chosen = choose([able, plain], problem, 132)
    assert chosen is not None
    assert chosen.spec is plain
    chosen = choose([able, plain], dataclasses.replace(problem, activation="silu"), 132)
    assert chosen is not None
    assert chosen.spec is able
