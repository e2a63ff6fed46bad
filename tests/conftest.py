"""Options and skips shared by all tests."""

from __future__ import annotations

from functools import cache

import pytest


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
        choices=["nvcc", "gpu"],
        help="fail, where tests of this marker would be skipped for lack of the tool",
    )


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    """Whether golden files are to be rewritten rather than compared."""
    return bool(request.config.getoption("--update-golden"))


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
def _gpu_missing() -> str:
    """Return why no kernel can run here; empty where it can."""
    try:
        import torch
    except ModuleNotFoundError:
        return "torch is not installed"
    return "" if torch.cuda.is_available() else "torch finds no CUDA device"


_MISSING = {"nvcc": _nvcc_missing, "gpu": _gpu_missing}


def pytest_runtest_setup(item: pytest.Item) -> None:
    for marker, missing in _MISSING.items():
        if item.get_closest_marker(marker) is None:
            continue
        reason = missing()
        if reason and marker in item.config.getoption("--require"):
            pytest.fail(f"--require {marker}: {reason}", pytrace=False)
        if reason:
            pytest.skip(reason)
