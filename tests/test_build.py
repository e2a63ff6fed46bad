"""Building what is missing: once, with a reason for each kernel that fails."""

from __future__ import annotations

import dataclasses
import shlex
import subprocess
import time
from pathlib import Path

import pytest

from fake_tools import fake_nvcc
from fakes import FakeNvcc, ampere, hopper, leftovers
from gemmsmith.build import build
from gemmsmith.errors import ArgumentError, CacheError, CompileError, ToolchainError
from gemmsmith.launcher.with_ctypes import read_table
from gemmsmith.lookup import find_built
from gemmsmith.toolchain import Toolchain


def test_first_build_compiles_and_second_does_not(cache_dir: Path, nvcc: FakeNvcc) -> None:
    specs = [ampere(64), ampere(128), hopper(128)]
    first = build(specs, toolchain=nvcc.toolchain, jobs=2)
    first.raise_if_failed()
    assert [kernel.spec for kernel in first.built] == specs
    assert not any(kernel.cached for kernel in first.built)
    assert sorted(name for run in nvcc.runs() for name in run) == sorted(s.name for s in specs)
    for kernel in first.built:
        assert kernel.spec.name in read_table(kernel.library)
        assert (kernel.card.threads, kernel.card.stages) == (128, 3)
        assert (kernel.card.registers, kernel.card.spill_store_bytes) == (77, 16)
        assert kernel.card.shared_bytes == 1024 + 512
        assert kernel.peak_bytes > 1_000_000
        assert not kernel.card.sass_inspected
    assert repr(first).startswith("<BuildReport: 3 built (0 of them cached), 0 failed, ")
    assert "spill" not in repr(first.built[0])
    runs = len(nvcc.runs())
    second = build(specs, toolchain=nvcc.toolchain)
    assert all(kernel.cached for kernel in second.built)
    assert [kernel.card for kernel in second.built] == [kernel.card for kernel in first.built]
    assert len(nvcc.runs()) == runs
    assert leftovers(cache_dir) == []


def test_a_new_kernel_compiles_alone_and_its_kin_stay(cache_dir: Path, nvcc: FakeNvcc) -> None:
    build([ampere(64), ampere(128)], toolchain=nvcc.toolchain, jobs=1).raise_if_failed()
    assert len(nvcc.runs()) == 1  # one group
    report = build([ampere(64), ampere(256), ampere(128)], toolchain=nvcc.toolchain, jobs=1)
    assert [kernel.cached for kernel in report.built] == [True, False, True]
    assert nvcc.runs()[1:] == [[ampere(256).name]]


