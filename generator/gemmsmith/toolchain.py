"""The CUDA compiler with all that goes with it: found once, in a stated order, or a reason why not.

Nothing here needs a GPU, a driver or torch.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from gemmsmith.arch import Architecture
from gemmsmith.errors import ToolchainError
from gemmsmith.host_compiler import find_host_compiler
from gemmsmith.nvcc import (
    WHEELS,
    find_nvcc,
    nvcc_layout,
    nvcc_release,
    package_folders,
    wheel_roots,
)
from gemmsmith.programs import find_program
from gemmsmith.settings import settings

_HIDDEN_INPUTS = (  # nvcc or g++ would take flags and headers from these
    "NVCC_PREPEND_FLAGS",
    "NVCC_APPEND_FLAGS",
    "NVCC_CCBIN",
    "CPATH",
    "C_INCLUDE_PATH",
    "CPLUS_INCLUDE_PATH",
)
_HEADERS = (
    ("include", "cuda_runtime.h", "nvidia-cuda-runtime"),
    ("include", "crt/host_config.h", "nvidia-cuda-crt"),
    ("include/cccl", "cuda/std/utility", "nvidia-cuda-cccl"),
)
_LIBRARIES = (
    ("lib64", "libcudart_static.a", "nvidia-cuda-runtime"),
    ("lib", "libcudart_static.a", "nvidia-cuda-runtime"),
)


@dataclass(frozen=True, kw_only=True)
class Toolchain:
    """An nvcc, the g++ it calls, and where the rest of the toolkit lies."""

    nvcc: Path
    version: tuple[int, int]
    """CUDA toolkit (major, minor)."""
    release: str
    """nvcc's full version, for example ``13.0.88``."""
    origin: str
    """Where nvcc was found: ``argument``, ``GEMMSMITH_NVCC``, ``CUDA_HOME``, ``PATH`` or
    ``PyPI wheels``."""
    host_compiler: Path
    host_version: str
    """Full version of the host compiler, for example ``12.2.0``."""
    include_dirs: tuple[Path, ...] = ()
    """Folders of CUDA headers that this nvcc does not know by itself."""
    library_dirs: tuple[Path, ...] = ()
    """Folders of CUDA libraries that this nvcc does not know by itself."""
    cuobjdump: Path | None
    """Reads binaries back; None where there is none."""
    nvdisasm: Path | None
    """Disassembles, for cuobjdump; None where there is none."""

    @property
    def command(self) -> tuple[str, ...]:
        """How each nvcc command line begins, one element an argument."""
        parts = [str(self.nvcc), "-ccbin", str(self.host_compiler)]
        for folder in self.include_dirs:
            parts += ["-isystem", str(folder)]
        for folder in self.library_dirs:
            parts += ["-L", str(folder)]
        return tuple(parts)

    @property
    def environment(self) -> dict[str, str]:
        """Environment for the tools: this process' own, less the variables with hidden inputs.

        Those would reach the binary without reaching its identity. PATH also ends with the folder
        of nvdisasm, which cuobjdump starts by its bare name.
        """
        kept = {key: value for key, value in os.environ.items() if key not in _HIDDEN_INPUTS}
        if self.nvdisasm is not None:
            folder = str(self.nvdisasm.parent)
            path = kept.get("PATH", os.defpath)
            if folder not in path.split(os.pathsep):
                kept["PATH"] = path + os.pathsep + folder
        return kept

    def check_target(self, arch: Architecture) -> None:
        """Raise ToolchainError where this toolkit cannot compile for ``arch``."""
        if self.version < arch.first_toolkit:
            need = f"CUDA {_dotted(arch.first_toolkit)} or newer"
        elif arch.last_toolkit is not None and self.version > arch.last_toolkit:
            need = f"CUDA {_dotted(arch.last_toolkit)} or older"
        else:
            return
        raise ToolchainError(
            f"{arch.name} needs {need}; found {_dotted(self.version)} at {self.nvcc}; "
            "set GEMMSMITH_NVCC to the nvcc of such a toolkit"
        )


def find_toolchain(nvcc: Path | None = None) -> Toolchain:
    """Return the toolchain for building kernels.

    nvcc is the first of: the argument, GEMMSMITH_NVCC, CUDA_HOME or CUDA_PATH, PATH, the PyPI
    wheels of the running Python. One that is named by the first two is never replaced.

    Raises:
        ToolchainError: where there is no nvcc, no host compiler that it accepts, or a part of the
            toolkit from PyPI is missing.
        SettingError: where an environment variable is not legal.
    """
    origin, path = find_nvcc(nvcc)
    release = nvcc_release(path)
    major, minor = release.split(".")[:2]
    version = (int(major), int(minor))
    layout = nvcc_layout(path)
    if origin == WHEELS:
        _check_wheels(layout.root)
    host = find_host_compiler(version, settings().host_compiler)
    return Toolchain(
        nvcc=path,
        version=version,
        release=release,
        origin=origin,
        host_compiler=host.path,
        host_version=host.version,
        include_dirs=_unknown(_HEADERS, layout.root, layout.include_dirs),
        library_dirs=_unknown(_LIBRARIES, layout.root, layout.library_dirs),
        cuobjdump=find_binary_tool("cuobjdump", layout.root),
        nvdisasm=find_binary_tool("nvdisasm", layout.root),
    )


def find_binary_tool(name: str, root: Path) -> Path | None:
    """Return ``name`` beside nvcc, in the wheels, on PATH, or among triton's tools; else None."""
    places: list[Path | str] = [root / "bin" / name]
    places += [wheel / "bin" / name for wheel in wheel_roots()]
    places.append(name)
    places += [folder / "backends/nvidia/bin" / name for folder in package_folders("triton")]
    found = (find_program(place) for place in places)
    return next((path for path in found if path is not None), None)


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
    """Raise where a package is missing that nvcc needs: it depends on none of them."""
    parts = (("nvvm/bin", "cicc", "nvidia-nvvm"), *_HEADERS, _LIBRARIES[-1])
    missing = {package for place, part, package in parts if not (root / place / part).is_file()}
    if missing:
        raise ToolchainError(
            f"the CUDA toolkit from PyPI at {root} is incomplete: install "
            f"{', '.join(sorted(missing))} of nvcc's version into the same Python "
            "(pip install 'gemmsmith[toolchain]')"
        )


def _dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"
