"""Where the files live that are no Python: templates, default configurations, CUTLASS headers."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from functools import cache
from pathlib import Path

from gemmsmith.errors import GemmsmithError, ToolchainError

_PACKAGE = Path(__file__).resolve().parent
_CHECKOUT = _PACKAGE.parent.parent


def templates_dir() -> Path:
    """Return the folder of the Jinja templates, with the plain headers in ``include/``."""
    return _data_dir("templates")


def configs_dir() -> Path:
    """Return the folder of the default configurations: ``kernels/``, ``models/``, ``demo.yaml``."""
    return _data_dir("configs")


def build_dir() -> Path:
    """Return the folder of ``matrix.yaml`` and of ``toolchains/``, the scripts that get toolkits.

    Raises:
        GemmsmithError: where the installation has lost the folder.
    """
    for folder in (_PACKAGE / "build_matrix", _CHECKOUT / "build"):  # build.py has the other name
        if (folder / "matrix.yaml").is_file():
            return folder
    raise GemmsmithError(
        f"gemmsmith's build matrix is neither in {_PACKAGE} nor in {_CHECKOUT}: "
        "install the package again"
    )


def _data_dir(name: str) -> Path:
    """Return the folder beside the package (installed) or at the root of the checkout.

    Raises:
        GemmsmithError: where the installation has lost the folder.
    """
    for parent in (_PACKAGE, _CHECKOUT):
        if (parent / name).is_dir():
            return parent / name
    raise GemmsmithError(
        f"gemmsmith's {name} folder is neither in {_PACKAGE} nor in {_CHECKOUT}: "
        "install the package again"
    )


@cache
def cutlass_include_dirs() -> tuple[Path, ...]:
    """Return CUTLASS's include folders: its headers, then its utilities.

    The package is looked up, not imported.

    Raises:
        ToolchainError: where ``nvidia-cutlass`` is not installed or came without headers.
    """
    found = importlib.util.find_spec("cutlass_library")
    if found is None or found.origin is None:
        raise ToolchainError("CUTLASS is not installed: pip install 'nvidia-cutlass>=4.2,<4.3'")
    source = Path(found.origin).parent / "source"
    folders = (source / "include", source / "tools" / "util" / "include")
    missing = [str(folder) for folder in folders if not folder.is_dir()]
    if missing:
        raise ToolchainError(
            f"the installed nvidia-cutlass has no {' and no '.join(missing)}: "
            "pip install --force-reinstall 'nvidia-cutlass>=4.2,<4.3'"
        )
    return folders


def cutlass_example_dir(name: str) -> Path:
    """Return the folder of one of CUTLASS's examples.

    Raises:
        ToolchainError: where ``nvidia-cutlass`` is not installed or came without it.
    """
    folder = cutlass_include_dirs()[0].parent / "examples" / name
    if not folder.is_dir():
        raise ToolchainError(
            f"the installed nvidia-cutlass has no {folder}: "
            "pip install --force-reinstall 'nvidia-cutlass>=4.2,<4.3'"
        )
    return folder


def cutlass_version() -> str:
    """Return the version of the installed ``nvidia-cutlass``, for example ``4.2.0.0``.

    Raises:
        ToolchainError: where it is not installed.
    """
    try:
        return importlib.metadata.version("nvidia-cutlass")
    except importlib.metadata.PackageNotFoundError:
        raise ToolchainError(
            "CUTLASS is not installed: pip install 'nvidia-cutlass>=4.2,<4.3'"
        ) from None
