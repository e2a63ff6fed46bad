"""What a library says of itself, or why it is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from fakes import FakeNvcc, ampere
from gemmsmith.compile import compile_library
from gemmsmith.errors import LoadError
from gemmsmith.render import render
from gemmsmith.table import TableEntry, read_table


def test_entries_by_name(tmp_path: Path) -> None:
    toolchain = FakeNvcc(tmp_path / "toolkit").toolchain
    specs = [ampere(64), ampere(128)]
    compiled = compile_library(
        render(specs), toolchain, tmp_path, jobs=1, failures=tmp_path / "failed"
    )
    assert read_table(compiled.path, 1) == {
        spec.name: TableEntry(name=spec.name, threads=128, shared_bytes=1024, stages=3)
        for spec in specs
    }
    with pytest.raises(LoadError, match="has C interface 1, this gemmsmith 2"):
        read_table(compiled.path, 2)


def test_what_is_no_library(tmp_path: Path) -> None:
    file = tmp_path / "not.so"
    file.write_text("hello")
    with pytest.raises(LoadError, match="is no kernel library"):
        read_table(file, 1)
