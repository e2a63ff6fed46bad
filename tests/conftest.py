"""Options and skips shared by all tests."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fakes import FakeNvcc
    from gemmsmith.launcher import Launcher
    from gemmsmith.spec import KernelSpec


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="write what the templates render now into tests/golden",
    )
    parser.addoption(
        "--require",
        action="append",
        default=[],
        choices=["nvcc", "sm_70", "gpu"],
        help="fail, where tests of this marker would be skipped for lack of the tool",
    )


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    """Whether golden files are to be rewritten rather than compared."""
    return bool(request.config.getoption("--update-golden"))


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache folder of the test's own, with nothing in it."""
    monkeypatch.setenv("GEMMSMITH_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture
def no_tables(empty_cache: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No tuned table but those that the test writes, where its own ones lie or those that ship."""
    import gemmsmith.tables

    monkeypatch.delenv("GEMMSMITH_TUNED", raising=False)
    monkeypatch.setattr(gemmsmith.tables, "shipped_tables", lambda: tmp_path / "shipped")
    gemmsmith.tables.forget_tables()


@pytest.fixture
def cache_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache folder of a test that builds, not made yet, whatever the environment says."""
    folder = tmp_path / "my cache"
    monkeypatch.setenv("GEMMSMITH_CACHE_DIR", str(folder))
    for name in ("MAX_JOBS", "GEMMSMITH_NEVER_COMPILE"):
        monkeypatch.delenv(name, raising=False)
    return folder


@pytest.fixture
def nvcc(tmp_path: Path) -> FakeNvcc:
    """A quick compiler."""
    from fakes import FakeNvcc

    return FakeNvcc(tmp_path / "fake toolkit")


@pytest.fixture(scope="session")
def module_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Cache folder that holds the compiled launcher."""
    from gemmsmith.launcher.with_pybind11 import pybind11_launcher

    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GEMMSMITH_CACHE_DIR", str(folder))
        pybind11_launcher()
    return folder


@pytest.fixture(params=["pybind11", "ctypes"])
def each_launcher(
    request: pytest.FixtureRequest, module_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> Launcher:
    """Both launchers, one after the other."""
    from gemmsmith.launcher.with_ctypes import CtypesLauncher
    from gemmsmith.launcher.with_pybind11 import pybind11_launcher

    monkeypatch.setenv("GEMMSMITH_CACHE_DIR", str(module_cache))
    return pybind11_launcher() if request.param == "pybind11" else CtypesLauncher()


@pytest.fixture
def forgetful() -> Iterator[None]:
    """No launcher or library is remembered from before, nor for later."""
    from gemmsmith.launcher import launcher, load_library

    launcher.cache_clear()
    load_library.cache_clear()
    yield
    launcher.cache_clear()
    load_library.cache_clear()


@pytest.fixture(scope="session")
def real_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Cache folder with the kernels of ``real_kernels``, compiled by nvcc once a session."""
    from gemmsmith.build import build
    from real_kernels import EVERY

    folder = tmp_path_factory.mktemp("real_cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GEMMSMITH_CACHE_DIR", str(folder))
        patch.delenv("GEMMSMITH_NEVER_COMPILE", raising=False)
        build(EVERY).raise_if_failed()
    return folder


@pytest.fixture(scope="session")
def real_libraries(real_cache: Path) -> dict[KernelSpec, Path]:
    """The compiled libraries of the kernels of ``real_kernels``."""
    from gemmsmith.lookup import find_built
    from real_kernels import EVERY

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GEMMSMITH_CACHE_DIR", str(real_cache))
        return find_built(EVERY)


@cache
def _nvcc_missing() -> str:
    """Return why no kernel can be compiled here; empty where it can."""
    from gemmsmith.errors import ToolchainError
    from gemmsmith.toolchain import find_toolchain

    try:
        find_toolchain()
    except ToolchainError as error:
        return f"no CUDA toolchain: {error}"
    return ""


@cache
def _sm_70_missing() -> str:
    """Return why no kernel can be compiled for sm_70 here; empty where it can."""
    from gemmsmith.arch import SM_70
    from gemmsmith.errors import ToolchainError
    from gemmsmith.toolchains import find_toolchains

    try:
        find_toolchains().of(SM_70)
    except ToolchainError as error:
        return str(error)
    return ""


@cache
def _gpu_missing() -> str:
    """Return why no kernel can run here; empty where it can."""
    try:
        import torch
    except ModuleNotFoundError:
        return "torch is not installed"
    return "" if torch.cuda.is_available() else "torch finds no CUDA device"


_MISSING = {"nvcc": _nvcc_missing, "sm_70": _sm_70_missing, "gpu": _gpu_missing}


def pytest_sessionstart(session: pytest.Session) -> None:
    """A machine without a GPU is told so once, not by each test."""
    if "gpu" in session.config.getoption("--require") and (reason := _gpu_missing()):
        pytest.exit(f"--require gpu: {reason}", returncode=1)


def pytest_runtest_setup(item: pytest.Item) -> None:
    for marker, missing in _MISSING.items():
        if item.get_closest_marker(marker) is None:
            continue
        reason = missing()
        if reason and marker in item.config.getoption("--require"):
            pytest.fail(f"--require {marker}: {reason}", pytrace=False)
        if reason:
            pytest.skip(reason)
