"""Data files are found in a checkout, in an installation, and CUTLASS without importing it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gemmsmith import resources
from gemmsmith.errors import GemmsmithError, ToolchainError

ROOT = Path(__file__).resolve().parent.parent


def test_checkout_uses_the_folders_at_its_root() -> None:
    assert resources.templates_dir() == ROOT / "templates"
    assert resources.configs_dir() == ROOT / "configs"
    assert resources.build_dir() == ROOT / "build"


def test_installation_uses_the_folders_beside_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "site-packages" / "gemmsmith"
    (package / "templates").mkdir(parents=True)
    (tmp_path / "templates").mkdir()
    monkeypatch.setattr(resources, "_PACKAGE", package)
    monkeypatch.setattr(resources, "_CHECKOUT", tmp_path)
    assert resources.templates_dir() == package / "templates"
    (package / "build_matrix").mkdir()
    (package / "build_matrix" / "matrix.yaml").touch()
    assert resources.build_dir() == package / "build_matrix"


def test_lost_folder_is_told_with_the_places_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resources, "_PACKAGE", tmp_path / "package")
    monkeypatch.setattr(resources, "_CHECKOUT", tmp_path / "checkout")
    with pytest.raises(GemmsmithError) as raised:
        resources.configs_dir()
    assert "configs" in str(raised.value)
    with pytest.raises(GemmsmithError, match="build matrix is neither in"):
        resources.build_dir()
    assert str(tmp_path / "package") in str(raised.value)


def test_cutlass_headers_exist() -> None:
    headers, utilities = resources.cutlass_include_dirs()
    assert (headers / "cutlass" / "gemm" / "collective" / "collective_builder.hpp").is_file()
    assert (utilities / "cutlass" / "util" / "packed_stride.hpp").is_file()


def test_cutlass_version_agrees_with_the_headers() -> None:
    text = (resources.cutlass_include_dirs()[0] / "cutlass" / "version.h").read_text()
    numbers = [
        line.split()[2] for line in text.splitlines() if line.startswith("#define CUTLASS_M")
    ]
    assert resources.cutlass_version().split(".")[:2] == numbers[:2]


def test_headers_are_found_without_importing_the_package() -> None:
    code = (
        "import sys; from gemmsmith import resources; resources.cutlass_include_dirs(); "
        "sys.exit('cutlass_library' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT / "generator").returncode == 0


@pytest.mark.usefixtures("without_cutlass")
def test_missing_cutlass_names_the_package_to_install() -> None:
    with pytest.raises(ToolchainError, match="pip install 'nvidia-cutlass"):
        resources.cutlass_include_dirs()


@pytest.fixture
def without_cutlass(monkeypatch: pytest.MonkeyPatch) -> None:
    resources.cutlass_include_dirs.cache_clear()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
