"""The launcher as a pybind11 module, compiled with g++ when it is first needed and then kept."""

from __future__ import annotations

import hashlib
import importlib.machinery
import importlib.util
import platform
import shutil
import subprocess
import sysconfig
import tempfile
from pathlib import Path
from typing import cast

from gemmsmith.errors import CacheError, CompileError, LoadError, ToolchainError
from gemmsmith.launcher.abi import abi_header
from gemmsmith.launcher.interface import Launcher
from gemmsmith.locks import locked
from gemmsmith.render import include_dirs
from gemmsmith.settings import settings

MODULE = "gemmsmith_launcher"
_FOLDER = Path(__file__).parent
_SOURCE = _FOLDER / "launcher.cpp"


def pybind11_launcher() -> Launcher:
    """Return the compiled module, from the cache where it is there.

    Raises:
        ToolchainError: where g++, Python.h or pybind11 is missing.
        CompileError: where g++ fails.
        CacheError: where the cache cannot be written.
        LoadError: where the module was compiled on a machine with a newer C++ library.
    """
    binary = module_path()
    if not binary.exists():
        _compile_once(binary)
    loader = importlib.machinery.ExtensionFileLoader(MODULE, str(binary))
    spec = importlib.util.spec_from_file_location(MODULE, binary, loader=loader)
    assert spec is not None
    try:
        module = importlib.util.module_from_spec(spec)
        loader.exec_module(module)
    except ImportError as error:
        raise LoadError(
            f"the launcher that the cache holds does not load here: {error}; "
            "remove it, or set GEMMSMITH_CACHE_DIR, to have it compiled anew"
        ) from error
    return cast(Launcher, module)


def module_path() -> Path:
    """Return where the compiled module for this Python lies in the cache, built or not.

    The compiler is no part of the key: the module's interface to Python is C, so one that loads is
    right, and a warm start needs no compiler to be asked for its version.
    """
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    key = hashlib.sha256()
    headers = [path.read_text() for path in sorted(_FOLDER.glob("*.h"))]
    sources = (_SOURCE.read_text(), *headers, abi_header())
    for part in (suffix, platform.machine(), _pybind11_version(), *sources):
        key.update(part.encode() + b"\0")
    return settings().cache_dir / "v1" / "launchers" / key.hexdigest()[:16] / f"{MODULE}{suffix}"


def _pybind11_version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("pybind11")
    except PackageNotFoundError:
        raise ToolchainError("pybind11 is not installed: pip install pybind11") from None


def _compile_once(binary: Path) -> None:
    try:
        binary.parent.mkdir(parents=True, exist_ok=True)
        with locked(binary.parent / "lock"):
            if not binary.exists():
                _compile(binary)
    except OSError as error:
        raise CacheError(
            f"cannot keep the launcher in {binary.parent}: {error}; set GEMMSMITH_CACHE_DIR"
        ) from error


def _compile(binary: Path) -> None:
    import pybind11

    python_include = Path(sysconfig.get_path("include"))
    if not (python_include / "Python.h").exists():
        raise ToolchainError(
            f"no Python.h in {python_include}: install python3-dev, or your Python's headers"
        )
    compiler = shutil.which(str(settings().host_compiler or "g++"))
    if compiler is None:
        raise ToolchainError("no g++ on PATH: install g++, or set GEMMSMITH_CXX")
    scratch = Path(tempfile.mkdtemp(prefix="scratch-", dir=binary.parent))
    try:
        output = scratch / binary.name
        command = [compiler, "-std=c++17", "-O2", "-shared", "-fPIC", "-fvisibility=hidden"]
        includes = (python_include, pybind11.get_include(), *include_dirs())
        command += [f"-I{path}" for path in includes]
        command += [str(_SOURCE), "-o", str(output), "-ldl"]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode != 0 or not output.exists():
            lines = result.stderr.splitlines()
            first = next((line for line in lines if "error" in line), result.stderr)
            raise CompileError(
                f"the launcher does not compile: {first}\ncommand: {' '.join(command)}"
            )
        output.replace(binary)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
