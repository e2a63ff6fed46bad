"""The verb about which attention kernel runs where: ``which-attention``."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gemmsmith.cli.choosing import device_asked
from gemmsmith.cli.options import (
    ArchOfGpu,
    AsJson,
    GpuName,
    Multiprocessors,
    Source,
    attention_specs_of,
    print_json,
)

if TYPE_CHECKING:
    from gemmsmith.dtypes import DType


def which_attention(
    batch: Annotated[int, typer.Argument(min=1, metavar="B", help="Sequences.")],
    queries: Annotated[int, typer.Argument(min=1, metavar="SQ", help="Queries of the longest.")],
    keys: Annotated[int, typer.Argument(min=0, metavar="SK", help="Keys of the longest.")],
    source: Source = None,
    heads: Annotated[int, typer.Option(min=1, metavar="H", help="Heads of queries.")] = 32,
    kv_heads: Annotated[
        int, typer.Option(min=1, metavar="HKV", help="Heads of keys and values.")
    ] = 8,
    head_dim: Annotated[int, typer.Option(min=1, metavar="D", help="Elements of a head.")] = 128,
    dtype: Annotated[str, typer.Option(metavar="fp16|bf16", help="Element type.")] = "bf16",
    window: Annotated[
        int, typer.Option(min=0, metavar="KEYS", help="Keys that a query sees; 0 for all.")
    ] = 0,
    arch: ArchOfGpu = "",
    gpu: GpuName = "",
    sms: Multiprocessors = None,
    *,
    causal: Annotated[bool, typer.Option("--causal", help="Queries see no later keys.")] = False,
    softcap: Annotated[bool, typer.Option("--softcap", help="Scores have a cap.")] = False,
    lengths: Annotated[bool, typer.Option("--lengths", help="With lengths of sequences.")] = False,
    paged: Annotated[bool, typer.Option("--paged", help="With a block table.")] = False,
    packed: Annotated[
        bool, typer.Option("--packed", help="Sequences one after the other: attention_varlen.")
    ] = False,
    appends: Annotated[
        bool, typer.Option("--appends", help="A step that appends: attention_with_kvcache.")
    ] = False,
    constant_cache: Annotated[
        bool, typer.Option("--constant-cache", help="For calls that promise constant_cache.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Say which attention kernel takes a call, why, and what else fits. Needs no GPU."""
    from gemmsmith.attn.choose import AttentionProblem
    from gemmsmith.attn.which import explain_attention, text

    if heads % kv_heads:
        raise typer.BadParameter(f"--kv-heads {kv_heads}: {heads} heads are no multiple of it")
    if packed and (lengths or paged or appends or constant_cache):
        raise typer.BadParameter("--packed: such calls have no lengths, block table or cache")
    if appends and queries != 1:
        raise typer.BadParameter(f"--appends: a step has one query a sequence, SQ is {queries}")
    if window and not (causal or appends):
        raise typer.BadParameter("--window: goes with --causal")
    row, name, sm_count = device_asked(arch, gpu, sms)
    problem = AttentionProblem(
        dtype=_dtype(dtype),
        batch=batch,
        queries=queries,
        keys=keys,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        causal=causal or appends,
        window=min(window, keys),
        paged=paged,
        lengths=lengths,
        packed=packed,
        constant_cache=constant_cache,
        appends=appends,
        capped=softcap,
    )
    told = explain_attention(
        attention_specs_of(source, [row.name]),
        problem,
        gpu=name,
        sm_count=sm_count,
        torch_may_run=source is None,
    )
    if as_json:
        print_json(told.as_json())
    else:
        typer.echo(text(told))


def _dtype(word: str) -> DType:
    from gemmsmith.dtypes import BF16, FP16, parse_input

    try:
        dtype = parse_input(word)
    except KeyError:
        dtype = None
    if dtype not in (BF16, FP16):
        raise typer.BadParameter(f"--dtype {word}: use bf16 or fp16")
    return dtype


VERBS: dict[str, Callable[..., Any]] = {"which-attention": which_attention}
