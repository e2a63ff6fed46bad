"""Whether torch can use a GPU here, and what is missing where it cannot."""

from __future__ import annotations

import torch

from gemmsmith.errors import NoDeviceError
from gemmsmith.nvml import devices


def require_gpu(what: str = "a benchmark") -> None:
    """Return where torch can use a GPU, which ``what`` needs.

    Raises:
        NoDeviceError: where it cannot.
    """
    if not torch.cuda.is_available():
        raise NoDeviceError(f"{what} needs a GPU and a CUDA build of torch; {_missing()}")


def exit_without_gpu() -> None:
    """Return where torch can use a GPU, else end the script: the error's sentence, exit code 1."""
    try:
        require_gpu()
    except NoDeviceError as error:
        raise SystemExit(f"error: {error}") from error


def _missing() -> str:
    build = "" if torch.version.cuda else f"torch {torch.__version__} is built without CUDA"
    gpu = "" if devices() else "the driver shows no GPU"
    missing = " and ".join(filter(None, (gpu, build)))
    return missing or "both are here, but torch cannot use the GPU: see CUDA_VISIBLE_DEVICES"
