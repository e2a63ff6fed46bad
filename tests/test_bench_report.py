"""The figures of a benchmark of products, and how they are told."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from gemmsmith.bench.report import BenchReport, BenchRow, geomean, summaries
from gemmsmith.bench.report_text import compact_report, full_report, power_line, row_line, table
from gemmsmith.bench.rounds import Comparison
from gemmsmith.nvml import Reading
from race_data import ENVIRONMENT

COLD = Reading(sm_clock_mhz=1980, memory_clock_mhz=3201, power_watts=120.4, temperature_c=35)
HOT = Reading(sm_clock_mhz=1710, memory_clock_mhz=3201, power_watts=698.6, temperature_c=None)
EDITED = replace(ENVIRONMENT, commit="abc123+")


def row(
    m: int,
    times: Mapping[str, float | Sequence[float]],
    *,
    op: str = "qkv",
    wrong: Mapping[str, str] | None = None,
    missing: str = "",
) -> BenchRow:
    samples = {
        arm: tuple(us) if isinstance(us, Sequence) else (float(us),) * 6
        for arm, us in times.items()
    }
    return BenchRow(
        model="tiny",
        op=op,
        m=m,
        n=1000,
        k=500,
        dtype="bf16",
        element_bytes=2,
        comparison=Comparison(
            samples=samples, baseline="torch", converged=True, seconds=1.0, readings=(COLD, HOT)
        ),
        kernel="k1" if "gemmsmith" in times else "",
        wrong=wrong or {},
        missing=missing,
    )


ROWS = (
    row(1, {"torch": 12.0, "gemmsmith": 10.0, "k1": 10.0, "k2": 8.0}),
    row(64, {"torch": 9.0, "gemmsmith": 10.0, "k1": 10.0, "k2": 12.0}),
    row(512, {"torch": 30.0, "gemmsmith": 40.0, "k1": 40.0, "k2": 30.0}),
    row(2048, {"torch": 110.0, "gemmsmith": 100.0, "k1": 100.0, "k2": 200.0}),
)
REPORT = BenchReport(environment=EDITED, rows=ROWS)


def test_row_arithmetic() -> None:
    first = ROWS[0]
    assert (first.torch_us, first.ours_us) == (12.0, 10.0)
    assert first.ratio is not None
    assert first.ratio.median == pytest.approx(1.2)
    assert first.best is not None
    assert (first.best[0], first.best[1].median) == ("k2", 1.5)
    assert first.flops == 2 * 1 * 1000 * 500
    assert first.bytes == 2 * (500 + 500_000 + 1000)
    assert not first.loses
    assert ROWS[1].loses


def test_a_loss_is_one_whose_interval_lies_below_one() -> None:
    doubtful = row(1, {"torch": [9.0, 11, 9, 9, 9, 9], "gemmsmith": 10.0})
    sure = row(1, {"torch": [9.0, 9.9, 9, 9, 9, 9], "gemmsmith": 10.0})
    assert not doubtful.loses
    assert sure.loses
    assert row(1, {"torch": 9.0}, wrong={"gemmsmith": "NaN"}).loses


def test_groups() -> None:
    found = {group.name: group for group in summaries(ROWS)}
    assert list(found) == ["M <= 64", "M 65..2047", "M >= 2048", "all"]
    assert found["M <= 64"].geomean == pytest.approx(math.sqrt(1.2 * 0.9))
    assert found["M <= 64"].best_geomean == pytest.approx(math.sqrt(1.5 * 0.9))
    assert found["M 65..2047"].geomean == pytest.approx(0.75)
    assert found["M >= 2048"].geomean == pytest.approx(1.1)
    assert found["all"].geomean == pytest.approx((1.2 * 0.9 * 0.75 * 1.1) ** 0.25)
    assert found["all"].worst is ROWS[2]
    assert (found["all"].count, found["all"].without) == (4, 0)
    assert geomean([2.0, 8.0]) == pytest.approx(4.0)


def test_shapes_without_a_result_are_counted_not_hidden() -> None:
    rows = (*ROWS[:1], row(2, {"torch": 9.0}, wrong={"gemmsmith": "k1: 3 of 9 are NaN"}))
    (small, everything) = summaries(rows)
    assert small.name == "M <= 64"
    assert (small.count, small.without) == (1, 1)
    assert everything.geomean == pytest.approx(1.2)
    text = full_report(BenchReport(environment=EDITED, rows=rows))
    assert "1 (+1 without)" in text
    assert "WRONG" in text
    assert "- tiny qkv 2x1000x500 bf16: gemmsmith: k1: 3 of 9 are NaN" in text


def test_missing_kernel_is_told() -> None:
    alone = row(1, {"torch": 9.0}, missing="no kernel for K = 7")
    assert row_line(alone) == "tiny qkv 1x1000x500 bf16: torch 9.0 µs, ours: no kernel"
    text = full_report(BenchReport(environment=EDITED, rows=(alone,)))
    assert "- tiny qkv 1x1000x500 bf16: no kernel: no kernel for K = 7" in text


def test_losses_worst_first() -> None:
    assert [lost.m for lost in REPORT.losses] == [512, 64]
    assert BenchReport(environment=EDITED, rows=ROWS[:1]).losses == ()


def test_full_report() -> None:
    text = full_report(REPORT)
    assert "NVIDIA H200, 132 SMs, driver 580.95; torch 2.11.0, CUDA 13.0" in text
    assert "gemmsmith 0.1.0 (abc123+)" in text
    line = next(line for line in text.splitlines() if line.startswith("| tiny qkv |   64 |"))
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    # 64 MFLOP and 1.192 MB in 10 µs
    assert cells == [
        *["tiny qkv", "64", "1000", "500", "bf16", "9.0", "10.0", "0.900 [0.900, 0.900]"],
        *["6.4", "119", "k1", "k1", "0.900 [0.900, 0.900]"],
    ]
    losses = text.partition("Where we lose:")[2]
    assert 0 < losses.index("tiny qkv 512x1000x500") < losses.index("tiny qkv 64x1000x500")
    assert "tiny qkv 1x1000x500" not in losses


def test_clocks_and_power_are_told() -> None:
    assert power_line(ROWS) == (
        "During the run: SM clock 1710 to 1980 MHz, memory clock 3201 MHz, "
        "power 120 to 699 W, temperature 35 °C"
    )


def test_compact_report_has_a_line_a_weight_and_a_column_an_m() -> None:
    rows = (*ROWS, row(64, {"torch": 11.0, "gemmsmith": 10.0}, op="down"))
    lines = compact_report(BenchReport(environment=EDITED, rows=rows)).splitlines()
    assert lines[2:6] == [
        "| torch / ours |    N |   K | dtype |   M=1 |  M=64 | M=512 | M=2048 |",
        "|:-------------|-----:|----:|------:|------:|------:|------:|-------:|",
        "| tiny qkv     | 1000 | 500 |  bf16 | 1.200 | 0.900 | 0.750 |  1.100 |",
        "| tiny down    | 1000 | 500 |  bf16 |       | 1.100 |       |        |",
    ]


def test_table_is_aligned() -> None:
    assert table(["a", "bbb"], [["x", "1"], ["long", "22"]]).splitlines() == [
        "| a    | bbb |",
        "|:-----|----:|",
        "| x    |   1 |",
        "| long |  22 |",
    ]


def test_json_holds_what_a_heuristic_learns_from() -> None:
    data = json.loads(json.dumps(REPORT.as_json()))
    assert data["environment"]["gpu"] == "NVIDIA H200"
    first = data["rows"][0]
    assert (first["op"], first["m"], first["n"], first["k"]) == ("qkv", 1, 1000, 500)
    assert first["kernel"] == "k1"
    assert first["best"]["kernel"] == "k2"
    assert first["ratio"] == {"median": 1.2, "low": 1.2, "high": 1.2, "rounds": 6}
    arms = first["comparison"]["arms"]
    assert {arm: arms[arm]["median_us"] for arm in arms} == {
        "torch": 12.0,
        "gemmsmith": 10.0,
        "k1": 10.0,
        "k2": 8.0,
    }
    assert first["comparison"]["readings"][1]["power_watts"] == 698.6
