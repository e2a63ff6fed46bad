"""Benchmark of attention beside torch's ``scaled_dot_product_attention``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import gemmsmith
from gemmsmith.attn.kernels import default_attention_kernels
from gemmsmith.bench.attention_cases import (
    CASES,
    AttentionCase,
    exact_attention,
    new_operands,
)
from gemmsmith.bench.environment import environment_here
from gemmsmith.bench.gpu import require_gpu
from gemmsmith.bench.graphs import Arm
from gemmsmith.bench.judged import enter_judged
from gemmsmith.bench.measure import ROTATED_BYTES, rotating
from gemmsmith.bench.race import Entrants, Race, RaceReport, Rivalry
from gemmsmith.bench.race_run import run_races
from gemmsmith.bench.report import OURS
from gemmsmith.nvml import detect_architecture
from gemmsmith.progress import Progress
from gemmsmith.supply import Compiled

SECONDS = 0.8
VIEWS, CONTIGUOUS, BEST = "torch views", "torch contiguous", "best torch"
CONSTANT = "gemmsmith constant_cache"
RIVALRIES = (
    *(
        Rivalry(section=f"prefill d{head_dim}", over=BEST, under=OURS, groups=("all",))
        for head_dim in (128, 64)
    ),
    *(
        Rivalry(section=f"decode d{head_dim}", over=BEST, under=under, groups=("all", "M = 1"))
        for head_dim in (128, 64)
        for under in (OURS, CONSTANT)
    ),
)
NOTES = (
    "Attention in bf16, 32 heads, 8 of keys and values; each arm in a CUDA graph. prefill: one"
    " prompt of M tokens; decode: M sequences, one token each, N keys, inputs rotated; K: head_dim."
    " torch: scaled_dot_product_attention as it is, with enable_gqa, of views of (batch, tokens,"
    " heads, head_dim) and of contiguous (batch, heads, tokens, head_dim); best torch: the faster"
    " of both. gemmsmith: gemmsmith.attention of (batch, tokens, heads, head_dim);"
    " constant_cache: with that promise. TFLOP/s count the keys that a query sees, TB/s q, k, v and"
    " the result once."
)
_LIMIT = 0.05  # of an element's error, in root mean squares of its row

Operands = tuple[Tensor, Tensor, Tensor]


def section_of(case: AttentionCase) -> str:
    """Return the table that a case stands in."""
    return f"{'decode' if case.decodes else 'prefill'} d{case.head_dim}"


def label_of(case: AttentionCase) -> str:
    """Return what sizes do not tell of a case, or what a summary needs."""
    if case.decodes:
        return f"{case.keys} keys"
    return "causal" if case.causal else "full"


def arms_of(case: AttentionCase, sets: Sequence[Operands]) -> dict[str, Arm]:
    """Return the arms; each gives (B, Sq, H, D) or, of torch, (B, H, Sq, D)."""
    views = [tuple(part.transpose(1, 2) for part in operands) for operands in sets]
    copies = [tuple(part.contiguous() for part in operands) for operands in views]
    top_left = case.causal and not case.decodes  # one query would see one key
    torchs = partial(scaled_dot_product_attention, is_causal=top_left, enable_gqa=True)
    ours = partial(gemmsmith.attention, causal=case.causal)
    arms: dict[str, Arm] = {
        VIEWS: [partial(torchs, *operands) for operands in views],
        CONTIGUOUS: [partial(torchs, *operands) for operands in copies],
        OURS: [partial(ours, *operands) for operands in sets],
    }
    if case.decodes:
        arms[CONSTANT] = [partial(ours, *operands, constant_cache=True) for operands in sets]
    return arms


def race_attention(
    cases: Sequence[AttentionCase], *, seconds: float, device: str = "cuda"
) -> Iterator[Race]:
    """Yield each case timed, the results compared with float32 first."""
    for case in cases:
        yield _race(case, seconds, device)
        if device == "cuda":
            torch.cuda.empty_cache()


def _race(case: AttentionCase, seconds: float, device: str) -> Race:
    # What a prompt's attention reads was just written: it may be in the cache.
    rotated = ROTATED_BYTES if case.decodes else 0
    sets = rotating(lambda: new_operands(case, device), case.cache_bytes, rotated)
    right = exact_attention(*sets[0], causal=case.causal).flatten(0, 2)
    entrants = Entrants()
    errors: dict[str, float] = {}
    for name, arm in arms_of(case, sets).items():
        of_torch = name in (VIEWS, CONTIGUOUS)
        errors |= enter_judged(
            entrants,
            name,
            partial(list, arm),
            right,
            _LIMIT,
            ours=not of_torch,
            rows=partial(_rows, of_torch=of_torch),
        )
    shape = (case.batch * case.queries, case.keys, case.head_dim)
    race = entrants.race(section_of(case), label_of(case), shape, seconds=seconds)
    race = with_best(race)
    return replace(race, figures={**rates(race, case), **errors})


def _rows(found: Tensor, *, of_torch: bool) -> Tensor:
    """Return what an arm gives as (B Sq H, D)."""
    return (found.transpose(1, 2) if of_torch else found).flatten(0, 2)


def with_best(race: Race) -> Race:
    """Return the race with the faster of torch's arms as an arm of its own."""
    samples: Mapping[str, tuple[float, ...]] = race.comparison.samples
    peers = [name for name in (VIEWS, CONTIGUOUS) if name in samples]
    if not peers:
        return race
    best = min(peers, key=race.comparison.median)
    both = {**samples, BEST: samples[best]}
    return replace(race, comparison=replace(race.comparison, samples=both))


def rates(race: Race, case: AttentionCase) -> dict[str, float]:
    """Return the TB/s of arms that decode, the TFLOP/s of those that do not."""
    amount, unit = (case.bytes, "TB/s") if case.decodes else (case.flops, "TFLOP/s")
    times = {name: race.microseconds(name) for name in (BEST, OURS, CONSTANT)}
    return {f"{name} {unit}": amount / us / 1e6 for name, us in times.items() if us is not None}


def run_attention(
    *,
    cases: Sequence[AttentionCase] = CASES,
    json_path: Path | None = None,
    seconds_per_shape: float = SECONDS,
    progress: Callable[[str], None] = lambda line: None,
    building: Progress | None = None,
) -> RaceReport:
    """Return measured attention; arguments are those of :func:`gemmsmith.bench.gemm.run_bench`.

    Raises:
        NoDeviceError: where there is no GPU.
        CompileError, ToolchainError: where a kernel is missing and cannot be built.
    """
    require_gpu()
    shelf = default_attention_kernels(detect_architecture().name)
    Compiled("").build(shelf.specs, progress=building).raise_if_failed()
    shelf.look_again()
    with torch.inference_mode():
        return run_races(
            race_attention(cases, seconds=seconds_per_shape),
            environment=environment_here(),
            notes=NOTES,
            rivalries=RIVALRIES,
            json_path=json_path,
            progress=progress,
        )
