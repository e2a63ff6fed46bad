"""What ``gemmsmith bench`` does once its arguments are read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from gemmsmith.cli.options import print_json

if TYPE_CHECKING:
    from gemmsmith.bench.gemm import BenchReport
    from gemmsmith.bench.race import RaceReport


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """The arguments of ``gemmsmith bench``."""

    source: Path | None
    models: tuple[str, ...]
    dtype: str | None
    m: tuple[int, ...] | None
    seconds: float | None
    output: Path | None
    all_kernels: bool
    compact: bool
    as_json: bool


def print_self_test(*, as_json: bool) -> None:
    """Print what the harness measures where the answer is known; end with 1 if it is wrong."""
    from gemmsmith.bench.gemm import self_test

    tested = self_test()
    if as_json:
        print_json({**asdict(tested), "passed": tested.passed})
    else:
        typer.echo(str(tested))
    raise typer.Exit(0 if tested.passed else 1)


def print_measured(asked: Measurement) -> None:
    """Measure and print the report; end with 1 where a result is wrong."""
    from gemmsmith.dtypes import INT8, parse_dtype

    try:
        whole = asked.dtype is not None and parse_dtype(asked.dtype) == INT8
    except KeyError:
        whole = False  # told where the other types are checked
    report, text = _int8(asked) if whole else _gemms(asked)
    if asked.as_json:
        print_json(report.as_json())
    else:
        typer.echo(text(asked.compact))
    if report.wrong:
        raise typer.Exit(1)


def _gemms(asked: Measurement) -> tuple[BenchReport, Callable[[bool], str]]:
    from gemmsmith.bench.gemm import run_bench
    from gemmsmith.bench.report_text import compact_report, full_report

    report = run_bench(
        asked.models, dtype=asked.dtype, all_kernels=asked.all_kernels, **_common(asked, 1.5)
    )
    return report, lambda compact: compact_report(report) if compact else full_report(report)


def _int8(asked: Measurement) -> tuple[RaceReport, Callable[[bool], str]]:
    from gemmsmith.bench.int8 import run_int8
    from gemmsmith.bench.race_text import race_report

    _refuse_all_kernels(asked, "int8")
    report = run_int8(asked.models, **_common(asked, 0.7))
    return report, lambda compact: race_report(report, compact=compact)


def _common(asked: Measurement, seconds: float) -> dict[str, Any]:
    from gemmsmith.progress import ConsoleProgress

    return {
        "m": asked.m,
        "json_path": asked.output,
        "seconds_per_shape": seconds if asked.seconds is None else asked.seconds,
        "kernels": asked.source,
        "progress": lambda line: typer.echo(line, err=True),
        "building": ConsoleProgress(),
    }


def _refuse_all_kernels(asked: Measurement, what: str) -> None:
    from gemmsmith.errors import MeasureError

    if asked.all_kernels:
        raise MeasureError(
            f"--all-kernels goes with bf16 and fp16, not with {what}: benchmarks/sweep.py times"
            " single kernels of every kind"
        )
