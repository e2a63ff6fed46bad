"""Verbs about what files ask for: ``list``, ``explain``, ``render``. No compiler, no GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gemmsmith.cli.options import (
    Archs,
    AsJson,
    Names,
    Source,
    all_specs_of,
    architectures,
    print_json,
    print_table,
    source_of,
)

if TYPE_CHECKING:
    from gemmsmith.arch import Architecture
    from gemmsmith.attn.config import AttentionEntry
    from gemmsmith.attn.explain import AttentionReport
    from gemmsmith.config import Entry
    from gemmsmith.config_asked import AskedKernel
    from gemmsmith.explain import ProblemReport, SpecReport
    from gemmsmith.render import RenderedSource
    from gemmsmith.rowspec import AnySpec
    from gemmsmith.spec import KernelSpec

_SM_COUNTS = {"sm_80": 108, "sm_90a": 132}  # A100, H100 SXM and H200


def list_kernels(source: Source = None, arch: Archs = None, *, as_json: AsJson = False) -> None:
    """List the kernels that files ask for, which of them are compiled, and which are skipped."""
    from gemmsmith.attn.config import inspect_attention
    from gemmsmith.config import inspect_file, skipped_entries
    from gemmsmith.lookup import find_cached

    specs = all_specs_of(source, arch, rows=False)
    rows = _rows(arch)
    attention = inspect_attention(source_of(source))
    entries: list[Entry | AttentionEntry] = [*inspect_file(source_of(source)), *attention]
    places: dict[str, AskedKernel] = {}
    for entry in entries:
        if entry.spec is not None:
            places.setdefault(entry.spec.name, entry)
    built = find_cached(specs)
    skipped: list[AskedKernel] = []
    skipped += skipped_entries(source_of(source), arch=architectures(arch))
    skipped += [entry for entry in attention if entry.skipped and _is_of(entry, rows)]
    if as_json:
        print_json(
            {
                "kernels": [
                    {
                        **_facts(spec),
                        "family": places[spec.name].family,
                        "file": places[spec.name].file,
                        "line": places[spec.name].line,
                        "built": spec in built,
                        "library": str(built[spec].library) if spec in built else None,
                    }
                    for spec in specs
                ],
                "skipped": [{**_place(entry), "reason": entry.reason} for entry in skipped],
            }
        )
        return
    print_table(
        ("KERNEL", "ARCH", "FAMILY", "WHERE", "BUILT"),
        (
            (
                spec.name,
                spec.arch.name,
                places[spec.name].family,
                f"{places[spec.name].file}:{places[spec.name].line}",
                "yes" if spec in built else "no",
            )
            for spec in specs
        ),
    )
    if skipped:
        typer.echo()
        print_table(
            ("SKIPPED", "FAMILY", "WHERE", "BECAUSE"),
            (
                (entry.title, entry.family, f"{entry.file}:{entry.line}", entry.reason)
                for entry in skipped
            ),
        )


def _place(entry: AskedKernel) -> dict[str, Any]:
    return {
        "title": entry.title,
        "family": entry.family,
        "file": entry.file,
        "line": entry.line,
        "arch": entry.arch.name,
    }


def _rows(words: Sequence[str] | None) -> list[Architecture] | None:
    from gemmsmith.arch import parse_architecture

    names = architectures(words)
    return None if names is None else [parse_architecture(name) for name in names]


def _is_of(entry: AskedKernel, rows: Sequence[Architecture] | None) -> bool:
    return rows is None or entry.arch in rows


def _facts(spec: AnySpec) -> dict[str, Any]:
    from gemmsmith.spec import KernelSpec
    from gemmsmith.spec_dict import spec_to_dict

    if not isinstance(spec, KernelSpec):
        known = {**spec_to_dict(spec), "dependent_launch": spec.dependent_launch}
        del known["runs_on"]
        return {"name": spec.name, **known}
    return {
        "name": spec.name,
        "arch": spec.arch.name,
        "dtype": {"a": spec.a.name, "b": spec.b.name, "acc": spec.acc.name, "d": spec.d.name},
        "layout": spec.layout,
        "tile": list(spec.tile),
        "warp": list(spec.warp) if spec.warp else None,
        "stages": spec.stages,
        "cluster": list(spec.cluster),
        "split_k": spec.split_k,
        "schedule": spec.schedule,
        "scheduler": spec.scheduler,
        "store": spec.store,
        "swap": spec.swap,
        "dependent_launch": spec.dependent_launch,
        "constant_b": spec.constant_b,
        "bias": spec.bias,
        "residual": spec.residual,
        "alignment": spec.alignment._asdict(),
    }


def explain(
    source: Source = None,
    arch: Archs = None,
    problem: Annotated[
        tuple[int, int, int] | None,
        typer.Option(
            metavar="M N K",
            help="Also how each GEMM kernel meets this problem.",
            show_default=False,
        ),
    ] = None,
    sms: Annotated[
        int | None,
        typer.Option(
            metavar="COUNT",
            help="Multiprocessors of the GPU; by default those of the GPU here, "
            "else of an A100 or H200.",
            show_default=False,
        ),
    ] = None,
    *,
    as_json: AsJson = False,
) -> None:
    """Say for each kernel why it is legal or not, what it takes, and a GEMM's waves for a problem.

    A kernel is skipped that another architecture of its entry can have and this one cannot. Ends
    with 2 where a kernel is illegal and not skipped.
    """
    from gemmsmith.attn.config import inspect_attention
    from gemmsmith.attn.explain import explain_attention
    from gemmsmith.config import inspect_file, nothing_left
    from gemmsmith.explain import explain_problem, explain_spec

    rows, place = _rows(arch), source_of(source)
    gemms, heads = inspect_file(place), inspect_attention(place)
    if rows is not None and not any(_is_of(entry, rows) for entry in (*gemms, *heads)):
        raise nothing_left(place, (*gemms, *heads), (), rows)
    entries = [entry for entry in gemms if _is_of(entry, rows)]
    results = []
    for entry in entries:
        report = met = None
        if entry.spec is not None:
            report = explain_spec(entry.spec)
            if problem is not None:
                count = _sm_count(entry.spec, sms)
                named = source is not None  # which is the promise
                met = explain_problem(entry.spec, *problem, count, constant_b=named)
        results.append((entry, report, met))
    attention = [
        (entry, explain_attention(entry.spec) if entry.spec is not None else None)
        for entry in heads
        if _is_of(entry, rows)
    ]
    if as_json:
        told = [_explained(*result) for result in results]
        print_json({"kernels": [*told, *(_explained(*result, None) for result in attention)]})
    else:
        for result in results:
            typer.echo(_explanation(*result))
        for told_attention in attention:
            typer.echo(_attention_explanation(*told_attention))
    if any(e.problems for e in entries) or any(e.problems for e, _ in attention):
        raise typer.Exit(2)


def _sm_count(spec: KernelSpec, given: int | None) -> int:
    if given is not None:
        return given
    from gemmsmith.nvml import devices

    here = [device.sm_count for device in devices() if device.capability == spec.arch.capability]
    return here[0] if here and here[0] else _SM_COUNTS[spec.arch.name]


def _explained(
    entry: AskedKernel,
    report: SpecReport | AttentionReport | None,
    met: ProblemReport | None,
) -> dict[str, Any]:
    return {
        **_place(entry),
        "legal": not entry.objections,
        "skipped": entry.skipped,
        "objections": [asdict(objection) for objection in entry.objections],
        "resources": asdict(report) if report else None,
        "problem": asdict(met) if met else None,
    }


def _explanation(entry: Entry, report: SpecReport | None, met: ProblemReport | None) -> str:
    place = f"{entry.file}:{entry.line}"
    if report is None:
        return _refusal(entry)
    stages = f"{report.stages} stages" + (" (auto)" if report.stages_automatic else "")
    memory = (
        f"shared memory {report.shared_memory:,} of {report.shared_memory_limit:,} B: {stages}"
        f" of {report.stage_bytes:,} B ({report.stages_that_fit} fit),"
        f" epilogue {report.epilogue_bytes:,} B"
    )
    lines = [
        f"{place}: legal: {report.name}",
        f"{report.threads} threads, {report.accumulator_registers} accumulator registers each",
        memory,
    ]
    if met is not None and met.misfit:
        lines.append(f"cannot take the problem: {met.misfit}")
    elif met is not None:
        blocks = f" by {met.blocks:,} blocks" if met.blocks != met.tiles else ""
        lines.append(
            f"{met.tiles:,} tiles{blocks}, {met.waves:.2f} waves ({met.wave_efficiency:.0%} of the"
            f" multiprocessors busy), {met.tile_efficiency:.0%} of the tiles used,"
            f" {met.intensity:.0f} FLOP/B: bound by {met.bound}"
        )
    return "\n    ".join(lines)


def _attention_explanation(entry: AttentionEntry, report: AttentionReport | None) -> str:
    if report is None:
        return _refusal(entry)
    registers = f"{report.registers} of {report.register_limit} registers each that multiplies"
    memory = f"shared memory {report.shared_memory:,} of {report.shared_memory_limit:,} B"
    lines = [
        f"{entry.file}:{entry.line}: legal: {report.name}",
        f"{report.threads} threads, {registers}: {report.register_use}",
        f"{memory}: {report.stages} stages of keys and of values ({report.stages_that_fit} fit)",
    ]
    if report.constant_cache:
        lines.append("keys but the newest are read early: for calls with constant_cache=True")
    return "\n    ".join(lines)


def _refusal(entry: AskedKernel) -> str:
    verdict = "skipped" if entry.skipped else "illegal"
    lines = [f"{entry.file}:{entry.line}: {verdict}: {entry.title}", *map(str, entry.objections)]
    return "\n    ".join(lines)


def render_kernels(
    what: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME|FILE|FOLDER]",
            help="A kernel by name, or a YAML file or folder; by default gemmsmith's own kernels.",
            show_default=False,
        ),
    ] = None,
    arch: Archs = None,
    kernel: Names = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="DIR",
            help="Write there, one file a kernel.",
            show_default=False,
        ),
    ] = None,
    *,
    as_json: AsJson = False,
) -> None:
    """Print the CUDA source of a kernel, or write those of many into a folder."""
    from gemmsmith.render import render

    path = Path(what) if what and (Path(what).exists() or Path(what).suffix) else None
    names = [what] if what and path is None else kernel
    specs = all_specs_of(path, arch, names, rows=names is not None)
    sources = [render([spec]) for spec in specs]
    if output is not None:
        _write(sources, output)
    if as_json:
        print_json(
            {
                "kernels": [
                    {
                        "name": source.specs[0].name,
                        "filename": source.filename,
                        "digest": source.digest,
                        "text": source.text,
                    }
                    for source in sources
                ]
            }
        )
    elif output is not None:
        for source in sources:
            typer.echo(output / source.filename)
    elif len(sources) == 1:
        typer.echo(sources[0].text, nl=False)
    else:
        raise typer.BadParameter(
            f"these are {len(sources)} kernels; name one, or say where to write them with -o DIR"
        )


def _write(sources: Sequence[RenderedSource], folder: Path) -> None:
    """Write each source that ``folder`` does not hold as it is, so that others keep their time."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for source in sources:
            file = folder / source.filename
            text = source.text.encode()
            if not file.exists() or file.read_bytes() != text:
                file.write_bytes(text)
    except OSError as error:
        raise typer.BadParameter(
            f"-o {folder}: {error.filename or folder} cannot be written"
            f" ({error.strerror or error}); name a folder"
        ) from None


VERBS = {"list": list_kernels, "explain": explain, "render": render_kernels}
