"""The launcher for machines without g++ or Python.h: ctypes over the same C interface."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gemmsmith.errors import LoadError
from gemmsmith.launcher.abi import abi_version
from gemmsmith.launcher.interface import (
    AttentionCall,
    Call,
    Host,
    RopeCall,
    RowCall,
    Settled,
    TableEntry,
)


class _Gemm(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int64) for name in ("m", "n", "k", "batch")),
        *((name, ctypes.c_void_p) for name in ("a", "b", "c", "bias", "d")),
        *((name, ctypes.c_void_p) for name in ("a_scale", "b_scale", "a_zero", "b_sum")),
        *((name, ctypes.c_int64) for name in ("lda", "ldb", "ldc", "ldd")),
        *((name, ctypes.c_int64) for name in ("a_batch", "b_batch", "c_batch", "d_batch")),
        *((name, ctypes.c_float) for name in ("alpha", "beta", "out_scale")),
        ("activation", ctypes.c_int32),
        *((name, ctypes.c_int32) for name in ("raster", "swizzle", "splits", "device", "sm_count")),
    )


_CALL = ctypes.POINTER(_Gemm)
_STATUS = ctypes.c_int32


class _Entry(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("threads", ctypes.c_int32),
        ("shared_bytes", ctypes.c_int32),
        ("stages", ctypes.c_int32),
        ("dependent_launch", ctypes.c_int32),
        ("can_run", ctypes.CFUNCTYPE(_STATUS, _CALL)),
        (
            "workspace_bytes",
            ctypes.CFUNCTYPE(_STATUS, _CALL, ctypes.POINTER(ctypes.c_uint64)),
        ),
        ("launch", ctypes.CFUNCTYPE(_STATUS, _CALL, ctypes.c_void_p, ctypes.c_void_p)),
        ("blocks_per_sm", ctypes.CFUNCTYPE(_STATUS, ctypes.POINTER(ctypes.c_int32))),
        ("explain", ctypes.CFUNCTYPE(ctypes.c_char_p, _STATUS)),
    )


class CtypesKernel:
    """One kernel of a loaded library; see :class:`gemmsmith.launcher.Kernel`."""

    def __init__(self, entry: _Entry) -> None:
        self._entry = entry
        self.name: str = entry.name.decode()
        self.threads: int = entry.threads
        self.shared_bytes: int = entry.shared_bytes
        self.stages: int = entry.stages
        self.dependent_launch = bool(entry.dependent_launch)

    def can_run(self, call: Call) -> int:
        """Return the status that CUTLASS gives to sizes, strides and alignment of ``call``."""
        return int(self._entry.can_run(ctypes.byref(_gemm(call))))

    def workspace_bytes(self, call: Call) -> tuple[int, int]:
        """Return status and the bytes of device memory that ``call`` needs as workspace."""
        size = ctypes.c_uint64(0)
        status = self._entry.workspace_bytes(ctypes.byref(_gemm(call)), ctypes.byref(size))
        return int(status), size.value

    def launch(self, call: Call, workspace: int, stream: int) -> int:
        """Queue the kernel on ``stream`` (a cudaStream_t) and return the status."""
        return int(self._entry.launch(ctypes.byref(_gemm(call)), workspace, stream))

    def blocks_per_sm(self) -> tuple[int, int]:
        """Return status and how many blocks one multiprocessor of the current device holds."""
        blocks = ctypes.c_int32(0)
        status = self._entry.blocks_per_sm(ctypes.byref(blocks))
        return int(status), blocks.value

    def explain(self, status: int) -> str:
        """Return ``status`` in words."""
        words: bytes = self._entry.explain(status)
        return words.decode()


class _Rows(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int64) for name in ("rows", "columns", "padded")),
        *((name, ctypes.c_void_p) for name in RowCall._fields[3:9]),
        *((name, ctypes.c_int64) for name in RowCall._fields[9:13]),
        ("eps", ctypes.c_float),
        *((name, ctypes.c_int32) for name in ("activation", "interleaved")),
    )


class _RowEntry(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("threads", ctypes.c_int32),
        ("shared_bytes", ctypes.c_int32),
        ("dependent_launch", ctypes.c_int32),
        ("launch", ctypes.CFUNCTYPE(_STATUS, ctypes.POINTER(_Rows), ctypes.c_void_p)),
        ("explain", ctypes.CFUNCTYPE(ctypes.c_char_p, _STATUS)),
    )


class _Rope(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int64) for name in RopeCall._fields[:6]),
        *((name, ctypes.c_void_p) for name in RopeCall._fields[6:15]),
        *((name, ctypes.c_int64) for name in RopeCall._fields[15:38]),
        ("factor", ctypes.c_float),
        *((name, ctypes.c_int32) for name in RopeCall._fields[39:]),
    )


class _RopeEntry(ctypes.Structure):
    _fields_ = (
        *_RowEntry._fields_[:4],
        ("launch", ctypes.CFUNCTYPE(_STATUS, ctypes.POINTER(_Rope), ctypes.c_void_p)),
        _RowEntry._fields_[5],
    )


class CtypesRowKernel:
    """One row kernel of a loaded library; see :class:`gemmsmith.launcher.RowKernel`."""

    stages = 0

    def __init__(self, entry: _RowEntry | _RopeEntry, fields: type[_Rows] | type[_Rope]) -> None:
        self._entry, self._fields = entry, fields
        self.name: str = entry.name.decode()
        self.threads: int = entry.threads
        self.shared_bytes: int = entry.shared_bytes
        self.dependent_launch = bool(entry.dependent_launch)

    def launch(self, call: RowCall | RopeCall, stream: int) -> int:
        """Queue the kernel on ``stream`` (a cudaStream_t) and return the status."""
        return int(self._entry.launch(ctypes.byref(self._fields(*call)), stream))

    def explain(self, status: int) -> str:
        """Return ``status`` in words."""
        words: bytes = self._entry.explain(status)
        return words.decode()


class _Attention(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in AttentionCall._fields[:8]),
        *((name, ctypes.c_int64) for name in AttentionCall._fields[8:31]),
        *((name, ctypes.c_float) for name in ("scale", "softcap")),
        *((name, ctypes.c_int32) for name in AttentionCall._fields[33:38]),
        *((name, ctypes.c_void_p) for name in AttentionCall._fields[38:42]),
        *((name, ctypes.c_int64) for name in AttentionCall._fields[42:47]),
        ("rope_factor", ctypes.c_float),
        *((name, ctypes.c_int32) for name in AttentionCall._fields[48:50]),
    )


_ATTENTION = ctypes.POINTER(_Attention)


class _AttentionEntry(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("threads", ctypes.c_int32),
        ("shared_bytes", ctypes.c_int32),
        ("stages", ctypes.c_int32),
        ("dependent_launch", ctypes.c_int32),
        ("can_run", ctypes.CFUNCTYPE(_STATUS, _ATTENTION)),
        (
            "needs",
            ctypes.CFUNCTYPE(
                _STATUS,
                _ATTENTION,
                ctypes.POINTER(ctypes.c_uint64),
                ctypes.POINTER(ctypes.c_uint64),
            ),
        ),
        ("launch", ctypes.CFUNCTYPE(_STATUS, _ATTENTION, ctypes.c_void_p, ctypes.c_void_p)),
        ("explain", ctypes.CFUNCTYPE(ctypes.c_char_p, _STATUS)),
    )


class CtypesAttentionKernel:
    """One attention kernel of a library; see :class:`gemmsmith.launcher.AttentionKernel`."""

    def __init__(self, entry: _AttentionEntry) -> None:
        self._entry = entry
        self.name: str = entry.name.decode()
        self.threads: int = entry.threads
        self.shared_bytes: int = entry.shared_bytes
        self.stages: int = entry.stages
        self.dependent_launch = bool(entry.dependent_launch)

    def can_run(self, call: AttentionCall) -> int:
        """Return the status that the kernel gives to sizes, strides and alignment of ``call``."""
        return int(self._entry.can_run(ctypes.byref(_Attention(*call))))

    def needs(self, call: AttentionCall) -> tuple[int, int, int]:
        """Return status, the bytes of workspace and how many counters (uint32) ``call`` needs."""
        size, counters = ctypes.c_uint64(0), ctypes.c_uint64(0)
        status = self._entry.needs(
            ctypes.byref(_Attention(*call)), ctypes.byref(size), ctypes.byref(counters)
        )
        return int(status), size.value, counters.value

    def launch(self, call: AttentionCall, workspace: int, stream: int) -> int:
        """Queue the kernel on ``stream`` (a cudaStream_t) and return the status."""
        return int(self._entry.launch(ctypes.byref(_Attention(*call)), workspace, stream))

    def explain(self, status: int) -> str:
        """Return ``status`` in words."""
        words: bytes = self._entry.explain(status)
        return words.decode()


class CtypesLauncher:
    """Loads kernel libraries; see :class:`gemmsmith.launcher.Launcher`."""

    def load(self, path: str) -> Sequence[CtypesKernel]:
        """Return the kernels of the library at ``path``.

        Raises:
            OSError, RuntimeError: where it cannot be loaded or is no kernel library.
        """
        table, count = _table(_library(path), "gemmsmith_kernels", _Entry)
        return [CtypesKernel(table[index]) for index in range(count)]

    def settled(self, host: Host) -> Settled | None:
        """Return None: a table of settled calls in Python is as good."""
        return None

    def load_rows(self, path: str) -> Sequence[CtypesRowKernel]:
        """Return the row kernels of the library at ``path``.

        Raises:
            OSError, RuntimeError: where it cannot be loaded or has none.
        """
        library = _library(path)
        if hasattr(library, "gemmsmith_rope_kernels"):
            table, count = _table(library, "gemmsmith_rope_kernels", _RopeEntry)
            return [CtypesRowKernel(table[index], _Rope) for index in range(count)]
        table, count = _table(library, "gemmsmith_row_kernels", _RowEntry)
        return [CtypesRowKernel(table[index], _Rows) for index in range(count)]

    def load_attention(self, path: str) -> Sequence[CtypesAttentionKernel]:
        """Return the attention kernels of the library at ``path``.

        Raises:
            OSError, RuntimeError: where it cannot be loaded or has none.
        """
        table, count = _table(_library(path), "gemmsmith_attention_kernels", _AttentionEntry)
        return [CtypesAttentionKernel(table[index]) for index in range(count)]


def read_table(file: Path) -> Mapping[str, TableEntry]:
    """Return the kernels that the library ``file`` lists, by name. Needs no GPU and no driver.

    Raises:
        LoadError: where it does not load, or speaks another version of the C interface.
    """
    launcher, path = CtypesLauncher(), str(file)
    kernels: Sequence[TableEntry]
    try:
        library = _library(path)
        rows = ("gemmsmith_row_kernels", "gemmsmith_rope_kernels")
        if any(hasattr(library, table) for table in rows):
            kernels = launcher.load_rows(path)
        elif hasattr(library, "gemmsmith_attention_kernels"):
            kernels = launcher.load_attention(path)
        else:
            kernels = launcher.load(path)
    except (OSError, RuntimeError) as error:
        raise LoadError(f"cannot load {file}: {error}") from error
    return {kernel.name: kernel for kernel in kernels}


def _library(path: str) -> ctypes.CDLL:
    return ctypes.CDLL(path, mode=ctypes.RTLD_LOCAL)


def _table(library: ctypes.CDLL, name: str, entry: type[ctypes.Structure]) -> tuple[Any, int]:
    """Return the table that ``library`` exports under ``name``, and its length."""
    try:
        version, kernels = library.gemmsmith_abi_version, library[name]
    except AttributeError:
        raise RuntimeError(f"it is no kernel library: {name} is missing") from None
    if version() != abi_version():
        raise RuntimeError(
            f"its interface has version {version()}, this gemmsmith speaks {abi_version()}:"
            " build the kernel again"
        )
    kernels.restype = ctypes.POINTER(entry)
    count = ctypes.c_int32(0)
    return kernels(ctypes.byref(count)), count.value


def _gemm(call: Call) -> _Gemm:
    return _Gemm(*call)
