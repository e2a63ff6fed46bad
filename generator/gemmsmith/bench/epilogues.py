"""Benchmark of what an epilogue costs: bias, activation and residual beside the bare product."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from gemmsmith.bench.environment import environment_here
from gemmsmith.bench.gemm import checked_tokens
from gemmsmith.bench.gpu import require_gpu
from gemmsmith.bench.model_shapes import ModelShapes, load_model
from gemmsmith.bench.race import Entrants, Race, RaceReport, Rivalry
from gemmsmith.bench.race_run import run_races
from gemmsmith.bench.tasks import make_task
from gemmsmith.kernelset import default_kernels
from gemmsmith.nvml import detect_architecture
from gemmsmith.progress import Progress

DEFAULT_M = (512, 2048, 8192)
BARE, FULL = "bare", "with epilogue"
SECTION = "epilogue"
ADDED, EXTRA = "added bytes µs", "extra %"
RIVALRIES = (Rivalry(section=SECTION, over=BARE, under=FULL, groups=("M >= 512", "all")),)
NOTES = (
    "bare: gemmsmith.gemm(x, w.T) in bf16; with epilogue: gelu(x @ w.T + bias) + residual, each by"
    " the kernel that gemmsmith chooses. added bytes µs: the time that reading residual and bias"
    " takes at the copy bandwidth above. extra %: what the epilogue takes beyond that, of the bare"
    " product's time."
)


def race_epilogues(
    model: ModelShapes,
    m: Sequence[int],
    *,
    copy_gbs: float,
    seconds: float,
    device: str = "cuda",
) -> Iterator[Race]:
    """Yield each shape measured, once both results have been compared with float64."""
    for size in sorted(set(m)):
        for shape in model.shapes:
            label = f"{model.model} {shape.op}"
            yield _race(label, (size, shape.n, shape.k), copy_gbs, seconds, device)
            if device == "cuda":
                torch.cuda.empty_cache()


def _race(
    label: str, shape: tuple[int, int, int], copy_gbs: float, seconds: float, device: str
) -> Race:
    full = make_task(
        *shape, torch.bfloat16, activation="gelu", bias=True, residual=True, device=device
    )
    entrants = Entrants()
    entrants.ours(BARE, replace(full, activation="none", bias=None, residual=None))
    entrants.ours(FULL, full)
    race = entrants.race(SECTION, label, shape, seconds=seconds)
    return replace(race, figures=costs(race, copy_gbs))


def costs(race: Race, copy_gbs: float) -> dict[str, float]:
    """Return the time of the added bytes, and what the epilogue takes beyond it."""
    added = 2 * (race.m * race.n + race.n) / copy_gbs / 1e3
    bare, ratio = race.microseconds(BARE), race.ratio(FULL, BARE)
    if bare is None or ratio is None:
        return {ADDED: added}
    return {ADDED: added, EXTRA: 100 * (ratio.median - 1 - added / bare)}


def run_epilogues(
    model: str,
    *,
    m: Sequence[int] | None = None,
    json_path: Path | None = None,
    seconds_per_shape: float = 1.0,
    progress: Callable[[str], None] = lambda line: None,
    building: Progress | None = None,
) -> RaceReport:
    """Return what epilogues cost at a model's shapes; arguments are those of ``run_bench``.

    Raises:
        ConfigError: where the model cannot be read.
        MeasureError: where ``m`` is none that can be measured.
        NoDeviceError: where there is no GPU.
        CompileError, ToolchainError: where a kernel is missing and cannot be built.
    """
    shapes, tokens = load_model(model), checked_tokens(m) or DEFAULT_M
    require_gpu()
    default_kernels(detect_architecture().name).build(progress=building)
    environment = environment_here()
    return run_races(
        race_epilogues(shapes, tokens, copy_gbs=environment.copy_gbs, seconds=seconds_per_shape),
        environment=environment,
        notes=NOTES,
        rivalries=RIVALRIES,
        json_path=json_path,
        progress=progress,
    )
