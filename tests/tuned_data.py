"""Tuned tables with invented numbers, and the call and the kernels that they are about."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fakes import hopper
from gemmsmith.dtypes import BF16
from gemmsmith.problem import GemmProblem
from gemmsmith.spec import KernelSpec
from gemmsmith.tuned import TORCH, Entry, Made, Table, Timing, identified
from gemmsmith.tuned_file import write_table

MADE = Made(
    format=1,
    gpu="NVIDIA H200",
    sm_count=132,
    arch="sm_90a",
    cutlass="4.2.0.0",
    nvcc="13.0.88",
    driver="580.95.05",
    torch="2.11.0+cu130",
    gemmsmith="0.1.0",
)
FAST, SLOW = hopper(128), hopper(256)
SPLIT = replace(SLOW, scheduler="stream_k")
CALL = GemmProblem(m=64, n=4096, k=4096, a=BF16, b=BF16, d=BF16)


def timing(spec: KernelSpec, ratio: float, torch_us: float = 20.0, **more: Any) -> Timing:
    return Timing(kernel=identified(spec), us=round(torch_us / ratio, 3), ratio=ratio, **more)


def entry(timings: Sequence[Timing] = (), *, winner: str = "", **more: Any) -> Entry:
    values: dict[str, Any] = {
        "n": 4096,
        "k": 4096,
        "m": 64,
        "a": "bf16",
        "d": "bf16",
        "layout": "rcr",
        "epilogue": "plain",
        "torch": 20.0,
        "winner": winner or (timings[0].kernel if timings else TORCH),
        "timings": tuple(timings),
    }
    return Entry(**{**values, **more})


def table(path: Path, *entries: Entry, **made: Any) -> Path:
    write_table(path, Table(made=MADE.model_copy(update=made), entries=entries))
    return path
