"""Verbs about compiled kernels: ``build``, ``inspect``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from gemmsmith.cli.options import (
    Archs,
    AsJson,
    Names,
    Source,
    all_specs_of,
    compiled_of,
    print_json,
    print_table,
)

if TYPE_CHECKING:
    from gemmsmith.cache import CachedKernel
    from gemmsmith.card import Card
    from gemmsmith.inspection import Inspection


def build_kernels(
    source: Source = None,
    arch: Archs = None,
    kernel: Names = None,
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
    as_json: AsJson = False,
) -> None:
    """Compile what is not compiled yet; progress goes to stderr. Ends with 1 where one fails."""
    from gemmsmith.build import build
    from gemmsmith.progress import ConsoleProgress, duration

    report = build(
        all_specs_of(source, arch, kernel),
        jobs=jobs,
        progress=ConsoleProgress(),
        source="" if source is None else str(source),
    )
    if as_json:
        print_json(
            {
                "built": [
                    {
                        "name": built.spec.name,
                        "library": str(built.library),
                        "cached": built.cached,
                        "card": _card(built.card),
                    }
                    for built in report.built
                ],
                "failed": [
                    {"name": failure.spec.name, "error": str(failure.error)}
                    for failure in report.failed
                ],
                "seconds": round(report.seconds, 3),
            }
        )
    else:
        for failure in report.failed:
            typer.echo(f"{failure.spec.name} failed:\n{failure.error}\n", err=True)
        compiled = sum(not built.cached for built in report.built)
        typer.echo(
            f"{compiled} compiled, {len(report.built) - compiled} already there,"
            f" {len(report.failed)} failed, {duration(report.seconds)}"
        )
    if report.failed:
        raise typer.Exit(1)


def inspect(
    source: Source = None, arch: Archs = None, kernel: Names = None, *, as_json: AsJson = False
) -> None:
    """Show what compiled kernels turned out to be, and how many blocks a multiprocessor holds.

    For kernels that are not compiled the number of blocks is an estimate, marked with ~.
    """
    from gemmsmith.inspection import inspect_kernel

    specs, found = compiled_of(source, arch, kernel)
    seen = [inspect_kernel(spec, found[spec].card if spec in found else None) for spec in specs]
    missing = [inspection for inspection in seen if inspection.estimated]
    if as_json:
        print_json(
            {
                "cards": [
                    {
                        **_inspected(found[inspection.spec]),
                        "occupancy": inspection.occupancy_dict(),
                    }
                    for inspection in seen
                    if not inspection.estimated
                ],
                "not_built": [
                    {"name": inspection.spec.name, "occupancy": inspection.occupancy_dict()}
                    for inspection in missing
                ],
            }
        )
        return
    print_table(
        (
            "KERNEL",
            "BLOCKS",
            "LIMITED BY",
            "WARPS",
            "REGISTERS",
            "SPILLS",
            "SHARED",
            "THREADS",
            "STAGES",
            "DEPENDENT LAUNCH",
            "TENSOR CORES",
            "COMPILED",
        ),
        (_row(inspection) for inspection in seen),
    )
    if missing:
        typer.echo(
            f"{len(missing)} of {len(specs)} not built yet (gemmsmith build): ~ is an estimate",
            err=True,
        )


def _card(card: Card) -> dict[str, Any]:
    return {**card.as_dict(), "shared_bytes": card.shared_bytes}


def _inspected(kernel: CachedKernel) -> dict[str, Any]:
    return {**_card(kernel.card), "library": str(kernel.library)}


def _row(inspection: Inspection) -> tuple[object, ...]:
    use = inspection.occupancy
    mark = "~" if inspection.estimated else ""
    fit = (
        f"{mark}{use.blocks}",
        " and ".join(use.limited_by),
        f"{mark}{use.warps} of {use.warps_available}",
    )
    card = inspection.card
    if card is None:
        return (inspection.spec.name, *fit, *["-"] * 7, "no")
    instructions = [f"{count} {name}" for name, count in card.tensor_instructions.items()]
    seconds = f"{card.compile_seconds:.1f} s"
    return (
        card.name,
        *fit,
        card.registers,
        f"{card.spill_store_bytes + card.spill_load_bytes:,} B",
        f"{card.shared_bytes:,} B",
        card.threads,
        card.stages,
        "yes" if card.dependent_launch else "no",
        ", ".join(instructions) or ("none" if card.sass_inspected else "not inspected"),
        seconds + (f" with {card.compiled_with - 1} more" if card.compiled_with > 1 else ""),
    )


VERBS = {"build": build_kernels, "inspect": inspect}
