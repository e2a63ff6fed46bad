"""What this machine has for building and running kernels, what is missing, and how to get it.

Works where everything is missing; imports no torch, starts no CUDA, leaves nothing behind.
"""

from __future__ import annotations

import warnings

from gemmsmith.doctor.devices import gpus, torch, tuned
from gemmsmith.doctor.report import Finding, Report, render_text
from gemmsmith.doctor.storage import cache, jobs
from gemmsmith.doctor.tools import (
    cutlass,
    disassembler,
    host_compiler,
    launcher,
    nvcc,
    python,
    toolkits,
)
from gemmsmith.errors import SettingError
from gemmsmith.settings import settings

__all__ = ["Finding", "Report", "examine", "render_text"]


def examine() -> Report:
    """Return one finding for each thing that a build or a call needs; it does not raise."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a finding says the same
        try:
            settings()
        except SettingError as error:
            return Report(findings=(_bad_setting(error), python(), cutlass()))
        return Report(
            findings=(
                python(),
                nvcc(),
                toolkits(),
                host_compiler(),
                disassembler(),
                cutlass(),
                cache(),
                jobs(),
                launcher(),
                torch(),
                gpus(),
                tuned(),
            )
        )


def _bad_setting(error: SettingError) -> Finding:
    return Finding(
        name="settings",
        status="error",
        found=str(error),
        fix="correct the variable; what depends on settings is examined after that",
    )
