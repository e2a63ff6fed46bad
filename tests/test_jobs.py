"""Parallelism within what the machine and its control groups leave."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gemmsmith.arch import SM_75, SM_80, SM_90A
from gemmsmith.jobs import cores, free_memory, parallel_jobs

GB = 1_000_000_000


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with 64 cores and 256 GB free, on which no limit is set."""
    monkeypatch.delenv("MAX_JOBS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(64)))
    _write(tmp_path / "proc/meminfo", f"MemTotal: 1 kB\nMemAvailable: {256 * GB // 1024} kB\n")
    return tmp_path


def _write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def test_cores_and_memory_bound(machine: Path) -> None:
    assert parallel_jobs([SM_80], root=machine) == 64
    assert parallel_jobs([SM_90A, SM_80], root=machine) == 30
    _write(machine / "proc/meminfo", f"MemAvailable: {19 * GB // 1024} kB\n")
    assert parallel_jobs([SM_90A], root=machine) == 2
    assert parallel_jobs([SM_80], root=machine) == 12
    _write(machine / "proc/meminfo", "MemAvailable: 1024 kB\n")
    assert parallel_jobs([SM_90A], root=machine) == 1


def test_control_group_v2(machine: Path) -> None:
    _write(machine / "proc/self/cgroup", "0::/outer/inner\n")
    groups = machine / "sys/fs/cgroup"
    _write(groups / "outer/inner/memory.max", "max\n")
    _write(groups / "outer/inner/memory.current", "5\n")
    _write(groups / "outer/memory.max", f"{16 * GB}\n")
    _write(groups / "outer/memory.current", f"{10 * GB}\n")
    _write(groups / "outer/memory.stat", f"anon 1\ninactive_file {3 * GB}\n")
    assert free_memory(machine) == 9 * GB  # file pages can be dropped
    assert parallel_jobs([SM_90A], root=machine) == 1
    assert parallel_jobs([SM_80], root=machine) == 6
    _write(groups / "outer/inner/cpu.max", "350000 100000\n")
    _write(groups / "outer/cpu.max", "max 100000\n")
    assert cores(machine) == 3


def test_k10_twenty_configs_for_three_archs_in_16_gb_on_64_cores(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _write(machine / "proc/self/cgroup", "0::/job\n")
    _write(machine / "sys/fs/cgroup/job/memory.max", f"{16 * GB}\n")
    _write(machine / "sys/fs/cgroup/job/memory.current", f"{GB // 2}\n")
    wanted = [arch for arch in (SM_75, SM_80, SM_90A) for _ in range(20)]
    assert parallel_jobs(wanted, root=machine) == 1  # 8.5 GB each, for sm_90a's sake
    assert parallel_jobs(wanted[:40], root=machine) == 10
    monkeypatch.setenv("MAX_JOBS", "2")
    assert parallel_jobs(wanted[:40], root=machine) == 2


def test_control_group_v1(machine: Path) -> None:
    _write(machine / "proc/self/cgroup", "4:memory:/job\n2:cpu,cpuacct:/job\n1:name=systemd:/\n")
    groups = machine / "sys/fs/cgroup"
    _write(groups / "memory/job/memory.limit_in_bytes", f"{12 * GB}")
    _write(groups / "memory/job/memory.usage_in_bytes", f"{2 * GB}")
    _write(groups / "memory/memory.limit_in_bytes", "9223372036854771712")
    _write(groups / "memory/memory.usage_in_bytes", f"{20 * GB}")
    _write(groups / "cpu,cpuacct/job/cpu.cfs_quota_us", "50000")
    _write(groups / "cpu,cpuacct/job/cpu.cfs_period_us", "100000")
    assert free_memory(machine) == 10 * GB
    assert cores(machine) == 1  # half a core still runs one compiler
    _write(groups / "cpu,cpuacct/job/cpu.cfs_quota_us", "-1")
    assert cores(machine) == 64


def test_max_jobs_is_honoured(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAX_JOBS", "2")
    assert parallel_jobs([SM_90A], root=machine) == 2
    monkeypatch.setenv("MAX_JOBS", "100")
    assert parallel_jobs([SM_90A], root=machine) == 100


def test_this_machine_runs_at_least_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MAX_JOBS", raising=False)
    assert 1 <= parallel_jobs([SM_90A]) <= len(os.sched_getaffinity(0))
    assert free_memory() > 100_000_000
