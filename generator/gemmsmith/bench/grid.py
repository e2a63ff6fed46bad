"""The grid that gemmsmith is judged by: three models' weights, ten numbers of tokens.

For each cell two ratios: what a user gets, where a tuned table may leave the call to torch, and
what our own best choice would give there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

import gemmsmith
from gemmsmith.bench import peers
from gemmsmith.bench.environment import environment_here
from gemmsmith.bench.gemm import (
    MEASURED_DTYPES,
    BenchCase,
    CheckedArms,
    checked_tokens,
    last_choice,
    timed_row,
    written_fault,
)
from gemmsmith.bench.model_shapes import load_model
from gemmsmith.bench.report import OURS, TORCH, BenchRow, Environment, geomean
from gemmsmith.bench.report_text import power_line, row_line, table
from gemmsmith.bench.rounds import Policy, Ratio
from gemmsmith.dtypes import BF16, FP16
from gemmsmith.errors import MeasureError, NoKernelError
from gemmsmith.kernelset import KernelSet, default_kernels
from gemmsmith.nvml import detect_architecture
from gemmsmith.progress import Progress

GRIDS = {"llm": ("llama3-8b", "llama3-70b", "qwen2.5-7b")}
"""Models of each grid, by its name."""
GRID_M = (1, 4, 16, 64, 128, 256, 512, 1024, 2048, 8192)
SECONDS = 0.8
"""Time of one cell's rounds, if nothing else is said: the whole takes some three minutes."""
_SPOTS = (1, 64, 512, 2048)  # M of fp16, for each weight in turn

BANDS: tuple[tuple[str, int, int], ...] = (
    ("M 1..16", 1, 16),
    ("M 64", 17, 64),
    ("M 128..1024", 65, 1024),
    ("M >= 2048", 1025, 1 << 40),
)


@dataclass(frozen=True, kw_only=True)
class Band:
    """The ratios of some cells: torch's time over another's."""

    name: str
    cells: int
    geomean: float
    """Of what a user gets."""
    worst: float
    worst_cell: str
    own_geomean: float
    """Of our own kernels, also where torch was the choice."""
    own_worst: float
    own_worst_cell: str
    own_share: float
    """Share of the cells in which our own kernel was the choice."""


@dataclass(frozen=True, kw_only=True)
class GridReport:
    """A finished grid."""

    environment: Environment
    rows: tuple[BenchRow, ...]
    constant_b: bool = False
    """Whether our calls promised that no queued work writes the weight."""

    @property
    def wrong(self) -> tuple[tuple[BenchRow, str, str], ...]:
        """Every (cell, arm, fault) whose result was wrong or that failed."""
        return tuple((row, arm, why) for row in self.rows for arm, why in row.wrong.items())

    @property
    def bands(self) -> tuple[Band, ...]:
        """The bands of M that have a cell, and all, in bf16."""
        rows = [row for row in self.rows if row.dtype == BF16.name]
        parts = [(name, [row for row in rows if low <= row.m <= high]) for name, low, high in BANDS]
        found = (_band(name, cells) for name, cells in [*parts, ("all", rows)])
        return tuple(band for band in found if band)

    @property
    def twins(self) -> tuple[tuple[BenchRow, float], ...]:
        """Each fp16 cell, and its ratio over that of the same cell in bf16."""
        ratios = {(r.n, r.k, r.m, r.dtype): r.ratio for r in self.rows}
        pairs = (
            (row, row.ratio, ratios.get((row.n, row.k, row.m, BF16.name)))
            for row in self.rows
            if row.dtype == FP16.name
        )
        return tuple((row, a.median / b.median) for row, a, b in pairs if a and b)

    def as_json(self) -> dict[str, Any]:
        """Return everything in plain types, all raw samples included."""
        return {
            "format": 1,
            "environment": asdict(self.environment),
            "constant_b": self.constant_b,
            "bands": [asdict(band) for band in self.bands],
            "fp16_over_bf16": [{"cell": row.label, "ratio": ratio} for row, ratio in self.twins],
            "rows": [row.as_json() for row in self.rows],
        }


def own_ratio(row: BenchRow) -> Ratio | None:
    """Return torch's time over that of our own choice; None where we have none or it is wrong."""
    if row.kernel != TORCH:
        return row.ratio
    return row.best[1] if row.best else None


def _band(name: str, rows: Sequence[BenchRow]) -> Band | None:
    given = [(row.ratio.median, row.label) for row in rows if row.ratio]
    own = [(ratio.median, row.label) for row in rows if (ratio := own_ratio(row))]
    if not given or not own:
        return None
    return Band(
        name=name,
        cells=len(rows),
        geomean=geomean(ratio for ratio, _ in given),
        worst=min(given)[0],
        worst_cell=min(given)[1],
        own_geomean=geomean(ratio for ratio, _ in own),
        own_worst=min(own)[0],
        own_worst_cell=min(own)[1],
        own_share=sum(row.kernel not in ("", TORCH) for row in rows) / len(rows),
    )


def grid_cases(grid: str, m: Sequence[int] | None = None) -> tuple[BenchCase, ...]:
    """Return the cells, small M first: bf16 everywhere, then fp16 once for each weight.

    Raises:
        MeasureError: where there is no such grid.
    """
    if grid not in GRIDS:
        raise MeasureError(f"grid {grid!r} is not known; use {', '.join(GRIDS)}")
    models = [load_model(name) for name in GRIDS[grid]]
    weights = [(model.model, shape) for model in models for shape in model.shapes]
    tokens = sorted(set(GRID_M if m is None else m))
    spots = [(model, shape, _SPOTS[at % len(_SPOTS)]) for at, (model, shape) in enumerate(weights)]
    cells = [(model, shape, size, BF16) for size in tokens for model, shape in weights]
    cells += [(model, shape, size, FP16) for model, shape, size in spots if size in tokens]
    return tuple(
        BenchCase(model=model, op=shape.op, m=size, n=shape.n, k=shape.k, dtype=dtype)
        for model, shape, size, dtype in cells
    )


