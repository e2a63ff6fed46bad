"""Tuning with invented times: who is timed, who wins, when it stops, what is kept."""

from __future__ import annotations

import dataclasses
import json
import threading
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from fakes import hopper
from gemmsmith.arch import SM_90A
from gemmsmith.bench.rounds import Policy, run_rounds
from gemmsmith.bench.tasks import make_task
from gemmsmith.buckets import BUCKETS
from gemmsmith.choose import Choice, Tuning, rank
from gemmsmith.cli.app import app
from gemmsmith.config import load_specs
from gemmsmith.dtypes import BF16, INT8
from gemmsmith.errors import ConfigError, MeasureError, ToolchainError
from gemmsmith.kernelset import DeviceFacts
from gemmsmith.progress import Progress
from gemmsmith.resources import configs_dir
from gemmsmith.spec import Cluster, KernelSpec, Tile
from gemmsmith.tables import forget_tables, own_tables, tables_for
from gemmsmith.tune import start
from gemmsmith.tune.building import Workshop
from gemmsmith.tune.candidates import Candidate, shortlist, variants
from gemmsmith.tune.console import ConsoleWatcher, entry_words
from gemmsmith.tune.contest import contest
from gemmsmith.tune.gpu import GpuBench, GpuBenches
from gemmsmith.tune.run import Outcome, run
from gemmsmith.tune.start import Request, dealt, pool_of
from gemmsmith.tune.store import Store, open_store, table_name
from gemmsmith.tune.text import outcome_json, outcome_text
from gemmsmith.tune.work import Job, Weight, jobs_of, weights_of
from gemmsmith.tuned import TORCH, Entry, identified
from gemmsmith.tuned_file import read_table
from tune_data import TORCH_US, Clock, FakeBenches, FakeTimer, Notes, all_ready
from tuned_data import MADE

A, B, C = hopper(128), hopper(192), hopper(256)
WEIGHT = Weight(n=4096, k=4096, dtype=BF16)
JOB = Job(weight=WEIGHT, m=256)
SMS = 132


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEMMSMITH_CACHE_DIR", str(tmp_path / "cache"))


def store(tmp_path: Path) -> Store:
    return open_store(MADE, tmp_path / "t.yaml")


def by_name(us: dict[KernelSpec, float]) -> Any:
    return lambda job, candidate: us[candidate.spec]


def measured(benches: FakeBenches, *specs: KernelSpec, job: Job = JOB, **more: Any) -> Entry:
    choices = rank(specs, job.problem, SMS)
    return contest(job, choices, benches.open(job).__enter__(), sm_count=SMS, **more)


def tuned(
    jobs: Sequence[Job], benches: FakeBenches, kept: Store, *pool: KernelSpec, **more: Any
) -> tuple[Outcome, Notes]:
    notes = Notes()
    options: dict[str, Any] = {"workshop": all_ready, "clock": benches.clock, **more}
    outcome = run(jobs, pool, benches=benches, store=kept, sm_count=SMS, watcher=notes, **options)
    return outcome, notes


def test_jobs_are_each_weight_of_the_models_once_at_every_bucket() -> None:
    weights = weights_of(["llama3-8b", "llama3-8b"], [(4096, 4096), (512, 256)])
    assert [(each.n, each.k) for each in weights] == [
        (6144, 4096),
        (4096, 4096),
        (28672, 4096),
        (4096, 14336),
        (512, 256),
    ]
    jobs = jobs_of(weights)
    assert [(job.weight.n, job.m) for job in jobs[:6]] == [
        *((each.n, 1) for each in weights),
        (6144, 4),
    ]
    mine = [job.m for job in jobs if job.weight.n == 6144]
    assert mine == [
        1,
        4,
        16,
        64,
        128,
        256,
        512,
        1024,
        2048,
        8192,
        2,
        8,
        32,
        96,
        192,
        384,
        768,
        4096,
    ]
    assert set(mine) == set(BUCKETS)
    assert len(jobs) == len({job.key for job in jobs}) == 5 * 18
    gates = weights_of(["llama3-8b"], epilogues=["gate"])
    assert [(each.n, each.problem(8).gate, each.problem(8).columns) for each in gates] == [
        (28672, "silu", 14336)
    ]
    (whole, *_) = weights_of(["llama3-8b"], dtype="int8")
    assert str(Job(weight=whole, m=16).key) == "16x6144x4096 int8 -> bf16 rcr scaled"
    assert whole.dtype is INT8


