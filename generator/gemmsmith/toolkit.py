"""Which CUDA toolkit a kernel is compiled with, part by part: the packages that it is made of."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

from gemmsmith.errors import ToolchainError
from gemmsmith.memo import remember

_HEADERS = ("include", "targets/*/include")
_LIBRARIES = ("lib64", "lib", "targets/*/lib")
_PLACES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {  # part -> folders, files
    "cicc": (("nvvm",), ("bin/cicc", "libdevice/libdevice.*.bc")),
    "ptxas": (("bin",), ("ptxas", "fatbinary", "cudafe++")),
    "cudart": (_LIBRARIES, ("libcudart_static.a",)),
    "cuda_headers": (
        _HEADERS,
        ("crt/*.h*", "cuda.h", "cuda_runtime*.h", "cuda_bf16.h*", "cuda_fp16.h*", "cuda_fp8.h*"),
    ),
    "cccl": (
        tuple(f"{folder}{own}" for folder in _HEADERS for own in ("/cccl", "")),
        ("cuda/std/__cccl/version.h", "cub/version.cuh", "cuda/std/detail/libcxx/include/version"),
    ),
}

TOOLKIT_PARTS = tuple(_PLACES)
"""Parts of a toolkit that come in packages of their own, so that nvcc's version says nothing of
them: the CUDA front end, the assembler, the runtime, its headers, and the C++ library."""


@cache
def toolkit_parts(root: Path | None) -> dict[str, str]:
    """Return a digest of each part of the toolkit at ``root``; empty for what does not lie there.

    Only names and contents count, not where the toolkit lies. They are read again only where a file
    looks changed. A distribution that spreads the toolkit over the system's folders versions it as
    one, so that nvcc's version stands for the parts that are not found.

    Raises:
        ToolchainError: where a file of it cannot be read.
    """
    try:
        return {part: _digest(root, *places) for part, places in _PLACES.items()}
    except OSError as error:
        raise ToolchainError(
            f"cannot read {error.filename} of the CUDA toolkit: {error.strerror}"
        ) from error


def _digest(root: Path | None, folders: Sequence[str], names: Sequence[str]) -> str:
    files = () if root is None else tuple(_files(root, folders, names))
    return remember("names and contents", files, lambda: _contents(files)) if files else ""


def _files(root: Path, folders: Sequence[str], names: Sequence[str]) -> Iterator[Path]:
    """Yield the files of the first of ``folders`` that has any; the others are links to it."""
    for pattern in folders:
        for folder in sorted(root.glob(pattern)):
            found = [file for name in names for file in sorted(folder.glob(name))]
            if found:
                yield from found
                return


def _contents(files: Sequence[Path]) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for file in files:
        contents = hashlib.blake2b(file.read_bytes()).hexdigest()
        digest.update(f"{file.name}\0{contents}\n".encode())
    return digest.hexdigest()
