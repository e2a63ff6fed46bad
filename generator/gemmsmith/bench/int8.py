"""Benchmark of int8 with a scale for each token and each feature, beside torch and our own bf16."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

import gemmsmith
from gemmsmith.bench.environment import environment_here
from gemmsmith.bench.gemm import DEFAULT_M, checked_tokens
from gemmsmith.bench.gpu import require_gpu
from gemmsmith.bench.model_shapes import ModelShapes, load_model
from gemmsmith.bench.race import Entrants, Race, RaceReport, Rivalry
from gemmsmith.bench.race_run import run_races
from gemmsmith.bench.report import OURS, TORCH
from gemmsmith.bench.rivals import compiled_arm, forget_compiled
from gemmsmith.bench.tasks import make_task
from gemmsmith.kernelset import default_kernels
from gemmsmith.nvml import detect_architecture
from gemmsmith.progress import Progress

BF16 = "gemmsmith bf16"
"""Name of the arm that is our bf16 product of the same shape."""
SECTION = "int8"
RIVALRIES = (
    Rivalry(section=SECTION, over=TORCH, under=OURS),
    Rivalry(section=SECTION, over=BF16, under=OURS),
)
NOTES = (
    "int8, quantised on both sides beforehand, with a scale for each token and each feature, to"
    " bf16. torch: torch._int_mm and the dequantisation in one torch.compile (inductor's defaults,"
    " any M): cuBLAS, then one fused kernel; below 17 rows padded to 17, which is not timed."
    " gemmsmith bf16: our product of bf16 operands. Ratio a / b: a's time over b's, above 1 b is"
    " faster [95 % interval of the median]."
)


@dataclass(frozen=True, kw_only=True)
class Int8Case:
    """One shape to measure: y (m, n) = x (m, k) @ w (n, k).T."""

    label: str
    m: int
    n: int
    k: int


def plan_int8(models: Sequence[ModelShapes], m: Sequence[int]) -> tuple[Int8Case, ...]:
    """Return the shapes to measure, weight by weight, so that torch compiles once for each."""
    return tuple(
        Int8Case(label=f"{model.model} {shape.op}", m=size, n=shape.n, k=shape.k)
        for model in models
        for shape in model.shapes
        for size in sorted(set(m))
    )


def race_int8(
    cases: Sequence[Int8Case], *, kernels: str = "", seconds: float, device: str = "cuda"
) -> Iterator[Race]:
    """Yield each case measured, once all results have been compared with float64."""
    last = None
    for case in cases:
        if (case.n, case.k) != last:
            forget_compiled()
        last = (case.n, case.k)
        yield _race(case, kernels, seconds, device)
        if device == "cuda":
            torch.cuda.empty_cache()
    forget_compiled()


def _race(case: Int8Case, kernels: str, seconds: float, device: str) -> Race:
    shape = (case.m, case.n, case.k)
    whole = make_task(*shape, torch.int8, device=device)
    entrants = Entrants()
    entrants.torch(TORCH, whole, compiled_arm(whole))
    entrants.ours(OURS, whole, kernels)
    entrants.ours(BF16, make_task(*shape, torch.bfloat16, device=device), kernels)
    return entrants.race(SECTION, case.label, shape, seconds=seconds)


def run_int8(
    models: Sequence[str],
    *,
    m: Sequence[int] | None = None,
    json_path: Path | None = None,
    seconds_per_shape: float = 0.7,
    kernels: Path | str | None = None,
    progress: Callable[[str], None] = lambda line: None,
    building: Progress | None = None,
) -> RaceReport:
    """Return the measured shapes of models in int8; arguments are those of ``run_bench``.

    Raises:
        ConfigError: where a model or the configuration cannot be read.
        MeasureError: where ``m`` is none that can be measured.
        NoDeviceError: where there is no GPU.
        CompileError, ToolchainError: where a kernel is missing and cannot be built.
    """
    cases = plan_int8([load_model(model) for model in models], checked_tokens(m) or DEFAULT_M)
    require_gpu()
    own = None if kernels is None else gemmsmith.load(kernels)
    (own or default_kernels(detect_architecture().name)).build(progress=building)
    return run_races(
        race_int8(cases, kernels="" if own is None else own.handle, seconds=seconds_per_shape),
        environment=environment_here(),
        notes=NOTES,
        rivalries=RIVALRIES,
        json_path=json_path,
        progress=progress,
    )
