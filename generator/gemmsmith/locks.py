"""Locks between processes that the kernel releases when their holder dies, however it dies."""

from __future__ import annotations

import fcntl
import logging
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gemmsmith.errors import CacheError

_log = logging.getLogger(__name__)

PATIENCE = 10.0
"""Seconds of waiting before the log says for whom."""
_STEP = 0.05


def try_lock(path: Path) -> int | None:
    """Return an open descriptor that holds the lock ``path``, or None where another one does."""
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(handle).st_ino == path.stat().st_ino:
                os.ftruncate(handle, 0)
                os.write(handle, f"{os.getpid()}@{socket.gethostname()}".encode())
                return handle
        except BlockingIOError:
            os.close(handle)
            return None
        except FileNotFoundError:
            pass
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)  # its last holder removed the file between open and flock


def unlock(path: Path, handle: int) -> None:
    """Release a lock and remove its file; those who wait on it notice and make a new one."""
    path.unlink(missing_ok=True)
    os.close(handle)


@contextmanager
def locked(path: Path, give_up: threading.Event | None = None) -> Iterator[None]:
    """Hold the lock ``path``; a wait of more than :data:`PATIENCE` is logged with its holder.

    Raises:
        CacheError: where ``give_up`` is set before the lock is free.
    """
    give_up = give_up or threading.Event()
    started = time.monotonic()
    told = False
    while (handle := try_lock(path)) is None:
        if not told and time.monotonic() - started > PATIENCE:
            told = True
            _log.warning("waiting for %s, held by %s", path, _holder(path))
        if give_up.wait(_STEP):
            raise CacheError(f"gave up waiting for {path}, held by {_holder(path)}")
    try:
        yield
    finally:
        unlock(path, handle)


def _holder(path: Path) -> str:
    try:
        return path.read_text() or "an unknown process"
    except OSError:
        return "nobody any more"
