"""The verb ``reduce``: few kernels that lose little."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gemmsmith.cli.choosing import Models, device_asked
from gemmsmith.cli.options import (
    ArchOfGpu,
    AsJson,
    GpuName,
    Multiprocessors,
    Source,
    check_output,
    print_json,
    specs_of,
)

if TYPE_CHECKING:
    from gemmsmith.dtypes import DType


def reduce(
    source: Source = None,
    model: Models = None,
    table: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="YAML",
            help="Tuned table; repeatable; by default those in use for the GPU.",
            show_default=False,
        ),
    ] = None,
    file: Annotated[
        list[Path] | None,
        typer.Option(metavar="YAML", help="Further kernels; repeatable.", show_default=False),
    ] = None,
    loss: Annotated[str, typer.Option(metavar="2%", help="Lost in the geometric mean.")] = "2%",
    worst: Annotated[str, typer.Option(metavar="10%", help="Lost at any one shape.")] = "10%",
    write: Annotated[
        Path | None,
        typer.Option(metavar="YAML", help="Write the kernels kept there.", show_default=False),
    ] = None,
    also: Annotated[
        list[str] | None,
        typer.Option(
            metavar="fp16|bf16",
            help="Write them for this element type too; repeatable.",
            show_default=False,
        ),
    ] = None,
    arch: ArchOfGpu = "",
    gpu: GpuName = "",
    sms: Multiprocessors = None,
    *,
    constant_b: Annotated[
        bool,
        typer.Option(
            "--constant-b",
            help="Count calls that promise constant_b too, and the kernels that rely on it.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Find few kernels that lose little, by the timings of tuned tables. Needs no GPU.

    Kernels are gemmsmith's own or those of a file, as they were when they were timed. What a shape
    loses is counted against the fastest of these there; shapes that torch wins do not count.
    """
    from gemmsmith.errors import MeasureError
    from gemmsmith.spec_yaml import families_yaml
    from gemmsmith.tune.gather import gather
    from gemmsmith.tune.reduce import reduce_set
    from gemmsmith.tune.reduce_text import about_set, reduction_json, reduction_text
    from gemmsmith.tuned import identified

    types = _also(also or (), write)
    limits = {"loss": _share("--loss", loss), "worst": _share("--worst", worst)}
    if write is not None:
        check_output("--write", write)
    row, name, sm_count = device_asked(arch, gpu, sms)
    tables = gather(
        table or (),
        name,
        sm_count,
        row.capability,
        constant_b=constant_b,
        weights=_weights(model) if model else None,
    )
    specs = {
        identified(spec): spec
        for place in (source, *(file or ()))
        for spec in specs_of(place, [row.name])
        if constant_b or not spec.constant_b
    }
    try:
        found = reduce_set(tables.entries, known=specs.keys(), **limits)
    except MeasureError as error:
        raise MeasureError("\n".join([str(error), *tables.notes])) from None
    if write is not None:
        kernels = [specs[each] for each in found.kernels]
        text = families_yaml(kernels, about_set(found, kernels, tables.gpus), types)
        try:
            write.write_text(text, encoding="utf-8")
        except OSError as error:
            raise typer.BadParameter(f"--write {write}: {error.strerror or error}") from None
    if as_json:
        print_json({**reduction_json(found), "notes": list(tables.notes)})
    else:
        typer.echo("\n".join([reduction_text(found), *(f"note: {each}" for each in tables.notes)]))


def _weights(models: Sequence[str]) -> set[tuple[int, int]]:
    from gemmsmith.bench.model_shapes import load_model

    return {(shape.n, shape.k) for each in models for shape in load_model(each).shapes}


def _also(words: Sequence[str], write: Path | None) -> list[DType]:
    from gemmsmith.dtypes import BF16, FP16

    legal = {dtype.name: dtype for dtype in (FP16, BF16)}
    for word in words:
        if word not in legal:
            raise typer.BadParameter(f"--also {word}: use fp16 or bf16, which share their tiles")
    if words and write is None:
        raise typer.BadParameter("--also says what --write writes: name a file with --write")
    return [legal[word] for word in words]


def _share(option: str, word: str) -> float:
    text = word.strip().removesuffix("%")
    try:
        value = float(text) / (100 if text != word.strip() else 1)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1:
        raise typer.BadParameter(f"{option} {word}: write 2% or 0.02")
    return value


VERBS: dict[str, Callable[..., Any]] = {"reduce": reduce}
