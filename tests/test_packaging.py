"""What the wheel and the sdist hold, and that an installed wheel finds its data."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

pytest.importorskip("build", reason="needs the extra 'dev'")
pytest.importorskip("hatchling", reason="needs the extra 'dev'")

ROOT = Path(__file__).resolve().parent.parent
PARTS = ("generator", "templates", "configs", "build", "tests", "examples", "benchmarks")
FILES = ("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", ".gitignore")


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the repository with kernels in build/out, as after a build."""
    copy = tmp_path_factory.mktemp("checkout with space")
    for part in PARTS:
        if (ROOT / part).is_dir():
            shutil.copytree(
                ROOT / part,
                copy / part,
                ignore=shutil.ignore_patterns("__pycache__", "out", "cuda-[0-9]*[0-9]"),
            )
    for file in FILES:
        shutil.copy(ROOT / file, copy / file)
    (copy / "build" / "out").mkdir()
    (copy / "build" / "out" / "kernel.so").write_bytes(b"\x7fELF")
    (copy / "build" / "toolchains" / "cuda-11.8" / "bin").mkdir(parents=True)
    (copy / "build" / "toolchains" / "cuda-11.8" / "bin" / "nvcc").write_bytes(b"\x7fELF")
    return copy


@pytest.fixture(scope="module")
def dist(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with the sdist, and the wheel that was built from the sdist."""
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder)],
        cwd=checkout,
        check=True,
        capture_output=True,
    )
    return folder


@pytest.fixture(scope="module")
def wheel(dist: Path) -> Path:
    (found,) = dist.glob("gemmsmith-*-py3-none-any.whl")
    return found


def _tracked(root: Path, part: str) -> set[str]:
    return {
        str(path.relative_to(root))
        for path in (root / part).rglob("*")
        if path.is_file() and not {"out", "cuda-11.8"} & set(path.relative_to(root).parts)
    }


def test_wheel_holds_the_package_and_its_data_and_nothing_else(checkout: Path, wheel: Path) -> None:
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    package = {name.removeprefix("generator/") for name in _tracked(checkout, "generator")}
    data = _tracked(checkout, "templates") | _tracked(checkout, "configs")
    matrix = {"matrix.yaml", "toolchains/cuda-11.8.sh"}
    assert names == (
        package
        | {f"gemmsmith/{name}" for name in data}
        | {f"gemmsmith/build_matrix/{name}" for name in matrix}
    )
    assert "gemmsmith/py.typed" in names
    assert any(name.endswith(".cu.j2") for name in names)
    assert any(name.startswith("gemmsmith/configs/kernels/") for name in names)


def test_wheel_says_licence_and_python(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = [name for name in archive.namelist() if name.endswith("/METADATA")]
        lines = archive.read(metadata).decode().splitlines()
        assert any(name.endswith("/licenses/LICENSE") for name in archive.namelist())
    assert "License-Expression: BSD-3-Clause" in lines
    assert "Requires-Python: >=3.10" in lines


def test_sdist_holds_the_sources_and_no_build_output(checkout: Path, dist: Path) -> None:
    (sdist,) = dist.glob("gemmsmith-*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames()}
    for part in PARTS:
        assert _tracked(checkout, part) <= names
    assert not {
        name for name in names if name.startswith("build/out") or name.endswith((".so", "/nvcc"))
    }


def test_installed_wheel_finds_its_data(wheel: Path, tmp_path: Path) -> None:
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run(
        [*pip, "--target", str(tmp_path / "site"), str(wheel)], check=True, capture_output=True
    )
    done = subprocess.run(
        [sys.executable, "-m", "gemmsmith", "list", "--json"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "site")},
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    files = {Path(kernel["file"]).parent for kernel in json.loads(done.stdout)["kernels"]}
    assert files == {tmp_path / "site" / "gemmsmith" / "configs" / "kernels"}


def test_editable_install_reads_the_checkout(checkout: Path, tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel:editable", "-d", str(tmp_path)],
        cwd=checkout,
        check=True,
        capture_output=True,
    )
    (editable,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(editable) as archive:
        names = [name for name in archive.namelist() if ".dist-info/" not in name]
        assert names == ["_gemmsmith.pth"]
        assert archive.read("_gemmsmith.pth").decode().strip() == str(checkout / "generator")


def test_nothing_at_the_root_hides_the_build_package() -> None:
    assert not (ROOT / "build.py").exists()
    assert not list((ROOT / "build").glob("*.py"))


@pytest.mark.parametrize(
    ("variable", "value", "sentence"),
    [
        ("PYTHON", "/no/python", "/no/python is not found: install Python 3.10"),
        ("PYTHON", "false", "false does not run: name Python 3.10 to 3.13 with PYTHON="),
        ("GEMMSMITH_CXX", "/no/g++", "/no/g++ is not found: apt install g++"),
    ],
)
def test_set_up_says_what_the_machine_lacks(
    checkout: Path, variable: str, value: str, sentence: str
) -> None:
    done = subprocess.run(
        ["sh", str(checkout / "build" / "setup-venv.sh"), "run"],
        env={**os.environ, variable: value},
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert sentence in done.stderr
    assert not (checkout / ".venv").exists()
