"""One run of nvcc: from a rendered source to a shared library, or the reason why not."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from gemmsmith.arch import Architecture
from gemmsmith.errors import CompileError
from gemmsmith.identity import flags
from gemmsmith.render import RenderedSource, example_headers, include_dirs
from gemmsmith.resources import cutlass_include_dirs
from gemmsmith.toolchain import Toolchain

_ERROR = re.compile(
    r"\berror\s*:|\berror #|\bfatal\b|ptxas error|undefined reference|cannot find|No space left",
    re.IGNORECASE,
)
_KILLED = re.compile(r"signal 9|\bKilled\b|cannot allocate memory|out of memory", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class CompiledLibrary:
    """What one run of nvcc left in its folder."""

    path: Path
    """The shared library."""
    source: Path
    """The source as it was compiled."""
    log: Path
    """The command and all that the compilers printed, ptxas' resource usage included."""
    seconds: float
    """Wall time of nvcc."""
    peak_bytes: int
    """Resident memory of the largest process among nvcc and those that it started."""


class Stop:
    """A word to all compilers of a build to end at once, and to those that wait not to begin."""

    def __init__(self) -> None:
        self.given = threading.Event()
        self._running: set[int] = set()
        self._lock = threading.Lock()

    def give(self) -> None:
        """Kill the compilers that run, with all that they started, and let none start."""
        with self._lock:
            self.given.set()
            for group in self._running:
                os.killpg(group, signal.SIGKILL)

    def started(self, process: int) -> None:
        """Note a compiler that leads its own process group."""
        with self._lock:
            self._running.add(process)
            if self.given.is_set():
                os.killpg(process, signal.SIGKILL)

    def ending(self, process: int) -> None:
        """Forget a compiler that has ended but still holds its number."""
        with self._lock:
            self._running.discard(process)


@contextmanager
def terminable() -> Iterator[None]:
    """Let SIGTERM raise SystemExit in here, so that compilers, locks and scratch folders go first.

    Does nothing outside the main thread, and where the program handles or ignores SIGTERM itself.
    """
    in_main = threading.current_thread() is threading.main_thread()
    if not in_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _terminate(number: int, frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_IGN)  # a second one must not cut the clean-up short
    raise SystemExit(128 + number)


def command(
    source: Path,
    library: Path,
    toolchain: Toolchain,
    arch: Architecture,
    examples: Sequence[Path] = (),
) -> tuple[str, ...]:
    """Return the arguments that compile ``source`` for ``arch`` into ``library``.

    ``examples`` are folders above those of CUTLASS's examples whose headers are included.
    """
    includes = (*include_dirs(), *cutlass_include_dirs(), *examples)
    return (
        *toolchain.command,
        *flags(arch),
        *(f"-I{folder}" for folder in includes),
        "-o",
        str(library),
        str(source),
    )


def compile_library(
    source: RenderedSource,
    toolchain: Toolchain,
    out_dir: Path,
    *,
    jobs: int,
    failures: Path,
    stop: Stop | None = None,
) -> CompiledLibrary:
    """Compile ``source`` in ``out_dir``, an empty folder, and return what came out.

    ``jobs`` is the number of compilers running at once, for the advice where memory runs out.
    Source and log of a failure are kept in the folder ``failures``. ``stop`` can end it early.

    Raises:
        CompileError: with kernels, first error, command, log and kept source.
    """
    file, library, log = (out_dir / name for name in (source.filename, "kernels.so", "nvcc.log"))
    scratch = out_dir / "tmp"
    scratch.mkdir()
    file.write_text(source.text)
    arch = source.specs[0].arch
    examples = tuple(folder.parent for folder in example_headers(source.specs[0]))
    arguments = command(file, library, toolchain, arch, examples)
    with log.open("w") as stream:
        stream.write(shlex.join(arguments) + "\n")
        stream.flush()
        started = time.monotonic()
        environment = {**toolchain.environment, "TMPDIR": str(scratch)}
        code, peak = _run(arguments, stream.fileno(), environment, stop or Stop())
        seconds = time.monotonic() - started
    shutil.rmtree(scratch, ignore_errors=True)
    text = log.read_text(errors="replace")
    reason = _failure(code, text.partition("\n")[2], library, jobs)
    if reason is None:
        return CompiledLibrary(path=library, source=file, log=log, seconds=seconds, peak_bytes=peak)
    names = ", ".join(spec.name for spec in source.specs)
    kept = keep(file, log, failures)
    moved = failures / file.name, failures / library.name
    again = command(*moved, toolchain, arch, examples)
    raise CompileError(f"{names} did not compile: {reason}\n{kept}\n  command: {shlex.join(again)}")


def keep(source: Path, log: Path, folder: Path) -> str:
    """Copy both into ``folder`` for whoever looks into a failure; return lines that name them."""
    folder.mkdir(parents=True, exist_ok=True)
    kept = [shutil.copy(path, folder / path.name) for path in (source, log)]
    return f"  source: {kept[0]}\n  log: {kept[1]}"


def _run(
    arguments: Sequence[str], log: int, environment: dict[str, str], stop: Stop
) -> tuple[int, int]:
    """Run a command; return its exit code (negative: a signal) and peak memory in bytes."""
    try:
        process = subprocess.Popen(
            arguments,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
    except OSError as error:
        raise CompileError(f"cannot start {arguments[0]}: {error.strerror}") from error
    stop.started(process.pid)
    try:
        with _ends_with_us(process.pid):
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    finally:
        stop.ending(process.pid)
        _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return process.returncode, usage.ru_maxrss * 1024


@contextmanager
def _ends_with_us(group: int) -> Iterator[None]:
    """Have a process group killed should this process die in here, however it dies.

    A shell waits for the end of a pipe that only this process holds open. PR_SET_PDEATHSIG would
    reach nvcc alone, and not the compilers that it starts.
    """
    other, ours = os.pipe()
    try:
        guard = subprocess.Popen(
            ["/bin/sh", "-c", 'read -r _; kill -s KILL -- "-$1"', "sh", str(group)],
            stdin=other,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            yield
        finally:  # before the group's number is free for others
            guard.kill()
            guard.wait()
    finally:
        os.close(ours)
        os.close(other)


def _failure(code: int, log: str, library: Path, jobs: int) -> str | None:
    """Return why a run of nvcc failed, or None where it did not."""
    if code == 0:
        if library.is_file() and library.stat().st_size:
            return None
        return "nvcc reported success but wrote no library"
    if code in (-signal.SIGKILL, 128 + signal.SIGKILL) or _KILLED.search(log):
        return f"the compiler was killed, likely out of memory: lower MAX_JOBS (now {jobs})"
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    errors = [line for line in lines if _ERROR.search(line) and "warning" not in line]
    if errors:
        return errors[0]
    last = f": {lines[-1]}" if lines else " without a word"
    return f"nvcc ended with exit code {code}{last}"
