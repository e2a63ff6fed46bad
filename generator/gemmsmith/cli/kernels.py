"""Verbs about compiled kernels: ``build``, ``inspect``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from gemmsmith.cli.options import (
    Archs,
    AsJson,
    Names,
    Source,
    print_json,
    print_table,
    specs_of,
)

if TYPE_CHECKING:
    from gemmsmith.cache import CachedKernel
    from gemmsmith.card import Card


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
        specs_of(source, arch, kernel),
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
    """Show what the compiled kernels turned out to be: registers, spills, instructions."""
    from gemmsmith.lookup import find_cached

    specs = specs_of(source, arch, kernel)
    found = find_cached(specs)
    missing = [spec.name for spec in specs if spec not in found]
    if as_json:
        print_json(
            {
                "cards": [_inspected(kernel) for kernel in found.values()],
                "not_built": missing,
            }
        )
    elif found:
        print_table(
            (
                "KERNEL",
                "REGISTERS",
                "SPILLS",
                "SHARED",
                "THREADS",
                "STAGES",
                "TENSOR CORES",
                "COMPILED",
            ),
            (_row(kernel.card) for kernel in found.values()),
        )
    if missing and not as_json:
        typer.echo(f"{len(missing)} of {len(specs)} not built yet (gemmsmith build)", err=True)


def _card(card: Card) -> dict[str, Any]:
    return {**card.as_dict(), "shared_bytes": card.shared_bytes}


def _inspected(kernel: CachedKernel) -> dict[str, Any]:
    return {**_card(kernel.card), "library": str(kernel.library)}


def _row(card: Card) -> tuple[object, ...]:
    instructions = [f"{count} {name}" for name, count in card.tensor_instructions.items()]
    found = ", ".join(instructions) or ("none" if card.sass_inspected else "not inspected")
    seconds = f"{card.compile_seconds:.1f} s"
    return (
        card.name,
        card.registers,
        f"{card.spill_store_bytes + card.spill_load_bytes:,} B",
        f"{card.shared_bytes:,} B",
        card.threads,
        card.stages,
        found,
        seconds + (f" with {card.compiled_with - 1} more" if card.compiled_with > 1 else ""),
    )


VERBS = {"build": build_kernels, "inspect": inspect}
