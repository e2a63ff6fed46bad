"""Tuned tables of several runs become one, whatever torch's own time was in each."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest

from gemmsmith.tuned import TORCH, identified
from gemmsmith.tuned_file import read_table
from tuned_data import FAST, SLOW, SPLIT, entry, table, timing

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "benchmarks"))
import join

SHIPPED = {identified(spec) for spec in (FAST, SLOW, SPLIT)}


def ratios(found: Any) -> dict[str, float]:
    return {each.kernel: each.ratio for each in found.timings}


def test_a_run_in_which_torch_was_slow_does_not_favour_what_it_alone_timed() -> None:
    usual = {f"kernel {place}": -0.02 * place for place in range(12)}
    slow = {kernel: ratio + 0.2 for kernel, ratio in usual.items()} | {"new": 0.18}
    found = join.levels([usual, slow])
    assert max(found, key=found.__getitem__) == "kernel 0"
    assert found["kernel 0"] - found["kernel 5"] == pytest.approx(0.1, abs=1e-6)
    assert 0 < found["kernel 0"] - found["new"] < 0.02  # by 0.02 in the run that has both


def test_one_run_out_of_three_is_outvoted() -> None:
    usual = {"a": 0.0, "b": -0.02}
    found = join.levels([usual, usual, {"a": -0.2, "b": -0.02}])
    assert found["a"] > found["b"]


def test_an_entry_of_one_run_stays_as_it_is() -> None:
    alone = entry([timing(FAST, 1.2, low=1.19, high=1.21)])
    assert join.joined([alone], [], SHIPPED) == alone


def test_knobs_and_torchs_time_are_the_last_runs_and_intervals_are_gone() -> None:
    first = entry([timing(FAST, 1.1, low=1.05, high=1.15), timing(SLOW, 1.0)])
    second = entry([timing(FAST, 1.1, raster=2, swizzle=4), timing(SLOW, 1.0)])
    found = join.joined([first, second], [], SHIPPED)
    assert found.winner == identified(FAST)
    best = found.timings[0]
    assert (best.raster, best.swizzle, best.low, best.high) == (2, 4, None, None)
    assert best.us == pytest.approx(found.torch / best.ratio, rel=1e-3)


def test_grids_are_runs_too_and_may_leave_a_call_to_torch() -> None:
    tuned = entry([timing(FAST, 1.02), timing(SLOW, 0.9)])
    cell = {identified(FAST): math.log(0.95)}
    found = join.joined([tuned], [cell, cell], SHIPPED)
    assert found.winner == TORCH
    assert 0.95 <= ratios(found)[identified(FAST)] < 0.995


def test_files_are_joined_by_key_and_grid_cells_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(join, "load_specs", lambda _: (FAST, SLOW, SPLIT))
    one = table(tmp_path / "1.yaml", entry([timing(FAST, 1.2)]), entry([timing(SLOW, 1.1)], m=128))
    two = table(tmp_path / "2.yaml", entry([timing(FAST, 1.0), timing(SLOW, 1.1)]))
    known = entry()
    row = {"n": known.n, "k": known.k, "m": known.m, "dtype": known.a}
    rows = [
        row | {"kernel": SLOW.name, "ratio": {"median": 1.3}, "best": None},
        row | {"m": 1, "kernel": "another", "ratio": {"median": 2.0}, "best": None},
    ]
    grid = tmp_path / "grid.json"
    grid.write_text(json.dumps({"constant_b": False, "rows": rows}))
    out = tmp_path / "joined.yaml"
    monkeypatch.setattr(
        sys, "argv", ["join.py", str(one), str(two), "--grid", str(grid), "-o", str(out)]
    )
    join.main()
    assert "2 entries of 2 tables" in capsys.readouterr().out
    by_m = {each.m: each for each in read_table(out).entries}
    assert by_m[known.m].winner == identified(SLOW)
    assert by_m[128] == read_table(one).entries[1]


def test_what_is_no_table_of_this_gpu_and_no_grid_is_refused(tmp_path: Path) -> None:
    one = table(tmp_path / "1.yaml", entry())
    other = table(tmp_path / "2.yaml", entry(), gpu="NVIDIA H100", sm_count=114)
    words = (
        "2.yaml is of NVIDIA H100 with 114 multiprocessors, sm_90a; the first table is of NVIDIA"
    )
    with pytest.raises(SystemExit, match=words):
        join.read_tables([one, other])
    with pytest.raises(SystemExit, match=r"none\.yaml: cannot be read"):
        join.read_tables([tmp_path / "none.yaml"])
    grid = tmp_path / "grid.json"
    for text in ("", "{}", "[1]"):
        grid.write_text(text)
        with pytest.raises(SystemExit, match=r"grid.json: what gemmsmith bench --grid llm"):
            join.grid_cells(grid, SHIPPED)
