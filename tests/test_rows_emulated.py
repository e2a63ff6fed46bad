"""The row kernels' own C++, compiled by g++ and run on the CPU: indices, tails, reductions."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import torch

from gemmsmith.arch import SM_80
from gemmsmith.launcher import RowCall, RowKernel
from gemmsmith.launcher.with_ctypes import CtypesLauncher
from gemmsmith.operands import TORCH_DTYPES
from gemmsmith.render import include_dirs, render
from gemmsmith.rowspec import ROW_OPERATIONS, RowOperation, RowSpec, row_specs
from row_data import cases, check_bits, check_gate, run_case

pytestmark = pytest.mark.nvcc  # for the toolkit's headers


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, RowKernel]:
    """All row kernels of sm_80 as functions of the CPU, by name."""
    from gemmsmith.toolchain import find_toolchain

    folder = tmp_path_factory.mktemp("emulated")
    source, library = folder / "rows.cpp", folder / "rows.so"
    head = '#include "gemmsmith/abi.h"\n#include "cuda_on_cpu.h"\n'
    source.write_text(head + render(row_specs(SM_80)).text)
    toolchain = find_toolchain()
    includes = (
        *include_dirs(),
        Path(__file__).parent,
        *([toolchain.root / "include"] if toolchain.root else []),
        *toolchain.include_dirs,
    )
    command = ["g++", "-std=c++17", "-O1", "-w", "-ffp-contract=off", "-shared", "-fPIC"]
    command += [f"-I{folder}" for folder in includes]
    subprocess.run([*command, "-o", str(library), str(source)], check=True)
    return {kernel.name: kernel for kernel in CtypesLauncher().load_rows(str(library))}


def test_the_library_has_every_kernel(kernels: dict[str, RowKernel]) -> None:
    assert list(kernels) == [spec.name for spec in row_specs(SM_80)]
    assert {kernel.threads for kernel in kernels.values()} == {512, 768, 1024}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("operation", ROW_OPERATIONS)
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
