"""The manifest of a bundle: which kernels it holds, in which files, and what made them.

Plain values only: reading one needs no compiler, no CUTLASS and no file beside it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import PurePosixPath
from typing import Any

from gemmsmith.card import Card

FORMAT = 1
"""Version of the manifest's layout; raised where older readers would go wrong."""
MANIFEST = "manifest.json"
"""Name of the manifest in a bundle's folder."""


class ManifestError(ValueError):
    """A text is no manifest that this gemmsmith can read."""


@dataclass(frozen=True, kw_only=True)
class BundledFile:
    """One file of a bundle as it was exported."""

    sha256: str
    bytes: int


@dataclass(frozen=True, kw_only=True)
class BundledKernel:
    """One kernel of a bundle."""

    name: str
    """KernelSpec.name."""
    arch: str
    """Name of the architecture; ``sm_80_on_sm_90`` where it was compiled for another one."""
    spec: Mapping[str, Any]
    """The spec, for :func:`gemmsmith.spec_dict.spec_from_dict`."""
    library: str
    """File that holds it, relative to the bundle."""
    built_with: Mapping[str, str]
    """Parts of its identity: compilers, flags, CUTLASS, source."""
    card: Card
    """What it turned out to be."""


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What a bundle says of itself."""

    abi: int
    """Version of the C interface that its libraries speak."""
    host: str
    """Machines that its libraries load on, as ``platform.machine()`` spells them."""
    needs: Mapping[str, str]
    """Newest symbol versions that its libraries ask for: ``GLIBC``, ``GLIBCXX`` and others."""
    gemmsmith: str
    """Version of the package that exported it."""
    left_out: Mapping[str, str]
    """Architecture that was asked for and is not in it -> why."""
    files: Mapping[str, BundledFile]
    """Every file but the manifest, by its path relative to the bundle."""
    kernels: tuple[BundledKernel, ...]

    @property
    def archs(self) -> tuple[str, ...]:
        """Architectures that it has kernels for, in its order."""
        return tuple(dict.fromkeys(kernel.arch for kernel in self.kernels))

    def as_text(self) -> str:
        """Return the manifest as JSON, for :func:`parse_manifest`."""
        values = {
            "format": FORMAT,
            "abi": self.abi,
            "host": self.host,
            "needs": dict(self.needs),
            "gemmsmith": self.gemmsmith,
            "left_out": dict(self.left_out),
            "files": {
                name: {"sha256": file.sha256, "bytes": file.bytes}
                for name, file in self.files.items()
            },
            "kernels": [
                {
                    "name": kernel.name,
                    "arch": kernel.arch,
                    "spec": dict(kernel.spec),
                    "library": kernel.library,
                    "built_with": dict(kernel.built_with),
                    "card": kernel.card.as_dict(),
                }
                for kernel in self.kernels
            ],
        }
        return json.dumps(values, indent=1) + "\n"


def parse_manifest(text: str) -> Manifest:
    """Return the manifest that ``text`` is.

    Raises:
        ManifestError: where it is none, is of a newer format, or names files outside the bundle.
    """
    try:
        values = json.loads(text)
    except ValueError as error:
        raise ManifestError(f"it is no JSON ({error})") from error
    version = values.get("format") if isinstance(values, dict) else None
    if not isinstance(version, int) or "kernels" not in values:
        raise ManifestError("it describes no kernels of gemmsmith")
    if version > FORMAT:
        raise ManifestError(
            f"it has format {version}, written by gemmsmith {values.get('gemmsmith', 'unknown')}; "
            f"this one reads up to {FORMAT}: update gemmsmith, or export with this version"
        )
    try:
        manifest = Manifest(
            abi=int(values["abi"]),
            host=str(values["host"]),
            needs=_words(values["needs"]),
            gemmsmith=str(values["gemmsmith"]),
            left_out=_words(values["left_out"]),
            files={
                str(name): BundledFile(sha256=str(file["sha256"]), bytes=int(file["bytes"]))
                for name, file in values["files"].items()
            },
            kernels=tuple(_kernel(kernel) for kernel in values["kernels"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ManifestError(f"it is damaged ({type(error).__name__}: {error})") from error
    for name in manifest.files:
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts:
            raise ManifestError(f"it names {name}, which is not inside the bundle")
    for kernel in manifest.kernels:
        if kernel.library not in manifest.files:
            raise ManifestError(f"it has no checksum of {kernel.library}")
    return manifest


def _kernel(values: Mapping[str, Any]) -> BundledKernel:
    return BundledKernel(
        name=str(values["name"]),
        arch=str(values["arch"]),
        spec=dict(values["spec"]),
        library=str(values["library"]),
        built_with=_words(values["built_with"]),
        card=_card(values["card"]),
    )


def _card(values: Mapping[str, Any]) -> Card:
    """Return a card, without the facts that only a later gemmsmith knows."""
    known = {field.name for field in fields(Card)}
    return Card.from_dict({key: value for key, value in values.items() if key in known})


def _words(values: Mapping[str, Any]) -> dict[str, str]:
    return {str(key): str(value) for key, value in values.items()}
