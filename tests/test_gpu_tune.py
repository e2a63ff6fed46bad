"""Tuning on a GPU in small, and calls that obey what it wrote."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import gemmsmith
from gemmsmith.arch import architecture_of
from gemmsmith.build import build
from gemmsmith.choose import rank
from gemmsmith.dtypes import BF16
from gemmsmith.kernelset import KernelSet, default_kernels
from gemmsmith.lookup import find_built
from gemmsmith.selection import DeviceFacts
from gemmsmith.software import made_here
from gemmsmith.spec import KernelSpec
from gemmsmith.tables import forget_tables
from gemmsmith.tune.building import Workshop
from gemmsmith.tune.candidates import Candidate, shortlist
from gemmsmith.tune.console import ConsoleWatcher
from gemmsmith.tune.gpu import GpuBenches, device_here
from gemmsmith.tune.run import Outcome, run
from gemmsmith.tune.store import open_store
from gemmsmith.tune.work import Job, Weight, jobs_of
from gemmsmith.tuned import TORCH, Entry, Made, Table, Timing, identified
from gemmsmith.tuned_file import read_table, write_table

pytestmark = pytest.mark.gpu

WEIGHT = Weight(n=2112, k=1088, dtype=BF16)  # of no model, so that no table that ships has it


@pytest.fixture(scope="module")
def device() -> DeviceFacts:
    return device_here()


@pytest.fixture(scope="module")
def pool(device: DeviceFacts) -> tuple[KernelSpec, ...]:
    """The two kernels that the estimate likes best at 64 rows, built."""
    specs = default_kernels(architecture_of(device.capability).name).specs
    best = shortlist(specs, WEIGHT.problem(64), device.sm_count, 2)
    found = tuple(choice.spec for choice in best)
    build(found).raise_if_failed()
    return found


@pytest.fixture
def made(device: DeviceFacts, pool: tuple[KernelSpec, ...]) -> Made:
    return made_here(device.name, device.sm_count, pool[0].arch.name)


def tuned(pool: tuple[KernelSpec, ...], made: Made, path: Path) -> Outcome:
    return run(
        jobs_of([WEIGHT], [16, 64]),
        pool,
        benches=GpuBenches(),
        workshop=lambda specs: Workshop(
            specs, there=lambda some: list(find_built(some)), build=build
        ),
        store=open_store(made, path),
        sm_count=made.sm_count,
        watcher=ConsoleWatcher(),
    )


def ran(kernels: KernelSet | None, m: int) -> gemmsmith.ops.LaunchRecord:
    a = torch.randn(m, WEIGHT.k, dtype=torch.bfloat16, device="cuda")
    w = torch.randn(WEIGHT.n, WEIGHT.k, dtype=torch.bfloat16, device="cuda")
    result = gemmsmith.gemm(a, w.t()) if kernels is None else kernels.gemm(a, w.t())
    right = a.double() @ w.double().t()
    assert (result.double() - right).abs().max() < 0.01 * right.abs().max()
    record = gemmsmith.last_kernel()
    assert record is not None
    return record


def test_two_kernels_are_tuned_at_two_buckets_and_calls_obey(
    pool: tuple[KernelSpec, ...],
    made: Made,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = tmp_path / "own.yaml"
    outcome = tuned(pool, made, path)
    assert (outcome.measured, outcome.left, outcome.skipped) == (2, 0, ())
    assert outcome.seconds < 20
    for entry in outcome.entries:
        assert entry.wrong == ()
        assert {timing.name for timing in entry.timings} == {spec.name for spec in pool}
        assert 1 < entry.torch < 100
        assert all(0.1 < timing.ratio < 10 for timing in entry.timings)
        assert entry.timings[0].low is not None
    assert tuned(pool, made, path).measured == 0
    monkeypatch.setenv("GEMMSMITH_TUNED", str(path))
    forget_tables()
    kernels = KernelSet(pool, arch=pool[0].arch, source="two kernels")
    for entry in read_table(path).entries:
        best = entry.timings[0]
        record = ran(kernels, entry.m - 1)
        assert (record.name, record.tuning) == (best.name, best.tuning)
    forget_tables()


def test_a_table_overrules_the_estimate_and_may_name_torch(
    pool: tuple[KernelSpec, ...],
    made: Made,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = tmp_path / "forced.yaml"
    monkeypatch.setenv("GEMMSMITH_TUNED", str(path))

    def force(winner: str, m: int, *timings: Timing) -> None:
        entry = Entry(
            n=WEIGHT.n,
            k=WEIGHT.k,
            m=m,
            a="bf16",
            d="bf16",
            layout="rcr",
            epilogue="plain",
            winner=winner,
            torch=10.0,
            timings=timings,
        )
        write_table(path, Table(made=made, entries=(entry,)))
        forget_tables()

    usual = rank(pool, WEIGHT.problem(32), made.sm_count)
    slower = usual[1].spec
    timing = Timing(kernel=identified(slower), us=10.0, ratio=1.0)
    force(timing.kernel, 32, timing)
    kernels = KernelSet(pool, arch=pool[0].arch, source="two kernels")
    assert ran(kernels, 32).name == slower.name
    force(TORCH, 8, timing.model_copy(update={"ratio": 0.5}))
    record = ran(None, 8)
    assert record.name == "torch"
    assert record.reason == "torch is faster here, as the tuned table forced.yaml says"
    kernels = KernelSet(pool, arch=pool[0].arch, source="two kernels")
    assert ran(kernels, 8).name == slower.name  # a named set never falls to torch
    forget_tables()


def test_a_result_is_judged_on_poisoned_memory(pool: tuple[KernelSpec, ...]) -> None:
    job = Job(weight=WEIGHT, m=64)
    benches = GpuBenches()
    with benches.open(job) as bench:
        candidate = Candidate(spec=pool[0], tuning=rank(pool, job.problem, 132)[0].tuning)
        assert bench.fault(candidate) == ""
        timer = bench.timer([candidate])
        times = timer.replay([TORCH, candidate.label])
        assert all(0.5 < us < 200 for us in times)
        bench._task.x[3, 5] = torch.nan
        assert "NaN" in bench.fault(candidate)
