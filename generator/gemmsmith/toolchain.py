"""The CUDA compiler with all that goes with it: found once, in a stated order, or a reason why not.

Nothing here needs a GPU, a driver or torch.
"""

from __future__ import annotations

import logging
import os
import shutil
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from gemmsmith.arch import Architecture
from gemmsmith.cuda import Cuda, cuda_of, dotted, find_cuda, target_objection
from gemmsmith.errors import ToolchainError
from gemmsmith.host_compiler import HostCompiler, beside, find_host_compiler
from gemmsmith.nvcc import package_folders, wheel_roots
from gemmsmith.programs import find_program
from gemmsmith.settings import settings

_log = logging.getLogger(__name__)

_HIDDEN_INPUTS = (  # nvcc or g++ would take flags and headers from these
    "NVCC_PREPEND_FLAGS",
    "NVCC_APPEND_FLAGS",
    "NVCC_CCBIN",
    "CPATH",
    "C_INCLUDE_PATH",
    "CPLUS_INCLUDE_PATH",
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
    """Where nvcc was found: ``argument``, ``GEMMSMITH_NVCC``, ``CUDA_HOME``, ``PATH``,
    ``PyPI wheels`` or ``further toolkits``."""
    root: Path | None = None
    """The toolkit's folder, which holds bin and include; None where it is not known."""
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

        Those would reach the binary without reaching its identity. PATH leads to nvdisasm, which
        cuobjdump starts by its bare name: one of another toolkit may not know the architecture.
        """
        kept = {key: value for key, value in os.environ.items() if key not in _HIDDEN_INPUTS}
        if self.nvdisasm is not None:
            folder = str(self.nvdisasm.parent)
            path = kept.get("PATH", os.defpath)
            other = shutil.which(self.nvdisasm.name, path=path)
            if other is None:
                kept["PATH"] = path + os.pathsep + folder
            elif not self.nvdisasm.samefile(other):
                kept["PATH"] = folder + os.pathsep + path
        return kept

    def check_target(self, arch: Architecture) -> None:
        """Raise ToolchainError where this toolkit cannot compile for ``arch``."""
        objection = target_objection(self.version, arch)
        if objection is not None:
            raise ToolchainError(
                f"{objection}; found {dotted(self.version)} at {self.nvcc}; "
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
    cuda = find_cuda(nvcc)
    return _complete(cuda, find_host_compiler(cuda.version, settings().host_compiler))


def toolchain_at(root: Path) -> Toolchain:
    """Return the toolchain of the CUDA toolkit in the folder ``root``.

    A g++ that lies in its bin is part of it and goes before the one that the environment names.

    Raises:
        ToolchainError: where it has no nvcc, or there is no host compiler that this accepts.
    """
    nvcc = find_program(root / "bin" / "nvcc")
    if nvcc is None:
        raise ToolchainError(
            f"GEMMSMITH_TOOLKITS names {root}, which has no bin/nvcc: "
            "name the folder of a CUDA toolkit"
        )
    cuda = cuda_of(nvcc, "further toolkits")
    own = beside(nvcc, cuda.version)
    return _complete(cuda, own or find_host_compiler(cuda.version, settings().host_compiler))


def _complete(cuda: Cuda, host: HostCompiler) -> Toolchain:
    return Toolchain(
        nvcc=cuda.nvcc,
        version=cuda.version,
        release=cuda.release,
        origin=cuda.origin,
        root=cuda.root,
        host_compiler=host.path,
        host_version=host.version,
        include_dirs=cuda.include_dirs,
        library_dirs=cuda.library_dirs,
        cuobjdump=find_binary_tool("cuobjdump", cuda.root),
        nvdisasm=find_binary_tool("nvdisasm", cuda.root),
    )


def warn_of_refused_choice(error: ToolchainError) -> None:
    """Log, once, that compiled kernels serve though ``error`` refuses a compiler asked for.

    Where the environment names none there was no choice to refuse, and nothing is logged.
    """
    wanted = settings()
    names, path = "GEMMSMITH_NVCC", wanted.nvcc
    try:
        find_cuda()
    except ToolchainError:
        pass
    else:
        names, path = "GEMMSMITH_CXX or CXX", wanted.host_compiler
    if path is not None:
        _warn_once(
            f"{names} names {path}, which cannot be used: {error}; serving kernels compiled before"
        )


@lru_cache
def _warn_once(text: str) -> None:
    _log.warning("%s", text)


def find_binary_tool(name: str, root: Path | None) -> Path | None:
    """Return ``name`` of the toolkit ``root``, the wheels, PATH or triton; None if nowhere."""
    roots = wheel_roots() if root is None else (root, *wheel_roots())
    places: list[Path | str] = [folder / "bin" / name for folder in roots]
    places.append(name)
    places += [folder / "backends/nvidia/bin" / name for folder in package_folders("triton")]
    found = (find_program(place) for place in places)
    return next((path for path in found if path is not None), None)
