"""The compiled kernels of a set, loaded: looked for once, and again after a build."""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from gemmsmith.attn.spec import AttentionSpec
from gemmsmith.errors import GemmsmithError, LoadError
from gemmsmith.launcher import (
    AttentionKernel,
    Kernel,
    RowKernel,
    load_attention_library,
    load_library,
    load_row_library,
)
from gemmsmith.rowspec import RowSpec, SpecT
from gemmsmith.settings import settings
from gemmsmith.spec import KernelSpec
from gemmsmith.supply import Supply

Loaded = TypeVar("Loaded", Kernel, RowKernel, AttentionKernel)

_log = logging.getLogger(__name__)


class _Shelf(ABC, Generic[SpecT, Loaded]):
    """Loaded kernels of a set; with ``build_on_use`` what is missing is compiled, once."""

    def __init__(self, specs: Sequence[SpecT], supply: Supply, *, build_on_use: bool) -> None:
        self._specs = tuple(specs)
        self._supply = supply
        self._build_on_use = build_on_use
        self._loaded: dict[SpecT, Loaded] = {}
        self._looked = False
        self._lock = threading.Lock()

    @property
    def specs(self) -> tuple[SpecT, ...]:
        """The kernels in question, loaded or not."""
        return self._specs

    def how_to_get(self, specs: Sequence[SpecT]) -> str:
        """Return what a user does for kernels that are not there."""
        return self._supply.how_to_get(specs)

    def kernels(self) -> Mapping[SpecT, Loaded]:
        """Return what is loaded; the same kernels until :meth:`look_again`.

        A kernel that cannot be built on use is left out, and the log says why.
        """
        if not self._looked:
            with self._lock:
                if not self._looked:
                    loaded = dict(self._loaded)
                    found = self._supply.find(self._missing(loaded))
                    self._load({spec.name: path for spec, path in found.items()}, loaded)
                    if self._build_on_use and self._missing(loaded):
                        self._load(self._built(self._missing(loaded)), loaded)
                    self._loaded = loaded
                    self._looked = True
        return self._loaded

    def look_again(self) -> None:
        """Look for kernels that were built since, at the next use."""
        self._looked = False

    def _missing(self, loaded: Mapping[SpecT, Loaded]) -> list[SpecT]:
        return [spec for spec in self._specs if spec not in loaded]

    def _built(self, missing: Sequence[SpecT]) -> dict[str, Path]:
        """Return the libraries of the kernels, by name, having built what is missing."""
        arch, count = self._specs[0].arch.name, len(missing)
        kernels = "kernel" if count == 1 else "kernels"
        if settings().never_compile:
            advice = self._supply.how_to_get(missing)
            _log.error("%d default %s for %s missing: %s", count, kernels, arch, advice)
            return {}
        _log.warning(
            "building %d %s for %s, once; gemmsmith build --arch %s does so ahead",
            count,
            kernels,
            arch,
            arch,
        )
        try:
            report = self._supply.build(self._specs)
        except GemmsmithError as error:
            _log.error("the default kernels for %s cannot be built: %s", arch, error)
            return {}
        for failure in report.failed:
            _log.error("going on without a default kernel: %s", failure.error)
        return {kernel.spec.name: kernel.library for kernel in report.built}

    def _load(self, libraries: Mapping[str, Path], into: dict[SpecT, Loaded]) -> None:
        for spec in self._missing(into):
            if spec.name in libraries:
                library = libraries[spec.name]
                kernels = self._open(library)
                if spec.name not in kernels:
                    raise LoadError(f"{library} holds no kernel called {spec.name}")
                into[spec] = kernels[spec.name]

    @abstractmethod
    def _open(self, library: Path) -> Mapping[str, Loaded]:
        """Return the kernels of a library by name."""


class Shelf(_Shelf[KernelSpec, Kernel]):
    """Loaded GEMM kernels; with ``build_on_use`` what is missing is compiled, once."""

    def _open(self, library: Path) -> Mapping[str, Kernel]:
        return load_library(library)


class RowShelf(_Shelf[RowSpec, RowKernel]):
    """Loaded row kernels; with ``build_on_use`` what is missing is compiled, once."""

    def _open(self, library: Path) -> Mapping[str, RowKernel]:
        return load_row_library(library)


class AttentionShelf(_Shelf[AttentionSpec, AttentionKernel]):
    """Loaded attention kernels; with ``build_on_use`` what is missing is compiled, once."""

    def _open(self, library: Path) -> Mapping[str, AttentionKernel]:
        return load_attention_library(library)
