"""Facts about files that are dear to find out, kept in the cache folder until a file changes."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from gemmsmith.settings import settings


def stamp(files: Sequence[Path]) -> str:
    """Return a digest of path, size, number and times of ``files``; contents are not read.

    The time of change (ctime) shows a file that was replaced by one with a copied time, as package
    managers and archives leave them.
    """
    digest = hashlib.sha256()
    for file in files:
        status = file.stat()
        seen = (status.st_size, status.st_ino, status.st_mtime_ns, status.st_ctime_ns)
        digest.update(f"{file}\0{seen}\n".encode())
    return digest.hexdigest()


def remember(what: str, files: Sequence[Path], compute: Callable[[], str]) -> str:
    """Return ``compute()``, or what it returned when the same ``files`` last looked as they do now.

    ``what`` names the fact, so that one file can have several. A cache folder that is not there
    yet, or cannot be written, only costs the computation.
    """
    folder = settings().cache_dir / "v1" / "memo"
    entry = folder / hashlib.sha256(f"{what}\0{stamp(files)}".encode()).hexdigest()[:32]
    try:
        kept = entry.read_text()
    except (OSError, UnicodeDecodeError):
        kept = ""
    if kept:  # a crash can leave an empty file
        return kept
    fact = compute()
    if not settings().cache_dir.is_dir():
        return fact  # what builds makes the folder; what only looks does not
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle, scratch = tempfile.mkstemp(dir=folder)
        with os.fdopen(handle, "w") as file:
            file.write(fact)
        Path(scratch).replace(entry)
    except OSError:
        pass  # a read-only cache: computed again next time
    return fact
