"""The CUDA toolkit: its nvcc, what that can target, and which folders it has to be told."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gemmsmith.arch import Architecture
from gemmsmith.errors import ToolchainError
from gemmsmith.nvcc import WHEELS, find_nvcc, nvcc_layout, nvcc_release

_HEADERS = (  # folder of the toolkit, a file that shows it, the PyPI package that brings it
    ("include", "cuda_runtime.h", "nvidia-cuda-runtime"),
    ("include", "crt/host_config.h", "nvidia-cuda-crt"),
    ("include/cccl", "cuda/std/utility", "nvidia-cuda-cccl"),
)
_LIBRARIES = (
    ("lib64", "libcudart_static.a", "nvidia-cuda-runtime"),
    ("lib", "libcudart_static.a", "nvidia-cuda-runtime"),
)


@dataclass(frozen=True, kw_only=True)
class Cuda:
    """A CUDA toolkit that can compile."""

    nvcc: Path
    version: tuple[int, int]
    """Toolkit (major, minor)."""
    release: str
    """nvcc's full version, for example ``13.0.88``."""
    origin: str
    """Where nvcc was found: ``argument``, ``GEMMSMITH_NVCC``, ``CUDA_HOME``, ``PATH``,
    ``PyPI wheels`` or ``further toolkits``."""
    root: Path
    """The toolkit's folder, which holds bin and include."""
    include_dirs: tuple[Path, ...]
    """Folders of CUDA headers that this nvcc does not know by itself."""
    library_dirs: tuple[Path, ...]
    """Folders of CUDA libraries that this nvcc does not know by itself."""


def find_cuda(nvcc: Path | None = None) -> Cuda:
    """Return the CUDA toolkit to compile with: that of ``nvcc``, else the first that is found.

    Raises:
        ToolchainError: where there is none, or a part of the one from PyPI is missing.
    """
    origin, path = find_nvcc(nvcc)
    return cuda_of(path, origin)


def cuda_of(path: Path, origin: str) -> Cuda:
    """Return the CUDA toolkit of the nvcc at ``path``, found as ``origin`` says.

    Raises:
        ToolchainError: where it tells no version, or a part of the one from PyPI is missing.
    """
    release = nvcc_release(path)
    major, minor = release.split(".")[:2]
    layout = nvcc_layout(path)
    if origin == WHEELS:
        _check_wheels(layout.root)
    return Cuda(
        nvcc=path,
        version=(int(major), int(minor)),
        release=release,
        origin=origin,
        root=layout.root,
        include_dirs=_unknown(_HEADERS, layout.root, layout.include_dirs),
        library_dirs=_unknown(_LIBRARIES, layout.root, layout.library_dirs),
    )


def target_objection(version: tuple[int, int], arch: Architecture) -> str | None:
    """Return why CUDA ``version`` cannot compile for ``arch``, or None where it can."""
    if version < arch.first_toolkit:
        return f"{arch.name} needs CUDA {dotted(arch.first_toolkit)} or newer"
    if arch.last_toolkit is not None and version > arch.last_toolkit:
        return f"{arch.name} needs CUDA {dotted(arch.last_toolkit)} or older"
    return None


def dotted(version: tuple[int, int]) -> str:
    """Return ``13.0`` for ``(13, 0)``."""
    return f"{version[0]}.{version[1]}"


def _unknown(
    parts: tuple[tuple[str, str, str], ...], root: Path, known: tuple[Path, ...]
) -> tuple[Path, ...]:
    """Folders of the toolkit whose marker file exists there and in no folder known to nvcc.

    The wheels' nvcc looks for libraries in lib64; the wheels have lib.
    """
    folders: list[Path] = []
    for place, marker, _ in parts:
        seen = any((folder / marker).is_file() for folder in (*known, *folders))
        if not seen and (root / place / marker).is_file():
            folders.append(root / place)
    return tuple(folders)


def _check_wheels(root: Path) -> None:
    """Raise where a package is missing that nvcc needs: its own depends on none of them."""
    parts = (("nvvm/bin", "cicc", "nvidia-nvvm"), *_HEADERS, _LIBRARIES[-1])
    missing = {package for place, part, package in parts if not (root / place / part).is_file()}
    if missing:
        raise ToolchainError(
            f"the CUDA toolkit from PyPI at {root} is incomplete: install "
            f"{', '.join(sorted(missing))} of nvcc's version into the same Python "
            "(pip install 'gemmsmith[toolchain]')"
        )