def test_warm_cache_needs_no_toolchain(
    cache_dir: Path, nvcc: FakeNvcc, monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent() -> Toolchain:
        raise ToolchainError("no nvcc found; looked nowhere")

    older = dataclasses.replace(nvcc.toolchain, release="12.9.41")
    build([ampere()], toolchain=older).raise_if_failed()
    time.sleep(0.02)
    newer = build([ampere()], toolchain=nvcc.toolchain).built[0]
    manifests = list((cache_dir / "v1" / "kernels" / ampere().name).iterdir())
    assert len(manifests) == 2  # each toolchain has its own
    monkeypatch.setattr("gemmsmith.toolchains.find_toolchain", absent)
    monkeypatch.setattr("gemmsmith.toolchains.made_toolkits", lambda: ())
    report = build([ampere()])
    assert report.built[0].cached
    assert report.built[0].card == newer.card
    with pytest.raises(ToolchainError, match="looked nowhere"):
        build([ampere(), ampere(64)])


@pytest.mark.parametrize(
    ("variable", "words"),
    [
        ("GEMMSMITH_NVCC", "GEMMSMITH_NVCC names {}, which cannot be used: nvcc is given as"),
        ("CXX", "GEMMSMITH_CXX or CXX names {}, which cannot be used: GEMMSMITH_CXX or CXX asks"),
    ],
)
def test_refused_compiler_is_told_once_where_the_cache_serves(
    cache_dir: Path,
    nvcc: FakeNvcc,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    variable: str,
    words: str,
) -> None:
    build([ampere()], toolchain=nvcc.toolchain).raise_if_failed()
    for name in ("CUDA_HOME", "CUDA_PATH", "CXX", "GEMMSMITH_CXX", "GEMMSMITH_NVCC"):
        monkeypatch.delenv(name, raising=False)
    tools = tmp_path / "tools"
    monkeypatch.setenv("PATH", f"{tools}:/usr/bin:/bin")
    monkeypatch.setattr("gemmsmith.nvcc.wheel_roots", lambda: ())
    monkeypatch.setattr("gemmsmith.toolchains.made_toolkits", lambda: ())
    caplog.clear()
    assert list(find_built([ampere()])) == [ampere()]
    assert caplog.messages == []  # no compiler, and none asked for
    fake_nvcc(tools / "nvcc", "13.0.88")
    nowhere = tmp_path / "nope"
    monkeypatch.setenv(variable, str(nowhere))
    assert find_built([ampere(64)]) == {}
    assert caplog.messages == []  # nothing is served
    for _ in range(2):
        assert build([ampere()]).built[0].cached
        assert list(find_built([ampere()])) == [ampere()]
    (message,) = caplog.messages
    assert message.startswith(words.format(nowhere))
    assert message.endswith("; serving kernels compiled before")


@pytest.mark.parametrize("jobs", [0, -1, "x", 1.5, True])
def test_illegal_jobs_are_refused_with_a_warm_cache_too(
    cache_dir: Path, nvcc: FakeNvcc, jobs: int
) -> None:
    for _ in range(2):
        with pytest.raises(ArgumentError, match=rf"jobs is {jobs!r}: give a whole number"):
            build([ampere()], toolchain=nvcc.toolchain, jobs=jobs)
        build([ampere()], toolchain=nvcc.toolchain).raise_if_failed()


def test_unusable_cache_folder_is_told(
    tmp_path: Path, nvcc: FakeNvcc, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("GEMMSMITH_CACHE_DIR", str(tmp_path / "file"))
    with pytest.raises(CacheError, match=r"Not a directory.*GEMMSMITH_CACHE_DIR"):
        build([ampere()], toolchain=nvcc.toolchain)


def test_k11_one_broken_kernel_of_five(cache_dir: Path, nvcc: FakeNvcc) -> None:
    specs = [ampere(64), ampere(128), ampere(256), ampere(64, 64), ampere(128, 64)]
    bad = specs[2]
    nvcc.fault("broken", bad)
    report = build(specs, toolchain=nvcc.toolchain, jobs=2)
    assert [kernel.spec for kernel in report.built] == [s for s in specs if s is not bad]
    (failure,) = report.failed
    assert failure.spec == bad
    text = str(failure.error)
    assert text.splitlines()[0].endswith('.cu(7): error: identifier "oops" is undefined')
    assert text.startswith(bad.name)
    kept = [
        line.split(": ")[1] for line in text.splitlines() if "source:" in line or "log:" in line
    ]
    assert bad.name in Path(kept[0]).read_text()
    assert "oops" in Path(kept[1]).read_text()
    command = shlex.split(text.splitlines()[-1].partition("command: ")[2])
    assert (command[0], command[-1]) == (str(nvcc.path), kept[0])
    again = subprocess.run(command, capture_output=True, text=True, check=False)
    assert again.returncode != 0
    assert 'identifier "oops" is undefined' in again.stdout
    with pytest.raises(CompileError, match="oops"):
        report.raise_if_failed()
    assert leftovers(cache_dir) == []


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("silent", "exit code 1 without a word"),
        ("nothing", "reported success but wrote no library"),
    ],
)
def test_k11_a_compiler_that_says_nothing(
    cache_dir: Path, nvcc: FakeNvcc, fault: str, words: str
) -> None:
    _fails(nvcc, fault, words)


def test_k10_a_killed_compiler_is_told_as_such(cache_dir: Path, nvcc: FakeNvcc) -> None:
    _fails(nvcc, "killed", r"killed, likely out of memory: lower MAX_JOBS \(now 3\)")


def test_more_shared_memory_than_there_is(cache_dir: Path, nvcc: FakeNvcc) -> None:
    _fails(nvcc, "fat", r"takes 1,000,511 B of shared memory a block, sm_80 has 166,912")


