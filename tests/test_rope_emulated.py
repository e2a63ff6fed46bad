"""The rotary kernels' own C++, compiled by g++ and run on the CPU: indices, tails, places."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest
import torch

from emulated import emulated
from gemmsmith.arch import SM_80, SM_90A, Architecture
from gemmsmith.launcher import RopeCall, RowKernel
from gemmsmith.launcher.with_ctypes import CtypesLauncher
from gemmsmith.rowspec import row_specs
from rope_cases import CASES, run_case

pytestmark = pytest.mark.nvcc  # for the toolkit's headers


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> dict[Architecture, Path]:
    """Libraries of the rotary kernels of sm_80 and sm_90a as functions of the CPU."""
    folder = tmp_path_factory.mktemp("emulated")
    libraries = {}
    for arch in (SM_80, SM_90A):
        specs = [spec for spec in row_specs(arch) if spec.operation == "rope"]
        libraries[arch] = emulated(specs, "gemmsmith_rope", "rope_abi.h", folder)
    return libraries


@pytest.fixture(scope="module")
def kernels(compiled: dict[Architecture, Path]) -> dict[str, RowKernel]:
    """All rotary kernels of sm_80 as functions of the CPU, by name."""
    return {kernel.name: kernel for kernel in CtypesLauncher().load_rows(str(compiled[SM_80]))}


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("name", ["fp16", "bf16", "fp32"])
def test_kernels_write_what_f64_says(name: str, case, kernels: dict[str, RowKernel]) -> None:  # type: ignore[no-untyped-def]
    dtype = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}[name]
    run_case(kernels[f"rows_rope_{name}_sm80"], case, dtype, "cpu", 0)


def test_sizes_out_of_range_are_refused(kernels: dict[str, RowKernel]) -> None:
    kernel = kernels["rows_rope_fp16_sm80"]
    sizes = (1, 1, 2, 1, 64, 32)
    plain = RopeCall._make((*sizes, *[0] * 32, 1.0, 0, 0, 0, 0))
    assert kernel.launch(plain._replace(length=0), 0) == 0
    for name, value in {
        "heads": 0,
        "kv_heads": 0,
        "head_dim": 4096,
        "pairs": 33,
        "batch": 2**32,
        "length": -1,
    }.items():
        assert kernel.launch(plain._replace(**{name: value}), 0) == 1, name
    assert kernel.launch(plain._replace(pairs=0), 0) == 1
    assert kernel.explain(1) == "sizes out of range for a rotary kernel"


@pytest.mark.parametrize("arch", [SM_80, SM_90A], ids=lambda arch: arch.name)
def test_what_the_table_says_of_dependent_launch_is_how_kernels_are_launched(
    arch: Architecture, compiled: dict[Architecture, Path]
) -> None:
    kernels = CtypesLauncher().load_rows(str(compiled[arch]))
    state = ctypes.CDLL(str(compiled[arch]))
    early = ctypes.c_int.in_dll(state, "emulated_early")
    before = early.value
    for kernel in kernels:
        assert kernel.dependent_launch == arch.dependent_launch
    run_case(next(k for k in kernels if "bf16" in k.name), CASES[0], torch.bfloat16, "cpu", 0)
    assert early.value - before == int(arch.dependent_launch)
