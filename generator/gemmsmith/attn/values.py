"""What templates may say about attention kernels: C++ spellings by named hole."""

from __future__ import annotations

from typing import Any

from gemmsmith.attn.spec import AttentionSchedule, AttentionSpec

TEMPLATES: dict[AttentionSchedule, str] = {
    "pingpong": "attention_sm90.cu.j2",
    "cooperative": "attention_sm90.cu.j2",
    "split_kv": "attention_decode.cu.j2",
    "multistage": "attention_mma_sync.cu.j2",
}
"""By schedule: the template of its kernels."""

_ELEMENTS = {"fp16": "cutlass::half_t", "bf16": "cutlass::bfloat16_t"}
_CUDA_ELEMENTS = {"fp16": "__half", "bf16": "__nv_bfloat16"}
_SHORT = {"fp16": "f16", "bf16": "bf16"}


def attention_values(spec: AttentionSpec) -> dict[str, Any]:
    """Return the values of all holes of the templates of attention kernels."""
    elements = _CUDA_ELEMENTS if spec.schedule == "split_kv" else _ELEMENTS
    return {
        "name": spec.name,
        "element": elements[spec.dtype.name],
        "head_dim": spec.head_dim,
        "short": _SHORT[spec.dtype.name],
        "tile": spec.tile,
        "warps": spec.warps,
        "stages": spec.stages,
        "cluster": spec.cluster,
        "in_turns": "true" if spec.schedule == "pingpong" else "false",
        "dependent_launch": "true" if spec.dependent_launch else "false",
        "constant_cache": "true" if spec.constant_cache else "false",
    }
