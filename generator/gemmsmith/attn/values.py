"""What templates may say about attention kernels: C++ spellings by named hole."""

from __future__ import annotations

from typing import Any

from gemmsmith.attn.spec import AttentionSchedule, AttentionSpec

TEMPLATES: dict[AttentionSchedule, str] = {
    "pingpong": "attention_sm90.cu.j2",
    "cooperative": "attention_sm90.cu.j2",
}
"""By schedule: the template of its kernels."""

_ELEMENTS = {"fp16": "cutlass::half_t", "bf16": "cutlass::bfloat16_t"}
_SHORT = {"fp16": "f16", "bf16": "bf16"}


def attention_values(spec: AttentionSpec) -> dict[str, Any]:
    """Return the values of all holes of the templates of attention kernels."""
    return {
        "name": spec.name,
        "element": _ELEMENTS[spec.dtype.name],
        "head_dim": spec.head_dim,
        "short": _SHORT[spec.dtype.name],
        "tile": spec.tile,
        "stages": spec.stages,
        "in_turns": "true" if spec.schedule == "pingpong" else "false",
        "dependent_launch": "true" if spec.dependent_launch else "false",
    }
