"""What an attention kernel takes of a multiprocessor, as numbers; nothing here reads a GPU."""

from __future__ import annotations

from dataclasses import dataclass

from gemmsmith.attn.rules import register_use, shared_bytes, threads
from gemmsmith.attn.spec import AttentionSpec


@dataclass(frozen=True, kw_only=True)
class AttentionReport:
    """What one attention kernel takes, as far as it is known before compiling."""

    name: str
    """The kernel's name."""
    threads: int
    """Threads of a block, loading ones included."""
    registers: int
    """32-bit registers that a thread which multiplies is expected to need."""
    register_limit: int
    """What it may have; above it, sums would spill."""
    register_use: str
    """What they hold, in words."""
    stages: int
    """Buffers for tiles of keys, and as many for values."""
    stages_that_fit: int
    """The most of them that the shared memory holds."""
    shared_memory: int
    """Shared memory of a block, in bytes."""
    shared_memory_limit: int
    """What one block may use on this architecture, in bytes."""
    constant_cache: bool
    """Whether it is for calls alone that promise ``constant_cache``, or name it."""


def explain_attention(spec: AttentionSpec) -> AttentionReport:
    """Return the resources that ``spec`` takes."""
    use = register_use(spec)
    limit = spec.arch.smem_per_block
    stages = spec.stages
    if spec.schedule != "multistage":  # CUTLASS's kernel has a number of its own
        while shared_bytes(spec, stages + 1) <= limit:
            stages += 1
    return AttentionReport(
        name=spec.name,
        threads=threads(spec),
        registers=use.taken,
        register_limit=use.limit,
        register_use=use.words,
        stages=spec.stages,
        stages_that_fit=stages,
        shared_memory=shared_bytes(spec),
        shared_memory_limit=limit,
        constant_cache=spec.constant_cache,
    )
