"""The row kernels' own C++, compiled by g++ and run on the CPU: indices, tails, reductions."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest
import torch

from emulated import emulated
from gemmsmith.arch import SM_80, SM_90A, Architecture
from gemmsmith.launcher import RowCall, RowKernel
from gemmsmith.launcher.with_ctypes import CtypesLauncher
from gemmsmith.operands import TORCH_DTYPES
from gemmsmith.rowspec import RowOperation, RowSpec
from row_data import MATRIX_OPERATIONS, cases, check_bits, check_gate, matrix_specs, run_case

pytestmark = pytest.mark.nvcc  # for the toolkit's headers


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> dict[Architecture, Path]:
    """Libraries of the row kernels of sm_80 and sm_90a as functions of the CPU."""
    folder = tmp_path_factory.mktemp("emulated")
    return {
        arch: emulated(matrix_specs(arch), "gemmsmith_rows", "abi.h", folder)
        for arch in (SM_80, SM_90A)
    }


@pytest.fixture(scope="module")
def kernels(compiled: dict[Architecture, Path]) -> dict[str, RowKernel]:
    """All row kernels of sm_80 as functions of the CPU, by name."""
    return {kernel.name: kernel for kernel in CtypesLauncher().load_rows(str(compiled[SM_80]))}


def test_the_library_has_every_kernel(kernels: dict[str, RowKernel]) -> None:
    assert list(kernels) == [spec.name for spec in matrix_specs(SM_80)]
    assert {kernel.threads for kernel in kernels.values()} == {512, 768, 1024}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("operation", MATRIX_OPERATIONS)
def test_kernels_write_what_torch_computes(
    operation: RowOperation, dtype: torch.dtype, kernels: dict[str, RowKernel]
) -> None:
    spec = RowSpec(arch=SM_80, operation=operation, dtype=TORCH_DTYPES[dtype])
    check = check_gate if "gate" in operation else check_bits
    for case in cases(operation):
        try:
            check(run_case(kernels[spec.name], operation, case, dtype, "cpu", 0))
        except AssertionError as error:
            raise AssertionError(f"{spec.name} {case}: {error}") from error


def test_sizes_out_of_range_are_refused(kernels: dict[str, RowKernel]) -> None:
    plain = RowCall._make((1, 16, 16, *[0] * 6, 16, 0, 0, 16, 1e-5, 0, 0))
    quantize, gate = kernels["rows_quantize_fp16_sm80"], kernels["rows_gate_fp16_sm80"]
    assert quantize.launch(plain._replace(rows=0), 0) == 0
    assert quantize.launch(plain._replace(columns=0), 0) == 1
    assert quantize.launch(plain._replace(padded=15), 0) == 1
    assert quantize.launch(plain._replace(rows=2**31), 0) == 1
    assert gate.launch(plain._replace(padded=32), 0) == 1
    assert gate.launch(plain._replace(columns=12, padded=12, interleaved=1), 0) == 1
    assert quantize.explain(1) == "sizes out of range for a row kernel"


@pytest.mark.parametrize(
    ("arch", "driver", "capturing", "early"),
    [
        (SM_80, 13000, False, False),
        (SM_90A, 13000, False, True),
        (SM_90A, 13000, True, True),
        (SM_90A, 12020, False, True),  # graphs take the attribute from CUDA 12.3 on
        (SM_90A, 12020, True, False),
    ],
)
def test_what_the_table_says_of_dependent_launch_is_how_kernels_are_launched(
    arch: Architecture,
    driver: int,
    capturing: bool,
    early: bool,
    compiled: dict[Architecture, Path],
    tmp_path: Path,
) -> None:
    library = tmp_path / "fresh.so"  # it asks for the driver's version once
    library.write_bytes(compiled[arch].read_bytes())
    kernels = CtypesLauncher().load_rows(str(library))
    state = ctypes.CDLL(str(library))
    ctypes.c_int.in_dll(state, "emulated_driver").value = driver
    ctypes.c_int.in_dll(state, "emulated_capturing").value = capturing
    assert {kernel.dependent_launch for kernel in kernels} == {arch.dependent_launch}
    for number, operation in enumerate(MATRIX_OPERATIONS, start=1):
        spec = RowSpec(arch=arch, operation=operation, dtype=TORCH_DTYPES[torch.float16])
        kernel = next(each for each in kernels if each.name == spec.name)
        case = cases(operation)[0]
        run_case(kernel, operation, case, torch.float16, "cpu", 0)
        assert ctypes.c_int.in_dll(state, "emulated_launches").value == number
        assert ctypes.c_int.in_dll(state, "emulated_early").value == number * early
