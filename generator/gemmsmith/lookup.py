"""Where compiled kernels may already be: the cache, then bundles from other machines."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gemmsmith.bundle import Bundle
from gemmsmith.bundles import known_bundles, warn_once
from gemmsmith.cache import Cache, CachedKernel
from gemmsmith.errors import BundleError
from gemmsmith.identity import Identity, identity
from gemmsmith.render import render
from gemmsmith.resources import configs_dir
from gemmsmith.rowspec import AnySpec, SpecT
from gemmsmith.settings import settings
from gemmsmith.toolchain import Toolchain, warn_of_refused_choice
from gemmsmith.toolchains import Toolchains, find_toolchains


@dataclass(frozen=True, kw_only=True)
class Stock:
    """The compiled kernels that this machine has, wherever they lie."""

    cache: Cache
    bundles: tuple[Bundle, ...]
    refusals: tuple[str, ...]
    """Why other bundles cannot be used here."""

    def find(self, wanted: Identity) -> CachedKernel | None:
        """Return the kernel with that identity, from the cache before any bundle."""
        cached = self.cache.find(wanted)
        if cached is not None:
            return cached
        for bundle in self.bundles:
            try:
                found = bundle.find(wanted)
            except BundleError as error:
                warn_once(str(error))
                continue
            if isinstance(found, CachedKernel):
                return found
        return None

    def explain_miss(self, wanted: Identity) -> str:
        """Return why :meth:`find` finds nothing."""
        return "; ".join([self.cache.explain_miss(wanted), *self.notes(wanted)])

    def notes(self, wanted: Identity) -> list[str]:
        """Return what bundles have instead of the kernel, and why some cannot be used."""
        notes = []
        for bundle in self.bundles:
            try:
                found = bundle.find(wanted)
            except BundleError as error:
                found = str(error)
            if isinstance(found, str):
                notes.append(found)
        return [*notes, *self.refusals]


def stock(*, bundles: bool = True) -> Stock:
    """Return the cache and the bundles that the settings name or that are installed.

    Raises:
        BundleError: where GEMMSMITH_BUNDLES names what is no bundle.
    """
    usable, refusals = known_bundles() if bundles else ((), ())
    return Stock(cache=Cache(settings().cache_dir), bundles=usable, refusals=refusals)


def find_cached(
    specs: Sequence[SpecT], *, toolchain: Toolchain | None = None
) -> dict[SpecT, CachedKernel]:
    """Return those kernels, with their cards, that are compiled already; compiles nothing.

    Only what ``toolchain`` compiled here counts, where one is named.

    Raises:
        BundleError: where GEMMSMITH_BUNDLES names what is no bundle.
    """
    toolchains = find_toolchains(toolchain)
    places = stock(bundles=toolchain is None)
    kernels = {spec: places.find(key) for spec, key in identities_of(specs, toolchains).items()}
    found = {spec: kernel for spec, kernel in kernels.items() if kernel is not None}
    if found and toolchains.refusal is not None:
        warn_of_refused_choice(toolchains.refusal)
    return found


def identities_of(specs: Sequence[SpecT], toolchains: Toolchains) -> dict[SpecT, Identity]:
    """Return what names each kernel in the cache.

    Where there is no toolchain for an architecture, the newest kernel that agrees in all else is
    meant.
    """
    compilers = {arch: toolchains.find(arch) for arch in {spec.arch for spec in specs}}
    return {spec: identity(render([spec]), compilers[spec.arch]) for spec in specs}


def find_built(specs: Sequence[SpecT]) -> dict[SpecT, Path]:
    """Return the libraries of those kernels that are compiled already; compiles nothing."""
    return {spec: kernel.library for spec, kernel in find_cached(specs).items()}


def missing_notes(spec: AnySpec) -> str:
    """Return what bundles have instead of a kernel that is not compiled; empty for nothing."""
    notes = stock().notes(identity(render([spec]), None))
    return f" ({'; '.join(notes)})" if notes else ""


def build_command(source: str, arch: str) -> str:
    """Return the command that compiles the kernels of a file (empty: the default ones)."""
    file = "" if source in ("", str(configs_dir() / "kernels")) else f" {shlex.quote(source)}"
    return f"gemmsmith build{file} --arch {arch}"
