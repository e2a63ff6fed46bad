"""A key changes with all that reaches the binary, and with nothing else."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import gemmsmith
import gemmsmith.identity
from fakes import FakeNvcc, ampere, hopper
from gemmsmith.arch import SM_80, SM_90A
from gemmsmith.identity import Identity, flags, identity
from gemmsmith.render import render
from gemmsmith.toolchain import Toolchain


@pytest.fixture
def toolchain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Toolchain]:
    monkeypatch.setenv("GEMMSMITH_CACHE_DIR", str(tmp_path / "cache"))
    yield FakeNvcc(tmp_path / "toolkit").toolchain
    _forget()


def _forget() -> None:
    """Do as a new process would."""
    gemmsmith.identity._cutlass_headers.cache_clear()
    gemmsmith.identity._contents.cache_clear()


def _changed(before: Identity, after: Identity) -> set[str]:
    assert (before.digest == after.digest) == (before.parts == after.parts)
    return set(after.differences(before.parts))


def test_same_inputs_same_key(toolchain: Toolchain) -> None:
    first = identity(render([ampere()]), toolchain)
    _forget()
    assert identity(render([ampere()]), toolchain) == first
    assert len(first.digest) == 32


def test_each_input_changes_the_key(
    toolchain: Toolchain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = render([ampere()])
    before = identity(source, toolchain)
    newer = dataclasses.replace(toolchain, release="13.0.89")
    assert _changed(before, identity(source, newer)) == {"nvcc"}
    other = dataclasses.replace(toolchain, host_version="12.3.0")
    assert _changed(before, identity(source, other)) == {"host_compiler"}
    with monkeypatch.context() as patch:
        patch.setattr(gemmsmith.identity, "toolkit_parts", lambda root: {"cicc": "1", "cccl": "2"})
        assert _changed(before, identity(source, toolchain)) == {"cicc", "cccl"}
    moved = dataclasses.replace(toolchain, nvcc=Path("/elsewhere/nvcc"), origin="PATH")
    assert _changed(before, identity(source, moved)) == set()
    edited = dataclasses.replace(source, digest="0" * 64)
    assert _changed(before, identity(edited, toolchain)) == {"source"}
    with monkeypatch.context() as patch:
        patch.setattr(gemmsmith, "__version__", "9.9")
        assert _changed(before, identity(source, toolchain)) == {"gemmsmith"}
    with monkeypatch.context() as patch:
        patch.setattr(gemmsmith.identity, "cutlass_version", lambda: "4.3.0")
        assert _changed(before, identity(source, toolchain)) == {"cutlass"}
    with monkeypatch.context() as patch:
        patch.setattr(gemmsmith.identity, "flags", lambda arch: (*flags(arch), "-lineinfo"))
        assert _changed(before, identity(source, toolchain)) == {"flags"}
    assert _changed(before, identity(source, toolchain)) == set()


def test_one_line_of_a_cutlass_header_changes_the_key(
    toolchain: Toolchain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    headers = tmp_path / "my headers"
    (headers / "cutlass").mkdir(parents=True)
    header = headers / "cutlass" / "gemm.h"
    header.write_text("int a = 1;\n")
    monkeypatch.setattr(gemmsmith.identity, "cutlass_include_dirs", lambda: (headers,))
    before = identity(render([ampere()]), toolchain)
    header.write_text("int a = 2;\n")
    os.utime(header, ns=(1, 1))
    _forget()
    after = identity(render([ampere()]), toolchain)
    assert _changed(before, after) == {"cutlass_headers"}
    header.write_text("int a = 1;\n")  # as it was, at another time
    _forget()
    assert identity(render([ampere()]), toolchain) == before


def test_unrelated_kernels_do_not_matter(toolchain: Toolchain) -> None:
    assert identity(render([ampere(64)]), toolchain).digest not in {
        identity(render([spec]), toolchain).digest for spec in (ampere(128), hopper())
    }
    with pytest.raises(AssertionError):
        identity(render([ampere(64), ampere(128)]), toolchain)


def test_without_a_toolchain_only_its_parts_are_open(toolchain: Toolchain) -> None:
    full = identity(render([ampere()]), toolchain)
    loose = identity(render([ampere()]), None)
    assert (full.complete, loose.complete) == (True, False)
    assert loose.differences(full.parts) == {}
    assert set(loose.differences({**full.parts, "flags": "-O2"})) == {"flags"}


def test_flags_hold_no_paths_and_what_each_arch_needs() -> None:
    for arch in (SM_80, SM_90A):
        assert not any("/" in flag for flag in flags(arch))
        assert f"-gencode={arch.gencode}" in flags(arch)
        assert not any(flag.removeprefix("-l") == "cuda" for flag in flags(arch))
        assert not any("DIRECT_CUDA_DRIVER_CALL" in flag for flag in flags(arch))
