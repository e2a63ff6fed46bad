"""What a shared library needs of the machine that loads it, read from its ELF headers."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from gemmsmith.errors import LoadError

_MACHINES = {62: "x86_64", 183: "aarch64"}  # e_machine to what platform.machine() says
_DYNAMIC, _VERSIONS_NEEDED = 6, 0x6FFFFFFE  # section types
_NEEDED = 1  # tag of a dynamic entry that names a library
_VERSION = re.compile(r"([A-Z]+)_(\d+(?:\.\d+)*)")


@dataclass(frozen=True, kw_only=True)
class LibraryNeeds:
    """What one shared library asks for."""

    machine: str
    """Host architecture, as ``platform.machine()`` spells it."""
    libraries: tuple[str, ...]
    """Shared libraries that are loaded with it, by soname."""
    versions: Mapping[str, tuple[int, ...]]
    """Newest version of each kind of symbol: ``GLIBC``, ``GLIBCXX``, ``CXXABI``, ``GCC``."""


@dataclass(frozen=True)
class _Section:
    kind: int
    offset: int
    size: int
    link: int


def read_needs(library: Path) -> LibraryNeeds:
    """Return what ``library`` needs.

    Raises:
        LoadError: where the file is no whole 64-bit ELF library, or cannot be read.
    """
    try:
        return _read(library.read_bytes())
    except (OSError, struct.error, IndexError, ValueError) as error:
        raise LoadError(f"{library} cannot be read as a shared library: {error}") from error


def _read(data: bytes) -> LibraryNeeds:
    if data[:6] != b"\x7fELF\x02\x01":
        raise ValueError("it is no 64-bit ELF file")
    (machine,) = struct.unpack_from("<H", data, 18)
    sections = _sections(data)
    libraries: list[str] = []
    versions: dict[str, tuple[int, ...]] = {}
    for section in sections:
        if section.kind == _DYNAMIC:
            strings = sections[section.link]
            libraries += [_text(data, strings, at) for at in _needed(data, section)]
        elif section.kind == _VERSIONS_NEEDED:
            strings = sections[section.link]
            for at in _version_names(data, section):
                found = _VERSION.fullmatch(_text(data, strings, at))
                if found:  # GLIBC_PRIVATE and the like are no numbers
                    version = tuple(int(part) for part in found[2].split("."))
                    versions[found[1]] = max(version, versions.get(found[1], ()))
    return LibraryNeeds(
        machine=_MACHINES.get(machine, f"ELF machine {machine}"),
        libraries=tuple(libraries),
        versions=dict(sorted(versions.items())),
    )


def _sections(data: bytes) -> list[_Section]:
    (start,) = struct.unpack_from("<Q", data, 40)
    size, count = struct.unpack_from("<HH", data, 58)
    sections = []
    for index in range(count):
        _, kind, _, _, offset, length, link, *_ = struct.unpack_from(
            "<IIQQQQIIQQ", data, start + index * size
        )
        sections.append(_Section(kind, offset, length, link))
    if not sections:
        raise ValueError("it has no section headers")
    return sections


def _needed(data: bytes, section: _Section) -> Iterator[int]:
    """Give where in the strings the names of needed libraries lie."""
    for tag, value in struct.iter_unpack(
        "<qQ", data[section.offset : section.offset + section.size // 16 * 16]
    ):
        if tag == _NEEDED:
            yield value


def _version_names(data: bytes, section: _Section) -> Iterator[int]:
    """Give where in the strings the names of needed versions lie: lists of lists."""
    at = section.offset
    while True:
        _, count, _, first, step = struct.unpack_from("<HHIII", data, at)
        entry = at + first
        for _ in range(count):
            _, _, _, name, after = struct.unpack_from("<IHHII", data, entry)
            yield name
            entry += after
        if not step:
            return
        at += step


def _text(data: bytes, strings: _Section, at: int) -> str:
    start = strings.offset + at
    return data[start : data.index(b"\0", start)].decode()
