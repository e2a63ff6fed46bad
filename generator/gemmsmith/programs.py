"""Programs of this machine: where they are and what they print."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from gemmsmith.errors import ToolchainError

_SECONDS = 60  # a tool that only prints its version and needs longer hangs


def find_program(name: Path | str) -> Path | None:
    """Return the absolute path of an executable given as a path or as a name on PATH, or None."""
    found = shutil.which(str(name))
    return Path(found).absolute() if found else None


def output_of(program: Path, *arguments: str) -> str:
    """Return what ``program`` prints on both streams; kept until the file changes.

    Raises:
        ToolchainError: where it cannot be started, hangs, or ends with an error.
    """
    try:
        stamp = program.stat().st_mtime_ns
    except OSError as error:
        raise ToolchainError(f"cannot read {program}: {error.strerror}") from error
    return _output((str(program), *arguments), stamp)


@lru_cache(maxsize=64)
def _output(command: Sequence[str], stamp: int) -> str:
    """Run ``command``; ``stamp`` only tells apart two files that had the same path."""
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
