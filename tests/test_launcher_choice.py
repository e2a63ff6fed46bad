"""Which launcher is taken, what stands in its way, and that it is compiled once."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from echo_data import echo_library
from gemmsmith.errors import CacheError, CompileError, LoadError, ToolchainError
from gemmsmith.launcher import launcher, load_library
from gemmsmith.launcher.with_ctypes import CtypesLauncher
from gemmsmith.launcher.with_pybind11 import module_path


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
