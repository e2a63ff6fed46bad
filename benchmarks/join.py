"""Joins the tuned tables of several runs, so that no single machine decides what ships.

    python benchmarks/join.py run1.yaml run2.yaml --grid grid.json -o configs/tuned/nvidia-h200.yaml

torch's own time differs by up to 10 % between two H200s, and a kernel may be timed in some runs
only. So the logarithm of a ratio is taken as what the kernel gives plus what the run gives, both
found together: a kernel's is the median over its runs, a run's the mean of what is left. Cells of
``bench --grid llm --output`` count as one more run each. Of entries that one run has, nothing
changes. The head is that of the last table.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

from gemmsmith.config import load_specs
from gemmsmith.errors import GemmsmithError
from gemmsmith.resources import configs_dir
from gemmsmith.tuned import Entry, Key, Table, Timing, identified, winner_of
from gemmsmith.tuned_file import read_table, write_table
from gemmsmith.tuned_values import PLAIN

Run = Mapping[str, float]
"""Kernel -> logarithm of torch's time over the kernel's."""

PASSES = 60  # medians and means settle long before
FEW = 2.0  # kernels that a run must have beyond these before it explains most of a difference
LISTED = 16  # timings that an entry keeps: the fastest four, and of the kernels that ship ...
WORTH_LISTING = 0.8  # ... those no slower than this share of the fastest


def levels(runs: Sequence[Run]) -> dict[str, float]:
    """Return each kernel's logarithm of torch's time over its own, on the average machine."""
    offsets = [0.0] * len(runs)
    found: dict[str, float] = {}
    for _ in range(PASSES):
        for kernel in sorted({kernel for run in runs for kernel in run}):
            seen = [
                run[kernel] - offset
                for run, offset in zip(runs, offsets, strict=True)
                if kernel in run
            ]
            found[kernel] = statistics.median(seen)
        offsets = [
            sum(run[kernel] - found[kernel] for kernel in run) / (len(run) + FEW) for run in runs
        ]
        middle = statistics.fmean(offsets)
        offsets = [offset - middle for offset in offsets]
    return found


def joined(entries: Sequence[Entry], cells: Sequence[Run], shipped: Collection[str]) -> Entry:
    """Return one entry for those that tables have of one key, and for cells of grids.

    Knobs and torch's time are of the last table that has them. Intervals, which hold within one
    run, are left out.
    """
    last = entries[-1]
    runs: list[Run] = [
        {each.kernel: math.log(each.ratio) for each in entry.timings} for entry in entries
    ]
    if len(runs) + len(cells) == 1:
        return last
    latest = {each.kernel: each for entry in entries for each in entry.timings}
    known = [
        {kernel: ratio for kernel, ratio in cell.items() if kernel in latest} for cell in cells
    ]
    ratios = {
        kernel: math.exp(level) for kernel, level in levels([*runs, *filter(None, known)]).items()
    }
    order = sorted(ratios, key=lambda kernel: (-round(ratios[kernel], 4), kernel))
    kept = [
        kernel
        for place, kernel in enumerate(order)
        if place < 4 or (kernel in shipped and ratios[kernel] >= WORTH_LISTING * ratios[order[0]])
    ]
    timings = tuple(_timing(latest[kernel], ratios[kernel], last.torch) for kernel in kept[:LISTED])
    return last.model_copy(update={"timings": timings, "winner": winner_of(timings)})


def _timing(measured: Timing, ratio: float, torch: float) -> Timing:
    change = {"ratio": round(ratio, 4), "us": round(torch / ratio, 3), "low": None, "high": None}
    return measured.model_copy(update=change)


def grid_cells(path: Path, shipped: Iterable[str]) -> dict[Key, Run]:
    """Return what a grid's JSON says of kernels that ship, by the entry that it is about.

    Raises:
        SystemExit: where the file is no grid.
    """
    names = {kernel.partition("@")[0]: kernel for kernel in shipped}
    cells: dict[Key, Run] = {}
    try:
        grid = json.loads(path.read_text())
        epilogue = "constant" if grid["constant_b"] else PLAIN
        for row in grid["rows"]:
            best = row["best"] or {"kernel": "", "ratio": None}
            timed = ((row["kernel"], row["ratio"]), (best["kernel"], best["ratio"]))
            run = {
                names[kernel]: math.log(ratio["median"])
                for kernel, ratio in timed
                if ratio is not None and kernel in names
            }
            types = {"a": row["dtype"], "d": row["dtype"], "layout": "rcr", "epilogue": epilogue}
            if run:
                cells[Key(n=row["n"], k=row["k"], m=row["m"], **types)] = run
    except (OSError, ValueError, LookupError, TypeError) as error:
        wanted = "what gemmsmith bench --grid llm --output writes is needed"
        raise SystemExit(f"error: {path}: {wanted} ({error!r})") from None
    return cells


def read_tables(paths: Iterable[Path]) -> list[Table]:
    """Return the tables of files, all of one GPU.

    Raises:
        SystemExit: where one cannot be read, or is of another GPU than the first.
    """
    tables: list[Table] = []
    for path in paths:
        try:
            tables.append(read_table(path))
        except GemmsmithError as error:
            raise SystemExit(f"error: {error}") from None
        of, first = (
            f"{made.gpu} with {made.sm_count} multiprocessors, {made.arch}"
            for made in (tables[-1].made, tables[0].made)
        )
        if of != first:
            raise SystemExit(f"error: {path} is of {of}; the first table is of {first}")
    return tables


def main() -> None:
    """Read the tables and grids, and write the joined table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tables", nargs="+", type=Path, help="YAML files, the oldest first")
    parser.add_argument("--grid", action="append", default=[], type=Path, help="JSON of a grid")
    parser.add_argument("-o", type=Path, required=True, help="YAML file to write")
    arguments = parser.parse_args()
    shipped = {identified(spec) for spec in load_specs(configs_dir() / "kernels")}
    tables = read_tables(arguments.tables)
    grids = [grid_cells(path, shipped) for path in arguments.grid]
    by_key: dict[Key, list[Entry]] = {}
    for table in tables:
        for entry in table.entries:
            by_key.setdefault(entry.key, []).append(entry)
    entries = [
        joined(found, [grid[key] for grid in grids if key in grid], shipped)
        for key, found in by_key.items()
    ]
    try:
        write_table(arguments.o, Table(made=tables[-1].made, entries=tuple(entries)))
    except OSError as error:
        raise SystemExit(f"error: {arguments.o} cannot be written: {error.strerror}") from None
    print(f"{len(entries)} entries of {len(tables)} tables: {arguments.o}")


if __name__ == "__main__":
    main()
