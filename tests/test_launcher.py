"""Both launchers call the same libraries with the same outcomes, or say why a file is none."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fake_calls import call_of
from gemmsmith.errors import CacheError, CompileError, LoadError, ToolchainError
from gemmsmith.footprint import shared_memory, stages_that_fit
from gemmsmith.launcher import (
    Call,
    Kernel,
    Launcher,
    RowCall,
    launcher,
    load_library,
    load_row_library,
)
from gemmsmith.launcher.abi import abi_header, abi_version
from gemmsmith.launcher.with_ctypes import CtypesLauncher, read_table
from gemmsmith.launcher.with_pybind11 import module_path, pybind11_launcher
from gemmsmith.render import include_dirs
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

ABI_VERSION = abi_version()
ECHO = r"""
#include <inttypes.h>
#include <stdio.h>
#include "gemmsmith/abi.h"
#define I64 " %" PRId64
static char seen[1024];
static int32_t can_run(const gemmsmith_gemm *g) {
  snprintf(seen, sizeof seen,
    I64 I64 I64 I64 " %zu %zu %zu %zu %zu %zu %zu %zu %zu" I64 I64 I64 I64 I64 I64 I64 I64
    " %g %g %g %d %d %d %d %d %d",
    g->m, g->n, g->k, g->batch, (size_t)g->a, (size_t)g->b, (size_t)g->c, (size_t)g->bias,
    (size_t)g->d, (size_t)g->a_scale, (size_t)g->b_scale, (size_t)g->a_zero, (size_t)g->b_sum,
    g->lda, g->ldb, g->ldc, g->ldd, g->a_batch, g->b_batch, g->c_batch, g->d_batch,
    g->alpha, g->beta, g->out_scale, g->activation, g->raster, g->swizzle, g->splits, g->device,
    g->sm_count);
  return 7;
}
static int32_t workspace_bytes(const gemmsmith_gemm *g, uint64_t *bytes) {
  *bytes = 5000000000u + (uint64_t)g->m;
  return 0;
}
static int32_t launch(const gemmsmith_gemm *g, void *workspace, void *stream) {
  snprintf(seen, sizeof seen, "%zu %zu", (size_t)workspace, (size_t)stream);
  return -(int32_t)g->n;
}
static int32_t blocks_per_sm(int32_t *blocks) { *blocks = 3; return 0; }
static const char *explain(int32_t status) { return status ? seen : "fine"; }
static const gemmsmith_kernel table[] = {
  {"first", 128, 1024, 4, 0, can_run, workspace_bytes, launch, blocks_per_sm, explain},
  {"second", 256, 2048, 2, 1, can_run, workspace_bytes, launch, blocks_per_sm, explain},
};
int32_t gemmsmith_abi_version(void) { return VERSION; }
const gemmsmith_kernel *gemmsmith_kernels(int32_t *count) { *count = 2; return table; }
"""
"""A kernel library that tells what it was called with."""
ROW_ECHO = r"""
#include <inttypes.h>
#include <stdio.h>
#include "gemmsmith/abi.h"
static char seen[1024];
static int32_t launch(const gemmsmith_rows *r, void *stream) {
  snprintf(seen, sizeof seen,
    "%" PRId64 " %" PRId64 " %" PRId64 " %zu %zu %zu %zu %zu %zu"
    " %" PRId64 " %" PRId64 " %" PRId64 " %" PRId64 " %g %d %d %zu",
    r->rows, r->columns, r->padded, (size_t)r->x, (size_t)r->residual, (size_t)r->weight,
    (size_t)r->sum, (size_t)r->out, (size_t)r->scale, r->x_stride, r->residual_stride,
    r->sum_stride, r->out_stride, r->eps, r->activation, r->interleaved, (size_t)stream);
  return 7;
}
static const char *explain(int32_t status) { return status ? seen : "fine"; }
static const gemmsmith_row_kernel table[] = {
  {"first", 1024, 0, 0, launch, explain}, {"second", 512, 64, 1, launch, explain},
};
int32_t gemmsmith_abi_version(void) { return VERSION; }
const gemmsmith_row_kernel *gemmsmith_row_kernels(int32_t *count) { *count = 2; return table; }
"""
"""The same of row kernels."""


def echo_library(path: Path, *, version: int = ABI_VERSION, text: str = ECHO) -> Path:
    source = path.with_suffix(".c")
    source.write_text(text)
    includes = [f"-I{folder}" for folder in include_dirs()]
    command = ["gcc", "-shared", "-fPIC", f"-DVERSION={version}", *includes, str(source)]
    subprocess.run([*command, "-o", str(path)], check=True)
    return path


@pytest.fixture(scope="module")
def module_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Cache folder that holds the compiled launcher."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GEMMSMITH_CACHE_DIR", str(folder))
        pybind11_launcher()
    return folder


@pytest.fixture(params=["pybind11", "ctypes"])
def each_launcher(
    request: pytest.FixtureRequest, module_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> Launcher:
    monkeypatch.setenv("GEMMSMITH_CACHE_DIR", str(module_cache))
    return pybind11_launcher() if request.param == "pybind11" else CtypesLauncher()


@pytest.fixture
def forgetful() -> Iterator[None]:
    """No launcher or library is remembered from before, nor for later."""
    launcher.cache_clear()
    load_library.cache_clear()
    yield
    launcher.cache_clear()
    load_library.cache_clear()


def call_of_distinct_values() -> Call:
    values = {name: 2**33 + index for index, name in enumerate(Call._fields)}
    small = {name: 11 * index for index, name in enumerate(Call._fields) if index >= 21}
    changed: dict[str, Any] = {
        **values,
        **small,
        "alpha": 0.5,
        "beta": -2.0,
        "out_scale": 0.25,
        "c": 0,
    }
    return Call(**changed)


@pytest.mark.parametrize(("struct", "call"), [("gemm", Call), ("rows", RowCall)])
def test_calls_have_the_fields_of_their_structs_in_order(struct: str, call: Any) -> None:
    whole = rf"typedef struct gemmsmith_{struct} \{{(.*?)\}} gemmsmith_{struct};"
    body = re.search(whole, abi_header(), re.DOTALL)
    assert body is not None
    text = re.sub(r"/\*.*?\*/", "", body[1], flags=re.DOTALL)
    declared = [
        name.strip().split()[-1].lstrip("*")
        for statement in text.split(";")
        if statement.strip()
        for name in statement.split(",")
    ]
    assert declared == list(call._fields)


def test_the_version_is_that_of_the_header() -> None:
    assert f"#define GEMMSMITH_ABI_VERSION {abi_version()}\n" in abi_header()


def test_the_table_of_a_library_without_a_launcher(tmp_path: Path) -> None:
    table = read_table(echo_library(tmp_path / "echo.so"))
    assert {
        name: (row.threads, row.shared_bytes, row.stages, row.dependent_launch)
        for name, row in table.items()
    } == {"first": (128, 1024, 4, False), "second": (256, 2048, 2, True)}
    text = tmp_path / "text.so"
    text.write_text("hello")
    with pytest.raises(LoadError, match=r"cannot load .*text\.so: .*(invalid ELF|too short)"):
        read_table(text)
    newer = echo_library(tmp_path / "newer.so", version=ABI_VERSION + 1)
    with pytest.raises(LoadError, match=rf"version {ABI_VERSION + 1}, this gemmsmith speaks"):
        read_table(newer)


def test_each_field_arrives_where_it_belongs(each_launcher: Launcher, tmp_path: Path) -> None:
    first, second = each_launcher.load(str(echo_library(tmp_path / "echo.so")))
    assert (first.name, first.threads, first.shared_bytes, first.stages) == ("first", 128, 1024, 4)
    assert (second.name, second.threads, second.shared_bytes) == ("second", 256, 2048)
    assert (first.dependent_launch, second.dependent_launch) == (False, True)
    call = call_of_distinct_values()
    assert second.can_run(call) == 7
    assert second.explain(7).split() == [
        f"{value:g}" if isinstance(value, float) else str(value) for value in call
    ]
    assert first.explain(0) == "fine"
    assert first.workspace_bytes(call._replace(m=9)) == (0, 5_000_000_009)
    assert first.launch(call._replace(n=35), 2**40 + 1, 2**41 + 2) == -35
    assert first.explain(-35) == f"{2**40 + 1} {2**41 + 2}"
    assert first.blocks_per_sm() == (0, 3)


def test_each_field_of_a_row_call_arrives_where_it_belongs(
    each_launcher: Launcher, tmp_path: Path
) -> None:
    library = echo_library(tmp_path / "echo.so", text=ROW_ECHO)
    first, second = each_launcher.load_rows(str(library))
    assert (first.name, first.threads, first.shared_bytes, first.stages) == ("first", 1024, 0, 0)
    assert (second.name, second.threads, second.shared_bytes) == ("second", 512, 64)
    assert (first.dependent_launch, second.dependent_launch) == (False, True)
    big = {name: 2**33 + index for index, name in enumerate(RowCall._fields)}
    changed: dict[str, Any] = {**big, "eps": 0.5, "activation": 2, "interleaved": 1, "residual": 0}
    call = RowCall(**changed)
    assert second.launch(call, 2**40 + 1) == 7
    assert second.explain(7).split() == [
        f"{value:g}" if isinstance(value, float) else str(value) for value in (*call, 2**40 + 1)
    ]
    assert first.explain(0) == "fine"


@pytest.mark.parametrize("name", ["pybind11", "ctypes"])
@pytest.mark.usefixtures("forgetful")
def test_the_two_kinds_of_libraries_are_not_taken_for_each_other(
    name: str, module_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GEMMSMITH_CACHE_DIR", str(module_cache))
    monkeypatch.setenv("GEMMSMITH_LAUNCHER", name)
    rows = echo_library(tmp_path / "rows.so", text=ROW_ECHO)
    gemms = echo_library(tmp_path / "gemms.so")
    assert list(load_row_library(rows)) == list(load_library(gemms)) == ["first", "second"]
    assert [row.threads for row in read_table(rows).values()] == [1024, 512]
    with pytest.raises(LoadError, match=r"rows\.so: it is no kernel library: gemmsmith_kernels"):
        load_library(rows)
    with pytest.raises(LoadError, match=r"gemms\.so: .* gemmsmith_row_kernels is missing"):
        load_row_library(gemms)
    old = echo_library(tmp_path / "old.so", text=ROW_ECHO, version=ABI_VERSION - 1)
    with pytest.raises(LoadError, match=rf"version {ABI_VERSION - 1}, this gemmsmith speaks"):
        load_row_library(old)


def test_l01_libraries_with_equal_names_inside_stay_apart(
    each_launcher: Launcher, tmp_path: Path
) -> None:
    old, _ = each_launcher.load(str(echo_library(tmp_path / "old.so")))
    edited = ECHO.replace("*blocks = 3", "*blocks = 5").replace('"first", 128', '"first", 64')
    new, _ = each_launcher.load(str(echo_library(tmp_path / "new.so", text=edited)))
    assert old.name == new.name
    assert (old.threads, old.blocks_per_sm()) == (128, (0, 3))
    assert (new.threads, new.blocks_per_sm()) == (64, (0, 5))


@pytest.mark.parametrize("name", ["pybind11", "ctypes"])
@pytest.mark.usefixtures("forgetful")
def test_what_is_no_kernel_library_is_a_load_error(
    name: str, module_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GEMMSMITH_CACHE_DIR", str(module_cache))
    monkeypatch.setenv("GEMMSMITH_LAUNCHER", name)
    text = tmp_path / "text.so"
    text.write_text("no library at all")
    foreign = echo_library(tmp_path / "foreign.so", text="int answer(void) { return 42; }")
    newer = echo_library(tmp_path / "newer.so", version=ABI_VERSION + 1)
    with pytest.raises(LoadError, match=r"cannot load .*text\.so: .*(invalid ELF|too short)"):
        load_library(text)
    with pytest.raises(LoadError, match=r"cannot load .*gone\.so: .*No such file"):
        load_library(tmp_path / "gone.so")
    with pytest.raises(LoadError, match=r"foreign\.so: it is no kernel library: gemmsmith_kernels"):
        load_library(foreign)
    version = f"interface has version {ABI_VERSION + 1}, this gemmsmith speaks {ABI_VERSION}"
    with pytest.raises(LoadError, match=rf"{version}: build the kernel again"):
        load_library(newer)
    good = load_library(echo_library(tmp_path / "good.so"))
    assert list(good) == ["first", "second"]


@pytest.mark.usefixtures("forgetful")
def test_without_a_compiler_ctypes_takes_over_and_says_so_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    library = echo_library(tmp_path / "echo.so")
    for name in ("CXX", "GEMMSMITH_CXX", "GEMMSMITH_LAUNCHER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GEMMSMITH_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with caplog.at_level(logging.INFO, logger="gemmsmith"):
        assert isinstance(launcher(), CtypesLauncher)
        assert load_library(library)["second"].blocks_per_sm() == (0, 3)
        launcher()
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "through ctypes" in caplog.text
    assert "no g++ on PATH: install g++, or set GEMMSMITH_CXX" in caplog.text


@pytest.mark.usefixtures("forgetful")
def test_without_python_headers_the_pybind11_setting_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("GEMMSMITH_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(
        "gemmsmith.launcher.with_pybind11.sysconfig.get_path", lambda name: str(tmp_path)
    )
    monkeypatch.setenv("GEMMSMITH_LAUNCHER", "pybind11")
    with pytest.raises(ToolchainError, match=r"no Python\.h in .*: install python3-dev"):
        launcher()
    monkeypatch.setenv("GEMMSMITH_LAUNCHER", "auto")
    assert isinstance(launcher(), CtypesLauncher)
    assert caplog.text.count("Python.h") == 1


@pytest.mark.usefixtures("forgetful")
def test_a_cache_that_cannot_be_written_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("GEMMSMITH_CACHE_DIR", str(tmp_path / "file"))
    monkeypatch.setenv("GEMMSMITH_LAUNCHER", "pybind11")
    with pytest.raises(
        CacheError, match=r"cannot keep the launcher in .*; set GEMMSMITH_CACHE_DIR"
    ):
        launcher()
    monkeypatch.setenv("GEMMSMITH_LAUNCHER", "auto")
    assert isinstance(launcher(), CtypesLauncher)
    assert caplog.text.count("set GEMMSMITH_CACHE_DIR") == 1


@pytest.mark.usefixtures("forgetful")
def test_a_kept_launcher_that_does_not_load_here_is_said_and_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As in a cache shared with a machine whose C++ library is newer."""
    monkeypatch.setenv("GEMMSMITH_CACHE_DIR", str(tmp_path / "cache"))
    module_path().parent.mkdir(parents=True)
    module_path().write_text("no module at all")
    monkeypatch.setenv("GEMMSMITH_LAUNCHER", "pybind11")
    with pytest.raises(LoadError, match=r"does not load here: .*(invalid ELF|too short).*remove"):
        launcher()
    monkeypatch.setenv("GEMMSMITH_LAUNCHER", "auto")
    library = echo_library(tmp_path / "echo.so")
    assert load_library(library)["second"].blocks_per_sm() == (0, 3)
    assert isinstance(launcher(), CtypesLauncher)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "through ctypes" in caplog.text


