"""The rows of ``build/matrix.yaml``: what is meant to be built, with which toolkits."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from gemmsmith.arch import Architecture, parse_architecture
from gemmsmith.errors import GemmsmithError
from gemmsmith.resources import build_dir


@dataclass(frozen=True, kw_only=True)
class Row:
    """What is meant to be built for one architecture."""

    arch: Architecture
    dtypes: tuple[str, ...]
    """Names of the element types of A and B."""
    releases: tuple[str, ...]
    """CUDA releases to build it with, for example ``13.0``."""
    host: str | None
    """Machine of the GPU's computers, as ``platform.machine()`` says it; None for any."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """The build matrix as it is meant to be; it knows nothing of what is built."""

    rows: tuple[Row, ...]
    ways: dict[str, str]
    """How to get the toolkit of each release: a command."""


@cache
def read_matrix(file: Path | None = None) -> Table:
    """Return the table in ``file``, by default gemmsmith's own.

    Raises:
        GemmsmithError: where it does not have the form of a matrix.
    """
    path = file or build_dir() / "matrix.yaml"
    try:
        values = yaml.safe_load(path.read_text())
        return Table(
            rows=tuple(map(_row, values["architectures"])),
            ways={way["release"]: _command(way, path) for way in values["toolkits"]},
        )
    except (OSError, yaml.YAMLError, KeyError, TypeError, AttributeError) as error:
        raise GemmsmithError(f"{path} is no build matrix: {error!r}") from error


def _row(values: dict[str, Any]) -> Row:
    return Row(
        arch=parse_architecture(values["arch"]),
        dtypes=tuple(values["dtypes"]),
        releases=tuple(values["toolkits"]),
        host=values.get("host"),
    )


def _command(way: dict[str, str], table: Path) -> str:
    return way["get"] if "get" in way else f"bash {table.parent / way['script']}"
