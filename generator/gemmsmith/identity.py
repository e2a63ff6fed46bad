"""What a compiled kernel depends on, part by part, and the digest that names it in the cache."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import gemmsmith
from gemmsmith.arch import Architecture
from gemmsmith.launcher.abi import abi_version
from gemmsmith.memo import remember
from gemmsmith.render import RenderedSource, example_headers, own_headers
from gemmsmith.resources import cutlass_include_dirs, cutlass_version
from gemmsmith.toolchain import Toolchain
from gemmsmith.toolkit import TOOLKIT_PARTS, toolkit_parts

TOOLCHAIN_PARTS = ("nvcc", "host_compiler", *TOOLKIT_PARTS)
"""Parts of a key that are unknown on a machine without a compiler."""


@dataclass(frozen=True, kw_only=True)
class Identity:
    """The key of one kernel; equal keys mean equal machine code."""

    name: str
    """KernelSpec.name."""
    parts: Mapping[str, str]
    """All that reaches the binary, by name; :data:`TOOLCHAIN_PARTS` only where one was found."""

    @property
    def digest(self) -> str:
        """Name of the kernel's manifest in the cache."""
        text = json.dumps([self.name, dict(self.parts)], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    @property
    def complete(self) -> bool:
        """Whether the toolchain is part of the key."""
        return all(part in self.parts for part in TOOLCHAIN_PARTS)

    def differences(self, recorded: Mapping[str, str]) -> dict[str, tuple[str, str]]:
        """Return the parts that differ from those ``recorded``: name -> (recorded, now).

        What this key does not know (the toolchain of a machine without one) does not differ.
        """
        known = {*self.parts, *recorded} - (set(TOOLCHAIN_PARTS) - set(self.parts))
        pairs = {part: (recorded.get(part, ""), self.parts.get(part, "")) for part in sorted(known)}
        return {part: pair for part, pair in pairs.items() if pair[0] != pair[1]}

    def changes(self, recorded: Mapping[str, str]) -> str:
        """Return :meth:`differences` in words."""
        return "; ".join(
            f"{part} changed from {old or 'nothing'} to {new or 'nothing'}"
            for part, (old, new) in self.differences(recorded).items()
        )

    def without_toolchain(self) -> Identity:
        """Return what is left of the key for kernels that another machine compiled."""
        kept = {part: value for part, value in self.parts.items() if part not in TOOLCHAIN_PARTS}
        return Identity(name=self.name, parts=kept)


def identity(source: RenderedSource, toolchain: Toolchain | None) -> Identity:
    """Return the identity of the one kernel in ``source``, however it may get compiled.

    The rendered text carries a digest of its template and of the plain headers that this includes;
    ``headers`` repeats the latter so that a miss can name them.
    """
    assert len(source.specs) == 1, "a kernel's identity is that of its own source"
    (spec,) = source.specs
    parts = {
        "source": source.digest,
        "headers": _texts(own_headers(spec)),
        "flags": " ".join(flags(spec.arch)),
        "arch": spec.arch.name,
        "abi": str(abi_version()),
        "host": platform.machine(),
        "cutlass": cutlass_version(),
        "cutlass_headers": _cutlass_headers((*cutlass_include_dirs(), *example_headers(spec))),
        "gemmsmith": gemmsmith.__version__,
    }
    if toolchain is not None:
        parts["nvcc"] = toolchain.release
        parts["host_compiler"] = toolchain.host_version
        parts.update(toolkit_parts(toolchain.root))
    return Identity(name=spec.name, parts=parts)


def flags(arch: Architecture) -> tuple[str, ...]:
    """Return nvcc's flags for kernels of ``arch``: all that reach the binary, and no path.

    -fno-gnu-unique: else two versions of one C++ template merge into one in a process.
    No libcuda: CUTLASS asks the runtime for driver entry points, so that a library loads anywhere.
    """
    return (
        "-std=c++17",
        "-O3",
        "-shared",
        f"-gencode={arch.gencode}",
        "-cudart=static",
        "--expt-relaxed-constexpr",
        "-DNDEBUG",
        "-Xcompiler=-fPIC,-fvisibility=hidden,-fno-gnu-unique",
        "-Xptxas=-v",
    )


@cache
def _cutlass_headers(folders: tuple[Path, ...]) -> str:
    """Digest of CUTLASS's headers: 27 MB, hashed again only where one looks changed."""
    files = tuple(_files(folders))
    return remember("contents", files, lambda: _contents(folders))


@cache
def _texts(files: tuple[Path, ...]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for file in files:
        digest.update(f"{file.name}\0{file.read_text()}\0".encode())
    return digest.hexdigest()


@cache
def _contents(folders: tuple[Path, ...]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for folder in folders:
        for file in _files((folder,)):
            digest.update(f"{file.relative_to(folder)}\0".encode() + file.read_bytes() + b"\0")
    return digest.hexdigest()


def _files(folders: tuple[Path, ...]) -> Iterator[Path]:
    for folder in folders:
        yield from sorted(path for path in folder.rglob("*") if path.is_file())