@pytest.mark.usefixtures("forgetful")
def test_a_failing_compiler_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = tmp_path / "my g++"
    compiler.write_text("#!/bin/sh\necho 'x.cpp:1: error: it is Monday' >&2\nexit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("GEMMSMITH_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("GEMMSMITH_CXX", str(compiler))
    monkeypatch.setenv("GEMMSMITH_LAUNCHER", "pybind11")
    with pytest.raises(CompileError, match=r"does not compile: x\.cpp:1: error: it is Monday"):
        launcher()
    assert [path.name for path in module_path().parent.iterdir()] == []


def test_the_next_process_compiles_nothing(module_cache: Path, tmp_path: Path) -> None:
    library = echo_library(tmp_path / "echo.so")
    compiler = tmp_path / "g++"
    compiler.write_text(f"#!/bin/sh\ntouch {tmp_path}/was_run\nexit 1\n")
    compiler.chmod(0o755)
    program = (
        "import sys; from pathlib import Path; from gemmsmith.launcher import load_library;"
        " print(*load_library(Path(sys.argv[1])), 'torch' in sys.modules)"
    )
    environment = {
        **os.environ,
        "GEMMSMITH_CACHE_DIR": str(module_cache),
        "GEMMSMITH_CXX": str(compiler),
        "GEMMSMITH_LAUNCHER": "pybind11",
        "PYTHONPATH": str(Path(__file__).parent.parent / "generator"),
    }
    result = subprocess.run(
        [sys.executable, "-c", program, str(library)],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert result.stdout.split() == ["first", "second", "False"], result.stderr
    assert not (tmp_path / "was_run").exists()


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
        ({"m": 65_536 * 16}, "Error Invalid Problem"),
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
