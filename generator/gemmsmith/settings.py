"""The environment variables of gemmsmith, read in this module alone.

An empty variable counts as unset. A value that is not legal raises and is never replaced.
"""

from __future__ import annotations

import os
import pwd
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from gemmsmith.errors import SettingError

LauncherName = Literal["auto", "pybind11", "ctypes"]

_YES = ("1", "true", "yes", "on")
_NO = ("0", "false", "no", "off")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What the environment asks of gemmsmith."""

    cache_dir: Path
    """Absolute folder of the compiled kernels; it need not exist (``GEMMSMITH_CACHE_DIR``)."""
    max_jobs: int | None
    """Most compilers at once; None leaves it to cores and memory (``MAX_JOBS``)."""
    nvcc: Path | None
    """The nvcc to use: a path, or a name on PATH (``GEMMSMITH_NVCC``)."""
    cuda_home: Path | None
    """Root of a CUDA toolkit (``CUDA_HOME``, else ``CUDA_PATH``)."""
    toolkits: tuple[Path, ...]
    """Roots of further CUDA toolkits, for architectures that the usual one cannot target
    (``GEMMSMITH_TOOLKITS``, separated as in PATH)."""
    host_compiler: Path | None
    """The g++ for nvcc: a path, or a name on PATH (``GEMMSMITH_CXX``, else ``CXX``)."""
    never_compile: bool
    """Whether a kernel missing from the cache is an error (``GEMMSMITH_NEVER_COMPILE``)."""
    bundles: tuple[Path, ...]
    """Absolute folders of kernels from other machines (``GEMMSMITH_BUNDLES``)."""
    launcher: LauncherName
    """How kernel libraries are called (``GEMMSMITH_LAUNCHER``)."""
    tuned: tuple[Path, ...] | None
    """Tuned tables, files or folders, that go before others; None, written ``none``: no table at
    all (``GEMMSMITH_TUNED``, separated as in PATH)."""
    smollm2: Path | None
    """GGUF file of SmolLM2-135M-Instruct to use for the PyPI package's (``GEMMSMITH_SMOLLM2``)."""


def settings() -> Settings:
    """Return the settings that the environment holds now.

    Raises:
        SettingError: where a variable holds a value that is not legal.
    """
    return Settings(
        cache_dir=_cache_dir(),
        max_jobs=_positive("MAX_JOBS"),
        nvcc=_path("GEMMSMITH_NVCC"),
        cuda_home=_path("CUDA_HOME") or _path("CUDA_PATH"),
        toolkits=_paths("GEMMSMITH_TOOLKITS"),
        host_compiler=_path("GEMMSMITH_CXX") or _path("CXX"),
        never_compile=_flag("GEMMSMITH_NEVER_COMPILE"),
        bundles=_paths("GEMMSMITH_BUNDLES"),
        launcher=_launcher("GEMMSMITH_LAUNCHER"),
        tuned=None if _text("GEMMSMITH_TUNED") == "none" else _paths("GEMMSMITH_TUNED"),
        smollm2=_path("GEMMSMITH_SMOLLM2"),
    )


def _text(name: str) -> str:
    return os.environ.get(name, "").strip()


def _path(name: str) -> Path | None:
    text = _text(name)
    return _expand(name, text) if text else None


def _paths(name: str) -> tuple[Path, ...]:
    words = [word for word in map(str.strip, _text(name).split(os.pathsep)) if word]
    return tuple(_expand(name, word).absolute() for word in words)


def _expand(name: str, text: str) -> Path:
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        raise SettingError(f"{name}={text!r}: {error}; write the folder without ~") from None


def _positive(name: str) -> int | None:
    text = _text(name)
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise SettingError(
            f"{name}={text!r} is not legal: use a whole number from 1 up, or unset it"
        )
    return int(text)


def _flag(name: str) -> bool:
    text = _text(name).lower()
    if text in _YES:
        return True
    if not text or text in _NO:
        return False
    raise SettingError(
        f"{name}={text!r} is not legal: use one of {', '.join(_YES)} or one of {', '.join(_NO)}"
    )


def _launcher(name: str) -> LauncherName:
    text = _text(name).lower() or "auto"
    for legal in get_args(LauncherName):
        if text == legal:
            chosen: LauncherName = legal
            return chosen
    raise SettingError(
        f"{name}={text!r} is not legal: use one of {', '.join(get_args(LauncherName))}"
    )


def _cache_dir() -> Path:
    own = _path("GEMMSMITH_CACHE_DIR")
    if own is not None:
        return own.absolute()
    shared = _path("XDG_CACHE_HOME")
    if shared is not None and shared.is_absolute():  # the XDG rules say: ignore a relative one
        return shared / "gemmsmith"
    home = _home()
    return _temporary_cache_dir() if home is None else home / ".cache" / "gemmsmith"


def _home() -> Path | None:
    """The user's home folder, or None where neither HOME nor the password database names one."""
    text = _text("HOME")
    if text:
        return Path(text).absolute()
    try:
        return Path(pwd.getpwuid(os.getuid()).pw_dir)
    except KeyError:  # a container run under a bare uid
        return None


def _temporary_cache_dir() -> Path:
    folder = Path(tempfile.gettempdir()) / f"gemmsmith-{os.getuid()}"
    try:
        owner = folder.lstat().st_uid
    except OSError:
        owner = os.getuid()
    if owner != os.getuid():  # libraries are loaded from here: another user must not supply them
        raise SettingError(f"{folder} belongs to another user; set GEMMSMITH_CACHE_DIR")
    warnings.warn(
        f"no home folder: kernels are kept in {folder}, which a reboot may empty; "
        "set GEMMSMITH_CACHE_DIR to keep them",
        RuntimeWarning,
        stacklevel=4,
    )
    return folder
