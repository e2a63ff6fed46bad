"""One attention kernel that a file asks for: its keys on one architecture, what becomes of them."""

from __future__ import annotations

from dataclasses import dataclass

from gemmsmith.arch import Architecture
from gemmsmith.attn.defaults import default_schedule, default_stages
from gemmsmith.attn.spec import AttentionSpec, AttentionTile, AttentionWarps
from gemmsmith.config_asked import AskedKernel
from gemmsmith.config_entry import merged_keys, told
from gemmsmith.config_model import AttentionArchKeys, AttentionFamilyKeys, AttentionKeys
from gemmsmith.dtypes import DType
from gemmsmith.errors import IllegalKernelError, Objection
from gemmsmith.yaml_lines import Document, KeyPath


@dataclass(frozen=True, kw_only=True)
class AttentionEntry(AskedKernel):
    """One attention kernel that a file asks for: its spec, or why it cannot exist."""

    spec: AttentionSpec | None
    """The kernel; None where it is illegal."""


def judged(
    document: Document,
    family: AttentionFamilyKeys,
    kernel: AttentionKeys,
    path: KeyPath,
    *,
    arch: Architecture,
    dtype: DType,
    head_dim: int,
) -> AttentionEntry:
    """Return one kernel of ``kernel``'s crossed lists as an entry, legal or not."""
    keys = merged_keys(AttentionKeys, family, kernel, arch)
    assert keys.tile is not None, "a kernel without a tile is refused earlier"
    tile = AttentionTile(*keys.tile)
    spec = _spec(keys, arch, dtype, head_dim, tile)
    broken = () if isinstance(spec, AttentionSpec) else spec
    objections, lines = told(document, path, arch, broken, keys, apart=AttentionArchKeys)
    return AttentionEntry(
        file=document.file,
        line=document.line(path),
        family=family.name,
        title=f"{arch.name} {dtype} head_dim {head_dim} {tile}",
        arch=arch,
        spec=spec if isinstance(spec, AttentionSpec) else None,
        objections=objections,
        lines=lines,
    )


def _spec(
    keys: AttentionKeys, arch: Architecture, dtype: DType, head_dim: int, tile: AttentionTile
) -> AttentionSpec | tuple[Objection, ...]:
    schedule = keys.schedule or default_schedule(arch, tile, warps=keys.warps is not None)
    stages = default_stages(arch, schedule) if keys.stages is None else keys.stages
    try:
        return AttentionSpec(
            arch=arch,
            dtype=dtype,
            head_dim=head_dim,
            tile=tile,
            schedule=schedule,
            stages=stages,
            warps=None if keys.warps is None else AttentionWarps(*keys.warps),
            cluster=keys.cluster,
            constant_cache=keys.constant_cache,
        )
    except IllegalKernelError as error:
        return error.objections
