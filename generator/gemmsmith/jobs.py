"""How many compilers this machine can run at once."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from gemmsmith.arch import Architecture
from gemmsmith.settings import settings

COMPILER_BYTES = {"2.x": 1_500_000_000, "3.x": 8_500_000_000}
"""Memory to set aside for one nvcc. One 3.x kernel with a TMA epilogue takes 3.8 GB, eight of them
5.1 GB where they are alike and 8.2 where some are stream-K; four 2.x kernels take 0.9 GB."""

ROOT = Path("/")


def parallel_jobs(archs: Iterable[Architecture], *, root: Path = ROOT) -> int:
    """Return how many compilers may run at once for kernels of ``archs``; at least 1.

    MAX_JOBS decides where it is set. Else cores and free memory do, both within the limits of
    the control group (version 1 or 2) of this process.
    """
    wanted = settings().max_jobs
    if wanted is not None:
        return wanted
    each = max((COMPILER_BYTES[arch.api] for arch in archs), default=COMPILER_BYTES["3.x"])
    return max(1, min(cores(root), free_memory(root) // each))


def cores(root: Path = ROOT) -> int:
    """Return the cores that this process may use; a quota of 1.5 cores counts as 1."""
    allowed = len(os.sched_getaffinity(0))
    for folder in _control_groups("cpu", root):
        limit = _words(folder / "cpu.max")
        if not limit:
            limit = _words(folder / "cpu.cfs_quota_us") + _words(folder / "cpu.cfs_period_us")
        if len(limit) == 2 and limit[0] not in ("max", "-1"):
            allowed = min(allowed, max(1, int(limit[0]) // int(limit[1])))
    return allowed


def free_memory(root: Path = ROOT) -> int:
    """Return the bytes that can still be allocated before something is killed."""
    free = _field(root / "proc/meminfo", "MemAvailable:") * 1024
    for folder in _control_groups("memory", root):
        for limit_name, usage_name, cached_name in (
            ("memory.max", "memory.current", "inactive_file"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ):
            limit, usage = _words(folder / limit_name), _words(folder / usage_name)
            if limit and usage and limit[0] != "max":
                reclaimable = _field(folder / "memory.stat", cached_name)
                free = min(free, int(limit[0]) - int(usage[0]) + reclaimable)
    return max(0, free)


def _control_groups(controller: str, root: Path) -> Iterator[Path]:
    """Yield the folders whose limits bind this process for ``controller``, innermost first."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        mount = root / "sys/fs/cgroup"
        if controllers:
            mount /= controller if (mount / controller).is_dir() else controllers
        inner = mount / path.lstrip("/")
        yield from (folder for folder in (inner, *inner.parents) if folder.is_relative_to(mount))


def _field(file: Path, name: str) -> int:
    for line in _text(file).splitlines():
        words = line.split()
        if len(words) > 1 and words[0] == name:
            return int(words[1])
    return 0


def _words(file: Path) -> list[str]:
    return _text(file).split()


def _text(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""  # absent on machines without that controller
