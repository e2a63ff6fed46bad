"""What ``gemmsmith bench`` does once its arguments are read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import typer

from gemmsmith.cli.options import check_output, compiled_of, print_json

if TYPE_CHECKING:
    from gemmsmith.bench.gemm import BenchReport
    from gemmsmith.bench.grid import GridReport
    from gemmsmith.bench.race import RaceReport

    Measured: TypeAlias = tuple[BenchReport | GridReport | RaceReport, Callable[[bool], str]]
    """A report, and what makes text of it, compact or whole."""

_MODELS = ("llama3-8b",)


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """The arguments of ``gemmsmith bench``."""

    source: Path | None
    models: tuple[str, ...]
    """Empty for the default."""
    grid: str | None
    ffn: str | None
    epilogues: str | None
    layer: str | None
    attention: bool
    dtype: str | None
    m: tuple[int, ...] | None
    seconds: float | None
    output: Path | None
    all_kernels: bool
    constant_b: bool
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
    """Measure and print the report; end with 1 where a result is wrong.

    Raises:
        MeasureError: where the arguments do not go together.
        ConfigError, BundleError: where the kernels cannot be read.
    """
    way = _way(asked)
    if asked.source is not None:
        compiled_of(asked.source, None)  # as far as it can be judged without the GPU that may lack
    if asked.output is not None:
        check_output("-o", asked.output, makes_folders=True)
    report, text = way(asked)
    if asked.as_json:
        print_json(report.as_json())
    else:
        typer.echo(text(asked.compact))
    if report.wrong:
        raise typer.Exit(1)


def _way(asked: Measurement) -> Callable[[Measurement], Measured]:
    from gemmsmith.dtypes import INPUTS, INT8, parse_input
    from gemmsmith.errors import MeasureError

    if asked.constant_b and asked.grid is None:
        raise MeasureError("--constant-b goes with --grid")
    wholes = {
        "--grid": (asked.grid, _grid),
        "--ffn": (asked.ffn, _ffn),
        "--epilogues": (asked.epilogues, _epilogues),
        "--layer": (asked.layer, _layer),
        "--attention": (asked.attention or None, _attention),
    }
    for name, (value, way) in wholes.items():
        if value is not None:
            _refuse_others(name, asked)
            return way
    try:
        return _int8 if asked.dtype and parse_input(asked.dtype) == INT8 else _gemms
    except KeyError:
        legal = ", ".join(known.name for known in INPUTS)
        raise MeasureError(f"--dtype {asked.dtype}: use one of {legal}") from None


def _refuse_others(name: str, asked: Measurement) -> None:
    from gemmsmith.errors import MeasureError

    given = {
        "a file of kernels": asked.source,
        "--model": asked.models,
        "--dtype": asked.dtype,
        "--grid": asked.grid,
        "--ffn": asked.ffn,
        "--epilogues": asked.epilogues,
        "--layer": asked.layer,
        "--attention": asked.attention,
        "--all-kernels": asked.all_kernels,
    }
    del given[name]
    others = [other for other, value in given.items() if value]
    if others:
        raise MeasureError(f"{name} names all that is measured: leave out {', '.join(others)}")


def _gemms(asked: Measurement) -> Measured:
    from gemmsmith.bench.gemm import run_bench
    from gemmsmith.bench.report_text import compact_report, full_report

    report = run_bench(
        asked.models or _MODELS,
        dtype=asked.dtype,
        all_kernels=asked.all_kernels,
        kernels=asked.source,
        **_common(asked, 1.5),
    )
    return report, lambda compact: compact_report(report) if compact else full_report(report)


def _int8(asked: Measurement) -> Measured:
    from gemmsmith.bench.int8 import run_int8
    from gemmsmith.bench.race_text import race_report
    from gemmsmith.errors import MeasureError

    if asked.all_kernels:
        raise MeasureError(
            "--all-kernels goes with bf16 and fp16: benchmarks/sweep.py times single int8 kernels"
        )
    report = run_int8(asked.models or _MODELS, kernels=asked.source, **_common(asked, 0.7))
    return report, lambda compact: race_report(report, compact=compact)


def _grid(asked: Measurement) -> Measured:
    from gemmsmith.bench.grid import SECONDS, grid_text, run_grid

    report = run_grid(str(asked.grid), constant_b=asked.constant_b, **_common(asked, SECONDS))
    return report, lambda compact: grid_text(report, compact=compact)


def _ffn(asked: Measurement) -> Measured:
    from gemmsmith.bench.ffn import run_ffn
    from gemmsmith.bench.race_text import race_report

    report = run_ffn(str(asked.ffn), **_common(asked, 1.0))
    return report, lambda compact: race_report(report, compact=compact)


def _epilogues(asked: Measurement) -> Measured:
    from gemmsmith.bench.epilogues import run_epilogues
    from gemmsmith.bench.race_text import race_report

    report = run_epilogues(str(asked.epilogues), **_common(asked, 1.0))
    return report, lambda compact: race_report(report, compact=compact)


def _layer(asked: Measurement) -> Measured:
    from gemmsmith.bench.layer import run_layer
    from gemmsmith.bench.race_text import race_report

    report = run_layer(str(asked.layer), **_common(asked, 2.0))
    return report, lambda compact: race_report(report, compact=compact)


def _attention(asked: Measurement) -> Measured:
    from gemmsmith.bench.attention import SECONDS, run_attention
    from gemmsmith.bench.race_text import race_report
    from gemmsmith.errors import MeasureError

    common = _common(asked, SECONDS)
    if common.pop("m"):
        raise MeasureError("--attention has numbers of tokens of its own: leave out --m")
    report = run_attention(**common)
    return report, lambda compact: race_report(report, compact=compact)


def _common(asked: Measurement, seconds: float) -> dict[str, Any]:
    from gemmsmith.progress import ConsoleProgress

    return {
        "m": asked.m,
        "json_path": asked.output,
        "seconds_per_shape": seconds if asked.seconds is None else asked.seconds,
        "progress": lambda line: typer.echo(line, err=True),
        "building": ConsoleProgress(),
    }
