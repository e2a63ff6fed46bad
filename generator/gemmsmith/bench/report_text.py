"""Benchmark reports as text: tables that read alike in a terminal and as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from gemmsmith.bench.report import BenchReport, BenchRow, summaries
from gemmsmith.bench.rounds import Comparison


class Timed(Protocol):
    """What was measured at one shape."""

    @property
    def comparison(self) -> Comparison: ...


def full_report(report: BenchReport) -> str:
    """Return every shape with its times, then groups, losses and faults."""
    parts = [
        str(report.environment),
        power_line(report.rows),
        "Ratio: torch's time over ours, above 1 gemmsmith is faster [95 % interval of the median].",
        _shapes(report.rows),
        _groups(report.rows),
        _losses(report),
        _faults(report),
    ]
    return "\n\n".join(part for part in parts if part)


def compact_report(report: BenchReport) -> str:
    """Return torch's time over ours for each weight (lines) and M (columns), and the groups."""
    sizes = sorted({row.m for row in report.rows})
    weights = list(dict.fromkeys((r.model, r.op, r.n, r.k, r.dtype) for r in report.rows))
    cells = {(r.model, r.op, r.n, r.k, r.dtype, r.m): _cell(r) for r in report.rows}
    head = ["torch / ours", "N", "K", "dtype", *(f"M={m}" for m in sizes)]
    lines = [
        [f"{model} {op}", str(n), str(k), dtype]
        + [cells.get((model, op, n, k, dtype, m), "") for m in sizes]
        for model, op, n, k, dtype in weights
    ]
    parts = [str(report.environment), table(head, lines), _groups(report.rows)]
    return "\n\n".join(part for part in parts if part)


def table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table whose columns are aligned; all but the first to the right."""
    widths = [max(len(row[i]) for row in [head, *lines]) for i in range(len(head))]

    def line(cells: Sequence[str]) -> str:
        first = cells[0].ljust(widths[0])
        rest = [cell.rjust(width) for cell, width in zip(cells[1:], widths[1:], strict=True)]
        return "| " + " | ".join([first, *rest]) + " |"

    rule = "|:" + "-" * (widths[0] + 1) + "|" + "|".join("-" * (w + 1) + ":" for w in widths[1:])
    return "\n".join([line(head), rule + "|", *(line(cells) for cells in lines)])


def row_line(row: BenchRow) -> str:
    """Return one shape in one line, for progress."""
    if row.ratio is None or row.ours_us is None:
        return f"{row.label}: torch {row.torch_us:.1f} µs, ours: {_absence(row)}"
    best = row.best
    tail = f"; best {best[0]} {best[1].median:.3f}" if best else ""
    return (
        f"{row.label}: torch {row.torch_us:.1f} µs, ours {row.ours_us:.1f} µs, "
        f"ratio {row.ratio}, {row.kernel}{tail}"
    )


def power_line(rows: Sequence[Timed]) -> str:
    """Return the range of clocks, power and temperature that the GPU had during the run."""
    readings = [reading for row in rows for reading in row.comparison.readings]
    columns: dict[str, Sequence[float | None]] = {
        "SM clock {} MHz": [r.sm_clock_mhz for r in readings],
        "memory clock {} MHz": [r.memory_clock_mhz for r in readings],
        "power {} W": [r.power_watts for r in readings],
        "temperature {} °C": [r.temperature_c for r in readings],
    }
    told = []
    for words, values in columns.items():
        known = [value for value in values if value is not None]
        if known:
            low, high = f"{min(known):.0f}", f"{max(known):.0f}"
            told.append(words.format(low if low == high else f"{low} to {high}"))
    return "During the run: " + ", ".join(told) if told else ""


def _shapes(rows: Sequence[BenchRow]) -> str:
    with_best = any(row.best for row in rows)
    head = ["shape", "M", "N", "K", "dtype", "torch µs", "ours µs", "ratio", "TFLOP/s", "GB/s"]
    head += ["kernel"] + (["best kernel", "best ratio"] if with_best else [])
    return table(head, [_shape(row, with_best) for row in rows])


def _shape(row: BenchRow, with_best: bool) -> list[str]:
    cells = [f"{row.model} {row.op}", str(row.m), str(row.n), str(row.k), row.dtype]
    cells.append(f"{row.torch_us:.1f}")
    if row.ours_us is None:
        cells += ["", _absence(row), "", "", row.kernel]
    else:
        cells += [
            f"{row.ours_us:.1f}",
            str(row.ratio) + ("" if row.comparison.converged else " ~"),
            f"{row.flops / row.ours_us / 1e6:.1f}",
            f"{row.bytes / row.ours_us / 1e3:.0f}",
            row.kernel,
        ]
    if with_best:
        cells += [row.best[0], str(row.best[1])] if row.best else ["", ""]
    return cells


def _absence(row: BenchRow) -> str:
    return "no kernel" if row.missing else "WRONG"


def _cell(row: BenchRow) -> str:
    return _absence(row) if row.ratio is None else f"{row.ratio.median:.3f}"


def _groups(rows: Sequence[BenchRow]) -> str:
    found = summaries(rows)
    if not found:
        return ""
    with_best = any(group.best_geomean is not None for group in found)
    head = ["group", "geomean", "worst", "worst shape", "shapes"]
    head += ["geomean of best"] if with_best else []
    lines = []
    for group in found:
        ratio = group.worst.ratio
        without = f" (+{group.without} without)" if group.without else ""
        cells = [group.name, f"{group.geomean:.3f}", f"{ratio.median:.3f}" if ratio else ""]
        cells += [group.worst.label, f"{group.count}{without}"]
        if with_best:
            cells.append("" if group.best_geomean is None else f"{group.best_geomean:.3f}")
        lines.append(cells)
    return table(head, lines)


def _losses(report: BenchReport) -> str:
    if not report.losses:
        return "Where we lose: nowhere."
    lines = [
        [row.label, _cell(row), row.kernel, f"{row.best[0]} {row.best[1]}" if row.best else ""]
        for row in report.losses
    ]
    return "Where we lose:\n\n" + table(["shape", "ratio", "kernel", "best kernel"], lines)


def _faults(report: BenchReport) -> str:
    lines = [f"- {row.label}: {arm}: {why}" for row, arm, why in report.wrong]
    lines += [f"- {row.label}: no kernel: {row.missing}" for row in report.rows if row.missing]
    return "Not timed:\n\n" + "\n".join(lines) if lines else ""
