"""The g++ that nvcc calls for host code: which one, which version, and whether CUDA accepts it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from gemmsmith.errors import ToolchainError
from gemmsmith.programs import find_program, output_of

_NEWEST_GCC = (  # first toolkit of each row; crt/host_config.h refuses newer compilers
    ((11, 4), 11),
    ((12, 0), 12),
    ((12, 4), 13),
    ((12, 8), 14),
    ((13, 0), 15),
)
NEWEST_TOOLKIT = _NEWEST_GCC[-1][0]
"""The newest CUDA (major, minor) with a gcc limit of its own; later ones are taken to share it."""
_OLDEST_GCC = 9  # the search for a g++-N on PATH ends here; C++17 is complete from there on


@dataclass(frozen=True, kw_only=True)
class HostCompiler:
    """A g++ and its version."""

    path: Path
    """Absolute path, as handed to ``nvcc -ccbin``."""
    version: str
    """Full version, for example ``12.2.0``."""

    @property
    def major(self) -> int:
        """First number of the version."""
        return int(self.version.split(".")[0])


def newest_gcc(cuda: tuple[int, int]) -> int:
    """Return the newest major version of gcc that toolkit ``(major, minor)`` accepts."""
    accepted = [gcc for first, gcc in _NEWEST_GCC if first <= cuda]
    return accepted[-1] if accepted else _NEWEST_GCC[0][1]


def find_host_compiler(cuda: tuple[int, int], explicit: Path | None = None) -> HostCompiler:
    """Return a g++ that toolkit ``cuda`` accepts: ``explicit``, else g++, else a g++-N on PATH.

    Raises:
        ToolchainError: where there is none; an explicit one is never replaced by another.
    """
    newest = newest_gcc(cuda)
    toolkit = f"CUDA {cuda[0]}.{cuda[1]}"
    if explicit is not None:
        return _explicit(explicit, toolkit, newest)
    default = find_program("g++")
    first = _read(default) if default else None
    if first is not None and first.major <= newest:
        return first
    for number in range(newest, _OLDEST_GCC - 1, -1):
        path = find_program(f"g++-{number}")
        compiler = _read(path) if path else None
        if compiler is not None and compiler.major <= newest:
            return compiler
    if first is not None:
        raise ToolchainError(_too_new(first, toolkit, newest))
    raise ToolchainError(
        f"no g++ on PATH (nor g++-{newest} to g++-{_OLDEST_GCC}): nvcc needs one for host code; "
        f"install g++ (up to {newest} for {toolkit}) or set GEMMSMITH_CXX to its path"
    )


def beside(nvcc: Path, cuda: tuple[int, int]) -> HostCompiler | None:
    """Return the newest g++-N in the folder of ``nvcc`` that toolkit ``cuda`` accepts, or None."""
    for number in range(newest_gcc(cuda), _OLDEST_GCC - 1, -1):
        path = find_program(nvcc.parent / f"g++-{number}")
        if path is not None:
            return _read(path)
    return None


def _explicit(wanted: Path, toolkit: str, newest: int) -> HostCompiler:
    path = find_program(wanted)
    if path is None:
        raise ToolchainError(
            f"GEMMSMITH_CXX or CXX asks for {wanted}, which is neither an executable file nor a "
            "name on PATH; set GEMMSMITH_CXX to the path of a g++, without arguments"
        )
    compiler = _read(path)
    if compiler.major > newest:
        raise ToolchainError(_too_new(compiler, toolkit, newest))
    return compiler


def _too_new(compiler: HostCompiler, toolkit: str, newest: int) -> str:
    return (
        f"{toolkit} accepts gcc up to {newest}; found {compiler.version} at {compiler.path}; "
        f"install g++-{newest} or set GEMMSMITH_CXX"
    )


def _read(path: Path) -> HostCompiler:
    text = output_of(path, "--version")
    line = text.partition("\n")[0]
    bare = re.sub(r"\([^)]*\)", "", line)  # distributions put their own version in brackets
    version = re.search(r"\b\d+\.\d+(?:\.\d+)?\b", bare)
    if version is None or "clang" in text.lower():
        raise ToolchainError(
            f"{path} says it is {line!r}: gemmsmith builds with g++; set GEMMSMITH_CXX to one"
        )
    return HostCompiler(path=path, version=version.group())
