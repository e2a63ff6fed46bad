"""Bundles of quick stand-in kernels, and ways to spoil them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from fakes import FakeNvcc
from gemmsmith.build import build
from gemmsmith.bundle_export import Exportable, export
from gemmsmith.spec import KernelSpec


def make_bundle(folder: Path, specs: Sequence[KernelSpec], nvcc: FakeNvcc) -> Path:
    """Compile stand-ins of ``specs`` in a cache beside ``folder`` and export them there."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GEMMSMITH_CACHE_DIR", str(folder.parent / "cache of the maker"))
        patch.delenv("GEMMSMITH_NEVER_COMPILE", raising=False)
        patch.delenv("GEMMSMITH_BUNDLES", raising=False)
        patch.setattr("gemmsmith.toolchains.find_toolchain", lambda: nvcc.toolchain)
        build(specs, toolchain=nvcc.toolchain, jobs=1).raise_if_failed()
        export(Exportable(specs=tuple(specs), left_out={}), folder)
    return folder


def edit_manifest(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Rewrite the manifest of a bundle after ``change`` was applied to its values."""
    file = folder / "manifest.json"
    values = json.loads(file.read_text())
    change(values)
    file.write_text(json.dumps(values))


def libraries(folder: Path) -> list[Path]:
    """Return the library files of a bundle."""
    return sorted((folder / "libraries").iterdir())
