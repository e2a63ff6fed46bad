"""The CUDA version that the installed torch was built for, as against nvcc's. Imports no torch."""

from __future__ import annotations

import ast
import logging
import re
from functools import lru_cache
from importlib.machinery import PathFinder
from pathlib import Path

from gemmsmith.toolchain import Toolchain

_log = logging.getLogger(__name__)


def torch_cuda() -> str | None:
    """Return torch's CUDA version, for example ``12.6``; None without torch or CUDA in it."""
    spec = PathFinder.find_spec("torch")
    folders = spec.submodule_search_locations if spec is not None else None
    for folder in folders or ():
        text = _read(Path(folder) / "version.py")
        line = re.search(r"^cuda\b[^=\n]*=\s*(.+)$", text, re.MULTILINE)
        value = ast.literal_eval(line.group(1)) if line else None
        if value is not None:
            return str(value)
    return None


def mismatch(torch: str, toolchain: Toolchain) -> str | None:
    """Return what a torch for CUDA ``torch`` and ``toolchain`` mean for each other, or None.

    A kernel carries its own CUDA runtime and shares nothing with torch but the driver, so that it
    works where that is new enough for both; minor versions of one major version are.
    """
    major = int(torch.split(".")[0])
    if major == toolchain.version[0]:
        return None
    both = f"torch is built for CUDA {torch}, nvcc is {toolchain.release} at {toolchain.nvcc}"
    if toolchain.version[0] > major:
        return f"{both}: its kernels may need a newer driver than torch does"
    return f"{both}: its kernels carry the older runtime, which newer drivers run"


def warn_of_mismatch(toolchain: Toolchain) -> None:
    """Log, once, that nvcc and torch differ in CUDA's major version."""
    version = torch_cuda()
    text = mismatch(version, toolchain) if version is not None else None
    if text is not None:
        _warn_once(text)


@lru_cache
def _warn_once(text: str) -> None:
    _log.warning("%s", text)


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
