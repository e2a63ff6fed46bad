"""The versions of what a timing depends on, as they are on this machine. Imports no torch."""

from __future__ import annotations

import importlib.metadata

import gemmsmith
from gemmsmith.cuda import find_cuda
from gemmsmith.errors import ToolchainError
from gemmsmith.nvml import devices
from gemmsmith.resources import cutlass_version
from gemmsmith.tuned import FORMAT, Made


def made_here(gpu: str, sm_count: int, arch: str, *, nvcc: str = "") -> Made:
    """Return the head of a table that is measured here and now.

    ``nvcc`` is the release that compiled the kernels, where it is known better than by what is
    installed. What cannot be told is empty.
    """
    found = devices()
    return Made(
        format=FORMAT,
        gpu=gpu,
        sm_count=sm_count,
        arch=arch,
        cutlass=_cutlass(),
        nvcc=nvcc or _nvcc(),
        driver=found[0].driver if found else "",
        torch=_torch(),
        gemmsmith=gemmsmith.__version__,
    )


def _cutlass() -> str:
    try:
        return cutlass_version()
    except ToolchainError:
        return ""


def _nvcc() -> str:
    try:
        return find_cuda().release
    except ToolchainError:
        return ""


def _torch() -> str:
    """torch's version without the build's suffix, which not all of its wheels carry."""
    try:
        return importlib.metadata.version("torch").partition("+")[0]
    except importlib.metadata.PackageNotFoundError:
        return ""
