"""Reads GGUF files, the format of llama.cpp, with torch alone: metadata, and tensors dequantised.

The layout is that of version 3 (and 2) of the format: a header, key-value metadata, a table of
tensors, and their data, each at an aligned offset. A tensor's sizes stand innermost first.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gemmsmith.errors import GemmsmithError

__all__ = ["Gguf", "GgufError", "read_gguf"]

_SCALARS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
_STRING, _ARRAY = 8, 9


class GgufError(GemmsmithError):
    """A file is no GGUF file, or holds what is not read here."""


@dataclass(frozen=True, kw_only=True)
class _Entry:
    shape: tuple[int, ...]
    kind: int
    start: int


@dataclass(frozen=True, kw_only=True)
class Gguf:
    """An open GGUF file."""

    path: Path
    metadata: Mapping[str, Any]
    """Key to number, text, bool or list of these."""
    _entries: Mapping[str, _Entry]
    _data: mmap.mmap

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the tensors."""
        return tuple(self._entries)

    def tensor(self, name: str, device: torch.device | str = "cpu") -> Tensor:
        """Return a tensor in f32, outermost size first, dequantised on ``device``; a copy.

        Raises:
            GgufError: where there is none of the name, or its type is not known.
        """
        if name not in self._entries:
            raise GgufError(f"{self.path} has no tensor {name}")
        entry = self._entries[name]
        if entry.kind not in _TYPES:
            known = ", ".join(kind.name for kind in _TYPES.values())
            raise GgufError(f"{self.path}: {name} is of type {entry.kind}; {known} are read")
        kind = _TYPES[entry.kind]
        count = math.prod(entry.shape) // kind.elements * kind.bytes
        if entry.start + count > len(self._data):
            raise GgufError(f"{self.path} ends within {name}: it is cut short")
        raw = torch.frombuffer(
            bytearray(self._data[entry.start : entry.start + count]), dtype=torch.uint8
        )
        return kind.read(raw.to(device).view(-1, kind.bytes)).reshape(entry.shape)


def read_gguf(path: Path | str) -> Gguf:
    """Return the file, its data not read yet.

    Raises:
        GgufError: where it is no GGUF file of version 2 or 3.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        raise GgufError(f"{path} cannot be read: {error}") from error
    if data[:4] != b"GGUF":
        raise GgufError(f"{path} is no GGUF file: it does not start with GGUF")
    reader = _Reader(data, path)
    version = reader.number("I")
    if version not in (2, 3):
        raise GgufError(f"{path} is of version {version} of the format; 2 and 3 are read")
    tensors, pairs = reader.number("Q"), reader.number("Q")
    metadata = {reader.text(): reader.value(reader.number("I")) for _ in range(pairs)}
    found: dict[str, _Entry] = {}
    for _ in range(tensors):
        name = reader.text()
        sizes = [reader.number("Q") for _ in range(reader.number("I"))]
        kind, offset = reader.number("I"), reader.number("Q")
        found[name] = _Entry(shape=tuple(reversed(sizes)), kind=kind, start=offset)
    align = int(metadata.get("general.alignment", 32))
    base = (reader.position + align - 1) // align * align
    entries = {
        name: _Entry(shape=entry.shape, kind=entry.kind, start=base + entry.start)
        for name, entry in found.items()
    }
    return Gguf(path=path, metadata=metadata, _entries=entries, _data=data)


class _Reader:
    """Reads values one after the other."""

    def __init__(self, data: mmap.mmap, path: Path) -> None:
        self._data, self._path = data, path
        self.position = 4

    def number(self, letter: str) -> Any:
        return self._numbers(letter, 1)[0]

    def _numbers(self, letter: str, count: int) -> tuple[Any, ...]:
        layout = f"<{count}{letter}"
        size = struct.calcsize(layout)
        if self.position + size > len(self._data):
            raise GgufError(f"{self._path} ends within its header: it is cut short")
        found = struct.unpack_from(layout, self._data, self.position)
        self.position += size
        return found

    def text(self) -> str:
        size = self.number("Q")
        end = self.position + size
        if end > len(self._data):
            raise GgufError(f"{self._path} ends within its header: it is cut short")
        raw = self._data[self.position : end]
        self.position = end
        return raw.decode("utf-8", "surrogateescape")

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.text()
        if kind == _ARRAY:
            inner, count = self.number("I"), self.number("Q")
            if inner in _SCALARS:
                return list(self._numbers(_SCALARS[inner], count))
            return [self.value(inner) for _ in range(count)]
        if kind not in _SCALARS:
            raise GgufError(f"{self._path} has metadata of type {kind}, which is not known")
        return self.number(_SCALARS[kind])


@dataclass(frozen=True, kw_only=True)
class _Type:
    """How a kind of block is read."""

    name: str
    elements: int
    bytes: int
    read: Callable[[Tensor], Tensor]
    """Blocks (n, bytes) to numbers (n, elements)."""


def _plain(dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    return lambda raw: raw.view(dtype).float()


def _half(raw: Tensor) -> Tensor:
    """Return the f16 numbers in the first two bytes of blocks, (n, 1)."""
    return raw[:, :2].contiguous().view(torch.float16).float()


def _nibbles(raw: Tensor) -> Tensor:
    """Return 32 numbers of four bits of 16 bytes: the low halves, then the high ones."""
    return torch.cat((raw & 15, raw >> 4), 1).float()


def _q4_0(raw: Tensor) -> Tensor:
    return _half(raw) * (_nibbles(raw[:, 2:]) - 8)


def _q4_1(raw: Tensor) -> Tensor:
    return _half(raw) * _nibbles(raw[:, 4:]) + _half(raw[:, 2:])


def _q8_0(raw: Tensor) -> Tensor:
    return _half(raw) * raw[:, 2:].contiguous().view(torch.int8).float()


_TYPES = {
    0: _Type(name="F32", elements=1, bytes=4, read=_plain(torch.float32)),
    1: _Type(name="F16", elements=1, bytes=2, read=_plain(torch.float16)),
    2: _Type(name="Q4_0", elements=32, bytes=18, read=_q4_0),
    3: _Type(name="Q4_1", elements=32, bytes=20, read=_q4_1),
    8: _Type(name="Q8_0", elements=32, bytes=34, read=_q8_0),
    30: _Type(name="BF16", elements=1, bytes=2, read=_plain(torch.bfloat16)),
}
