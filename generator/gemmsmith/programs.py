"""Programs of this machine: where they are and what they print."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from gemmsmith.errors import ToolchainError
from gemmsmith.memo import remember, stamp

_SECONDS = 60  # a tool that only prints its version and needs longer hangs
_SCRIPT_BYTES = 1 << 16
_TOOL = re.compile(r"(.*-)?(gcc|g\+\+|c\+\+|nvcc|cuobjdump|nvdisasm)(-[\d.]+)?")
_SHELL = re.compile(r"#!\s*(/usr)?/bin/(env )?(sh|bash|dash)\b")
_ASSIGNMENT = re.compile(r"(export )?\w+=(\"[^\"]*\"|'[^']*'|[^\s;&|\"']*)|set -\w+")


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
    command = (str(program), *arguments)
    try:
        files = _files_behind(program)
        if files is None:
            return _output(command, stamp([program]))
        return _kept_output(command, (*files, *also), stamp([*files, *also]))
    except OSError as error:
        raise ToolchainError(f"cannot read {error.filename}: {error.strerror}") from error


def _files_behind(program: Path) -> tuple[Path, ...] | None:
    """Return the files whose change can change what ``program`` prints; None where unknown.

    A wrapper script's own time says nothing of what it starts: that counts too. Where it is not
    plain what a script starts, or where a compiler's name leads to another program (ccache, icecc),
    the compiler may change behind it unseen.
    """
    files: list[Path] = []
    while program not in files:
        files.append(program)
        with program.open("rb") as file:
            start = file.read(_SCRIPT_BYTES)
        if not start.startswith(b"#!"):
            return tuple(files) if _TOOL.fullmatch(program.resolve().name) else None
        started = _started(start.decode(errors="replace"))
        if started is None or len(start) == _SCRIPT_BYTES:
            return None
        program = started
    return None


def _started(script: str) -> Path | None:
    """Return the program that a shell script starts by its absolute path and does nothing else.

    The script may set variables before; one that computes anything is not understood.
    """
    first, *body = script.splitlines()
    lines = [line for line in map(str.strip, body) if line and not line.startswith("#")]
    if not _SHELL.match(first) or not lines or re.search(r"`|\$\(", script):
        return None
    *settings, command = lines
    if not all(_ASSIGNMENT.fullmatch(line) for line in settings):
        return None
    try:
        words = shlex.split(command)
    except ValueError:  # it goes on in the next line
        return None
    program, *arguments = words[1:] if words[0] == "exec" else words
    if not program.startswith("/") or {";", "&", "|"} & set("".join(arguments)):
        return None
    return Path(program)


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
