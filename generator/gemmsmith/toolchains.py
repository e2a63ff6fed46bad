"""The toolchain for each architecture: the usual one where it can target it, else one beside it.

No single toolkit targets all architectures: CUDA 13 dropped sm_70, and sm_90a begins with 12.0.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

from gemmsmith.arch import Architecture
from gemmsmith.cuda import Cuda, cuda_of, dotted, find_cuda, target_objection
from gemmsmith.errors import ToolchainError
from gemmsmith.nvcc import find_nvcc
from gemmsmith.resources import build_dir
from gemmsmith.settings import settings
from gemmsmith.toolchain import Toolchain, find_toolchain, toolchain_at


@dataclass(frozen=True, kw_only=True)
class Toolchains:
    """The toolchains that a build chooses from."""

    usual: Toolchain | None
    """What :func:`find_toolchain` finds; None where that refuses."""
    refusal: ToolchainError | None = None
    """Why there is no usual one."""
    alone: bool = False
    """Whether the usual one was named by the caller and no other may take its place."""

    def find(self, arch: Architecture) -> Toolchain | None:
        """Return the toolchain whose kernels for ``arch`` are wanted, or None where any will do.

        Any will where the usual one is not there, or nothing here compiles for ``arch``.
        """
        if self.usual is None:
            return None
        try:
            return self.of(arch)
        except ToolchainError:
            return None

    def of(self, arch: Architecture) -> Toolchain:
        """Return the toolchain that compiles for ``arch``.

        Raises:
            ToolchainError: where none can target it; the message says what was found and how to
                get one that can. Where the usual one should compile it but cannot be used, the
                reason for that.
        """
        if self.usual is not None and target_objection(self.usual.version, arch) is None:
            return self.usual
        if self.alone:
            assert self.usual is not None
            self.usual.check_target(arch)
        why = self._why_not_usual(arch)
        problems = []
        for root in further_toolkits():
            try:
                found = toolchain_at(root)
            except ToolchainError as error:
                problems.append(str(error))
                continue
            if target_objection(found.version, arch) is None:
                return found
        raise ToolchainError("; ".join([why, *problems, how_to_get(arch)]))

    def _why_not_usual(self, arch: Architecture) -> str:
        """Return why the usual nvcc does not serve ``arch``; raise where it should but fails."""
        try:
            find_nvcc()
        except ToolchainError as error:
            if settings().nvcc is not None:
                raise
            return str(error)
        cuda = find_cuda()
        objection = target_objection(cuda.version, arch)
        if objection is None:
            assert self.refusal is not None, "the usual toolchain serves"
            raise self.refusal
        return f"{objection}; found {dotted(cuda.version)} at {cuda.nvcc}"


def find_toolchains(only: Toolchain | None = None) -> Toolchains:
    """Return the toolchains of this machine, or ``only`` that one; never raises ToolchainError."""
    if only is not None:
        return Toolchains(usual=only, alone=True)
    try:
        return Toolchains(usual=find_toolchain())
    except ToolchainError as error:
        return Toolchains(usual=None, refusal=error)


@dataclass(frozen=True, kw_only=True)
class Toolkit:
    """A CUDA toolkit of this machine, usable or not."""

    version: tuple[int, int] | None
    """CUDA (major, minor); None where not even that is known."""
    toolchain: Toolchain | None
    """With its host compiler; None where it cannot be used."""
    problem: str
    """Why it cannot be used."""
    usual: bool
    """Whether it is what :func:`find_toolchain` looks at."""


def survey() -> tuple[Toolkit, ...]:
    """Return all toolkits that this machine offers, the usual one first; it does not raise."""
    found = [] if _nvcc_is_absent() else [_surveyed(find_cuda, find_toolchain, usual=True)]
    for root in further_toolkits():
        cuda = partial(cuda_of, root / "bin" / "nvcc", "further toolkits")
        found.append(_surveyed(cuda, partial(toolchain_at, root), usual=False))
    return tuple(found)


def _nvcc_is_absent() -> bool:
    try:
        find_nvcc()
    except ToolchainError:
        return settings().nvcc is None
    return False


def _surveyed(
    cuda: Callable[[], Cuda], toolchain: Callable[[], Toolchain], *, usual: bool
) -> Toolkit:
    version = None
    try:
        version = cuda().version
        return Toolkit(version=version, toolchain=toolchain(), problem="", usual=usual)
    except ToolchainError as error:
        return Toolkit(version=version, toolchain=None, problem=str(error), usual=usual)


def further_toolkits() -> tuple[Path, ...]:
    """Return the roots of toolkits beside the usual one, in the order of preference.

    They are those that GEMMSMITH_TOOLKITS names or, where it is not set, those that the scripts of
    build/toolchains have made.
    """
    return settings().toolkits or made_toolkits()


def made_toolkits() -> tuple[Path, ...]:
    """Return the toolkits that the scripts have made in their own folder."""
    return tuple(
        nvcc.parent.parent for nvcc in sorted((build_dir() / "toolchains").glob("*/bin/nvcc"))
    )


def how_to_get(arch: Architecture) -> str:
    """Return a phrase that says how to get a toolkit for ``arch``."""
    script = _script_for(arch)
    name = "name the folder of such a toolkit in GEMMSMITH_TOOLKITS"
    return f"run bash {script}, or {name}" if script else f"{name}, or its nvcc in GEMMSMITH_NVCC"


@cache
def _script_for(arch: Architecture) -> Path | None:
    """Return the script that gets a toolkit for ``arch``; its name tells the version."""
    for script in sorted((build_dir() / "toolchains").glob("cuda-*.sh")):
        version = re.fullmatch(r"cuda-(\d+)\.(\d+)", script.stem)
        if version and target_objection((int(version[1]), int(version[2])), arch) is None:
            return script
    return None
