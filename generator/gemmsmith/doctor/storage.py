"""Findings about the folder of compiled kernels and about room for compilers."""

from __future__ import annotations

import os
import shutil
import tempfile
import warnings
from pathlib import Path

from gemmsmith.arch import ARCHITECTURES
from gemmsmith.doctor.report import Finding
from gemmsmith.jobs import COMPILER_BYTES, cores, free_memory, parallel_jobs
from gemmsmith.settings import settings

_LOW_DISK = 1_000_000_000  # some hundred kernels; one takes 0.1 to 3 MB, its compile 50 MB


def cache() -> Finding:
    """The cache folder: whether it, or the folder to make it in, can be written."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        wanted = settings()
    folder = wanted.cache_dir
    place = _existing(folder)
    if not place.is_dir():
        return _unusable(f"{folder}: {place} is no folder")
    if not os.access(place, os.W_OK | os.X_OK):
        if wanted.never_compile:
            found = f"{folder}, read only, as GEMMSMITH_NEVER_COMPILE allows"
            return Finding(name="cache", status="ok", found=found)
        return _unusable(f"{folder} cannot be written: only kernels that are in it can be used")
    if os.statvfs(place).f_flag & os.ST_NOEXEC:
        return _unusable(f"{folder} is on a file system mounted noexec: no library loads from it")
    if (why := _refusal(place)) and not wanted.never_compile:
        return _unusable(f"{folder} cannot be written: {place}: {why}")
    free = shutil.disk_usage(place).free
    found = f"{folder}, {'writable' if place == folder else 'not made yet'}, {_size(free)} free"
    if free < _LOW_DISK:
        fix = "free some space, or set GEMMSMITH_CACHE_DIR to another folder"
        return Finding(name="cache", status="warning", found=found, fix=fix)
    if told:
        fix = "set HOME or GEMMSMITH_CACHE_DIR"
        found = f"{found}; {told[0].message}"
        return Finding(name="cache", status="warning", found=found, fix=fix)
    return Finding(name="cache", status="ok", found=found)


def jobs() -> Finding:
    """How many compilers would run at once, and whether memory suffices for one."""
    wanted = settings()
    if wanted.never_compile:
        return Finding(
            name="jobs",
            status="warning",
            found="GEMMSMITH_NEVER_COMPILE is set: a kernel missing from the cache is an error",
            fix="unset it to compile on this machine",
        )
    free = free_memory()
    number = parallel_jobs(ARCHITECTURES)
    need = number * max(COMPILER_BYTES[arch.api] for arch in ARCHITECTURES)
    source = "MAX_JOBS" if wanted.max_jobs else f"{cores()} cores"
    found = f"{number} at once ({source}, {_size(free)} of memory free)"
    if need > free:
        return Finding(
            name="jobs",
            status="warning",
            found=f"{found}; {number} may need {_size(need)}, and a compiler may get killed",
            fix="lower MAX_JOBS" if number > 1 else "free memory, or raise the container's limit",
        )
    return Finding(name="jobs", status="ok", found=found)


def _existing(folder: Path) -> Path:
    """The folder, or the nearest one above it that exists."""
    return next(path for path in (folder, *folder.parents) if os.path.lexists(path))


def _refusal(folder: Path) -> str:
    """Why no file can be made in ``folder``, where modes allow it (/proc, a full disk); or empty.

    The file that is tried has no name or loses it at once.
    """
    try:
        with tempfile.TemporaryFile(dir=folder):
            return ""
    except OSError as error:
        return error.strerror or str(error)


def _unusable(found: str) -> Finding:
    return Finding(
        name="cache",
        status="error",
        found=found,
        fix="set GEMMSMITH_CACHE_DIR to a folder that can be written",
    )


def _size(count: int) -> str:
    return f"{count / 1e9:.1f} GB"
