"""Programs and packages that look like the real ones from outside."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

HEADERS = ("cuda_runtime.h", "crt/host_config.h", "cccl/cuda/std/utility")


def script(path: Path, says: str, *, code: int = 0) -> Path:
    """A program that prints ``says``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\ncat <<'END'\n{says}\nEND\nexit {code}\n")
    path.chmod(0o755)
    return path


def fake_nvcc(path: Path, release: str = "13.0.88") -> Path:
    short = release.rpartition(".")[0]
    return script(path, f"Cuda compilation tools, release {short}, V{release}")


def fake_gxx(path: Path, version: str = "12.2.0") -> Path:
    line = f"g++ (Debian {version}-14+deb12u1) {version}"
    return script(path, f"{line}\nCopyright (C) 2022 Free Software Foundation, Inc.")


def lay_wheels(site: Path) -> Path:
    """The files of NVIDIA's CUDA 13 wheels that matter, under ``site``; returns their root."""
    root = site / "nvidia" / "cu13"
    fake_nvcc(root / "bin" / "nvcc")
    script(root / "nvvm" / "bin" / "cicc", "")
    for name in (*(f"include/{header}" for header in HEADERS), "lib/libcudart_static.a"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    for name in ("cuobjdump", "nvdisasm"):
        script(root / "bin" / name, name)
    return root


def lay_toolkit(root: Path, release: str = "11.8.89", gxx: str = "11.3.0") -> Path:
    """A further toolkit, as build/toolchains/cuda-11.8.sh leaves it; returns ``root``."""
    fake_nvcc(root / "bin" / "nvcc", release)
    fake_gxx(root / "bin" / "g++-11", gxx)
    for name in ("cuobjdump", "nvdisasm"):
        script(root / "bin" / name, name)
    return root


def bare_machine(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Path:
    """Leave no variable that names a tool and no package; return the one folder on PATH.

    Packages laid below ``folder / "site"`` count as installed. What the scripts of build/toolchains
    have made here is out of sight.
    """
    monkeypatch.setattr("gemmsmith.toolchains.made_toolkits", lambda: ())
    for name in (
        "CUDA_HOME",
        "CUDA_PATH",
        "CXX",
        "GEMMSMITH_BUNDLES",
        "GEMMSMITH_CACHE_DIR",
        "GEMMSMITH_CXX",
        "GEMMSMITH_LAUNCHER",
        "GEMMSMITH_NEVER_COMPILE",
        "GEMMSMITH_NVCC",
        "GEMMSMITH_TOOLKITS",
        "MAX_JOBS",
    ):
        monkeypatch.delenv(name, raising=False)
    tools = folder / "my tools"
    tools.mkdir()
    (tools / "cat").symlink_to("/bin/cat")
    monkeypatch.setenv("PATH", str(tools))
    own = [place for place in sys.path if "-packages" not in place]
    monkeypatch.setattr(sys, "path", [str(folder / "site"), *own])
    importlib.invalidate_caches()
    return tools
