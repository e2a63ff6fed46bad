"""Verbs about which kernel runs where: ``which`` and ``tune``."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gemmsmith.cli.options import (
    ArchOfGpu,
    AsJson,
    ConstantB,
    GpuName,
    Multiprocessors,
    Source,
    check_output,
    print_json,
    specs_of,
)

if TYPE_CHECKING:
    from gemmsmith.arch import Architecture
    from gemmsmith.problem import GemmProblem

Models = Annotated[
    list[str] | None,
    typer.Option(
        "--model",
        metavar="NAME|FILE",
        help="Model whose weights are meant; repeatable.",
        show_default=False,
    ),
]
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
    gate: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Function of the gate half: N counts gate and up, D has half as many columns.",
        ),
    ] = "none",
    arch: ArchOfGpu = "",
    gpu: GpuName = "",
    sms: Multiprocessors = None,
    *,
    residual: Annotated[bool, typer.Option("--residual", help="With a residual.")] = False,
    constant_b: ConstantB = False,
    as_json: AsJson = False,
) -> None:
    """Say which kernel takes a call, why, and what the others would take. Needs no GPU."""
    from gemmsmith.which import explain_choice, text

    row, name, sm_count = device_asked(arch, gpu, sms)
    specs = specs_of(source, [row.name])
    named = source is not None and any(spec.constant_b for spec in specs)  # which is the promise
    problem = _problem((m, n, k), dtype, layout, activation, gate, residual=residual)
    told = explain_choice(
        specs,
        replace(problem, constant_b=constant_b or named),
        gpu=name,
        sm_count=sm_count,
        torch_may_run=source is None,
    )
    if as_json:
        print_json(told.as_json())
    else:
        typer.echo(text(told))


def device_asked(arch: str, gpu: str, sms: int | None) -> tuple[Architecture, str, int]:
    """Return architecture, name and multiprocessors of the GPU that is meant."""
    from gemmsmith.arch import architecture_of, parse_architecture
    from gemmsmith.errors import UnknownArchitectureError
    from gemmsmith.nvml import detect_architecture, devices

    here = devices()
    of_gpu = [word for word, (known, _) in _KNOWN_GPUS.items() if gpu.startswith(_model(known))]
    if arch == "auto":
        row = detect_architecture()
    elif arch:
        row = parse_architecture(arch)
    elif of_gpu:
        row = parse_architecture(of_gpu[0])
    else:
        try:
            row = architecture_of(here[0].capability if here and not gpu else (9, 0))
        except UnknownArchitectureError:
            row = architecture_of((9, 0))
    if of_gpu and row.name not in of_gpu:
        raise typer.BadParameter(f"{gpu} is of {of_gpu[0]}, --arch is {row.name}: drop one of them")
    alike = [device for device in here if device.capability == row.capability]
    if alike and not gpu:
        name, count = alike[0].name, alike[0].sm_count
    else:
        name, count = _KNOWN_GPUS.get(row.name, ("a GPU", None))
    if sms is None and (count is None or (gpu and gpu != name)):
        raise typer.BadParameter(f"say with --sms how many multiprocessors {gpu or row.name} has")
    return row, gpu or name, sms or count or 0


def _model(gpu: str) -> str:
    """Return what the names of all GPUs of its model begin with."""
    return gpu.partition("-")[0]


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

    from gemmsmith.dtypes import BF16, INT8, parse_input
    from gemmsmith.fit import check_sizes
    from gemmsmith.problem import packed_problem
    from gemmsmith.spec import Activation, Gate, Layout

    try:
        dtype = parse_input(word)
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
    check_sizes(**dict(zip("mnk", shape, strict=True)))
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


def tune(
    model: Models = None,
    weight: Annotated[
        list[str] | None,
        typer.Option(metavar="NxK", help="A weight of this size; repeatable.", show_default=False),
    ] = None,
    m: Annotated[
        list[int] | None,
        typer.Option(
            "--m",
            metavar="BUCKET",
            help="Only this number of tokens; repeatable; by default all of them.",
            show_default=False,
        ),
    ] = None,
    dtype: Annotated[
        str, typer.Option(metavar="fp16|bf16|int8", help="Element type; int8 scaled into bf16.")
    ] = "bf16",
    epilogue: Annotated[
        list[str] | None,
        typer.Option(
            metavar="plain|residual|activation|gate",
            help="What follows the product; repeatable; by default nothing (a bias is free).",
            show_default=False,
        ),
    ] = None,
    file: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="YAML",
            help="Kernels that may win beside the default ones; repeatable.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="YAML",
            help="Table to write or to go on with; by default one in the cache folder.",
            show_default=False,
        ),
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(
            metavar="60s", help="Begin nothing after so long: 90, 90s, 5min.", show_default=False
        ),
    ] = None,
    candidates: Annotated[
        int, typer.Option(min=1, metavar="COUNT", help="Kernels that are timed for each entry.")
    ] = 8,
    without: Annotated[
        list[str] | None,
        typer.Option(metavar="KERNEL", help="Leave it out; repeatable.", show_default=False),
    ] = None,
    gpus: Annotated[
        int, typer.Option(min=1, metavar="COUNT", help="Share the weights out to so many GPUs.")
    ] = 1,
    *,
    only_files: Annotated[
        bool, typer.Option("--only-files", help="Leave the default kernels out.")
    ] = False,
    again: Annotated[
        bool, typer.Option("--again", help="Measure what is measured already once more.")
    ] = False,
    constant_b: ConstantB = False,
    as_json: AsJson = False,
) -> None:
    """Measure which kernel is the fastest at each shape of models, beside torch. Needs a GPU.

    What is measured is kept at once: run it again to go on where it was stopped. Ends with 1 where
    a kernel's result is wrong.
    """
    from gemmsmith.tune.start import Request, tune_here
    from gemmsmith.tune.text import outcome_json, outcome_text
    from gemmsmith.tune.work import jobs_of, weights_of

    weights = weights_of(
        model or (),
        [_sizes(word) for word in weight or ()],
        dtype=dtype,
        epilogues=epilogue or ("plain",),
        constant=constant_b,
    )
    if out is not None:
        check_output("--out", out, makes_folders=True)
    request = Request(
        files=tuple(file or ()),
        only_files=only_files,
        out=out,
        budget=None if budget is None else _seconds(budget),
        candidates=candidates,
        without=tuple(without or ()),
        again=again,
        gpus=gpus,
    )
    outcome, path = tune_here(jobs_of(weights, m), request)
    if as_json:
        print_json(outcome_json(outcome, path))
    else:
        typer.echo(outcome_text(outcome, path))
    if any(entry.wrong for entry in outcome.entries):
        raise typer.Exit(1)


def _sizes(word: str) -> tuple[int, int]:
    n, _, k = word.lower().replace("×", "x").partition("x")
    if not (n.isdecimal() and k.isdecimal() and int(n) and int(k)):
        raise typer.BadParameter(f"--weight {word}: write N and K as in 6144x4096")
    return int(n), int(k)


def _seconds(word: str) -> float:
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*(s|sec|m|min|h)?", word.strip())
    if found is None or not float(found[1]):
        raise typer.BadParameter(f"--budget {word}: write 90, 90s or 5min")
    return float(found[1]) * {"m": 60, "min": 60, "h": 3600}.get(found[2] or "s", 1)


VERBS: dict[str, Callable[..., Any]] = {"which": which, "tune": tune}
