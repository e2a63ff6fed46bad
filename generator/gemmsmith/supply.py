"""Where the kernels of a set come from: compiled on this machine, or from one bundle."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from gemmsmith.build import BuildReport, BuiltKernel, build
from gemmsmith.bundle import Bundle
from gemmsmith.lookup import build_command, find_built, missing_notes
from gemmsmith.progress import Progress
from gemmsmith.rowspec import AnySpec, SpecT
from gemmsmith.settings import settings


class Supply(Protocol):
    """Gives the libraries of kernels."""

    def find(self, specs: Sequence[SpecT]) -> dict[SpecT, Path]:
        """Return the libraries of those kernels that are there; compiles nothing."""

    def build(
        self,
        specs: Sequence[AnySpec],
        *,
        jobs: int | None = None,
        progress: Progress | None = None,
    ) -> BuildReport:
        """Return where all of them are, compiling what is missing if that is possible."""

    def how_to_get(self, specs: Sequence[AnySpec]) -> str:
        """Return what a user does for those of ``specs`` that :meth:`find` does not find."""


class Compiled:
    """Kernels of a YAML file: in the cache, in a known bundle, or compiled by a build."""

    def __init__(self, source: str) -> None:
        self._source = source

    def find(self, specs: Sequence[SpecT]) -> dict[SpecT, Path]:
        """Return the libraries of those kernels that are there; compiles nothing."""
        return find_built(specs)

    def build(
        self,
        specs: Sequence[AnySpec],
        *,
        jobs: int | None = None,
        progress: Progress | None = None,
    ) -> BuildReport:
        """Return where all of them are, compiling what is missing."""
        return build(specs, jobs=jobs, progress=progress, source=self._source)

    def how_to_get(self, specs: Sequence[AnySpec]) -> str:
        """Return the command that builds them, and why bundles do not serve."""
        command = build_command(self._source, specs[0].arch.name)
        notes = missing_notes(specs[0])
        if settings().never_compile:
            return f"{command} builds it where GEMMSMITH_NEVER_COMPILE is not set{notes}"
        return f"call .build() first, or run {command}{notes}"


class Bundled:
    """Kernels of one bundle, for which there is no compiler."""

    def __init__(self, bundle: Bundle) -> None:
        self._bundle = bundle

    def find(self, specs: Sequence[SpecT]) -> dict[SpecT, Path]:
        """Return the libraries of ``specs``, checked.

        Raises:
            BundleError: where one is not the file that was exported.
        """
        return {spec: self._bundle.kernel(spec).library for spec in specs}

    def build(
        self,
        specs: Sequence[AnySpec],
        *,
        jobs: int | None = None,
        progress: Progress | None = None,
    ) -> BuildReport:
        """Return where all of them are: nothing is ever compiled.

        Raises:
            BundleError: where a library is not the file that was exported.
        """
        found = {spec: self._bundle.kernel(spec) for spec in specs}
        built = tuple(
            BuiltKernel(
                spec=spec,
                library=kernel.library,
                card=kernel.card,
                cached=True,
                built_with=kernel.built_with,
            )
            for spec, kernel in found.items()
        )
        return BuildReport(built=built, failed=(), seconds=0.0)

    def how_to_get(self, specs: Sequence[AnySpec]) -> str:
        """Return where kernels of a bundle come from."""
        return f"export {self._bundle.folder} again"
