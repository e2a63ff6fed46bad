"""The workflows can be read and build what the matrix lists."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from gemmsmith.arch import ARCHITECTURES

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def jobs() -> dict[str, Any]:
    values = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
    found = values["jobs"]
    assert isinstance(found, dict)
    return found


def test_each_python_that_the_package_supports_is_tested(jobs: dict[str, Any]) -> None:
    said = (ROOT / "pyproject.toml").read_text()
    for version in jobs["test"]["strategy"]["matrix"]["python"]:
        assert f"Programming Language :: Python :: {version}" in said
    assert said.count("Programming Language :: Python :: 3.") == 4
    assert len(jobs["test"]["strategy"]["matrix"]["python"]) == 4


def test_each_architecture_of_the_matrix_is_built(jobs: dict[str, Any], tmp_path: Path) -> None:
    (step,) = [step for step in jobs["architectures"]["steps"] if "run" in step]
    subprocess.run(
        ["bash", "-euc", step["run"]],
        cwd=ROOT,
        env={**os.environ, "GITHUB_OUTPUT": str(tmp_path / "output")},
        check=True,
    )
    name, _, value = (tmp_path / "output").read_text().strip().partition("=")
    assert name == "names"
    assert json.loads(value) == [arch.name for arch in ARCHITECTURES]
    commands = [step["run"] for step in jobs["build"]["steps"] if "run" in step]
    assert any("gemmsmith matrix --arch ${{ matrix.arch }} --strict" in run for run in commands)
