"""What a person sees of a build."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from fakes import FakeNvcc, ampere, hopper
from gemmsmith.build import build
from gemmsmith.progress import ConsoleProgress, duration


@pytest.fixture
def nvcc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeNvcc:
    monkeypatch.setenv("GEMMSMITH_CACHE_DIR", str(tmp_path / "cache"))
    return FakeNvcc(tmp_path / "toolkit")


def _build(nvcc: FakeNvcc, *, terminal: bool) -> str:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=terminal, width=200, soft_wrap=True)
    specs = [ampere(64), ampere(128), hopper()]
    build(specs, toolchain=nvcc.toolchain, jobs=2, progress=ConsoleProgress(console))
    return stream.getvalue()


def test_plain_lines_one_for_each_kernel(nvcc: FakeNvcc) -> None:
    nvcc.fault("broken", ampere(64))
    lines = _build(nvcc, terminal=False).splitlines()
    assert lines[0].startswith("compiling 3 kernels (0 cached), 2 at once, about ")
    assert [line.split()[0] for line in lines[1:]] == ["[1/3]", "[2/3]", "[3/3]"]
    text = "\n".join(lines)
    assert f"{ampere(64).name}: failed: " in text
    assert 'identifier "oops" is undefined' in text
    assert f"{hopper().name}: " in text
    assert "77 registers, 1,536 B shared, spills 16 B, machine code not inspected" in text
    assert "ETA" in lines[1]
    assert "ETA" not in lines[-1]


def test_live_line_on_a_terminal(nvcc: FakeNvcc) -> None:
    text = _build(nvcc, terminal=True)
    assert "being compiled, ETA" in text
    assert f"{ampere(128).name}: " in text


def test_nothing_to_do_says_nothing(nvcc: FakeNvcc) -> None:
    _build(nvcc, terminal=False)
    assert _build(nvcc, terminal=False) == ""


@pytest.mark.parametrize(("count", "words"), [(1, "1 kernel"), (2, "2 kernels")])
def test_one_kernel_is_singular(nvcc: FakeNvcc, count: int, words: str) -> None:
    stream = io.StringIO()
    progress = ConsoleProgress(Console(file=stream, width=200))
    build([ampere(64), hopper()][:count], toolchain=nvcc.toolchain, jobs=1, progress=progress)
    assert stream.getvalue().startswith(f"compiling {words} (0 cached), 1 at once")


def test_duration() -> None:
    assert [duration(each) for each in (0, 59.4, 59.6, 125)] == [
        "0 s",
        "59 s",
        "1 min 00 s",
        "2 min 05 s",
    ]
