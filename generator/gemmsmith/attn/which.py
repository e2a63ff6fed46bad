"""Why an attention call gets the kernel that it gets: estimates, and why others do not fit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from gemmsmith.attn.choose import (
    AttentionProblem,
    cost,
    misfit,
    promise_by_name,
    ranked,
    why_none,
)
from gemmsmith.attn.spec import AttentionSpec
from gemmsmith.lookup import find_built
from gemmsmith.tuned import TORCH
from gemmsmith.which import Told, opening, others
from gemmsmith.wording import counted


@dataclass(frozen=True, kw_only=True)
class AttentionCandidate:
    """What is estimated of one kernel that fits."""

    kernel: str
    cost: float
    """Beside the best one's, 1.0; for ranking only: it is no time."""
    built: bool


@dataclass(frozen=True, kw_only=True)
class AttentionExplanation(Told):
    """How a kernel is chosen for one attention call on one GPU.

    Of a call it knows sizes. Strides and addresses that a kernel cannot take are told by
    :func:`gemmsmith.last_kernel`, after the call.
    """

    candidates: tuple[AttentionCandidate, ...]
    """Those with the narrowest heads that hold the call's, the best first."""

    def as_json(self) -> dict[str, Any]:
        """Return everything in plain types."""
        return asdict(self)


def explain_attention(
    specs: Sequence[AttentionSpec],
    problem: AttentionProblem,
    *,
    gpu: str,
    sm_count: int,
    torch_may_run: bool = True,
) -> AttentionExplanation:
    """Return how one of ``specs`` is chosen for ``problem``; needs neither GPU nor torch.

    ``specs`` are of one architecture. What is not built counts as a kernel that can run: the first
    call builds it. Without ``torch_may_run`` they are named by the call, which is their promise.
    """
    if not torch_may_run:
        promised = problem.constant_cache or promise_by_name(specs)
        problem = replace(problem, named=True, constant_cache=promised)
    order = ranked(specs, problem, sm_count)
    built = find_built(order)
    best = cost(order[0], problem, sm_count) if order else 0.0
    if order:
        choice, reason = order[0].name, "the smallest estimated time"
    else:
        choice = TORCH if torch_may_run else ""
        reason = why_none(specs, problem) if specs else "there are no attention kernels"
    if not order and torch_may_run and problem.appends:
        reason += "; RoPE and the cache take a kernel of their own, and attention is asked again"
    alike = [spec for spec in specs if spec.dtype == problem.dtype]
    reasons = Counter(misfit(spec, problem).removeprefix(f"{spec.name} ") for spec in alike)
    return AttentionExplanation(
        gpu=gpu,
        sm_count=sm_count,
        call=_words(problem),
        choice=choice,
        reason=reason,
        built=choice in {spec.name for spec in built},
        candidates=tuple(
            AttentionCandidate(
                kernel=spec.name, cost=cost(spec, problem, sm_count) / best, built=spec in built
            )
            for spec in order
        ),
        misfits=tuple((why, count) for why, count in reasons.most_common() if why),
    )


def _words(problem: AttentionProblem) -> str:
    options = {
        "causal": problem.causal,
        f"window {problem.window}": problem.window,
        "softcap": problem.capped,
        "lengths": problem.lengths,
        "block table": problem.paged,
        "packed": problem.packed,
        "appends": problem.appends,
        "constant cache": problem.constant_cache,
    }
    said = [word for word, holds in options.items() if holds]
    queries, keys = counted(problem.queries, "query", "queries"), counted(problem.keys, "key")
    sizes = (
        f"{counted(problem.batch, 'sequence')} of {queries} and {keys},"
        f" {problem.heads}/{problem.kv_heads} heads of {problem.head_dim}, {problem.dtype.name}"
    )
    return ", ".join([sizes, *said])


def text(told: AttentionExplanation) -> str:
    """Return an explanation for a terminal."""
    lines = opening(told, told.reason)
    if told.candidates:
        lines += ["", "kernels of the narrowest heads that fit, by estimate (for ranking only)"]
        lines += [
            f"  {each.cost:6.2f}  {each.kernel}{'' if each.built else ' (not built)'}"
            for each in told.candidates
        ]
    return "\n".join([*lines, *others(told, "this type")])