def test_weights_that_nothing_writes_have_entries_of_their_own() -> None:
    (weight,) = weights_of([], [(64, 32)], epilogues=["residual"], constant=True)
    job = Job(weight=weight, m=16)
    assert job.problem.constant_b
    assert job.key.epilogue == "residual+constant"
    assert job.key != Job(weight=dataclasses.replace(weight, constant=False), m=16).key


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"epilogues": ["gelu"]}, "epilogue 'gelu' is not known; use plain, residual"),
        ({"dtype": "fp32"}, "dtype 'fp32' cannot be tuned; use one of bf16, fp16, int8"),
        ({"dtype": "x"}, "dtype 'x' cannot be tuned"),
        ({}, "nothing to tune: name a --model or a --weight NxK"),
    ],
)
def test_what_cannot_be_tuned_is_refused(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(MeasureError, match=words):
        weights_of([], **wrong)
    with pytest.raises(MeasureError, match="M = 17 is no bucket; use 1, 2, 4"):
        jobs_of([WEIGHT], [16, 17])


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


def test_a_run_measures_each_job_once_and_a_second_goes_on(tmp_path: Path) -> None:
    jobs = jobs_of([WEIGHT], [16, 64, 256])
    first = FakeBenches(by_name({A: 18.0, B: 16.0}))
    outcome, notes = tuned(jobs, first, store(tmp_path), A, B)
    assert [job.m for job in first.jobs] == [16, 64, 256]
    assert (outcome.measured, outcome.left, outcome.own_share) == (3, 0, 1.0)
    assert outcome.geomean == pytest.approx(1.25, rel=0.01)
    assert notes.lines[0] == "begin 3 0 0"
    second = FakeBenches(by_name({A: 18.0, B: 16.0}))
    outcome, notes = tuned(jobs, second, store(tmp_path), A, B)
    assert second.jobs == []
    assert notes.lines == ["begin 3 3 0", "end"]
    assert (outcome.measured, len(outcome.entries)) == (0, 3)
    outcome, _ = tuned(jobs, second, store(tmp_path), A, B, again=True)
    assert outcome.measured == 3


def test_a_killed_run_loses_nothing(tmp_path: Path) -> None:
    jobs = jobs_of([WEIGHT], [16, 64, 256])

    def us(job: Job, each: Candidate) -> float:
        if job.m == 256 and not resumed:
            raise KeyboardInterrupt
        return 16.0

    resumed = False
    with pytest.raises(KeyboardInterrupt):
        tuned(jobs, FakeBenches(us), store(tmp_path), A)
    assert [entry.m for entry in read_table(tmp_path / "t.yaml").entries] == [16, 64]
    resumed = True
    rest = FakeBenches(us)
    outcome, _ = tuned(jobs, rest, store(tmp_path), A)
    assert [job.m for job in rest.jobs] == [256]
    assert len(outcome.entries) == 3


def test_new_candidates_are_measured_beside_the_old_winner(tmp_path: Path) -> None:
    us = {A: 18.0, B: 16.0, C: 15.0}
    tuned([JOB], FakeBenches(by_name(us)), store(tmp_path), A, B)
    benches = FakeBenches(by_name(us))
    outcome, _ = tuned([JOB], benches, store(tmp_path), A, B, C, candidates=1)
    ranked = [each.spec for each in rank([A, B, C], JOB.problem, SMS)]
    asked = {ranked[0], B}
    if ranked[0] in (A, B):  # measured before
        assert benches.jobs == []
    else:
        assert {each.spec for each in benches.timed[0]} == asked
    benches = FakeBenches(by_name(us))
    outcome, _ = tuned([JOB], benches, store(tmp_path), A, B, C)
    (found,) = outcome.entries
    assert found.winner == identified(C)
    assert {each.name for each in found.timings} == {A.name, B.name, C.name}


def test_timings_of_kernels_that_are_no_longer_candidates_are_kept(tmp_path: Path) -> None:
    us = {A: 18.0, B: 16.0, C: 15.0}
    kept = store(tmp_path)
    tuned([JOB], FakeBenches(by_name(us)), kept, A, B)
    outcome, _ = tuned([JOB], FakeBenches(by_name(us)), kept, C)
    assert [each.name for each in outcome.entries[0].timings] == [C.name, B.name, A.name]


def test_an_edited_kernel_replaces_what_it_was(tmp_path: Path) -> None:
    kept = store(tmp_path)
    tuned([JOB], FakeBenches(by_name({A: 10.0})), kept, A)
    (entry,) = read_table(kept.path).entries
    stale = entry.timings[0].model_copy(update={"kernel": f"{A.name}@00000000"})
    kept.add(entry.model_copy(update={"timings": (stale,), "winner": stale.kernel}))
    outcome, _ = tuned([JOB], FakeBenches(by_name({A: 18.0})), kept, A)
    (found,) = outcome.entries
    assert [each.kernel for each in found.timings] == [identified(A)]
    assert found.winner == identified(A)


def test_a_budget_ends_the_run_and_is_shared_out(tmp_path: Path) -> None:
    jobs = jobs_of([WEIGHT])
    benches = FakeBenches(by_name({A: 18.0, B: 18.0}), overhead=0.5, noise=0.05)
    outcome, _ = tuned(jobs, benches, store(tmp_path), A, B, budget=5.0)
    assert 0 < outcome.measured < len(jobs)
    assert outcome.left == len(jobs) - outcome.measured
    assert outcome.seconds < 5.0 + 1.5
    assert "the budget did not reach" in outcome_text(outcome, tmp_path / "t.yaml")
    roomy = FakeBenches(by_name({A: 18.0, B: 18.0}), overhead=0.05, noise=0.05)
    outcome, _ = tuned(jobs, roomy, open_store(MADE, tmp_path / "u.yaml"), A, B, budget=40.0)
    assert outcome.left == 0
    assert outcome.seconds <= 40.0
    replays = [
        sum(timer.replays for timer in each.timers) / len(each.jobs) for each in (benches, roomy)
    ]
    assert replays[1] > 1.3 * replays[0]  # the time was used


class _Builder:
    """Builds kernels one by one, each when it is let."""

    def __init__(self, *failing: KernelSpec) -> None:
        self.failing = failing
        self.asked: list[KernelSpec] = []
        self.go = threading.Event()

    def __call__(self, specs: Sequence[KernelSpec], *, progress: Progress | None = None) -> Any:
        assert progress is not None
        self.asked = list(specs)
        assert self.go.wait(10)
        for spec in specs:
            if spec in self.failing:
                progress.failed(spec.name, ValueError("no"), remaining=0)
            else:
                progress.finished(SimpleNamespace(name=spec.name), remaining=0)  # type: ignore[arg-type]
        failed = [SimpleNamespace(error=f"{spec.name} broke\nlog") for spec in self.failing]
        good = [SimpleNamespace(spec=spec) for spec in specs if spec not in self.failing]
        return SimpleNamespace(built=good, failed=failed)


def test_what_is_ready_is_timed_while_the_rest_is_built(tmp_path: Path) -> None:
    narrow = KernelSpec(arch=SM_90A, tile=Tile(16, 64, 64), schedule="warp_specialized", swap=True)
    build = _Builder()
    said: list[str] = []
    jobs = jobs_of([WEIGHT], [1, 8192])
    benches = FakeBenches(lambda job, each: 10.0)

    def shop(specs: Sequence[KernelSpec]) -> Workshop:
        return Workshop(specs, there=lambda some: [A], build=build, told=said.append)

    notes = Notes()

    class Impatient(Notes):
        def waiting(self, *, building: int) -> None:
            notes.lines.append(f"waiting for {building} after {[job.m for job in benches.jobs]}")
            build.go.set()

    options: dict[str, Any] = {"candidates": 1, "sm_count": SMS, "clock": benches.clock}
    outcome = run(
        jobs,
        [A, narrow],
        benches=benches,
        workshop=shop,
        store=store(tmp_path),
        watcher=Impatient(),
        **options,
    )
    assert build.asked == [narrow]
    assert notes.lines[0] == "waiting for 1 after [8192]"
    assert [job.m for job in benches.jobs] == [8192, 1]
    assert outcome.measured == 2
    assert said == []


def test_kernels_that_cannot_be_built_are_left_out(tmp_path: Path) -> None:
    said: list[str] = []
    build = _Builder(B)
    build.go.set()

    def shop(specs: Sequence[KernelSpec]) -> Workshop:
        return Workshop(specs, there=lambda some: [], build=build, told=said.append)

    benches = FakeBenches(by_name({A: 18.0}))
    outcome, _ = tuned([JOB], benches, store(tmp_path), A, B, workshop=shop)
    assert [each.name for each in outcome.entries[0].timings] == [A.name]
    assert said == [f"left out: {B.name} broke"]
    again = FakeBenches(by_name({A: 18.0}))
    tuned([JOB], again, store(tmp_path), A, B, workshop=shop)
    assert again.jobs == []  # A is measured, B cannot be

    def no_compiler(*_: object, **__: object) -> Any:
        raise ToolchainError("no nvcc")

    def empty(specs: Sequence[KernelSpec]) -> Workshop:
        return Workshop(specs, there=lambda some: [], build=no_compiler, told=said.append)

    none = open_store(MADE, tmp_path / "none.yaml")
    outcome, notes = tuned([JOB], again, none, A, workshop=empty)
    assert outcome.skipped == (f"{JOB.key}: no kernel that fits is built",)
    assert outcome.entries == ()
    assert said[-1] == "no kernel can be built: no nvcc"
    assert notes.lines[-2:] == [f"skipped {outcome.skipped[0]}", "end"]


def test_the_users_table_is_named_by_gpu_and_versions(tmp_path: Path) -> None:
    name = table_name(MADE)
    assert name.startswith("nvidia-h200-")
    assert table_name(MADE.model_copy(update={"driver": "1"})) != name
    assert open_store(MADE).path == tmp_path / "cache" / "v1" / "tuned" / name


def test_a_named_table_of_other_versions_is_not_added_to(tmp_path: Path) -> None:
    store(tmp_path)
    with pytest.raises(MeasureError, match=r"measured with driver 580.95.05, here is 590: name"):
        open_store(MADE.model_copy(update={"driver": "590"}), tmp_path / "t.yaml")


def test_the_pool_is_the_default_kernels_and_those_of_files(tmp_path: Path) -> None:
    own = tmp_path / "own.yaml"
    own.write_text("families: [{name: x, arch: sm_90a, dtype: bf16, tile: [128, 80, 64]}]\n")
    usual = pool_of(SM_90A, Request())
    assert usual == load_specs(configs_dir() / "kernels", arch=["sm_90a"])
    more = pool_of(SM_90A, Request(files=(own,)))
    assert more[: len(usual)] == usual
    assert [spec.tile.n for spec in more[len(usual) :]] == [80]
    alone = pool_of(SM_90A, Request(files=(own,), only_files=True))
    assert alone == more[len(usual) :]
    assert pool_of(SM_90A, Request(files=(own,), without=(alone[0].name,))) == usual
    with pytest.raises(ConfigError, match="cannot be read"):
        pool_of(SM_90A, Request(files=(tmp_path / "gone.yaml",)))


def test_weights_are_dealt_to_gpus_whole_and_evenly() -> None:
    weights = [Weight(n=n, k=4096, dtype=BF16) for n in (57344, 4096, 6144, 28672, 8192)]
    parts = dealt(jobs_of(weights), 2)
    assert [{job.weight.n for job in part} for part in parts] == [
        {57344, 6144},
        {28672, 8192, 4096},
    ]
    assert sum(map(len, parts)) == 5 * len(BUCKETS)
    assert len(dealt(jobs_of(weights[:1]), 4)) == 1


def test_what_a_run_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    benches = FakeBenches(
        by_name({A: 16.0, B: 30.0}), fault=lambda each: "x" if each.spec == B else "", noise=0.0
    )
    watcher = ConsoleWatcher(prefix="GPU 1: ")
    jobs = jobs_of([WEIGHT], [64, 2048])
    outcome = run(
        jobs,
        [A, B],
        benches=benches,
        workshop=all_ready,
        store=store(tmp_path),
        sm_count=SMS,
        watcher=watcher,
        clock=benches.clock,
    )
    said = capsys.readouterr().err
    assert "GPU 1: 2 entries to measure, 0 done before" in said
    assert f"64x4096x4096 bf16 rcr plain: torch 20.0 µs, WRONG: {identified(B)}, 16.0" in said
    text = outcome_text(outcome, tmp_path / "t.yaml")
    assert "| 4096x4096 bf16 plain |" in text
    assert "1.250 (1.250)" in text
    assert "100% won by our kernels" in text
    assert f"WRONG at 64x4096x4096 bf16 rcr plain: {identified(B)}" in text
    facts = outcome_json(outcome, tmp_path / "t.yaml")
    assert (facts["measured"], facts["own_share"]) == (2, 1.0)
    torch = outcome.entries[0].model_copy(update={"winner": TORCH})
    assert entry_words(torch).endswith("1.250 (torch stays)")
    assert outcome.entries[0].timings[0].tuning == rank([A], jobs[0].problem, SMS)[0].tuning
    assert Tuning() == Tuning(raster=0, swizzle=0, splits=0)


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


def test_tuning_needs_a_gpu() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    result = CliRunner().invoke(app, ["tune", "--model", "llama3-8b", "--budget", "60s"])
    assert result.exit_code == 1
    assert result.output == ("error: tuning needs a GPU and a CUDA build of torch; found none\n")
    for words, part in [
        (["--weight", "4096"], "write N and K as in 6144x4096"),
        (["--weight", "64x64", "--budget", "soon"], "write 90, 90s or 5min"),
    ]:
        result = CliRunner().invoke(app, ["tune", *words], env={"COLUMNS": "200"})
        assert result.exit_code == 2
        assert part in result.output


@pytest.fixture
def a_gpu(monkeypatch: pytest.MonkeyPatch) -> FakeBenches:
    """An H200 on which every kernel is built and wider tiles are faster."""
    benches = FakeBenches(lambda job, each: 2000.0 / each.spec.tile.n, noise=0.0)
    facts = DeviceFacts(name="NVIDIA H200", capability=(9, 0), sm_count=132)
    monkeypatch.setattr(start, "device_here", lambda: facts)
    monkeypatch.setattr(start, "GpuBenches", lambda: benches)
    monkeypatch.setattr(start, "find_built", lambda specs: dict.fromkeys(specs, Path("x.so")))
    monkeypatch.setattr(start, "find_cached", lambda specs: {})
    monkeypatch.delenv("GEMMSMITH_TUNED", raising=False)
    forget_tables()
    return benches


def test_the_verb_writes_a_table_that_later_choices_obey(
    a_gpu: FakeBenches, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["tune", "--weight", "4096x4096", "--m", "64", "--m", "256", "--json"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    facts = json.loads(result.stdout)
    assert (facts["measured"], facts["left"], facts["own_share"]) == (2, 0, 1.0)
    assert Path(facts["table"]).parent == own_tables()
    forget_tables()
    named = {spec.name: spec for spec in load_specs(configs_dir() / "kernels", arch=["sm_90a"])}
    tables = tables_for("NVIDIA H200", 132, (9, 0))
    chosen = next(tables.choices(JOB.problem, named, torch=True))
    assert isinstance(chosen, Choice)
    assert facts["entries"][1]["winner"] == identified(chosen.spec)
    again = CliRunner().invoke(app, words)
    assert json.loads(again.stdout)["measured"] == 0
    assert len(a_gpu.jobs) == 2
    promised = json.loads(CliRunner().invoke(app, [*words, "--constant-b"]).stdout)
    assert promised["measured"] == 2
    assert {each["epilogue"] for each in promised["entries"]} == {"constant"}
    text = CliRunner().invoke(app, [*words[:-1], "--again", "--budget", "1min"]).stdout
    assert "2 entries measured" in text
    assert "| 4096x4096 bf16 plain |" in text
    forget_tables()


def test_a_wrong_kernel_ends_the_verb_with_1(a_gpu: FakeBenches, tmp_path: Path) -> None:
    a_gpu.fault = lambda each: "NaN"
    out = tmp_path / "t.yaml"
    words = ["tune", "--weight", "4096x4096", "--m", "64", "--out", str(out)]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 1
    assert "WRONG at 64x4096x4096 bf16 rcr plain: gemm_bf16_" in result.stdout
    (entry,) = read_table(out).entries
    assert (entry.winner, entry.timings) == (TORCH, ())


def test_several_gpus_must_be_there_and_alike(
    a_gpu: FakeBenches, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds = [("NVIDIA H200", 132), ("NVIDIA H200", 132), ("NVIDIA T4", 40)]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr(
        torch.cuda,
        "get_device_properties",
        lambda index: SimpleNamespace(name=kinds[index][0], multi_processor_count=kinds[index][1]),
    )
    with pytest.raises(MeasureError, match="--gpus 3: 2 GPUs like the first are visible"):
        start.tune_here([JOB], Request(gpus=3))
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    other = Job(weight=Weight(n=64, k=64, dtype=BF16), m=16)  # the processes find no GPU here
    with pytest.raises(MeasureError, match=r"tuning ended early on GPU 0, 1 .* run again to go on"):
        start.tune_here([JOB, other], Request(gpus=2))
