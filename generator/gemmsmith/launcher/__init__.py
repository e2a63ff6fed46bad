"""Calling compiled kernels: one interface, a pybind11 module or ctypes behind it."""

from __future__ import annotations

import logging
from functools import cache
from pathlib import Path

from gemmsmith.errors import LoadError
from gemmsmith.launcher.interface import (
    CHECKED,
    TRANSPOSED,
    AttentionCall,
    AttentionKernel,
    Call,
    Host,
    Kernel,
    Launcher,
    Output,
    RopeCall,
    RowCall,
    RowKernel,
    Settled,
)
from gemmsmith.settings import settings

__all__ = [
    "CHECKED",
    "TRANSPOSED",
    "AttentionCall",
    "AttentionKernel",
    "Call",
    "Host",
    "Kernel",
    "Launcher",
    "Output",
    "RopeCall",
    "RowCall",
    "RowKernel",
    "Settled",
    "launcher",
    "load_attention_library",
    "load_library",
    "load_row_library",
    "settled_calls",
]

log = logging.getLogger(__name__)


@cache
def load_library(path: Path) -> dict[str, Kernel]:
    """Return the kernels of the library at ``path`` by name; the library stays loaded.

    Raises:
        LoadError: where the file is no kernel library, or one of another interface version.
    """
    try:
        kernels = launcher().load(str(path))
    except (OSError, RuntimeError) as error:
        raise LoadError(f"cannot load {path}: {error}") from error
    return {kernel.name: kernel for kernel in kernels}


@cache
def load_row_library(path: Path) -> dict[str, RowKernel]:
    """Return the row kernels of the library at ``path`` by name; the library stays loaded.

    Raises:
        LoadError: as :func:`load_library` does.
    """
    try:
        kernels = launcher().load_rows(str(path))
    except (OSError, RuntimeError) as error:
        raise LoadError(f"cannot load {path}: {error}") from error
    return {kernel.name: kernel for kernel in kernels}


@cache
def load_attention_library(path: Path) -> dict[str, AttentionKernel]:
    """Return the attention kernels of the library at ``path`` by name; it stays loaded.

    Raises:
        LoadError: as :func:`load_library` does.
    """
    try:
        kernels = launcher().load_attention(str(path))
    except (OSError, RuntimeError) as error:
        raise LoadError(f"cannot load {path}: {error}") from error
    return {kernel.name: kernel for kernel in kernels}


@cache
def launcher() -> Launcher:
    """Return the launcher that the settings ask for: pybind11 where it can be had, else ctypes.

    Raises:
        ToolchainError, CompileError, CacheError, LoadError: where ``GEMMSMITH_LAUNCHER=pybind11``
            is set and it cannot be built, kept or loaded.
    """
    from gemmsmith.errors import CacheError, CompileError, ToolchainError
    from gemmsmith.launcher.with_ctypes import CtypesLauncher
    from gemmsmith.launcher.with_pybind11 import pybind11_launcher

    wanted = settings().launcher
    if wanted == "ctypes":
        return CtypesLauncher()
    try:
        return pybind11_launcher()
    except (ToolchainError, CompileError, CacheError, LoadError) as error:
        if wanted == "pybind11":
            raise
        log.warning("calling kernels through ctypes, which is right but slower: %s", error)
        return CtypesLauncher()


def settled_calls(host: Host) -> Settled:
    """Return an empty table of settled calls: in C++ where launcher and tensors allow, else Python.

    Raises:
        ToolchainError, CompileError, CacheError, LoadError: as :func:`launcher` does.
    """
    from gemmsmith.launcher.settled import PythonSettled

    made = launcher().settled(host) if host.exchange is not None else None
    return PythonSettled(host) if made is None else made
