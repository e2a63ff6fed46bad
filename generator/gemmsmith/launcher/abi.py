"""The C interface of kernel libraries, as its header states it."""

from __future__ import annotations

import re

from gemmsmith.render import include_dirs

_HEADERS = ("abi.h", "attention_abi.h", "rope_abi.h")


def abi_header() -> str:
    """Return the text of the headers that rendered sources and launchers include, one text."""
    (folder,) = include_dirs()
    return "".join((folder / "gemmsmith" / name).read_text() for name in _HEADERS)


def abi_version() -> int:
    """Return the version of the interface that this gemmsmith compiles and calls."""
    found = re.search(r"#define GEMMSMITH_ABI_VERSION (\d+)", abi_header())
    assert found, "abi.h defines its version"
    return int(found.group(1))
