"""The compiled kernels of a set, loaded: looked for once, and again after a build."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from gemmsmith.errors import GemmsmithError, LoadError
from gemmsmith.launcher import Kernel, load_library
from gemmsmith.settings import settings
from gemmsmith.spec import KernelSpec
from gemmsmith.supply import Supply

_log = logging.getLogger(__name__)


class Shelf:
    """Loaded kernels of a set; with ``build_on_use`` what is missing is compiled, once."""

    def __init__(self, specs: Sequence[KernelSpec], supply: Supply, *, build_on_use: bool) -> None:
        self._specs = tuple(specs)
        self._supply = supply
        self._build_on_use = build_on_use
        self._loaded: dict[KernelSpec, Kernel] = {}
        self._looked = False
        self._lock = threading.Lock()

    def kernels(self) -> Mapping[KernelSpec, Kernel]:
        """Return what is loaded; the same kernels until :meth:`look_again`.

        A kernel that cannot be built on use is left out, and the log says why.
        """
        if not self._looked:
            with self._lock:
                if not self._looked:
                    loaded = dict(self._loaded)
                    self._load(self._supply.find(self._missing(loaded)), loaded)
                    if self._build_on_use and self._missing(loaded):
                        self._load(self._built(self._missing(loaded)), loaded)
                    self._loaded = loaded
                    self._looked = True
        return self._loaded

    def look_again(self) -> None:
        """Look for kernels that were built since, at the next use."""
        self._looked = False

    def _missing(self, loaded: Mapping[KernelSpec, Kernel]) -> list[KernelSpec]:
        return [spec for spec in self._specs if spec not in loaded]

    def _built(self, missing: Sequence[KernelSpec]) -> dict[KernelSpec, Path]:
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
        return {kernel.spec: kernel.library for kernel in report.built}

    def _load(self, libraries: Mapping[KernelSpec, Path], into: dict[KernelSpec, Kernel]) -> None:
        for spec in self._missing(into):
            if spec in libraries:
                kernels = load_library(libraries[spec])
                if spec.name not in kernels:
                    raise LoadError(f"{libraries[spec]} holds no kernel called {spec.name}")
                into[spec] = kernels[spec.name]
