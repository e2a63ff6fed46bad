"""Programs of this machine: where they are and what they print."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from gemmsmith.errors import ToolchainError
from gemmsmith.memo import remember, stamp

_SECONDS = 60  # a tool that only prints its version and needs longer hangs


def find_program(name: Path | str) -> Path | None:
    """Return the absolute path of an executable given as a path or as a name on PATH, or None."""
    found = shutil.which(str(name))
    return Path(found).absolute() if found else None


def output_of(program: Path, *arguments: str, also: Sequence[Path] = ()) -> str:
    """Return what ``program`` prints on both streams; kept on disk until its files change.

    So a warm start asks no compiler for its version. ``also`` names further files that decide what
    is printed.

    Raises:
        ToolchainError: where it cannot be started, hangs, or ends with an error.
    """
    try:
        files = (*_files_behind(program), *also)
        if len(files) == len(also):
            return _output((str(program), *arguments), str(program.stat().st_mtime_ns))
        return _kept_output((str(program), *arguments), files, stamp(files))
    except OSError as error:
        raise ToolchainError(f"cannot read {program}: {error.strerror}") from error


def _files_behind(program: Path) -> tuple[Path, ...]:
    """Return the files whose change can change what ``program`` prints; none where that is unknown.

    A wrapper script's own time says nothing of what it starts: the programs that it names by
    absolute path count too, and one that names none is asked anew each time.
    """
    with program.open("rb") as file:
        start = file.read(1 << 16)
    if not start.startswith(b"#!"):
        return (program,)
    _, _, body = start.decode(errors="replace").partition("\n")
    named = [Path(word) for word in re.findall(r"/[^\s\"'$;]+", body)]
    started = tuple(path for path in named if path.is_file())
    return (program, *started) if started else ()


@lru_cache(maxsize=64)
def _kept_output(command: Sequence[str], files: Sequence[Path], stamped: str) -> str:
    """Return the output from disk; ``stamped`` tells apart files that had the same path."""
    return remember(" ".join(command), files, lambda: _output(command, stamped))


@lru_cache(maxsize=64)
def _output(command: Sequence[str], stamped: str) -> str:
    """Run ``command``; ``stamped`` only tells apart two files that had the same path."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, "LC_ALL": "C"},
            timeout=_SECONDS,
            check=False,
        )
    except OSError as error:
        raise ToolchainError(f"cannot start {command[0]}: {error.strerror}") from error
    except subprocess.TimeoutExpired as error:
        raise ToolchainError(
            f"{' '.join(command)} gave no answer within {_SECONDS} seconds"
        ) from error
    text = done.stdout.decode(errors="replace").strip()
    if done.returncode != 0:
        raise ToolchainError(
            f"{' '.join(command)} failed (exit {done.returncode}): {text or 'without a word'}"
        )
    return text
