"""Builds of several processes at once, of one that is killed, and of one that may not write."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest

import fakes
import gemmsmith
from fakes import FakeNvcc, ampere, leftovers
from gemmsmith.build import build
from gemmsmith.compile import terminable
from gemmsmith.errors import CacheError
from gemmsmith.launcher.with_ctypes import read_table

_PATH = os.pathsep.join(
    [str(Path(gemmsmith.__file__).parent.parent), str(Path(fakes.__file__).parent)]
)
_CHILD = """
import signal
import sys
from pathlib import Path
from fakes import FakeNvcc, ampere
from gemmsmith.build import build
from gemmsmith.card import can_inspect
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job inherits "ignore"
nvcc = object.__new__(FakeNvcc)
nvcc.path = Path(sys.argv[1])
toolchain = nvcc.toolchain
report = build([ampere(int(n)) for n in sys.argv[2:]], toolchain=toolchain, jobs=2)
report.raise_if_failed()
print(*(kernel.cached for kernel in report.built))
"""


def _child(nvcc: Path, cache: Path, *sizes: int) -> subprocess.Popen[str]:
    environment = {**os.environ, "GEMMSMITH_CACHE_DIR": str(cache), "PYTHONPATH": _PATH}
    environment["PYTHONDONTWRITEBYTECODE"] = "1"
    return subprocess.Popen(
        [sys.executable, "-c", _CHILD, str(nvcc), *map(str, sizes)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _release(barrier: Barrier, nvcc: FakeNvcc, results: multiprocessing.Queue[list[str]]) -> None:
    barrier.wait()
    report = build([ampere(64), ampere(128)], toolchain=nvcc.toolchain, jobs=1)
    report.raise_if_failed()
    names = read_table(report.built[0].library)
    results.put([str(kernel.library) for kernel in report.built if kernel.spec.name in names])


def test_sixteen_processes_compile_once(cache_dir: Path, nvcc: FakeNvcc) -> None:
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(16)
    results: multiprocessing.Queue[list[str]] = context.Queue()
    workers = [context.Process(target=_release, args=(barrier, nvcc, results)) for _ in range(16)]
    for worker in workers:
        worker.start()
    found = [results.get(timeout=60) for _ in workers]
    for worker in workers:
        worker.join(60)
    assert [worker.exitcode for worker in workers] == [0] * 16
    assert nvcc.runs() == [sorted([ampere(64).name, ampere(128).name])]
    assert all(libraries == found[0] and len(libraries) == 2 for libraries in found)
    assert leftovers(cache_dir) == []


def _until(condition: Callable[[], bool]) -> None:
    last = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < last, "it never happened"
        time.sleep(0.02)


def _running(nvcc: FakeNvcc) -> int:
    """Return the process number of the compiler, once it runs."""
    file = nvcc.folder / "pid"
    _until(lambda: file.exists() and file.read_text() != "")
    return int(file.read_text())


def _alive(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"  # whoever adopted it may not reap it


def test_build_after_kill_in_mid_compile(cache_dir: Path, nvcc: FakeNvcc) -> None:
    nvcc.fault("hang", ampere(64))
    builder = _child(nvcc.path, cache_dir, 64)
    compiler = _running(nvcc)
    builder.kill()
    builder.communicate()
    _until(lambda: not _alive(compiler))
    (nvcc.folder / "hang").unlink()
    started = time.monotonic()
    report = build([ampere(64)], toolchain=nvcc.toolchain)
    report.raise_if_failed()
    assert time.monotonic() - started < 5
    assert len(nvcc.runs()) == 2
    assert leftovers(cache_dir) == []


@pytest.mark.parametrize("word", [signal.SIGINT, signal.SIGTERM])
def test_interrupt_ends_compilers_and_waiting_at_once(
    cache_dir: Path, nvcc: FakeNvcc, word: signal.Signals
) -> None:
    nvcc.fault("hang", ampere(64))
    builder = _child(nvcc.path, cache_dir, 64)
    compiler = _running(nvcc)
    waiter = _child(nvcc.path, cache_dir, 64)
    locks = cache_dir / "v1" / "locks"
    scratch = cache_dir / "v1" / "scratch"
    _until(lambda: len(list(scratch.glob("*.lock"))) == 2)
    time.sleep(0.5)  # from its scratch folder to waiting for the lock
    for child in (waiter, builder):
        child.send_signal(word)  # to it alone, as a notebook or docker stop does
        _, err = child.communicate(timeout=60)
        if word == signal.SIGINT:
            assert "KeyboardInterrupt" in err
        else:
            assert child.returncode == 128 + signal.SIGTERM
            assert "Traceback" not in err
    _until(lambda: not _alive(compiler))
    assert list(locks.iterdir()) == []
    assert leftovers(cache_dir) == []


def test_handlers_of_sigterm_are_left_as_they_were(cache_dir: Path, nvcc: FakeNvcc) -> None:
    def own(number: int, frame: object) -> None:
        raise AssertionError("not called")

    before = signal.getsignal(signal.SIGTERM)
    try:
        for handler, during in ((signal.SIG_DFL, False), (own, True), (signal.SIG_IGN, True)):
            signal.signal(signal.SIGTERM, handler)
            with terminable():
                assert (signal.getsignal(signal.SIGTERM) == handler) == during
            assert signal.getsignal(signal.SIGTERM) == handler
        with ThreadPoolExecutor(1) as pool:  # where no handler can be set
            report = pool.submit(build, [ampere(64)], toolchain=nvcc.toolchain).result()
        report.raise_if_failed()
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.fixture
def shared_folder() -> Iterator[Path]:
    """A folder that users other than this one can reach, unlike tmp_path."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


def _as_nobody(nvcc: FakeNvcc, sizes: Sequence[int], results: multiprocessing.Queue[str]) -> None:
    if os.geteuid() == 0:  # whom no permission stops
        os.setgid(65534)
        os.setuid(65534)
    try:
        report = build([ampere(size) for size in sizes], toolchain=nvcc.toolchain)
        results.put(str([kernel.cached for kernel in report.built]))
    except CacheError as error:
        results.put(str(error))


def test_read_only_cache_serves_what_it_has(
    shared_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = shared_folder / "cache"
    monkeypatch.setenv("GEMMSMITH_CACHE_DIR", str(cache))
    nvcc = FakeNvcc(shared_folder / "toolkit")
    build([ampere(64)], toolchain=nvcc.toolchain).raise_if_failed()
    for path in [cache, *cache.rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    before = sorted(cache.rglob("*"))
    context = multiprocessing.get_context("fork")
    results: multiprocessing.Queue[str] = context.Queue()
    answers = []
    for sizes in ([64], [64, 128]):
        reader = context.Process(target=_as_nobody, args=(nvcc, sizes, results))
        reader.start()
        answers.append(results.get(timeout=60))
        reader.join(60)
    assert sorted(cache.rglob("*")) == before
    for path in [cache, *cache.rglob("*")]:
        path.chmod(0o755)
    assert answers[0] == "[True]"
    assert "cannot be written (Permission denied)" in answers[1]
    assert answers[1].endswith("set GEMMSMITH_CACHE_DIR to a folder that can")
