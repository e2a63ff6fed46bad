"""A tuning run with invented times: when it stops, what it keeps, what it says."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gemmsmith.arch import SM_90A
from gemmsmith.choose import Tuning, rank
from gemmsmith.errors import MeasureError, ToolchainError
from gemmsmith.progress import Progress
from gemmsmith.spec import KernelSpec, Tile
from gemmsmith.tune.building import Workshop
from gemmsmith.tune.candidates import Candidate
from gemmsmith.tune.console import ConsoleWatcher, entry_words
from gemmsmith.tune.run import Outcome, run
from gemmsmith.tune.store import Store, open_store, table_name
from gemmsmith.tune.text import outcome_json, outcome_text
from gemmsmith.tune.work import Job, jobs_of
from gemmsmith.tuned import TORCH, identified
from gemmsmith.tuned_file import read_table
from tune_data import JOB, SMS, WEIGHT, A, B, C, FakeBenches, Notes, all_ready, by_name
from tuned_data import MADE

pytestmark = pytest.mark.usefixtures("empty_cache")


def store(tmp_path: Path) -> Store:
    return open_store(MADE, tmp_path / "t.yaml")


def tuned(
    jobs: Sequence[Job], benches: FakeBenches, kept: Store, *pool: KernelSpec, **more: Any
) -> tuple[Outcome, Notes]:
    notes = Notes()
    options: dict[str, Any] = {"workshop": all_ready, "clock": benches.clock, **more}
    outcome = run(jobs, pool, benches=benches, store=kept, sm_count=SMS, watcher=notes, **options)
    return outcome, notes


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
