"""The launcher for machines without g++ or Python.h: ctypes over the same C interface."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from pathlib import Path

from gemmsmith.errors import LoadError
from gemmsmith.launcher.abi import abi_version
from gemmsmith.launcher.interface import Call, TableEntry


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


class CtypesLauncher:
    """Loads kernel libraries; see :class:`gemmsmith.launcher.Launcher`."""

    def load(self, path: str) -> Sequence[CtypesKernel]:
        """Return the kernels of the library at ``path``.

        Raises:
            OSError, RuntimeError: where it cannot be loaded or is no kernel library.
        """
        library = ctypes.CDLL(path, mode=ctypes.RTLD_LOCAL)
        try:
            version, kernels = library.gemmsmith_abi_version, library.gemmsmith_kernels
        except AttributeError:
            raise RuntimeError("it is no kernel library: gemmsmith_kernels is missing") from None
        if version() != abi_version():
            raise RuntimeError(
                f"its interface has version {version()}, this gemmsmith speaks {abi_version()}:"
                " build the kernel again"
            )
        kernels.restype = ctypes.POINTER(_Entry)
        count = ctypes.c_int32(0)
        table = kernels(ctypes.byref(count))
        return [CtypesKernel(table[index]) for index in range(count.value)]


def read_table(library: Path) -> Mapping[str, TableEntry]:
    """Return the kernels that ``library`` lists, by name. Needs no GPU and no driver.

    Raises:
        LoadError: where it does not load, or speaks another version of the C interface.
    """
    try:
        kernels = CtypesLauncher().load(str(library))
    except (OSError, RuntimeError) as error:
        raise LoadError(f"cannot load {library}: {error}") from error
    return {kernel.name: kernel for kernel in kernels}


def _gemm(call: Call) -> _Gemm:
    return _Gemm(*call)
