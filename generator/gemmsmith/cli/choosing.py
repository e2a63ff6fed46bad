"""Verbs about which kernel runs where: ``which``."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gemmsmith.cli.options import AsJson, Source, print_json, specs_of

if TYPE_CHECKING:
    from gemmsmith.arch import Architecture
    from gemmsmith.problem import GemmProblem

_KNOWN_GPUS = {"sm_90a": ("NVIDIA H200", 132), "sm_80": ("NVIDIA A100-SXM4-80GB", 108)}


def which(
    m: Annotated[int, typer.Argument(min=1, metavar="M", help="Rows of A and D.")],
    n: Annotated[int, typer.Argument(min=1, metavar="N", help="Columns of B and D.")],
    k: Annotated[int, typer.Argument(min=1, metavar="K", help="Columns of A, rows of B.")],
    source: Source = None,
    dtype: Annotated[
        str, typer.Option(metavar="fp16|bf16|int8", help="Element type; int8 scaled into bf16.")
    ] = "bf16",
    layout: Annotated[
        str, typer.Option(metavar="rcr", help="Row- (r) or column-major (c) for A, B and D.")
    ] = "rcr",
    activation: Annotated[
        str, typer.Option(metavar="NAME", help="Function of the product.")
    ] = "none",
    gate: Annotated[str, typer.Option(metavar="NAME", help="Function of the gate half.")] = "none",
    arch: Annotated[
        str, typer.Option(metavar="ARCH", help="Architecture; auto: that of the GPU here.")
    ] = "",
    gpu: Annotated[
        str,
        typer.Option(metavar="NAME", help="The GPU's name; by default the one here, or an H200."),
    ] = "",
    sms: Annotated[
        int | None,
        typer.Option(min=1, metavar="COUNT", help="Its multiprocessors.", show_default=False),
    ] = None,
    *,
    residual: Annotated[bool, typer.Option("--residual", help="With a residual.")] = False,
    as_json: AsJson = False,
) -> None:
    """Say which kernel takes a call, why, and what the others would take. Needs no GPU."""
    from gemmsmith.which import explain_choice, text

    row, name, sm_count = _device(arch, gpu, sms)
    problem = _problem((m, n, k), dtype, layout, activation, gate, residual=residual)
    told = explain_choice(
        specs_of(source, [row.name]),
        problem,
        gpu=name,
        sm_count=sm_count,
        torch_may_run=source is None,
    )
    if as_json:
        print_json(told.as_json())
    else:
        typer.echo(text(told))


def _device(arch: str, gpu: str, sms: int | None) -> tuple[Architecture, str, int]:
    """Return architecture, name and multiprocessors of the GPU that is meant."""
    from gemmsmith.arch import architecture_of, parse_architecture
    from gemmsmith.errors import UnknownArchitectureError
    from gemmsmith.nvml import detect_architecture, devices

    here = devices()
    if arch == "auto":
        row = detect_architecture()
    elif arch:
        row = parse_architecture(arch)
    else:
        try:
            row = architecture_of(here[0].capability if here and not gpu else (9, 0))
        except UnknownArchitectureError:
            row = architecture_of((9, 0))
    alike = [device for device in here if device.capability == row.capability]
    if alike and not gpu:
        name, count = alike[0].name, alike[0].sm_count
    else:
        name, count = _KNOWN_GPUS.get(row.name, ("a GPU", None))
    if sms is None and (count is None or (gpu and gpu != name)):
        raise typer.BadParameter(f"say with --sms how many multiprocessors {gpu or row.name} has")
    return row, gpu or name, sms or count or 0


def _problem(
    shape: tuple[int, int, int],
    word: str,
    layout: str,
    activation: str,
    gate: str,
    *,
    residual: bool,
) -> GemmProblem:
    from typing import get_args

    from gemmsmith.dtypes import BF16, INT8, parse_dtype
    from gemmsmith.problem import packed_problem
    from gemmsmith.spec import Activation, Gate, Layout

    try:
        dtype = parse_dtype(word)
    except KeyError:
        raise typer.BadParameter(f"--dtype {word}: use bf16, fp16 or int8") from None
    for name, value, kind in (
        ("layout", layout, Layout),
        ("activation", activation, Activation),
        ("gate", gate, Gate),
    ):
        legal = [each for each in get_args(kind) if each != "any"]
        if value not in legal:
            raise typer.BadParameter(f"--{name} {value}: use one of {', '.join(legal)}")
    return packed_problem(
        *shape,
        dtype,
        d=BF16 if dtype == INT8 else dtype,
        layout=layout,
        activation=activation,
        gate=gate,
        residual=residual,
        scaled=dtype == INT8,
    )


VERBS: dict[str, Callable[..., Any]] = {"which": which}
