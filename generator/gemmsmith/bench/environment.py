"""What a benchmark's numbers hold for: GPU, software, and what they reach at most."""

from __future__ import annotations

import importlib.metadata
import subprocess
from pathlib import Path

import torch

import gemmsmith
from gemmsmith import nvml
from gemmsmith.bench.gpu import require_gpu
from gemmsmith.bench.measure import copy_bandwidth, matmul_peak
from gemmsmith.bench.report import Environment


def environment_here() -> Environment:
    """Return GPU, driver and versions, and two rates measured now.

    Raises:
        NoDeviceError: where there is no GPU.
    """
    require_gpu()
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    found = nvml.devices()
    return Environment(
        gpu=properties.name,
        sm_count=properties.multi_processor_count,
        driver=found[0].driver if found else "unknown",
        torch=str(torch.__version__),
        cuda=str(torch.version.cuda),
        cutlass=importlib.metadata.version("nvidia-cutlass"),
        gemmsmith=gemmsmith.__version__,
        commit=_commit(Path(gemmsmith.__file__).resolve().parents[2]),
        copy_gbs=copy_bandwidth(),
        matmul_tflops=matmul_peak(),
    )


def _commit(root: Path) -> str:
    """Return the checkout's commit, ``+`` behind it where files are changed; empty for none."""
    if not (root / ".git").exists():
        return ""

    def git(*words: str) -> str:
        command = ["git", "-C", str(root), *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    try:
        return git("rev-parse", "--short=12", "HEAD") + (
            "+" if git("status", "--porcelain") else ""
        )
    except (OSError, subprocess.CalledProcessError):
        return ""
