"""Locks that die with their holder and tell who holds them."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import gemmsmith.locks
from gemmsmith.locks import locked, try_lock, unlock

_HOLD = """
import sys, time
from pathlib import Path
from gemmsmith.locks import try_lock
assert try_lock(Path(sys.argv[1])) is not None
print("held", flush=True)
time.sleep(60)
"""


def test_one_holder_at_a_time_and_no_file_left(tmp_path: Path) -> None:
    path = tmp_path / "a.lock"
    inside = []
    most = []

    def work() -> None:
        with locked(path):
            inside.append(1)
            most.append(len(inside))
            time.sleep(0.01)
            inside.pop()

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1] * 8
    assert list(tmp_path.iterdir()) == []


def test_try_lock_says_no_at_once(tmp_path: Path) -> None:
    path = tmp_path / "a.lock"
    handle = try_lock(path)
    assert handle is not None
    assert try_lock(path) is None
    unlock(path, handle)
    again = try_lock(path)
    assert again is not None
    unlock(path, again)


def test_a_file_alone_is_no_lock(tmp_path: Path) -> None:
    path = tmp_path / "a.lock"
    path.write_text("123@elsewhere")
    handle = try_lock(path)
    assert handle is not None
    assert path.read_text().startswith(f"{os.getpid()}@")
    unlock(path, handle)


def test_long_waits_name_lock_and_holder_and_end_with_a_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "a.lock"
    package = str(Path(gemmsmith.locks.__file__).parent.parent)
    holder = subprocess.Popen(
        [sys.executable, "-c", _HOLD, str(path)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": package},
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    monkeypatch.setattr(gemmsmith.locks, "PATIENCE", 0.1)
    killer = threading.Timer(0.5, holder.kill)
    killer.start()
    started = time.monotonic()
    with caplog.at_level(logging.WARNING), locked(path):
        waited = time.monotonic() - started
    holder.communicate()
    assert 0.4 < waited < 5
    assert len(caplog.records) == 1
    assert f"waiting for {path}, held by {holder.pid}@" in caplog.text
