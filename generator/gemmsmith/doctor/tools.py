"""Findings about Python, the compilers and the sources that they take."""

from __future__ import annotations

import importlib.metadata
import platform
import sys
import sysconfig
from pathlib import Path

from gemmsmith.arch import ARCHITECTURES, Architecture
from gemmsmith.cuda import find_cuda, target_objection
from gemmsmith.doctor.report import Finding
from gemmsmith.errors import GemmsmithError, ToolchainError
from gemmsmith.host_compiler import NEWEST_TOOLKIT, find_host_compiler, newest_gcc
from gemmsmith.nvcc import WHEELS
from gemmsmith.programs import find_program
from gemmsmith.resources import cutlass_include_dirs, cutlass_version
from gemmsmith.settings import settings
from gemmsmith.toolchain import Toolchain, find_binary_tool, find_toolchain, toolchain_at
from gemmsmith.toolchains import further_toolkits, how_to_get

_HEADERS = "install Python's headers (Debian and Ubuntu: apt install python3-dev)"


def toolchain() -> Toolchain | None:
    """Return the toolchain that a build would use, or None where there is none."""
    try:
        return find_toolchain()
    except ToolchainError:
        return None


def python() -> Finding:
    """The running Python, and whether extension modules can be compiled for it."""
    found = f"{platform.python_version()} at {sys.executable}"
    if has_headers():
        return Finding(name="Python", status="ok", found=f"{found}, with Python.h")
    return Finding(
        name="Python",
        status="warning",
        found=f"{found}, without Python.h: the fast launcher cannot be compiled",
        fix=_HEADERS,
    )


def nvcc() -> Finding:
    """The CUDA compiler and what it can target."""
    try:
        cuda = find_cuda()
    except ToolchainError as error:
        return Finding(
            name="nvcc",
            status="error",
            found=str(error),
            fix="set CUDA_HOME or GEMMSMITH_NVCC, or pip install 'gemmsmith[toolchain]'",
        )
    targets = [arch.name for arch in _targets()]
    found = f"{cuda.release} at {cuda.nvcc} ({cuda.origin})"
    if not targets:
        return Finding(
            name="nvcc",
            status="error",
            found=f"{found}; {target_objection(cuda.version, ARCHITECTURES[0])}",
            fix="install a newer CUDA toolkit, or pip install 'gemmsmith[toolchain]'",
        )
    found = f"{found}, for {', '.join(targets)}"
    home = settings().cuda_home
    if home is not None and cuda.origin in ("PATH", WHEELS):
        return Finding(
            name="nvcc",
            status="warning",
            found=f"{found}; CUDA_HOME or CUDA_PATH names {home}, which has no bin/nvcc",
            fix="unset the variable, or set it to a toolkit with a compiler",
        )
    return Finding(name="nvcc", status="ok", found=found)


def toolkits() -> Finding:
    """The toolkits beside the usual one, and what none of all can target."""
    problems, have, covered = [], [], set(_targets())
    for root in further_toolkits():
        try:
            tools = toolchain_at(root)
        except ToolchainError as error:
            problems.append(str(error))
            continue
        targets = [arch for arch in ARCHITECTURES if target_objection(tools.version, arch) is None]
        new = [arch.name for arch in targets if arch not in covered]
        covered.update(targets)
        have.append(
            f"{tools.release} at {root} with gcc {tools.host_version}, "
            + (f"for {', '.join(new)}" if new else "not needed")
        )
    lacking = [arch for arch in ARCHITECTURES if arch not in covered]
    texts = [*problems, *(have or ["none beside nvcc"])]
    texts += [f"for {arch.name} {how_to_get(arch)}" for arch in lacking]
    found = "; ".join(texts)
    if problems:
        fix = "correct GEMMSMITH_TOOLKITS, or remove that folder"
        return Finding(name="more toolkits", status="warning", found=found, fix=fix)
    return Finding(name="more toolkits", status="ok", found=found)


def _targets() -> list[Architecture]:
    """Architectures that the usual nvcc targets; all, where there is none to add to."""
    try:
        version = find_cuda().version
    except ToolchainError:
        return list(ARCHITECTURES)
    return [arch for arch in ARCHITECTURES if target_objection(version, arch) is None]


def host_compiler() -> Finding:
    """The g++ for nvcc, judged by the toolkit where there is one."""
    try:
        cuda = find_cuda().version
    except ToolchainError:
        cuda = None
    judge = cuda or NEWEST_TOOLKIT
    try:
        compiler = find_host_compiler(judge, settings().host_compiler)
    except ToolchainError as error:
        return Finding(
            name="host compiler",
            status="error",
            found=str(error),
            fix=f"install g++ {newest_gcc(judge)} or older, or set GEMMSMITH_CXX to one",
        )
    accepted = f" (CUDA {cuda[0]}.{cuda[1]} accepts up to {newest_gcc(cuda)})" if cuda else ""
    return Finding(
        name="host compiler",
        status="ok",
        found=f"gcc {compiler.version} at {compiler.path}{accepted}",
    )


def disassembler() -> Finding:
    """The tools that read registers and instructions back from a binary."""
    try:
        root = find_cuda().root
    except ToolchainError:
        root = None
    names = ("cuobjdump", "nvdisasm")
    pair = [find_binary_tool(name, root) for name in names]
    found = ", ".join(f"{name} {path or 'missing'}" for name, path in zip(names, pair, strict=True))
    if None not in pair:
        return Finding(name="disassembler", status="ok", found=found)
    return Finding(
        name="disassembler",
        status="warning",
        found=f"{found}: the instructions of compiled kernels cannot be checked",
        fix="pip install 'gemmsmith[disassembler]'",
    )


def cutlass() -> Finding:
    """The CUTLASS headers."""
    try:
        found = f"{cutlass_version()} at {cutlass_include_dirs()[0]}"
    except GemmsmithError as error:
        return Finding(
            name="CUTLASS",
            status="error",
            found=str(error),
            fix="pip install --force-reinstall 'nvidia-cutlass>=4.2,<4.3'",
        )
    return Finding(name="CUTLASS", status="ok", found=found)


def launcher() -> Finding:
    """How kernels would be called from Python."""
    wanted = settings().launcher
    lacking = _launcher_lacks()
    if wanted == "ctypes":
        found = "ctypes, as GEMMSMITH_LAUNCHER asks; pybind11 is faster"
        return Finding(name="launcher", status="ok", found=found)
    if not lacking:
        return Finding(name="launcher", status="ok", found="pybind11, compiled at first use")
    missing = " and ".join(lacking)
    if wanted == "pybind11":
        found = f"GEMMSMITH_LAUNCHER=pybind11 cannot be met without {missing}"
    else:
        found = f"ctypes, which is slower: no {missing}"
    return Finding(name="launcher", status="warning", found=found, fix="; ".join(lacking.values()))


def has_headers() -> bool:
    """Whether Python.h is there."""
    return (Path(sysconfig.get_path("include")) / "Python.h").is_file()


def _launcher_lacks() -> dict[str, str]:
    """What the pybind11 launcher needs and does not find, with how to get it."""
    lacking = {}
    if not has_headers():
        lacking["Python.h"] = _HEADERS
    if find_program(settings().host_compiler or "g++") is None:
        lacking["g++"] = "install g++, or set GEMMSMITH_CXX"
    try:
        importlib.metadata.version("pybind11")
    except importlib.metadata.PackageNotFoundError:
        lacking["pybind11"] = "pip install pybind11"
    return lacking
