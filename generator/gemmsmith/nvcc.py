"""Where nvcc is, its version, and the layout of the toolkit around it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path

from gemmsmith.errors import ToolchainError
from gemmsmith.programs import find_program, output_of
from gemmsmith.settings import settings

WHEELS = "PyPI wheels"
"""Origin of an nvcc that came with the nvidia-cuda-nvcc package."""


@dataclass(frozen=True, kw_only=True)
class Layout:
    """What nvcc says about the toolkit that it belongs to."""

    root: Path
    """The toolkit's folder, which holds bin, include, lib or lib64."""
    include_dirs: tuple[Path, ...]
    """Header folders that nvcc passes on by itself."""
    library_dirs: tuple[Path, ...]
    """Library folders that nvcc passes to the linker by itself."""


def find_nvcc(argument: Path | None = None) -> tuple[str, Path]:
    """Return (origin, path) of the nvcc to use.

    Raises:
        ToolchainError: where there is none; the message lists the places.
    """
    wanted = settings()
    for origin, named in (("argument", argument), ("GEMMSMITH_NVCC", wanted.nvcc)):
        if named is not None:
            return origin, _beside_profile(_named(origin, named))
    places: list[tuple[str, Path | str]] = []
    if wanted.cuda_home is not None:
        places.append(("CUDA_HOME", wanted.cuda_home / "bin" / "nvcc"))
    places.append(("PATH", "nvcc"))
    places += [(WHEELS, root / "bin" / "nvcc") for root in wheel_roots()]
    for origin, place in places:
        path = find_program(place)
        if path is not None:
            return origin, _beside_profile(path)
    raise ToolchainError(_nowhere(wanted.cuda_home))


def nvcc_release(nvcc: Path) -> str:
    """Return nvcc's full version, for example ``13.0.88``; ToolchainError where it tells none."""
    text = output_of(nvcc, "--version")
    found = re.search(r"\bV(\d+\.\d+\.\d+)", text) or re.search(r"release (\d+\.\d+)", text)
    if found is None:
        raise ToolchainError(f"{nvcc} --version names no CUDA release: {text[:200]!r}")
    return found.group(1)


def nvcc_layout(nvcc: Path) -> Layout:
    """Return the toolkit's layout as nvcc tells it: a wrapper script may stand in another folder.

    Where it tells nothing the root is taken to be the folder above nvcc's own.
    """
    try:
        profile = nvcc.parent / "nvcc.profile"
        also = (profile,) if profile.is_file() else ()
        text = output_of(nvcc, "--dryrun", "-E", "-x", "cu", os.devnull, also=also)
    except ToolchainError:  # the first compile tells what is wrong, with the file at hand
        text = ""
    said = dict(re.findall(r"^#\$ (\w+)=(.*)$", text, re.MULTILINE))
    root = Path(said["TOP"]).resolve() if said.get("TOP") else nvcc.parent.parent
    includes = re.findall(r'"-I([^"]+)"', said.get("INCLUDES", ""))
    includes += re.findall(r'"-isystem" "([^"]+)"', said.get("SYSTEM_INCLUDES", ""))
    libraries = re.findall(r'"-L([^"]+)"', said.get("LIBRARIES", ""))
    return Layout(
        root=root,
        include_dirs=tuple(Path(folder) for folder in includes),
        library_dirs=tuple(Path(folder) for folder in libraries),
    )


def wheel_roots() -> tuple[Path, ...]:
    """Return the folders that NVIDIA's CUDA wheels of the running Python install into."""
    return tuple(
        root
        for folder in package_folders("nvidia")
        for root in sorted(folder.glob("cu[0-9]*"), reverse=True)
        if root.is_dir()
    )


def package_folders(name: str) -> Iterator[Path]:
    """Yield the folders of a package of the running Python, found without importing it."""
    spec = PathFinder.find_spec(name)
    if spec is not None and spec.submodule_search_locations is not None:
        yield from map(Path, spec.submodule_search_locations)


def _named(origin: str, named: Path) -> Path:
    path = find_program(named)
    if path is None:
        raise ToolchainError(
            f"nvcc is given as {named} ({origin}), which is neither an executable file nor a name "
            "on PATH; give the path of the program, such as /usr/local/cuda/bin/nvcc"
        )
    return path


def _beside_profile(nvcc: Path) -> Path:
    """Follow links to the nvcc that has its nvcc.profile beside it: nvcc does not do so itself."""
    real = nvcc.resolve()
    if not (nvcc.parent / "nvcc.profile").is_file() and (real.parent / "nvcc.profile").is_file():
        return real
    return nvcc


def _nowhere(home: Path | None) -> str:
    looked = [
        f"CUDA_HOME ({home}/bin/nvcc)" if home else "CUDA_HOME and CUDA_PATH (not set)",
        "PATH",
        "the PyPI wheels of the running Python",
    ]
    usual = Path("/usr/local/cuda")
    hint = f" (there is one at {usual})" if (usual / "bin" / "nvcc").is_file() else ""
    return (
        f"no nvcc found; looked at {', '.join(looked)}. Set CUDA_HOME to the root of a CUDA "
        f"toolkit{hint}, or GEMMSMITH_NVCC to an nvcc, or install one from PyPI (package "
        "nvidia-cuda-nvcc and its companions): pip install 'gemmsmith[toolchain]'"
    )
