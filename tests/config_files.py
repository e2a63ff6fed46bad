"""Configuration files for tests: two that are right, and what is told of wrong ones."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from gemmsmith.config import load_specs
from gemmsmith.errors import ConfigError, Problem
from gemmsmith.spec import KernelSpec

HOPPER = """\
families:
  - name: prefill
    arch: sm_90a
    dtype: bf16
    schedule: cooperative
    tile: [128, 256, 64]
"""
AMPERE = """\
families:
  - name: small
    arch: sm_80
    dtype: fp16
    tile: [128, 128, 32]
    warp: [64, 64, 32]
    stages: 4
"""


def write(folder: Path, text: str, name: str = "k.yaml") -> Path:
    path = folder / name
    path.write_text(textwrap.dedent(text), encoding="utf-8")
    return path


def load(folder: Path, text: str) -> tuple[KernelSpec, ...]:
    return load_specs(write(folder, text))


def problems(folder: Path, text: str) -> tuple[Problem, ...]:
    with pytest.raises(ConfigError) as caught:
        load(folder, text)
    return caught.value.problems


def problem(folder: Path, text: str) -> tuple[int, str]:
    """The only problem of ``text``, as line and message."""
    (found,) = problems(folder, text)
    assert found.file == str(folder / "k.yaml")
    return found.line, found.message