def _fails(nvcc: FakeNvcc, fault: str, words: str) -> None:
    """A kernel with that fault fails with those words, and the other one is built."""
    nvcc.fault(fault, ampere(64))
    report = build([ampere(64), hopper()], toolchain=nvcc.toolchain, jobs=3)
    assert [kernel.spec for kernel in report.built] == [hopper()]
    with pytest.raises(CompileError, match=words):
        report.raise_if_failed()
    again = build([ampere(64)], toolchain=nvcc.toolchain)
    assert len(again.failed) == 1  # a failure is never served from the cache


@pytest.mark.parametrize(
    ("release", "torch", "warned"),
    [("13.0.88", "12.6", True), ("11.8.89", "12.6", True), ("12.9.41", "12.6", False)],
)
def test_k07_torch_for_another_major_cuda_is_told_before_building(
    cache_dir: Path,
    nvcc: FakeNvcc,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    release: str,
    torch: str,
    warned: bool,
) -> None:
    monkeypatch.setattr("gemmsmith.torch_cuda.torch_cuda", lambda: torch)
    major, minor, _ = map(int, release.split("."))
    tools = dataclasses.replace(nvcc.toolchain, version=(major, minor), release=release)
    nvcc.fault("broken", ampere(64))
    report = build([ampere(64), ampere(128)], toolchain=tools)
    assert [kernel.spec for kernel in report.built] == [ampere(128)]
    words = f"torch is built for CUDA {torch}, nvcc is {release} at {nvcc.path}: its kernels"
    told = [message for message in caplog.messages if message.startswith(words)]
    assert len(told) == warned
    if warned:
        assert caplog.messages[0] == told[0]  # before anything is compiled
    caplog.clear()
    build([ampere(64)], toolchain=tools)
    assert not [message for message in caplog.messages if message.startswith("torch is built")]


@pytest.mark.parametrize("value", [None, "", "8.0;9.0a+PTX"])
def test_k14_an_explicit_arch_builds_without_a_gpu_whatever_torch_is_told(
    cache_dir: Path, nvcc: FakeNvcc, monkeypatch: pytest.MonkeyPatch, value: str | None
) -> None:
    monkeypatch.setattr("gemmsmith.nvml.devices", lambda: ())
    monkeypatch.delenv("TORCH_CUDA_ARCH_LIST", raising=False)
    if value is not None:
        monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", value)
    (kernel,) = build([ampere()], toolchain=nvcc.toolchain).built
    command = shlex.split(kernel.library.with_suffix(".log").read_text().splitlines()[0])
    targets = [word for word in command if word.startswith(("-gencode", "-arch", "-code"))]
    assert targets == ["-gencode=arch=compute_80,code=sm_80"]


def test_never_compile(cache_dir: Path, nvcc: FakeNvcc, monkeypatch: pytest.MonkeyPatch) -> None:
    build([ampere(64)], toolchain=nvcc.toolchain).raise_if_failed()
    monkeypatch.setenv("GEMMSMITH_NEVER_COMPILE", "1")
    report = build([ampere(64), ampere(128)], toolchain=nvcc.toolchain)
    assert [kernel.spec for kernel in report.built] == [ampere(64)]
    with pytest.raises(CompileError, match="gemmsmith build --arch sm_80"):
        report.raise_if_failed()
    report = build([ampere(128)], toolchain=nvcc.toolchain, source="my kernels.yaml")
    with pytest.raises(CompileError, match=r"build 'my kernels\.yaml' --arch sm_80"):
        report.raise_if_failed()
    assert len(nvcc.runs()) == 1


def test_toolkit_too_old_fails_only_its_kernels(cache_dir: Path, nvcc: FakeNvcc) -> None:
    old = dataclasses.replace(nvcc.toolchain, version=(11, 8), release="11.8.89")
    report = build([ampere(64), hopper()], toolchain=old)
    assert [kernel.spec for kernel in report.built] == [ampere(64)]
    assert "needs CUDA 12.0 or newer; found 11.8" in str(report.failed[0].error)
