"""The C interface of kernel libraries, as its header states it."""

from __future__ import annotations

import re

from gemmsmith.render import include_dirs


def abi_header() -> str:
    """Return the text of gemmsmith/abi.h, which rendered sources and launchers include."""
    (folder,) = include_dirs()
    return (folder / "gemmsmith" / "abi.h").read_text()


def abi_version() -> int:
    """Return the version of the interface that this gemmsmith compiles and calls."""
    found = re.search(r"#define GEMMSMITH_ABI_VERSION (\d+)", abi_header())
    assert found, "abi.h defines its version"
    return int(found.group(1))
