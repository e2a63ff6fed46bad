"""The attention kernels that are loaded, and which of them takes a call."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, lru_cache

from gemmsmith.attn.choose import AttentionProblem, ranked, why_none
from gemmsmith.attn.config import load_attention
from gemmsmith.attn.spec import AttentionSpec
from gemmsmith.launcher import AttentionCall, AttentionKernel
from gemmsmith.resources import configs_dir
from gemmsmith.shelf import AttentionShelf
from gemmsmith.supply import Compiled


@cache
def default_attention_kernels(arch: str) -> AttentionShelf:
    """Return the attention kernels for ``arch``; what is not built is, at first use."""
    specs = load_attention(configs_dir() / "kernels", arch=[arch])
    return AttentionShelf(specs, Compiled(""), build_on_use=True)


def plan_of(
    shelf: AttentionShelf, problem: AttentionProblem, call: AttentionCall
) -> AttentionKernel | str:
    """Return the kernel for a call, or why none takes it."""
    if not shelf.specs:
        return "there is no attention kernel for this GPU"
    order = _ranked(shelf, problem, call.sm_count)
    if not order:
        return why_none(shelf.specs, problem)
    loaded = shelf.kernels()
    reason = f"{order[0].name} is not built"
    for spec in order:
        kernel = loaded.get(spec)
        if kernel is None:
            continue
        status = kernel.can_run(call)
        if status == 0:
            return kernel
        reason = f"{kernel.name}: {kernel.explain(status)}"
    return reason


@lru_cache(maxsize=4096)
def _ranked(shelf: AttentionShelf, problem: AttentionProblem, sms: int) -> Sequence[AttentionSpec]:
    """Return :func:`ranked` of the shelf's kernels, kept for the next call like this one."""
    return ranked(shelf.specs, problem, sms)
