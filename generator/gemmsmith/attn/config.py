"""The attention kernels that configuration files ask for, each with its place in the file."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import ValidationError

from gemmsmith.arch import Architecture, parse_architecture
from gemmsmith.attn.spec import AttentionSpec, AttentionTile, AttentionWarps
from gemmsmith.config_asked import AskedKernel
from gemmsmith.config_entries import files_of
from gemmsmith.config_model import AttentionFamilyKeys, AttentionKeys, FileKeys
from gemmsmith.config_problems import EXAMPLES, missing_key, same_names, sentences
from gemmsmith.dtypes import DType
from gemmsmith.errors import ConfigError, IllegalKernelError, Objection, Problem
from gemmsmith.yaml_lines import Document, KeyPath, read_yaml


@dataclass(frozen=True, kw_only=True)
class AttentionEntry(AskedKernel):
    """One attention kernel that a file asks for: its spec, or why it cannot exist."""

    spec: AttentionSpec | None
    """The kernel; None where it is illegal."""


def load_attention(
    path: Path | str, *, arch: Sequence[str] | None = None
) -> tuple[AttentionSpec, ...]:
    """Return the attention kernels of a YAML file, or of all in a folder, in their order.

    None at all is no mistake. ``arch`` keeps those of these architectures only. A kernel asked for
    twice is returned once, with a warning; one that is skipped is left out.

    Raises:
        ConfigError: with every problem of every file.
        UnknownArchitectureError: where a word of ``arch`` names no architecture.
    """
    wanted = None if arch is None else [parse_architecture(word) for word in arch]
    first: dict[AttentionSpec, AttentionEntry] = {}
    entries = inspect_attention(path)
    problems = [problem for entry in entries for problem in entry.problems]
    if problems:
        raise ConfigError(problems)
    for entry in entries:
        if entry.spec is None:
            continue  # skipped
        earlier = first.setdefault(entry.spec, entry)
        if earlier is not entry:
            warnings.warn(
                f"{entry.file}:{entry.line}: {entry.spec.name} is already asked for at"
                f" {earlier.file}:{earlier.line}; it is built once",
                stacklevel=2,
            )
    return tuple(spec for spec in first if wanted is None or spec.arch in wanted)


def inspect_attention(path: Path | str) -> tuple[AttentionEntry, ...]:
    """Return every attention kernel that a file or folder asks for, legal or not.

    Raises:
        ConfigError: where a file cannot be read as families; legality is not judged here.
    """
    found: list[AttentionEntry | Problem] = []
    for file in files_of(Path(path)):
        document = read_yaml(file)
        found += document.problems
        data = document.data
        if isinstance(data, dict) and "attention" in data:
            found += _read(document, {"attention": data["attention"]})
    problems = [result for result in found if isinstance(result, Problem)]
    if problems:
        raise ConfigError(problems)
    return tuple(result for result in found if isinstance(result, AttentionEntry))


def _read(document: Document, data: dict[str, object]) -> Iterator[AttentionEntry | Problem]:
    try:
        families = FileKeys.model_validate(data).attention
    except ValidationError as error:
        yield from sentences(error.errors(), document)
        return
    same = same_names(document, "attention", [family.name for family in families])
    for place, family in enumerate(families):
        path: KeyPath = ("attention", place)
        if place in same:
            yield same[place]
        if family.kernels is None:
            yield from _crossed(document, family, family, path)
            continue
        for at, kernel in enumerate(family.kernels):
            yield from _crossed(document, family, kernel, (*path, "kernels", at))


def _crossed(
    document: Document, family: AttentionFamilyKeys, kernel: AttentionKeys, path: KeyPath
) -> Iterator[AttentionEntry | Problem]:
    """Yield one entry for each architecture, element type and head size of a kernel."""
    given = {
        key: getattr(block, key)
        for block in (family, kernel)
        for key in block.model_fields_set
        if key in AttentionKeys.model_fields
    }
    keys = AttentionKeys.model_construct(**given)
    missing = [key for key in ("arch", "dtype", "head_dim", "tile") if not getattr(keys, key)]
    for key in missing:
        example = "tile: [128, 128]" if key == "tile" else EXAMPLES[key]
        yield missing_key(document, path, family.name, key, example)
    if missing or keys.tile is None:
        return
    for dtype, head_dim in itertools.product(keys.dtype, keys.head_dim):
        column = [
            _entry(document, family, keys, path, arch=arch, dtype=dtype, head_dim=head_dim)
            for arch in keys.arch
        ]
        legal_somewhere = any(entry.spec for entry in column)
        for entry in column:
            yield replace(entry, skipped=entry.spec is None and legal_somewhere)


def _entry(
    document: Document,
    family: AttentionFamilyKeys,
    keys: AttentionKeys,
    path: KeyPath,
    *,
    arch: Architecture,
    dtype: DType,
    head_dim: int,
) -> AttentionEntry:
    assert keys.tile is not None, "a kernel without a tile is refused earlier"
    tile = AttentionTile(*keys.tile)
    spec = _judged(keys, arch, dtype, head_dim, tile)
    broken = () if isinstance(spec, AttentionSpec) else spec
    return AttentionEntry(
        file=document.file,
        line=document.line(path),
        family=family.name,
        title=f"{arch.name} {dtype} head_dim {head_dim} {tile}",
        arch=arch,
        spec=spec if isinstance(spec, AttentionSpec) else None,
        objections=broken,
        lines=tuple(_line_of(document, path, objection.key) for objection in broken),
    )


def _line_of(document: Document, path: KeyPath, key: str) -> int:
    """Return where the file gives ``key`` to the kernel at ``path``, or the line of the kernel."""
    places = ((*path, key), (*path[:2], key), path)
    return next(document.lines[place] for place in places if place in document.lines)


def _judged(
    keys: AttentionKeys, arch: Architecture, dtype: DType, head_dim: int, tile: AttentionTile
) -> AttentionSpec | tuple[Objection, ...]:
    try:
        return AttentionSpec(
            arch=arch,
            dtype=dtype,
            head_dim=head_dim,
            tile=tile,
            schedule=keys.schedule,
            stages=keys.stages,
            warps=None if keys.warps is None else AttentionWarps(*keys.warps),
            cluster=keys.cluster,
            constant_cache=keys.constant_cache,
        )
    except IllegalKernelError as error:
        return error.objections
