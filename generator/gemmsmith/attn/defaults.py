"""What an attention kernel gets whose file leaves keys out, so that one family can name all
architectures."""

from __future__ import annotations

from gemmsmith.arch import Architecture
from gemmsmith.attn import rules_multistage
from gemmsmith.attn.spec import AttentionSchedule, AttentionTile


def default_schedule(
    arch: Architecture, tile: AttentionTile, *, warps: bool = False
) -> AttentionSchedule:
    """Return the schedule for many queries; for few, as the tile or ``warps`` tell, ``split_kv``.

    Hopper's kernels for many queries have 64 at least and say so of a smaller tile.
    """
    if warps:
        return "split_kv"  # the others' warps follow from the tile
    if arch.api != "2.x":
        return "pingpong"
    return "multistage" if tile.query >= rules_multistage.STEP else "split_kv"


def default_stages(arch: Architecture, schedule: AttentionSchedule) -> int:
    """Return the buffers that CUTLASS's ``multistage`` kernel has, and 2 for the others."""
    return rules_multistage.stages(arch) if schedule == "multistage" else 2
