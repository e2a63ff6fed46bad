"""Which attention kernel takes a call, by rules that measurements on an H200 gave."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gemmsmith.attn.cost import tile_clocks
from gemmsmith.attn.cost_multistage import multistage_clocks
from gemmsmith.attn.cost_split_kv import split_clocks
from gemmsmith.attn.spec import AttentionSpec
from gemmsmith.dtypes import DType

_MOST_QUERIES = 64
"""Queries up to which sharing keys among blocks is faster than torch's own kernels."""


@dataclass(frozen=True, kw_only=True)
class AttentionProblem:
    """What a call asks of a kernel: sizes and what is where, no addresses."""

    dtype: DType
    batch: int
    queries: int
    """Queries of the longest sequence."""
    keys: int
    """Keys of the longest sequence."""
    heads: int
    kv_heads: int
    head_dim: int
    causal: bool
    window: int
    """0 for none."""
    paged: bool
    """Whether keys are found through a block table."""
    lengths: bool
    """Whether the call tells the keys of each sequence."""
    packed: bool
    """Whether sequences are packed one after the other."""
    constant_cache: bool = False
    """Whether the caller promises that no queued work writes keys but the newest."""
    appends: bool = False
    """Whether the kernel is to write the newest key and value of each sequence to the cache."""
    capped: bool = False
    """Whether scores have a softcap."""
    named: bool = False
    """Whether the call names its kernels, so that torch is no alternative."""

    @property
    def torch_is_fast(self) -> bool:
        """Whether torch's fast kernels may take it, which know none of these."""
        return not (
            self.lengths
            or self.paged
            or self.packed
            or self.appends
            or self.window
            or self.capped
            or self.named
        )


def misfit(spec: AttentionSpec, problem: AttentionProblem) -> str:
    """Return why a kernel cannot take the call; empty where it can, as far as sizes tell."""
    if spec.dtype != problem.dtype:
        return f"{spec.name} takes {spec.dtype.name}, the call has {problem.dtype.name}"
    if problem.head_dim > spec.head_dim:
        return f"{spec.name} takes heads up to {spec.head_dim}, the call has {problem.head_dim}"
    if problem.head_dim % 8:
        return f"head_dim {problem.head_dim} is no multiple of 8, which 16-byte copies need"
    if spec.schedule == "split_kv":
        if problem.packed:
            return f"{spec.name} does not take packed sequences"
        if spec.constant_cache and not problem.constant_cache:
            return (
                f"{spec.name} reads keys while the kernel ahead may still write them: pass"
                " constant_cache=True where it writes the newest alone, and lengths and block_table"
                " need no copy"
            )
        if problem.torch_is_fast and problem.queries > _MOST_QUERIES:
            return f"{spec.name} is for few queries: torch is faster with more than {_MOST_QUERIES}"
    elif problem.paged:
        return f"{spec.name} does not read a block table"
    elif problem.appends:
        return f"{spec.name} does not append to a cache"
    if spec.schedule == "multistage":
        if 0 < problem.window < problem.keys:
            return f"{spec.name} does not cut keys to a window"
        if problem.capped:
            return f"{spec.name} does not cap scores"
    if problem.keys == 0:
        return "there are no keys"
    return ""


def promise_by_name(specs: Sequence[AttentionSpec]) -> bool:
    """Return whether naming these kernels promises ``constant_cache``: one of them needs it."""
    return any(spec.constant_cache for spec in specs)


def why_none(specs: Sequence[AttentionSpec], problem: AttentionProblem) -> str:
    """Return why none of ``specs``, which all misfit, takes the call: what the nearest says."""
    alike = [spec for spec in specs if spec.dtype == problem.dtype] or specs
    sizes = sorted({spec.head_dim for spec in alike})
    if problem.head_dim > sizes[-1]:
        told = ", ".join(map(str, sizes))
        return f"head_dim {problem.head_dim} has no kernel: {told} have, and multiples of 8 below"
    near = [spec for spec in alike if spec.head_dim >= problem.head_dim]
    return min((misfit(spec, problem) for spec in near), key=len)


def ranked(
    specs: Sequence[AttentionSpec], problem: AttentionProblem, sms: int
) -> Sequence[AttentionSpec]:
    """Return the kernels that fit, the one that should be fastest first."""
    fitting = [spec for spec in specs if not misfit(spec, problem)]
    least: dict[str, int] = {}
    for spec in fitting:
        least[spec.schedule] = min(spec.head_dim, least.get(spec.schedule, spec.head_dim))
    near = [spec for spec in fitting if spec.head_dim == least[spec.schedule]]
    return sorted(near, key=lambda spec: cost(spec, problem, sms))


def cost(spec: AttentionSpec, problem: AttentionProblem, sms: int) -> float:
    """Return the clocks that a kernel takes once it is launched."""
    if spec.schedule == "split_kv":
        return split_clocks(spec, problem, sms)
    if spec.schedule == "multistage":
        return multistage_clocks(spec, problem, sms)
    return tile_clocks(spec, problem, sms)
