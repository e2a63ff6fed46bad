"""The attention kernels that configuration files ask for, each with its place in the file."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from gemmsmith.arch import parse_architecture
from gemmsmith.attn.config_entry import AttentionEntry, attention_keys, judged
from gemmsmith.attn.spec import AttentionSpec
from gemmsmith.config_entries import files_of, sound_part, strangers
from gemmsmith.config_model import AttentionFamilyKeys, AttentionKeys, FileKeys
from gemmsmith.config_problems import (
    ATTENTION_EXAMPLES,
    missing_key,
    same_names,
    sentences,
)
from gemmsmith.errors import ConfigError, Problem
from gemmsmith.yaml_lines import Document, KeyPath, read_yaml

__all__ = ["AttentionEntry", "inspect_attention", "load_attention"]


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
    entries, problems = _read(Path(path))
    problems += [problem for entry in entries for problem in entry.problems]
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
    entries, problems = _read(Path(path))
    if problems:
        raise ConfigError(problems)
    return tuple(entries)


def _read(path: Path) -> tuple[list[AttentionEntry], list[Problem]]:
    """Return the kernels of a file or folder, legal or not, and what is wrong with the YAML."""
    found: list[AttentionEntry | Problem] = []
    for file in files_of(path):
        document = read_yaml(file)
        found += document.problems
        data = document.data
        if isinstance(data, dict) and "attention" in data:
            found += _families(document, data["attention"])
    entries = [result for result in found if isinstance(result, AttentionEntry)]
    return entries, [result for result in found if isinstance(result, Problem)]


def _families(document: Document, listed: object) -> Iterator[AttentionEntry | Problem]:
    errors: list[ErrorDetails] = []
    try:
        FileKeys.model_validate({"attention": listed})
    except ValidationError as error:
        errors = error.errors()
    yield from sentences(errors, document)
    blocks = listed if isinstance(listed, list) else []
    names = [block.get("name") if isinstance(block, dict) else None for block in blocks]
    yield from same_names(document, "attention", names).values()
    broken = {error["loc"] for error in errors} | document.refused
    for place, block in enumerate(blocks):
        yield from _kernels(document, ("attention", place), block, broken)


def _kernels(
    document: Document, path: KeyPath, block: object, broken: set[KeyPath]
) -> Iterator[AttentionEntry | Problem]:
    """Yield the kernels of one family; those with broken keys are left out."""
    part = sound_part(block, path, broken)
    if part is None:
        return
    family = AttentionFamilyKeys.model_validate(part.block)
    kernels: Sequence[AttentionKeys] = family.kernels or (family,)
    named = [row for kernel in kernels for row in attention_keys(family, kernel).arch]
    if named and part.whole:
        yield from strangers(document, path, family, named)
    for where, kernel in zip(part.paths, kernels, strict=True):
        yield from _crossed(document, family, kernel, where)


def _crossed(
    document: Document, family: AttentionFamilyKeys, kernel: AttentionKeys, path: KeyPath
) -> Iterator[AttentionEntry | Problem]:
    """Yield one entry for each architecture, element type and head size of a kernel.

    What is illegal on one architecture and legal on another is skipped, not refused.
    """
    keys = attention_keys(family, kernel)
    missing = [key for key in ("arch", "dtype", "head_dim") if not getattr(keys, key)]
    if not all(attention_keys(family, kernel, arch).tile for arch in keys.arch or (None,)):
        missing.append("tile")
    for key in missing:
        yield missing_key(document, path, family.name, key, ATTENTION_EXAMPLES[key])
    if missing:
        return
    if kernel is not family:
        yield from strangers(document, path, kernel, keys.arch)
    for dtype, head_dim in itertools.product(keys.dtype, keys.head_dim):
        column = [
            judged(document, family, kernel, path, arch=arch, dtype=dtype, head_dim=head_dim)
            for arch in keys.arch
        ]
        legal_somewhere = any(entry.spec for entry in column)
        for entry in column:
            yield replace(entry, skipped=entry.spec is None and legal_somewhere)
