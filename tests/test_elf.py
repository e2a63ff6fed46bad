"""What is read from a shared library's headers."""

from __future__ import annotations

import platform
import re
import subprocess
from pathlib import Path

import pytest

from gemmsmith.elf import read_needs
from gemmsmith.errors import LoadError


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A C++ library that needs the maths and the C++ library."""
    folder = tmp_path_factory.mktemp("a library")
    source = folder / "a.cpp"
    source.write_text(
        "#include <cmath>\n#include <string>\n"
        "std::string text(double x) { return std::to_string(std::pow(x, x)); }\n"
    )
    made = folder / "a.so"
    subprocess.run(["g++", "-shared", "-fPIC", "-o", str(made), str(source)], check=True)
    return made


def test_needs_are_those_that_readelf_tells(library: Path) -> None:
    needs = read_needs(library)
    assert needs.machine == platform.machine()
    dynamic = subprocess.run(
        ["readelf", "-d", "-W", str(library)], capture_output=True, text=True, check=True
    ).stdout
    assert list(needs.libraries) == re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic)
    assert "libstdc++.so.6" in needs.libraries
    versions = subprocess.run(
        ["readelf", "-V", "-W", str(library)], capture_output=True, text=True, check=True
    ).stdout
    for kind in ("GLIBC", "GLIBCXX"):
        told = re.findall(rf"Name: {kind}_([\d.]+)", versions)
        assert needs.versions[kind] == max(tuple(map(int, word.split("."))) for word in told)


@pytest.mark.parametrize("keep", [0, 3, 40, 64, 2000])
def test_what_is_cut_short_is_a_load_error(library: Path, tmp_path: Path, keep: int) -> None:
    cut = tmp_path / "cut.so"
    cut.write_bytes(library.read_bytes()[:keep])
    with pytest.raises(LoadError, match=r"cut\.so cannot be read as a shared library"):
        read_needs(cut)


def test_other_files_are_load_errors(library: Path, tmp_path: Path) -> None:
    with pytest.raises(LoadError, match=r"test_elf\.py .* it is no 64-bit ELF file"):
        read_needs(Path(__file__))
    with pytest.raises(LoadError, match=r"gone\.so cannot be read"):
        read_needs(tmp_path / "gone.so")


def test_machines_of_another_kind_are_told_apart(library: Path, tmp_path: Path) -> None:
    data = bytearray(library.read_bytes())
    for number, name in ((183, "aarch64"), (243, "ELF machine 243")):
        data[18:20] = number.to_bytes(2, "little")
        other = tmp_path / "other.so"
        other.write_bytes(data)
        assert read_needs(other).machine == name
