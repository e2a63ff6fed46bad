"""Grouping that keeps all compilers busy."""

from __future__ import annotations

import dataclasses

import pytest

from fakes import ampere, hopper
from gemmsmith.arch import ARCHITECTURES, SM_90A, Schedule, portable
from gemmsmith.card import Card
from gemmsmith.dtypes import FP16
from gemmsmith.plan import LARGEST_GROUP, Group, makespan, plan
from gemmsmith.rowspec import AnySpec, row_specs
from gemmsmith.spec import Alignment, KernelSpec, Tile

AMPERE = [ampere(n, m) for n in (64, 128, 256) for m in (64, 128)]
HOPPER = [hopper(n) for n in (32, 64, 96, 128, 160, 192)]


def lean(n: int = 64) -> KernelSpec:
    return KernelSpec(arch=SM_90A, tile=Tile(64, n, 64), schedule="lean", store="smem")


def gemms(group: Group) -> list[KernelSpec]:
    """The kernels of a group without row kernels."""
    specs = [spec for spec in group.specs if isinstance(spec, KernelSpec)]
    assert len(specs) == len(group.specs)
    return specs


@pytest.mark.parametrize("jobs", [1, 2, 3, 16])
def test_each_kernel_once_and_only_kin_together(jobs: int) -> None:
    groups = plan([*AMPERE, *HOPPER], jobs)
    assert sorted(spec.name for group in groups for spec in group.specs) == sorted(
        spec.name for spec in (*AMPERE, *HOPPER)
    )
    for group in groups:
        assert 1 <= len(group.specs) <= LARGEST_GROUP
        assert len({spec.arch.name for spec in group.specs}) == 1
    seconds = [group.seconds for group in groups]
    assert seconds == sorted(seconds, reverse=True)


def test_kernels_of_every_store_have_a_time() -> None:
    """One that is not known would end the build of gated kernels before it begins."""
    gated = dataclasses.replace(hopper(), store="strip", gate="silu")
    direct = dataclasses.replace(hopper(), store="direct", alignment=Alignment(8, 8, 1))
    specs = [ampere(), hopper(), direct, gated, lean()]
    assert {spec.store for spec in specs} == {
        store for row in ARCHITECTURES for store in row.stores
    }
    assert all(group.seconds > 0 for group in plan(specs, 4))


def test_few_jobs_share_headers_and_many_jobs_split() -> None:
    assert sorted(len(group.specs) for group in plan(HOPPER, 2)) == [3, 3]
    assert [len(group.specs) for group in plan(HOPPER, 16)] == [1] * 6
    assert [len(group.specs) for group in plan(HOPPER[:4], 1)] == [4]


def test_a_group_is_no_larger_than_memory_allows() -> None:
    many = [hopper(16 * n) for n in range(1, 17)]
    assert sorted(len(group.specs) for group in plan(many, 1)) == [8, 8]


def test_lean_kernels_are_compiled_apart_and_more_of_them_together() -> None:
    many = [lean(8 * n) for n in range(1, 33)]  # rare widths cost them nothing
    groups = plan([*many, *HOPPER], 1)
    assert sorted(len(group.specs) for group in groups) == [6, 16, 16]
    large = [group.seconds for group in groups if len(group.specs) == 16]
    assert large == pytest.approx([5.0 + 16 * 0.4] * 2)
    assert len(plan(many, 4)) == 4


def test_rare_widths_share_a_group_and_are_expected_to_take_longer() -> None:
    rare, common = [hopper(48), hopper(112)], [hopper(64), hopper(128)]
    apart = plan([rare[0], common[0], common[1], rare[1]], 2)
    assert {group.specs for group in apart} == {tuple(rare), tuple(common)}
    assert plan(rare, 1)[0].seconds == plan(common, 1)[0].seconds + 9


def test_kernels_of_one_tile_stay_together() -> None:
    wide, narrow = hopper(128), hopper(64)
    half = [dataclasses.replace(spec, a=FP16, b=FP16, d=FP16) for spec in (wide, narrow)]
    groups = plan([wide, narrow, *half], 2)
    assert {frozenset(group.specs) for group in groups} == {
        frozenset({wide, half[0]}),
        frozenset({narrow, half[1]}),
    }


def test_twins_are_not_parted_for_the_sake_of_even_groups() -> None:
    tiles = [hopper(n) for n in (32, 64, 96, 128, 160, 192, 256)]
    twins = [dataclasses.replace(spec, a=FP16, b=FP16, d=FP16) for spec in tiles]
    groups = plan([*tiles, *twins], 1)
    assert sorted(len(group.specs) for group in groups) == [6, 8]  # 7 and 7 would part one pair
    for group in groups:
        halves = [spec.tile for spec in gemms(group) if spec.a is FP16]
        assert sorted(halves) == sorted(spec.tile for spec in gemms(group) if spec.a is not FP16)


def test_kernels_for_another_gpu_are_compiled_apart() -> None:
    elsewhere = [dataclasses.replace(spec, arch=portable(spec.arch)) for spec in AMPERE[:2]]
    groups = plan([*AMPERE[:2], *elsewhere], 1)
    assert sorted(group.specs[0].arch.runs_on for group in groups) == ["sm_80", "sm_90"]
    assert all(len({spec.arch for spec in group.specs}) == 1 for group in groups)


def test_neighbours_are_kin() -> None:
    schedules: tuple[Schedule, ...] = ("pingpong", "cooperative")
    mixed = [
        dataclasses.replace(hopper(n), schedule=schedule, tile=Tile(m, n, 64))
        for n in (64, 128)
        for schedule, m in zip(schedules, (64, 128), strict=True)
    ]
    apart = plan(mixed, 1)
    assert [{spec.schedule for spec in gemms(group)} for group in apart] == [
        {"cooperative"},
        {"pingpong"},
    ]


def test_makespan_is_that_of_longest_first() -> None:
    assert makespan([3, 3, 2, 2, 2], 2) == 7
    assert makespan([5.5], 4) == 5.5
    assert makespan([], 2) == 0


def test_expected_seconds_follow_what_was_measured() -> None:
    cards = {
        spec.name: Card(
            name=spec.name,
            arch="sm_90a",
            registers=168,
            spill_store_bytes=0,
            spill_load_bytes=0,
            stack_bytes=0,
            static_shared_bytes=0,
            dynamic_shared_bytes=1024,
            threads=384,
            stages=4,
            tensor_instructions={},
            sass_inspected=False,
            compile_seconds=150.0,
            compiled_with=2,
            compile_peak_bytes=1,
            library_bytes=1,
        )
        for spec in HOPPER[:2]
    }
    (fresh,) = plan(HOPPER[:2], 1)
    (again,) = plan(HOPPER[:2], 1, cards.get)
    assert fresh.seconds == 18 + 2 * 9
    assert again.seconds == 150


def test_row_kernels_are_compiled_apart_from_gemms() -> None:
    rows = row_specs(HOPPER[0].arch)
    specs: list[AnySpec] = [*rows, HOPPER[0]]
    groups = plan(specs, 2)
    names = sorted(spec.name for group in groups for spec in group.specs)
    assert names == sorted(spec.name for spec in specs)
    assert [group.specs for group in groups if HOPPER[0] in group.specs] == [(HOPPER[0],)]
    assert all(group.seconds < 10 for group in groups if HOPPER[0] not in group.specs)
