"""The verb ``matrix``: what is built of all architectures, data types and toolkits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from gemmsmith.cli.options import Archs, AsJson, Source, all_specs_of, architectures, print_json

if TYPE_CHECKING:
    from gemmsmith.matrix import Cell, Matrix


def matrix(
    source: Source = None,
    arch: Archs = None,
    run_on: Annotated[
        str | None,
        typer.Option(
            "--run-on",
            metavar="sm_90",
            help="Older architectures' kernels compiled for sm_90, to be proven on a Hopper GPU.",
            show_default=False,
        ),
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="COUNT",
            help="Compilers at once; by default as many as cores and free memory allow.",
            show_default=False,
        ),
    ] = None,
    *,
    plan: Annotated[bool, typer.Option("--plan", help="Compile nothing.")] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="A toolkit that is not here is a failure too.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Compile what is missing and show architectures, data types and toolkits, as the cache is.

    Ends with 0 where all that can be built here is built or, with --plan, can be; with 1 where a
    cell failed; with 2 where the files or options are wrong.
    """
    from gemmsmith.arch import parse_architecture
    from gemmsmith.config import skipped_entries
    from gemmsmith.matrix import make_matrix
    from gemmsmith.progress import ConsoleProgress
    from gemmsmith.rowspec import RowSpec

    found = all_specs_of(source, None, rows=False)
    specs = [spec for spec in found if not isinstance(spec, RowSpec)]
    words = architectures(arch)
    rows = None if words is None else [parse_architecture(word) for word in words]
    if rows is None and source is not None:
        rows = list({spec.arch.name: spec.arch for spec in specs}.values())
    entries = skipped_entries(source) if source is not None else ()
    made = make_matrix(
        specs,
        rows,
        plan=plan,
        run_on=run_on,
        skipped={(entry.arch.name, entry.a.name): entry.reason for entry in entries},
        jobs=jobs,
        progress=ConsoleProgress(),
    )
    if as_json:
        print_json(made.as_dict())
    else:
        _print(made)
    if made.failed or (strict and made.lacks_toolkit):
        raise typer.Exit(1)


def _print(made: Matrix) -> None:
    """Print a table with a short word in each cell, and below it why cells are not built."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, soft_wrap=True)
    dtypes = list(dict.fromkeys(cell.dtype for cell in made.cells))
    table = Table("ARCH", "CUDA", *dtypes, box=SIMPLE_HEAD, pad_edge=False)
    rows: dict[tuple[str, str], dict[str, Cell]] = {}
    for cell in made.cells:
        rows.setdefault((cell.arch, cell.toolkit), {})[cell.dtype] = cell
    for (arch, toolkit), cells in rows.items():
        table.add_row(arch, toolkit or "-", *(_word(cells[dtype]) for dtype in dtypes))
    console.print(table)
    lines: dict[str, list[str]] = {}
    for cell in made.cells:
        if cell.reason:
            because = "because " if cell.state == "skipped" else ""
            lines.setdefault(f"{cell.state}: {because}{cell.reason}", []).append(_place(cell))
        if cell.note:
            lines.setdefault(cell.note, []).append(_place(cell))
    for line, places in lines.items():
        console.print(f"{', '.join(places)}: {line}", markup=False)


def _word(cell: Cell) -> str:
    total = len(cell.built) + len(cell.missing)
    if cell.state == "built":
        return f"{total} built, {cell.seconds:.0f} s, {cell.size / 1e6:.1f} MB"
    if cell.state == "to build":
        return f"{len(cell.missing)} to build" + (
            f", {len(cell.built)} built" if cell.built else ""
        )
    if cell.state == "failed":
        return f"{len(cell.missing)} of {total} failed"
    return "skipped"


def _place(cell: Cell) -> str:
    return f"{cell.arch} {cell.dtype}"


VERBS = {"matrix": matrix}
