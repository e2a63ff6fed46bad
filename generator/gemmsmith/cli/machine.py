"""Verbs about this machine and what kernels do on it: ``doctor``, ``run``, ``bench``, ``demo``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from gemmsmith.cli.options import AsJson, Source, print_json, source_of

Dtype = Annotated[
    str | None, typer.Option(metavar="fp16|bf16", help="Element type.", show_default=False)
]


def doctor(*, as_json: AsJson = False) -> None:
    """Say what this machine has for building and running kernels, and how to get what it lacks.

    Ends with 1 where a build would fail.
    """
    from gemmsmith.doctor import examine, render_text

    report = examine()
    if as_json:
        print_json(report.as_dict())
    else:
        typer.echo(render_text(report))
    if not report.can_build:
        raise typer.Exit(1)


def run(
    m: Annotated[int, typer.Argument(min=1, metavar="M", help="Rows of A and D.")],
    n: Annotated[int, typer.Argument(min=1, metavar="N", help="Columns of B and D.")],
    k: Annotated[int, typer.Argument(min=1, metavar="K", help="Columns of A, rows of B.")],
    source: Source = None,
    kernel: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="This kernel; by default the best.", show_default=False),
    ] = None,
    dtype: Dtype = None,
    seconds: Annotated[float, typer.Option(min=0.1, help="Time to measure.")] = 1.0,
    *,
    as_json: AsJson = False,
) -> None:
    """Verify one kernel on D (M, N) = A (M, K) @ B (K, N) and time it beside torch. Needs a GPU.

    Ends with 1 where a result is wrong.
    """
    from gemmsmith.bench.trial import try_kernel
    from gemmsmith.progress import ConsoleProgress

    trial = try_kernel(
        (m, n, k),
        path=source_of(source),
        name=kernel,
        dtype=dtype,
        seconds=seconds,
        building=ConsoleProgress(),
    )
    if as_json:
        print_json(trial.as_json())
    else:
        typer.echo(str(trial))
    if trial.faults:
        raise typer.Exit(1)


def bench(
    source: Source = None,
    model: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME|FILE",
            help="Model whose GEMM shapes are measured; repeatable; by default llama3-8b.",
            show_default=False,
        ),
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option(
            metavar="fp16|bf16|int8",
            help="Element type; int8 with scales, beside torch._int_mm and our own bf16.",
            show_default=False,
        ),
    ] = None,
    grid: Annotated[
        str | None,
        typer.Option(
            metavar="llm",
            help="Instead, time the weights of three models by ten numbers of tokens, and sum up"
            " what users get and what our own kernels give.",
            show_default=False,
        ),
    ] = None,
    ffn: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|FILE",
            help="Instead, time the SwiGLU block of this model, in bf16 and int8.",
            show_default=False,
        ),
    ] = None,
    epilogues: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|FILE",
            help="Instead, tell what bias, activation and residual cost at this model's shapes.",
            show_default=False,
        ),
    ] = None,
    layer: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|FILE",
            help="Instead, time a whole decoder layer of this model and its parts: M sequences that"
            " decode (up to 64), or a prompt of M tokens; by default 1, 16 and 2048.",
            show_default=False,
        ),
    ] = None,
    m: Annotated[
        list[int] | None,
        typer.Option(
            "--m",
            metavar="TOKENS",
            help="Tokens at a time; repeatable; by default 1 to 8192.",
            show_default=False,
        ),
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option(
            min=0.1,
            help="Time for each shape; by default 1.5, int8 0.7, grid and attention 0.8, blocks 1,"
            " layers 2.",
            show_default=False,
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Write all samples there as JSON, anew after each shape.",
            show_default=False,
        ),
    ] = None,
    *,
    attention: Annotated[
        bool,
        typer.Option(
            "--attention",
            help="Instead, time attention of Llama 3's heads: prompts of 512 to 16384 tokens, and"
            " steps of 1 to 16 sequences.",
        ),
    ] = False,
    all_kernels: Annotated[
        bool, typer.Option("--all-kernels", help="Also time every kernel that fits, alone.")
    ] = False,
    constant_b: Annotated[
        bool,
        typer.Option(
            "--constant-b",
            help="With --grid: time calls that promise that no queued work writes the weight.",
        ),
    ] = False,
    compact: Annotated[bool, typer.Option("--compact", help="Print ratios only.")] = False,
    check_harness: Annotated[
        bool,
        typer.Option("--self-test", help="Measure known ratios instead; ends with 1 if wrong."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Time gemmsmith beside torch on a model's shapes. Needs a GPU.

    Ends with 1 where a result is wrong.
    """
    from gemmsmith.cli.measuring import Measurement, print_measured, print_self_test

    if check_harness:
        print_self_test(as_json=as_json)
        return
    asked = Measurement(
        source=source,
        models=tuple(model or ()),
        grid=grid,
        ffn=ffn,
        epilogues=epilogues,
        layer=layer,
        attention=attention,
        dtype=dtype,
        m=tuple(m) if m else None,
        seconds=seconds,
        output=output,
        all_kernels=all_kernels,
        constant_b=constant_b,
        compact=compact,
        as_json=as_json,
    )
    print_measured(asked)


def demo(
    prompt: Annotated[
        str | None, typer.Option(help="Start of the text to generate.", show_default=False)
    ] = None,
    tokens: Annotated[int, typer.Option(min=1, help="Tokens to generate.")] = 32,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Compilers at once.", show_default=False)
    ] = None,
) -> None:
    """Build the demo's kernels, show their cards and run SmolLM2-135M on them."""
    from gemmsmith import demo as demonstration

    demonstration.main(
        prompt=demonstration.PROMPT if prompt is None else prompt, tokens=tokens, jobs=jobs
    )


VERBS: dict[str, Callable[..., Any]] = {
    "doctor": doctor,
    "run": run,
    "bench": bench,
    "demo": demo,
}
