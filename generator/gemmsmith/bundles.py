"""The bundles that this machine knows: named by GEMMSMITH_BUNDLES, or installed as wheels."""

from __future__ import annotations

import importlib.util
import logging
from functools import cache
from pathlib import Path

from gemmsmith.bundle import Bundle, is_bundle, read_bundle
from gemmsmith.errors import BundleError
from gemmsmith.settings import settings

PACKAGE = "gemmsmith_bundles"
"""Namespace package that each wheel of kernels adds its folder to."""

_log = logging.getLogger(__name__)


def known_bundles() -> tuple[tuple[Bundle, ...], tuple[str, ...]]:
    """Return the bundles that can be used here, those of the setting first, and why others cannot.

    Raises:
        BundleError: where GEMMSMITH_BUNDLES names what is no bundle at all.
    """
    usable, refusals = [], []
    for folder in _folders():
        try:
            usable.append(read_bundle(folder))
        except BundleError as error:
            warn_once(str(error))
            refusals.append(str(error))
    return tuple(usable), tuple(refusals)


@cache
def warn_once(sentence: str) -> None:
    """Log ``sentence`` as a warning, the first time in a process."""
    _log.warning("%s", sentence)


def _folders() -> list[Path]:
    named = settings().bundles
    for folder in named:
        if not is_bundle(folder):
            what = "has no manifest.json" if folder.is_dir() else "is no folder"
            raise BundleError(
                f"GEMMSMITH_BUNDLES names {folder}, which {what}: name folders that "
                "gemmsmith export made"
            )
    found = importlib.util.find_spec(PACKAGE)
    places = [] if found is None else list(found.submodule_search_locations or ())
    installed = [
        folder
        for place in places
        if Path(place).is_dir()  # not inside a zip file
        for folder in sorted(Path(place).iterdir())
        if is_bundle(folder)
    ]
    return [*named, *(folder for folder in installed if folder not in named)]
