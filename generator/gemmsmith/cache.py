"""The kernels that were compiled before: a folder, keyed by what each kernel depends on.

``kernels/NAME/DIGEST.json`` describes one kernel and points to ``libraries/DIGEST.so``, which may
hold several. Both appear by a rename, the library first, so that whoever finds a manifest finds a
whole library. Reading takes no lock.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import threading
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gemmsmith.card import Card
from gemmsmith.compile import CompiledLibrary
from gemmsmith.errors import CacheError
from gemmsmith.identity import Identity
from gemmsmith.locks import locked, try_lock, unlock

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class CachedKernel:
    """One kernel of the cache."""

    library: Path
    """Shared library that holds it."""
    card: Card
    """What it turned out to be."""
    built_with: Mapping[str, str] = field(repr=False, hash=False)
    """Parts of the identity that it was stored under."""


class Cache:
    """The compiled kernels below a folder, which need not exist until something is stored."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "v1"

    def find(self, identity: Identity) -> CachedKernel | None:
        """Return the kernel with that identity, or None; what cannot be read counts as missing.

        Where the identity knows no toolchain, the newest kernel that agrees in all else is meant.
        """
        for manifest in self._manifests(identity):
            try:
                found = self._read(manifest)
            except (OSError, ValueError, KeyError, TypeError) as error:
                _log.warning("cache entry %s counts as missing: %s", manifest, error)
                continue
            if not identity.differences(found.built_with):
                return found
        return None

    def explain_miss(self, identity: Identity) -> str:
        """Return why :meth:`find` finds nothing, as against the newest kernel of that name."""
        for manifest in self._newest(identity.name):
            try:
                found = self._read(manifest)
            except (OSError, ValueError, KeyError, TypeError):
                continue
            changes = identity.changes(found.built_with)
            return f"{identity.name} was compiled before, but {changes}"
        return f"{identity.name} was not compiled before"

    def store(
        self, compiled: CompiledLibrary, kernels: Iterable[tuple[Identity, Card]]
    ) -> dict[str, CachedKernel]:
        """Move a library out of its scratch folder and list its kernels; return them by name.

        Raises:
            CacheError: where the cache cannot be written.
        """
        digest = hashlib.sha256(compiled.path.read_bytes()).hexdigest()[:32]
        library = self.folder / "libraries" / f"{digest}.so"
        stored = {}
        with self.writing():
            library.parent.mkdir(parents=True, exist_ok=True)
            compiled.source.replace(library.with_suffix(".cu"))
            compiled.log.replace(library.with_suffix(".log"))
            compiled.path.replace(library)
            for identity, card in kernels:
                manifest = self._folder_of(identity.name) / f"{identity.digest}.json"
                values = {
                    "library": library.name,
                    "key": dict(identity.parts),
                    "card": card.as_dict(),
                }
                manifest.parent.mkdir(parents=True, exist_ok=True)
                draft = compiled.path.with_name(manifest.name)
                draft.write_text(json.dumps(values, indent=1))
                draft.replace(manifest)
                stored[identity.name] = CachedKernel(
                    library=library, card=card, built_with=dict(identity.parts)
                )
        return stored

    def last_card(self, name: str) -> Card | None:
        """Return the card of the newest kernel of that name, whatever it depends on."""
        for manifest in self._newest(name):
            try:
                return self._read(manifest).card
            except (OSError, ValueError, KeyError, TypeError):
                continue
        return None

    @contextmanager
    def locked(self, identities: Iterable[Identity], give_up: threading.Event) -> Iterator[None]:
        """Hold the locks of these kernels against all processes that share the cache.

        Raises:
            CacheError: where the cache cannot be written, or ``give_up`` is set meanwhile.
        """
        folder = self.folder / "locks"
        with self.writing():
            folder.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            for digest in sorted(identity.digest for identity in identities):
                with self.writing():
                    stack.enter_context(locked(folder / f"{digest}.lock", give_up))
            yield

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        """Give an empty folder on the cache's file system; it goes, and what dead builds left."""
        parent = self.folder / "scratch"
        folder = parent / uuid.uuid4().hex
        with ExitStack() as stack:
            with self.writing():
                parent.mkdir(parents=True, exist_ok=True)
                _sweep(parent)
                stack.enter_context(locked(folder.with_suffix(".lock")))
                folder.mkdir()
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            yield folder

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Turn what the operating system says against writing into CacheError."""
        try:
            yield
        except OSError as error:
            raise CacheError(
                f"the kernel cache {self.folder} cannot be written ({error.strerror}), and a "
                "kernel is missing in it: set GEMMSMITH_CACHE_DIR to a folder that can"
            ) from error

    def failures(self, identity: Identity) -> Path:
        """Return the folder that keeps source and log of that kernel's last failure."""
        return self.folder / "failed" / identity.digest

    def _folder_of(self, name: str) -> Path:
        return self.folder / "kernels" / name

    def _manifests(self, identity: Identity) -> Iterable[Path]:
        exact = self._folder_of(identity.name) / f"{identity.digest}.json"
        if identity.complete:
            return [exact] if exact.exists() else []
        return self._newest(identity.name)

    def _newest(self, name: str) -> list[Path]:
        manifests = self._folder_of(name).glob("*.json")
        return sorted(manifests, key=lambda path: path.stat().st_mtime, reverse=True)

    def _read(self, manifest: Path) -> CachedKernel:
        values: dict[str, Any] = json.loads(manifest.read_text())
        card = Card.from_dict(values["card"])
        library = self.folder / "libraries" / values["library"]
        size = library.stat().st_size
        if size != card.library_bytes:
            raise ValueError(f"{library} has {size} bytes, not {card.library_bytes}")
        return CachedKernel(library=library, card=card, built_with=dict(values["key"]))


def _sweep(parent: Path) -> None:
    """Remove the scratch folders of processes that died."""
    for lock in parent.glob("*.lock"):
        handle = try_lock(lock)
        if handle is None:
            continue
        folder = lock.with_suffix("")
        shutil.rmtree(folder, ignore_errors=True)
        if folder.exists():  # a compiler that outlived its builder still writes there
            os.close(handle)
        else:
            unlock(lock, handle)
