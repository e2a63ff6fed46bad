"""The candidates for one entry with invented times: who is timed and who wins."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from fakes import hopper
from gemmsmith.arch import SM_90A
from gemmsmith.bench.rounds import Policy, run_rounds
from gemmsmith.bench.tasks import make_task
from gemmsmith.choose import Tuning, rank
from gemmsmith.config import load_specs
from gemmsmith.dtypes import BF16
from gemmsmith.resources import configs_dir
from gemmsmith.spec import Cluster, KernelSpec, Tile
from gemmsmith.tune.candidates import Candidate, shortlist, variants
from gemmsmith.tune.contest import contest
from gemmsmith.tune.gpu import GpuBench, GpuBenches
from gemmsmith.tune.work import Job, Weight
from gemmsmith.tuned import TORCH, Entry, identified
from tune_data import JOB, SMS, TORCH_US, WEIGHT, A, B, C, Clock, FakeBenches, FakeTimer, by_name

pytestmark = pytest.mark.usefixtures("empty_cache")


def measured(benches: FakeBenches, *specs: KernelSpec, job: Job = JOB, **more: Any) -> Entry:
    choices = rank(specs, job.problem, SMS)
    return contest(job, choices, benches.open(job).__enter__(), sm_count=SMS, **more)


def test_the_shortlist_is_the_estimates_best_and_earlier_winners() -> None:
    pool = load_specs(configs_dir() / "kernels", arch=["sm_90a"])
    every = shortlist(pool, JOB.problem, SMS, 100)
    assert shortlist(pool, JOB.problem, SMS, 3) == every[:3]
    last = every[-1]
    assert shortlist(pool, JOB.problem, SMS, 3, [last.spec.name]) == [*every[:3], last]
    assert shortlist(pool, JOB.problem, SMS, 3, ["gone"]) == every[:3]
    long = Weight(n=57344, k=8192, dtype=BF16).problem(8192)
    assert len(shortlist(pool, long, SMS, 8)) == 5


def test_knobs_are_turned_where_they_may_matter() -> None:
    large = Job(weight=WEIGHT, m=8192).problem
    found = variants(A, large, SMS)
    knobs = {(each.tuning.raster, each.tuning.swizzle) for each in found}
    assert knobs == {(r, s) for r in (1, 2) for s in (1, 2, 4, 8)} - {(2, 8)}  # its own choice
    assert variants(A, Job(weight=WEIGHT, m=64).problem, SMS) == []  # one wave
    split = dataclasses.replace(A, scheduler="stream_k")
    assert [each.tuning.splits for each in variants(split, large, SMS)] == [2, 3, 4, 6, 8]
    plain = KernelSpec(arch=SM_90A, tile=Tile(64, 64, 64), schedule="warp_specialized")
    assert variants(plain, large, SMS) == []
    wide = dataclasses.replace(A, cluster=Cluster(2, 1))
    short = Job(weight=WEIGHT, m=1024).problem  # 8 rows of tiles: groups of 8 clusters would pad
    assert max(each.tuning.swizzle for each in variants(wide, short, SMS)) == 4


def test_the_fastest_right_kernel_wins_and_all_timings_are_kept() -> None:
    benches = FakeBenches(by_name({A: 18.0, B: 16.0, C: 30.0}))
    found = measured(benches, A, B, C)
    assert found.key == JOB.key
    assert found.winner == identified(B)
    assert [each.name for each in found.timings] == [B.name, A.name, C.name]
    assert found.timings[0].ratio == pytest.approx(TORCH_US / 16, rel=0.01)
    assert found.timings[0].us == pytest.approx(16, rel=0.01)
    low, high = found.timings[0].low, found.timings[0].high
    assert low is not None
    assert high is not None
    assert low <= found.timings[0].ratio <= high
    assert found.timings[2].low is None  # it fell behind after two rounds
    assert found.torch == pytest.approx(TORCH_US, rel=0.01)
    assert found.wrong == ()


def test_an_earlier_timing_is_told_beside_what_torch_takes_now() -> None:
    earlier = measured(FakeBenches(by_name({A: 19.0, C: 19.5})), A, C)
    slow = [each.model_copy(update={"ratio": 2.0}) for each in earlier.timings]  # torch was slow
    earlier = earlier.model_copy(update={"timings": tuple(slow)})
    found = measured(FakeBenches(by_name({A: 18.0, B: 16.0})), A, B, earlier=earlier)
    assert [each.name for each in found.timings] == [B.name, A.name, C.name]
    assert found.winner == identified(B)
    kept = found.timings[2]
    assert kept.us == slow[1].us
    assert kept.ratio == pytest.approx(TORCH_US / 19.5, rel=0.01)
    assert kept.low is kept.high is None


def test_a_wrong_kernel_is_never_timed_and_cannot_win() -> None:
    benches = FakeBenches(
        by_name({A: 18.0, B: 5.0}), fault=lambda each: "NaN" if each.spec == B else ""
    )
    found = measured(benches, A, B)
    assert found.winner == identified(A)
    assert found.wrong == (identified(B),)
    assert [each.spec for arms in benches.timed for each in arms if each.spec == B] == []


def test_a_setting_that_is_wrong_excludes_the_kernel_though_it_was_the_fastest() -> None:
    job = Job(weight=WEIGHT, m=8192)
    benches = FakeBenches(
        by_name({A: 18.0, B: 15.0}),
        fault=lambda each: "off" if each.spec == B and each.tuning.swizzle == 1 else "",
    )
    found = measured(benches, A, B, job=job)
    assert found.winner == identified(A)
    assert [each.name for each in found.timings] == [A.name]
    assert found.wrong == (identified(B),)


def test_torch_wins_where_every_kernel_is_slower() -> None:
    found = measured(FakeBenches(by_name({A: 20.5, B: 22.0})), A, B)
    assert found.winner == TORCH
    assert found.timings[0].name == A.name
    level = measured(FakeBenches(by_name({A: 20.04})), A)  # as good as equal: ours stays
    assert level.winner == identified(A)
    assert measured(FakeBenches(by_name({A: 1.0}), fault=lambda each: "x"), A).winner == TORCH


def test_the_best_three_get_their_knobs_turned_and_the_best_setting_is_kept() -> None:
    job = Job(weight=WEIGHT, m=8192)
    fourth = hopper(64)

    def us(job: Job, each: Candidate) -> float:
        base = {A: 18.0, B: 18.4, C: 18.6, fourth: 19.2}[each.spec]
        return base - (2.0 if each.spec == C and each.tuning.swizzle == 1 else 0.0)

    benches = FakeBenches(us)
    found = measured(benches, A, B, C, fourth, job=job)
    assert {each.spec for each in benches.timed[1]} == {A, B, C}
    assert found.winner == identified(C)
    assert found.timings[0].tuning.swizzle == 1
    assert len(found.timings) == 4


def test_few_knobs_are_turned_where_calls_are_long() -> None:
    job = Job(weight=WEIGHT, m=8192)
    short, long = FakeBenches(by_name({A: 500.0})), FakeBenches(by_name({A: 20_000.0}))
    for benches in (short, long):
        measured(benches, A, job=job)
    assert len(short.timed[1]) == 8
    assert len(long.timed[1]) == 2  # the leader, and one setting of its knobs


def test_measuring_stops_when_the_leader_is_clear() -> None:
    policy = Policy(until_clear=True, precision=1e-6, warm_up_seconds=0, seconds=100)
    apart, level = (
        FakeTimer({TORCH: 20.0, "a": 18.0, "b": us}, Clock(), 0.003) for us in (18.5, 18.0)
    )
    arms = [TORCH, "a", "b"]
    assert len(run_rounds(arms, apart, policy=policy, baseline=TORCH).samples["a"]) < 40
    assert len(run_rounds(arms, level, policy=policy, baseline=TORCH).samples["a"]) == 300
    without = FakeTimer({TORCH: 20.0, "a": 18.0, "b": 18.5}, Clock(), 0.003)
    policy = dataclasses.replace(policy, until_clear=False)
    assert len(run_rounds(arms, without, policy=policy, baseline=TORCH).samples["a"]) == 300


def test_the_gpus_bench_judges_by_what_was_computed_once() -> None:
    benches = GpuBenches()
    task = make_task(24, 64, 128, torch.bfloat16, device="cpu")
    bench = GpuBench(task, benches)
    right = Candidate(spec=A, tuning=Tuning(raster=1))
    assert bench.fault(right) == ""  # on the CPU torch stands in for the kernel
    assert benches.handle(right) == benches.handle(right)
    assert benches.handle(right) != benches.handle(Candidate(spec=A, tuning=Tuning()))
    task.x[2, 3] = 100
    assert "row 2" in bench.fault(right)  # judged by the data as it was
    other = GpuBench(task, benches)
    assert other.fault(right) == ""
    task.x[2, 3] = torch.nan
    assert "64 of 1536 elements are NaN" in other.fault(right)
