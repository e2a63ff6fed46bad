"""The CUDA compiler with all that goes with it: found once, in a stated order, or a reason why not.

Nothing here needs a GPU, a driver or torch.
"""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gemmsmith.arch import Architecture
from gemmsmith.errors import ToolchainError
from gemmsmith.host_compiler import find_host_compiler
from gemmsmith.programs import find_program, output_of
from gemmsmith.settings import settings

_HIDDEN_FLAGS = ("NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS", "NVCC_CCBIN")
_WHEEL_PARTS = (  # the PyPI packages share one folder; nvcc works only with all of them
    ("nvvm/bin/cicc", "nvidia-nvvm"),
    ("include/crt/host_config.h", "nvidia-cuda-crt"),
    ("include/cuda_runtime.h", "nvidia-cuda-runtime"),
    ("lib/libcudart_static.a", "nvidia-cuda-runtime"),
    ("include/cccl/cuda/std/utility", "nvidia-cuda-cccl"),
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
        """How each nvcc command line begins, one list element an argument."""
        parts = [str(self.nvcc), "-ccbin", str(self.host_compiler)]
        for folder in self.include_dirs:
            parts += ["-isystem", str(folder)]
        for folder in self.library_dirs:
            parts += ["-L", str(folder)]
        return tuple(parts)

    @property
    def environment(self) -> dict[str, str]:
        """Environment for the tools: this process' own, less the variables that hide nvcc flags.

        Those would reach the binary without reaching its identity. PATH also ends with the folder
        of nvdisasm, which cuobjdump starts by its bare name.
        """
        kept = {key: value for key, value in os.environ.items() if key not in _HIDDEN_FLAGS}
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
        ToolchainError: where there is no nvcc or no host compiler that it accepts.
        SettingError: where an environment variable is not legal.
    """
    origin, path = _find_nvcc(nvcc)
    path = _beside_profile(path)
    release = nvcc_release(path)
    major, minor = release.split(".")[:2]
    version = (int(major), int(minor))
    root, known = _layout(path)
    if origin == "PyPI wheels":
        _check_wheels(root)
    host = find_host_compiler(version, settings().host_compiler)
    return Toolchain(
        nvcc=path,
        version=version,
        release=release,
        origin=origin,
        host_compiler=host.path,
        host_version=host.version,
        library_dirs=_unknown_library_dirs(root, known),
        cuobjdump=_binary_tool("cuobjdump", root),
        nvdisasm=_binary_tool("nvdisasm", root),
    )


def nvcc_release(nvcc: Path) -> str:
    """Return nvcc's full version, for example ``13.0.88``; ToolchainError where it tells none."""
    text = output_of(nvcc, "--version")
    found = re.search(r"\bV(\d+\.\d+\.\d+)", text) or re.search(r"release (\d+\.\d+)", text)
    if found is None:
        raise ToolchainError(f"{nvcc} --version names no CUDA release: {text[:200]!r}")
    return found.group(1)


def wheel_roots() -> tuple[Path, ...]:
    """Return the folders that NVIDIA's CUDA wheels of the running Python install into."""
    return tuple(
        root
        for folder in _package_folders("nvidia")
        for root in sorted(folder.glob("cu[0-9]*"), reverse=True)
        if root.is_dir()
    )


def _find_nvcc(argument: Path | None) -> tuple[str, Path]:
    wanted = settings()
    for origin, named in (("argument", argument), ("GEMMSMITH_NVCC", wanted.nvcc)):
        if named is not None:
            path = find_program(named)
            if path is None:
                raise ToolchainError(
                    f"nvcc is given as {named} ({origin}), which is neither an executable file "
                    "nor a name on PATH; give the path of the program, such as "
                    "/usr/local/cuda/bin/nvcc"
                )
            return origin, path
    home = wanted.cuda_home
    places: list[tuple[str, Path | str]] = []
    if home is not None:
        places.append(("CUDA_HOME", home / "bin" / "nvcc"))
    places.append(("PATH", "nvcc"))
    places += [("PyPI wheels", root / "bin" / "nvcc") for root in wheel_roots()]
    for origin, place in places:
        path = find_program(place)
        if path is not None:
            return origin, path
    raise ToolchainError(_nowhere(home))


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


def _beside_profile(nvcc: Path) -> Path:
    """Follow links to the nvcc that has its nvcc.profile beside it: nvcc does not do so itself."""
    real = nvcc.resolve()
    if not (nvcc.parent / "nvcc.profile").is_file() and (real.parent / "nvcc.profile").is_file():
        return real
    return nvcc


def _layout(nvcc: Path) -> tuple[Path, tuple[Path, ...]]:
    """The toolkit's root and the library folders that nvcc passes to the linker by itself.

    A wrapper script may stand in another folder than the toolkit, so nvcc is asked.
    """
    try:
        text = output_of(nvcc, "--dryrun", "-E", "-x", "cu", os.devnull)
    except ToolchainError:  # the first compile tells what is wrong, with the file at hand
        text = ""
    top = re.search(r"^#\$ TOP=(.+)$", text, re.MULTILINE)
    libraries = re.search(r"^#\$ LIBRARIES=(.+)$", text, re.MULTILINE)
    root = Path(top.group(1)).resolve() if top else nvcc.parent.parent
    folders = re.findall(r'"-L([^"]+)"', libraries.group(1)) if libraries else []
    return root, tuple(Path(folder) for folder in folders)


def _unknown_library_dirs(root: Path, known: tuple[Path, ...]) -> tuple[Path, ...]:
    """Where libcudart_static.a lies if nvcc does not look there; the wheels' nvcc does not."""
    library = "libcudart_static.a"
    if any((folder / library).is_file() for folder in known):
        return ()
    return tuple(root / name for name in ("lib64", "lib") if (root / name / library).is_file())[:1]


def _check_wheels(root: Path) -> None:
    missing = {package for part, package in _WHEEL_PARTS if not (root / part).exists()}
    if missing:
        raise ToolchainError(
            f"the nvcc of {root} is incomplete: install {', '.join(sorted(missing))} of the same "
            "CUDA version into the same Python (pip install 'gemmsmith[toolchain]')"
        )


def _binary_tool(name: str, root: Path) -> Path | None:
    """``name`` beside nvcc, in the wheels, on PATH, or among the tools that triton ships."""
    places: list[Path | str] = [root / "bin" / name]
    places += [wheel / "bin" / name for wheel in wheel_roots()]
    places.append(name)
    places += [
        folder / "backends" / "nvidia" / "bin" / name for folder in _package_folders("triton")
    ]
    found = (find_program(place) for place in places)
    return next((path for path in found if path is not None), None)


def _package_folders(name: str) -> Iterator[Path]:
    """Folders of a package of the running Python, found without importing it."""
    spec = importlib.util.find_spec(name)
    if spec is not None and spec.submodule_search_locations is not None:
        yield from map(Path, spec.submodule_search_locations)


def _dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"
