"""Both launchers on kernels that nvcc compiled: their facts and what they refuse."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fake_calls import call_of
from gemmsmith.footprint import shared_memory, stages_that_fit
from gemmsmith.launcher import Kernel, Launcher
from gemmsmith.spec import KernelSpec
from real_kernels import (
    AMPERE,
    HOPPER,
    HOPPER_DEPENDENT,
    LEAN,
    LEAN_CONSTANT,
    LEAN_DEPENDENT,
    LEANS,
)


def _kernels(which: Launcher, libraries: dict[KernelSpec, Path]) -> dict[KernelSpec, Kernel]:
    """The kernel of each spec, from its library."""
    found = {}
    for spec, path in libraries.items():
        found[spec] = next(kernel for kernel in which.load(str(path)) if kernel.name == spec.name)
    return found


@pytest.mark.nvcc
def test_real_kernels_tell_their_facts(
    each_launcher: Launcher, real_libraries: dict[KernelSpec, Path]
) -> None:
    facts = {
        spec: (kernel.threads, kernel.shared_bytes, kernel.stages)
        for spec, kernel in _kernels(each_launcher, real_libraries).items()
    }
    assert facts[AMPERE] == (128, 3 * (64 + 64) * 32 * 2, 3)  # four warps
    threads, shared, stages = facts[HOPPER]
    assert (threads, stages) == (256, 4)  # a warpgroup that loads and one that multiplies
    assert 4 * (64 + 16) * 64 * 2 <= shared <= 4 * (64 + 16) * 64 * 2 + 1024
    assert facts[LEAN] == (160, 16 * (64 + 16) * 64 * 2 + 256, 16)  # a warp beside loads
    assert facts[LEAN_DEPENDENT] == (288, 4 * (128 + 24) * 64 * 2 + 256, 4)


@pytest.mark.nvcc
def test_lean_kernels_take_the_shared_memory_that_was_foretold(
    each_launcher: Launcher, real_libraries: dict[KernelSpec, Path]
) -> None:
    kernels = _kernels(each_launcher, real_libraries)
    for spec in LEANS:
        assert kernels[spec].stages == (spec.stages or stages_that_fit(spec))
        assert kernels[spec].shared_bytes == shared_memory(spec, kernels[spec].stages)


@pytest.mark.nvcc
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, "Success"),
        ({"lda": 76}, "Error Misaligned Operand"),
        ({"b_batch": 4, "batch": 2}, "Error Misaligned Operand"),
        ({"n": 130, "ldd": 132}, "Error Misaligned Operand"),
        ({"ldd": 130}, "Error Misaligned Operand"),
        ({"d": (1 << 22) + 4}, "Error Misaligned Operand"),
        ({"c": (1 << 23) + 4, "ldc": 128}, "Success"),  # beta is 0: it is not read
        ({"c": (1 << 23) + 4, "ldc": 128, "beta": 1.0}, "Error Misaligned Operand"),
        ({"c": 1 << 23, "ldc": 130, "beta": 1.0}, "Error Misaligned Operand"),
        ({"batch": 32_767}, "Success"),
        ({"batch": 32_768}, "Error Invalid Problem"),  # two blocks to a tile
        ({"m": 65_535 * 16}, "Success"),
        ({"m": 65_536 * 16}, "Success"),  # the grid's first axis
        ({"n": 65_536 * 64, "ldd": 65_536 * 64}, "Error Invalid Problem"),  # its second
        ({"n": 2**31 - 8}, "Error Invalid Problem"),  # two tiles of 64 reach past 2^31
    ],
)
def test_a_lean_kernel_names_what_it_cannot_take(
    change: dict[str, float],
    words: str,
    each_launcher: Launcher,
    real_libraries: dict[KernelSpec, Path],
) -> None:
    kernel = _kernels(each_launcher, real_libraries)[LEAN]
    assert kernel.explain(kernel.can_run(call_of(LEAN, **change))) == words


@pytest.mark.nvcc
def test_real_kernels_tell_how_they_are_launched(
    each_launcher: Launcher, real_libraries: dict[KernelSpec, Path]
) -> None:
    kernels = _kernels(each_launcher, real_libraries)
    assert {spec for spec, kernel in kernels.items() if kernel.dependent_launch} == {
        HOPPER_DEPENDENT,
        LEAN_DEPENDENT,
        LEAN_CONSTANT,
    }


@pytest.mark.nvcc
@pytest.mark.parametrize("spec", [AMPERE, HOPPER, LEAN], ids=["ampere", "hopper", "lean"])
def test_real_kernels_judge_sizes_alike(
    spec: KernelSpec, each_launcher: Launcher, real_libraries: dict[KernelSpec, Path]
) -> None:
    kernel = _kernels(each_launcher, real_libraries)[spec]
    assert kernel.can_run(call_of(spec)) == 0
    assert kernel.can_run(call_of(spec, batch=3)) == 0
    misaligned = kernel.can_run(call_of(spec, k=36, lda=36, ldb=36))
    assert kernel.explain(misaligned) == "Error Misaligned Operand"
    for size in ({"m": 0}, {"n": 0}, {"k": 0}, {"batch": 0}, {"m": 2**31}):
        assert kernel.explain(kernel.can_run(call_of(spec, **size))) == "Error Invalid Problem"
    assert kernel.workspace_bytes(call_of(spec)) == (0, 0)


@pytest.mark.nvcc
@pytest.mark.parametrize("spec", [AMPERE, HOPPER, LEAN], ids=["ampere", "hopper", "lean"])
def test_a_launch_without_a_gpu_is_a_status_in_words(
    spec: KernelSpec, each_launcher: Launcher, real_libraries: dict[KernelSpec, Path]
) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    kernel = _kernels(each_launcher, real_libraries)[spec]
    status = kernel.launch(call_of(spec), 0, 0)
    assert status < 0
    assert re.search(r"driver|device", kernel.explain(status))
    status, blocks = kernel.blocks_per_sm()
    assert status < 0
    assert blocks == 0
    assert kernel.can_run(call_of(spec)) == 0
