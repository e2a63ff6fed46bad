"""The table of kernels that a compiled library exports, as its builder reads it."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from pathlib import Path

from gemmsmith.errors import LoadError


@dataclass(frozen=True, kw_only=True)
class TableEntry:
    """Facts of one kernel that were fixed when it was compiled."""

    name: str
    """KernelSpec.name."""
    threads: int
    """Threads of a block."""
    shared_bytes: int
    """Dynamic shared memory of a block."""
    stages: int
    """Buffers of the main loop."""


class _Kernel(ctypes.Structure):
    """gemmsmith_kernel of abi.h."""

    _fields_ = [
        ("name", ctypes.c_char_p),
        ("threads", ctypes.c_int32),
        ("shared_bytes", ctypes.c_int32),
        ("stages", ctypes.c_int32),
        ("can_run", ctypes.c_void_p),
        ("workspace_bytes", ctypes.c_void_p),
        ("launch", ctypes.c_void_p),
        ("blocks_per_sm", ctypes.c_void_p),
        ("explain", ctypes.c_void_p),
    ]


def read_table(library: Path, abi_version: int) -> dict[str, TableEntry]:
    """Load ``library`` and return its kernels by name. Needs no GPU and no driver.

    Raises:
        LoadError: where it does not load, or speaks another version of the C interface.
    """
    try:
        loaded = ctypes.CDLL(str(library), mode=ctypes.RTLD_LOCAL)
        version = int(loaded.gemmsmith_abi_version())
    except (OSError, AttributeError) as error:
        raise LoadError(f"{library} is no kernel library: {error}") from error
    if version != abi_version:
        raise LoadError(f"{library} has C interface {version}, this gemmsmith {abi_version}")
    loaded.gemmsmith_kernels.restype = ctypes.POINTER(_Kernel)
    count = ctypes.c_int32()
    rows = loaded.gemmsmith_kernels(ctypes.byref(count))
    entries = (
        TableEntry(
            name=rows[index].name.decode(),
            threads=rows[index].threads,
            shared_bytes=rows[index].shared_bytes,
            stages=rows[index].stages,
        )
        for index in range(count.value)
    )
    return {entry.name: entry for entry in entries}