def grid_arms(inputs: peers.Inputs, gemm: peers.Gemm, own: peers.Gemm) -> CheckedArms:
    """Return torch, what a user gets and, where that is torch, the choice of our own kernels.

    Each is right on NaN-poisoned memory, or among the wrong.
    """
    right = peers.reference(inputs.x, inputs.weights[0])
    arms = {TORCH: peers.torch_arm(inputs)}
    wrong: dict[str, str] = {}
    why = written_fault(gemm, inputs, right)
    kernel, reason = last_choice()
    if why:
        wrong[OURS] = f"{kernel}: {why}"
    else:
        arms[OURS] = peers.gemm_arm(gemm, inputs)
    missing = ""
    if kernel == TORCH:
        try:
            why = written_fault(own, inputs, right)
            name, _ = last_choice()
            if why:
                wrong[name] = why
            else:
                arms[name] = peers.gemm_arm(own, inputs)
        except NoKernelError as error:
            missing = f"{reason}; {error}"
    return CheckedArms(arms=arms, wrong=wrong, kernel=kernel, missing=missing)


def run_grid(
    grid: str,
    *,
    m: Sequence[int] | None = None,
    constant_b: bool = False,
    json_path: Path | None = None,
    seconds_per_shape: float = SECONDS,
    progress: Callable[[str], None] = lambda line: None,
    building: Progress | None = None,
) -> GridReport:
    """Return the measured grid of the default kernels; with ``constant_b`` calls promise that.

    Raises:
        MeasureError: where there is no such grid.
        NoDeviceError: where there is no GPU.
        CompileError, ToolchainError: where a kernel is missing and cannot be built.
    """
    cases = grid_cases(grid, checked_tokens(m))
    environment = environment_here()
    usual = default_kernels(detect_architecture().name)
    usual.build(progress=building)
    specs = [spec for spec in usual.specs if constant_b or not spec.constant_b]
    own = KernelSet(specs, arch=usual.arch, source=usual.source, supply=usual.supply)
    gemm = partial(gemmsmith.gemm, constant_b=constant_b)
    made = partial(GridReport, environment=environment, constant_b=constant_b)
    if json_path is not None:
        json_path.parent.mkdir(parents=True, exist_ok=True)
    rows: list[BenchRow] = []
    for row in _measured(cases, gemm, own.gemm, seconds_per_shape):
        rows.append(row)
        progress(row_line(row))
        if json_path is not None:
            report = made(rows=tuple(rows))
            json_path.write_text(json.dumps(report.as_json(), indent=1) + "\n", encoding="utf-8")
    return made(rows=tuple(rows))


def _measured(
    cases: Sequence[BenchCase], gemm: peers.Gemm, own: peers.Gemm, seconds: float
) -> Iterator[BenchRow]:
    for case in cases:
        inputs = peers.make_inputs(case.m, case.n, case.k, MEASURED_DTYPES[case.dtype])
        checked = grid_arms(inputs, gemm, own)
        yield timed_row(case, checked, tuple(checked.arms), Policy(seconds=seconds))
        del inputs, checked
        torch.cuda.empty_cache()


def grid_text(report: GridReport, *, compact: bool = False) -> str:
    """Return the bands, then each weight's ratios by M; ``compact`` leaves the latter out."""
    head = [
        "torch / ours, constant b" if report.constant_b else "torch / ours",
        "geomean",
        "worst",
        "at",
        "own geomean",
        "own worst",
        "at ",
        "own share",
    ]
    lines = [
        [
            f"{band.name} ({band.cells})",
            f"{band.geomean:.3f}",
            f"{band.worst:.3f}",
            band.worst_cell,
            f"{band.own_geomean:.3f}",
            f"{band.own_worst:.3f}",
            band.own_worst_cell,
            f"{band.own_share:.0%}",
        ]
        for band in report.bands
    ]
    twins = [f"{row.label}: {ratio:.3f}" for row, ratio in report.twins]
    faults = [f"- {row.label}: {arm}: {why}" for row, arm, why in report.wrong]
    faults += [f"- {row.label}: {row.missing}" for row in report.rows if row.missing]
    parts = [
        str(report.environment),
        power_line(report.rows),
        table(head, lines),
        "" if compact else _cells(report),
        "fp16's ratio over bf16's:\n" + "\n".join(twins) if twins else "",
        "Not timed:\n" + "\n".join(faults) if faults else "",
    ]
    return "\n\n".join(part for part in parts if part)


def _cells(report: GridReport) -> str:
    """A line for each weight: the user's ratio, and in brackets ours where torch was the choice."""
    rows = [row for row in report.rows if row.dtype == BF16.name]
    sizes = sorted({row.m for row in rows})
    cells = {(row.model, row.op, row.m): _cell(row) for row in rows}
    weights = dict.fromkeys((row.model, row.op, row.n, row.k) for row in rows)
    head = ["user's (own, where torch was chosen)", *(f"M={m}" for m in sizes)]
    lines = [
        [f"{model} {op} {n}x{k}", *(cells.get((model, op, m), "") for m in sizes)]
        for model, op, n, k in weights
    ]
    return table(head, lines)


def _cell(row: BenchRow) -> str:
    if row.ratio is None:
        return "WRONG"
    own = own_ratio(row) if row.kernel == TORCH else None
    return f"{row.ratio.median:.3f}" + (f" ({own.median:.3f})" if own else "")
