"""A GPU that is none: CPU tensors go the way of CUDA tensors, to a kernel that takes notes.

The kernel is compiled with gcc and reads nothing; it tells what it was called with.
"""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from gemmsmith import direct, execute, gemm_op, launch
from gemmsmith.arch import SM_90A
from gemmsmith.choose import Tuning
from gemmsmith.kernelset import KernelSet
from gemmsmith.launcher import Call, Kernel
from gemmsmith.launcher.settled import PythonSettled
from gemmsmith.launcher.with_ctypes import CtypesLauncher
from gemmsmith.launcher.with_pybind11 import pybind11_launcher
from gemmsmith.render import include_dirs
from gemmsmith.selection import DeviceFacts, Plan
from gemmsmith.spec import KernelSpec, Tile
from gpus import SOME_HOPPER

SPEC = KernelSpec(arch=SM_90A, tile=Tile(128, 128, 64), schedule="pingpong", residual=True)
STREAM = 77
NOTES = r"""
#include <inttypes.h>
#include <stdio.h>
#include "gemmsmith/abi.h"
#define I64 " %" PRId64
static char seen[1024], counts[64];
static int checked, launched;
static int32_t can_run(const gemmsmith_gemm *g) { ++checked; return 0; }
static int32_t workspace_bytes(const gemmsmith_gemm *g, uint64_t *bytes) {
  *bytes = 4096;
  return 0;
}
static int32_t launch(const gemmsmith_gemm *g, void *workspace, void *stream) {
  ++launched;
  if (QUIET) return 0;
  snprintf(seen, sizeof seen,
    I64 I64 I64 I64 " %zu %zu %zu %zu %zu %zu %zu %zu %zu" I64 I64 I64 I64 I64 I64 I64 I64
    " %a %a %a %d %d %d %d %d %d %zu %zu",
    g->m, g->n, g->k, g->batch, (size_t)g->a, (size_t)g->b, (size_t)g->c, (size_t)g->bias,
    (size_t)g->d, (size_t)g->a_scale, (size_t)g->b_scale, (size_t)g->a_zero, (size_t)g->b_sum,
    g->lda, g->ldb, g->ldc, g->ldd, g->a_batch, g->b_batch, g->c_batch, g->d_batch,
    g->alpha, g->beta, g->out_scale, g->activation, g->raster, g->swizzle, g->splits, g->device,
    g->sm_count, (size_t)workspace, (size_t)stream);
  return g->alpha == 7000 ? 7 : 0;
}
static int32_t blocks_per_sm(int32_t *blocks) { *blocks = 1; return 0; }
static const char *explain(int32_t status) {
  if (status == -1) return seen;
  if (status == 7) return "status 7";
  snprintf(counts, sizeof counts, "%d %d", checked, launched);
  return counts;
}
static const gemmsmith_kernel table[] = {
  {.name = "notes", .threads = 128, .stages = 4, .can_run = can_run,
   .workspace_bytes = workspace_bytes, .launch = launch, .blocks_per_sm = blocks_per_sm,
   .explain = explain},
};
int32_t gemmsmith_abi_version(void) { return GEMMSMITH_ABI_VERSION; }
const gemmsmith_kernel *gemmsmith_kernels(int32_t *count) { *count = 1; return table; }
"""
REFUSED_ALPHA = 7000.0
"""What the kernel ends with status 7 for."""


class FakeGpu(KernelSet):
    """The kernel as a set, which plans it for every call, and what reached it."""

    def __init__(self, kernel: Kernel) -> None:
        super().__init__([SPEC], arch=SM_90A, source="a test")
        self.kernel = kernel
        self.spec = SPEC
        self.plans = 0
        self.through_op = 0
        self.reason = ""
        """Why the set leaves calls to torch."""
        self._before = self._counts()

    def plan(self, problem: Any, device: DeviceFacts) -> Plan | str:
        self.plans += 1
        if self.reason:
            return self.reason
        return Plan(spec=self.spec, kernel=self.kernel, tuning=Tuning(raster=2, swizzle=4))

    def use(self, **changes: Any) -> None:
        """Change the kernel that the set pretends to be."""
        self.spec = replace(self.spec, **changes)
        self.specs = (self.spec,)

    def _counts(self) -> list[int]:
        return [int(word) for word in self.kernel.explain(-2).split()]

    @property
    def checked(self) -> int:
        """How many calls the kernel was asked about."""
        return self._counts()[0] - self._before[0]

    @property
    def launched(self) -> int:
        """How often it was launched."""
        return self._counts()[1] - self._before[1]

    def notes(self) -> tuple[Call, int, int]:
        """Return the last call, its workspace and its stream."""
        words = self.kernel.explain(-1).split()
        values = [float.fromhex(word) if "x" in word else int(word) for word in words]
        return Call._make(values[:-2]), int(values[-2]), int(values[-1])

    def last(self) -> Call:
        """Return the last call."""
        return self.notes()[0]


def _empty_on_cpu(shape: Any, strides: Any, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty_strided(shape, strides, dtype=dtype)


@pytest.fixture(params=["pybind11", "ctypes"], scope="module", name="kernel")
def kernel_fixture(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Kernel:
    """The kernel that takes notes, behind each launcher."""
    return build_kernel(tmp_path_factory.mktemp("kernel"), request.param)


@pytest.fixture(name="gpu")
def gpu_fixture(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    """The GPU that is none, for one test."""
    return fake_gpu(kernel, monkeypatch)


def build_kernel(folder: Path, launcher: str, *, quiet: bool = False) -> Kernel:
    """Return the kernel that takes notes, behind ``pybind11`` or ``ctypes``.

    A ``quiet`` one does nothing but count.
    """
    source, library = folder / "notes.c", folder / f"notes_{launcher}.so"
    source.write_text(NOTES)
    includes = [f"-I{path}" for path in include_dirs()]
    command = [
        "gcc",
        "-shared",
        "-fPIC",
        f"-DQUIET={quiet:d}",
        *includes,
        str(source),
        "-o",
        str(library),
    ]
    subprocess.run(command, check=True)
    made = CtypesLauncher() if launcher == "ctypes" else pybind11_launcher()
    return made.load(str(library))[0]


def fake_gpu(kernel: Kernel, patch: pytest.MonkeyPatch) -> FakeGpu:
    """Send calls of CPU tensors where those of CUDA tensors go, for as long as ``patch`` lasts."""
    gpu = FakeGpu(kernel)
    patch.setattr(launch, "raw_stream", lambda index: STREAM)
    patch.setattr(launch, "current_device", lambda: -1)  # the index of CPU tensors
    patch.setattr(execute, "_device", lambda index: SOME_HOPPER)
    patch.setattr(execute, "_selection", lambda kernels, device: gpu)
    patch.setattr(gemm_op, "_on_gpu", lambda tensor: True)
    patch.setattr(direct, "_allocate", _empty_on_cpu)

    def counted(*arguments: Any) -> Any:
        gpu.through_op += 1
        return run_settled(*arguments)

    run_settled = execute.run_settled
    patch.setattr(gemm_op, "run_settled", counted)
    host = direct.host()
    if type(kernel).__module__ == "gemmsmith_launcher":
        if host.exchange is None:
            pytest.skip("this torch has no C exchange interface of DLPack")
        table = pybind11_launcher().settled(host)
        assert table is not None
    else:
        table = PythonSettled(host)
    patch.setattr(direct, "_table", table)
    patch.setattr(direct, "launch", table.launch)
    return gpu
