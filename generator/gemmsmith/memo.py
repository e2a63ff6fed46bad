"""Facts about files that are dear to find out, kept in the cache folder until a file changes."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from gemmsmith.settings import settings


def stamp(files: Sequence[Path]) -> str:
    """Return a digest of path, size and time of change of ``files``; contents are not read."""
    digest = hashlib.sha256()
    for file in files:
        status = file.stat()
        digest.update(f"{file}\0{status.st_size}\0{status.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def remember(what: str, files: Sequence[Path], compute: Callable[[], str]) -> str:
    """Return ``compute()``, or what it returned when the same ``files`` last looked as they do now.

    ``what`` names the fact, so that one file can have several. A cache folder that cannot be
    written only costs the computation.
    """
    folder = settings().cache_dir / "v1" / "memo"
    entry = folder / hashlib.sha256(f"{what}\0{stamp(files)}".encode()).hexdigest()[:32]
    try:
        return entry.read_text()
    except (OSError, UnicodeDecodeError):
        fact = compute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle, scratch = tempfile.mkstemp(dir=folder)
        with os.fdopen(handle, "w") as file:
            file.write(fact)
        Path(scratch).replace(entry)
    except OSError:
        pass  # a read-only cache: computed again next time
    return fact
