"""Clusters and early starts, which Hopper alone has."""

from __future__ import annotations

import pytest

from gemmsmith.arch import SM_70, SM_75, SM_80, SM_86, SM_87, SM_89, SM_90A, Architecture, portable
from gemmsmith.spec import Cluster, KernelSpec, Tile
from rule_data import AMPERE, HOPPER, VOLTA, objections


@pytest.mark.parametrize("cluster", [(3, 1), (0, 1), (4, 4), (16, 1)])
def test_c14_clusters_refused_on_sm_90a(cluster: tuple[int, int]) -> None:
    assert {objection.key for objection in objections(HOPPER, cluster=Cluster(*cluster))} == {
        "cluster"
    }


@pytest.mark.parametrize("cluster", [(1, 1), (2, 1), (1, 2), (2, 2), (4, 2), (8, 1), (1, 8)])
def test_c14_clusters_accepted_on_sm_90a(cluster: tuple[int, int]) -> None:
    assert KernelSpec(**HOPPER, cluster=Cluster(*cluster)).cluster == cluster


@pytest.mark.parametrize("arch", [SM_70, SM_75, SM_80, SM_86, SM_87, SM_89, portable(SM_80)])
def test_only_hopper_starts_kernels_before_the_one_ahead_has_ended(arch: Architecture) -> None:
    fields = VOLTA if arch in (SM_70, SM_75) else AMPERE
    (found,) = (
        each
        for each in objections(fields, arch=arch, dependent_launch=True)
        if each.key == "dependent_launch"
    )
    assert str(found) == (
        "dependent_launch: a kernel that starts before the one ahead has ended waits for it with"
        f" griddepcontrol, which needs sm_90a; {arch.name} has none; set dependent_launch: false"
    )
    for schedule in SM_90A.schedules:
        hopper = {**HOPPER, "schedule": schedule, "tile": Tile(128, 128, 64)}
        hopper["store"] = "smem" if schedule == "lean" else "tma"
        assert KernelSpec(**hopper, dependent_launch=True)
