"""One kernel that a file asks for: its keys on one architecture, and what becomes of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from gemmsmith.arch import Architecture, Store, parse_architecture
from gemmsmith.config_asked import AskedKernel
from gemmsmith.config_defaults import (
    default_output,
    default_schedule,
    default_store,
    stage_counts,
    warp_tiles,
)
from gemmsmith.config_model import (
    AlignmentKeys,
    ArchKeys,
    AttentionArchKeys,
    AttentionKeys,
    DTypes,
    FamilyKeys,
    KernelKeys,
)
from gemmsmith.dtypes import DType, accumulator_of
from gemmsmith.errors import IllegalKernelError, Objection
from gemmsmith.spec import Alignment, Cluster, KernelSpec, Layout, Tile, widest_alignment
from gemmsmith.yaml_lines import Document, KeyPath

_Keys = TypeVar("_Keys", KernelKeys, AttentionKeys)


@dataclass(frozen=True, kw_only=True)
class Entry(AskedKernel):
    """One GEMM kernel that a file asks for: its spec, or why it cannot exist."""

    a: DType
    """Element type of A."""
    d: DType
    """Element type of D."""
    layout: Layout
    """Layout of A, B and D."""
    spec: KernelSpec | None
    """The kernel; None where it is illegal."""


def merged_keys(
    model: type[_Keys], family: _Keys, kernel: _Keys, arch: Architecture | None
) -> _Keys:
    """Return what holds for ``kernel`` of ``family`` on ``arch``, or on all where it is None.

    Kernel goes before family, and ``per_arch`` of both before either.
    """
    blocks = (family, kernel, *(block.per_arch.get(arch) for block in (family, kernel) if arch))
    given = {
        key: getattr(block, key)
        for block in blocks
        if block is not None
        for key in block.model_fields_set
    }
    return model.model_construct(
        **{key: value for key, value in given.items() if key in model.model_fields}
    )


def judged(
    document: Document,
    family: FamilyKeys,
    kernel: KernelKeys,
    path: KeyPath,
    *,
    arch: Architecture,
    dtypes: DTypes,
    layout: Layout,
) -> Entry:
    """Return one kernel of ``kernel``'s crossed lists as an entry, legal or not."""
    keys = merged_keys(KernelKeys, family, kernel, arch)
    assert keys.tile is not None, "a kernel without a tile is refused earlier"
    tile = Tile(*keys.tile)
    types = " ".join(
        f"{key} {getattr(dtypes, key)}" for key in sorted(dtypes.model_fields_set - {"a"})
    )
    title = " ".join(word for word in (arch.name, str(dtypes.a), types, layout, str(tile)) if word)
    d = dtypes.d or default_output(dtypes.a)
    schedule = keys.schedule or default_schedule(arch, tile, swap=keys.swap)
    store = keys.store or default_store(arch, schedule, gated=keys.epilogue.gate != "none")
    fields = {
        "arch": arch,
        "tile": tile,
        "schedule": schedule,
        "a": dtypes.a,
        "b": dtypes.b or dtypes.a,
        "acc": dtypes.acc or accumulator_of(dtypes.a),
        "d": d,
        "layout": layout,
        "cluster": Cluster(*keys.cluster[:2]),
        "split_k": keys.split_k,
        "constant_b": keys.constant_b,
        "store": store,
        "scheduler": keys.scheduler,
        "swap": keys.swap,
        "dependent_launch": keys.dependent_launch,
        **keys.epilogue.model_dump(),
        "alignment": _alignment(keys.alignment, dtypes, d, store),
    }
    found = _first_legal(fields, arch, tile, keys)
    spec = found if isinstance(found, KernelSpec) else None
    broken = () if isinstance(found, KernelSpec) else found
    objections, lines = told(document, path, arch, broken, keys, apart=ArchKeys)
    return Entry(
        file=document.file,
        line=document.line(path),
        family=family.name,
        title=title,
        arch=arch,
        a=dtypes.a,
        d=d,
        layout=layout,
        spec=spec,
        objections=objections,
        lines=lines,
    )


def told(
    document: Document,
    path: KeyPath,
    arch: Architecture,
    broken: Sequence[Objection],
    keys: KernelKeys | AttentionKeys,
    *,
    apart: type[ArchKeys | AttentionArchKeys],
) -> tuple[tuple[Objection, ...], tuple[int, ...]]:
    """Return the objections to the kernel at ``path`` as an entry has them, with their lines.

    Where its ``keys`` name several architectures, those about a key that these share and that may
    differ between them, one of ``apart``, say how.
    """
    places = [_place(document, path, arch, objection.key) for objection in broken]
    shared = {(*block, key) for block in (path, path[:2]) for key in apart.model_fields}
    objections = tuple(
        _on_one_alone(objection, arch) if len(keys.arch) > 1 and place in shared else objection
        for objection, place in zip(broken, places, strict=True)
    )
    line = document.line(path)
    return objections, tuple(line if at is None else document.lines[at] for at in places)


def _first_legal(
    fields: dict[str, Any], arch: Architecture, tile: Tile, keys: KernelKeys
) -> KernelSpec | tuple[Objection, ...]:
    """The spec with the first legal choice of what ``keys`` leave open, or the fewest objections.

    Of choices with equally many objections the last one's are told: it takes least.
    """
    by_hand = arch.api == "2.x"
    warps = (Tile(*keys.warp),) if keys.warp else warp_tiles(tile) if by_hand else (None,)
    counts = (keys.stages,) if keys.stages or not by_hand else tuple(stage_counts(arch))
    refused: list[tuple[Objection, ...]] = []
    for warp, stages in itertools.product(warps, counts):
        try:
            return KernelSpec(**fields, warp=warp, stages=stages)
        except IllegalKernelError as error:
            refused.append(error.objections)
    return min(reversed(refused), key=len)


def _alignment(given: AlignmentKeys, dtypes: DTypes, d: DType, store: Store) -> Alignment:
    widest = widest_alignment(dtypes.a, dtypes.b or dtypes.a, d, store)
    return Alignment(
        a=widest.a if given.a is None else given.a,
        b=widest.b if given.b is None else given.b,
        d=widest.d if given.d is None else given.d,
    )


def _place(document: Document, path: KeyPath, arch: Architecture, key: str) -> KeyPath | None:
    """Where the file gives ``key`` to the kernel at ``path`` on ``arch``, if anywhere."""
    blocks = (path, path[:2])
    wanted = [place for block in blocks for place in _per_arch(document, block, arch, key)]
    wanted += [(*block, key) for block in blocks]
    return next((place for place in wanted if place in document.lines), None)


def _per_arch(
    document: Document, block: KeyPath, arch: Architecture, key: str
) -> Iterator[KeyPath]:
    inside = (*block, "per_arch")
    for place in document.lines:
        if place[:-1] == inside and parse_architecture(str(place[-1])) == arch:
            yield (*place, key)


def _on_one_alone(objection: Objection, arch: Architecture) -> Objection:
    """Tell, too, how one of several architectures gets another value of a key."""
    apart = f"(for {arch.name} alone: per_arch: {{{arch.name}: {{{objection.key}: ...}}}})"
    return replace(objection, fix=f"{objection.fix} {apart}".strip())
