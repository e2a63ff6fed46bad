"""The kernels that configuration files ask for, each with its place in the file."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from gemmsmith.arch import Architecture
from gemmsmith.config_entry import Entry, judged, keys_of
from gemmsmith.config_model import AttentionKeys, FamilyKeys, FileKeys, KernelKeys
from gemmsmith.config_problems import EXAMPLES, missing_key, same_names, sentences
from gemmsmith.errors import Problem
from gemmsmith.yaml_lines import Document, KeyPath, read_yaml


def files_of(path: Path) -> list[Path]:
    """Return the YAML file ``path``, or those of the folder."""
    if not path.is_dir():
        return [path]
    return sorted(file for file in path.iterdir() if file.suffix in (".yaml", ".yml"))


def read_entries(path: Path) -> tuple[list[Entry], list[Problem]]:
    """Return the kernels of a file or folder, legal or not, and what is wrong with the YAML.

    A kernel whose keys are wrong is among the problems and not among the entries.
    """
    files = files_of(path)
    if not files:
        return [], [Problem(file=str(path), line=0, message="the folder holds no .yaml file")]
    entries: list[Entry] = []
    problems: list[Problem] = []
    for file in files:
        found, wrong = _read_file(read_yaml(file))
        entries += found
        problems += wrong
    return entries, problems


def _read_file(document: Document) -> tuple[list[Entry], list[Problem]]:
    problems = list(document.problems)
    data = document.data
    if not isinstance(data, dict):
        message = "is empty" if data is None else "is not a mapping"
        if not problems:
            message += "; a file needs the key families: with a list of kernel families"
            problems.append(Problem(file=document.file, line=document.line(()), message=message))
        return [], problems
    errors: list[ErrorDetails] = []
    try:
        FileKeys.model_validate(data)
    except ValidationError as error:
        errors = error.errors()
    problems += sentences(errors, document)
    if not {"families", "attention"} & set(data):
        message = f"key 'families' is missing; for example {EXAMPLES['families']}"
        problems.append(Problem(file=document.file, line=document.line(()), message=message))
    families = data.get("families")
    blocks = families if isinstance(families, list) else []
    names = [block.get("name") if isinstance(block, dict) else None for block in blocks]
    problems += same_names(document, "families", names).values()
    broken = {error["loc"] for error in errors} | document.refused
    found = [
        result
        for place, block in enumerate(blocks)
        for result in _kernels(document, place, block, broken)
    ]
    entries = [result for result in found if isinstance(result, Entry)]
    problems += [result for result in found if isinstance(result, Problem)]
    return entries, sorted(problems, key=lambda problem: problem.line)


class SoundPart(NamedTuple):
    """A family of a file without the kernels whose keys are wrong."""

    block: dict[str, Any]
    paths: list[KeyPath]
    """Where its kernels are; of a family without a list of them, where it is itself."""
    whole: bool
    """Whether nothing was left out."""


def sound_part(block: object, path: KeyPath, broken: set[KeyPath]) -> SoundPart | None:
    """Return what can be judged of the family at ``path``; None where nothing can.

    ``broken`` has the place of each key that is wrong. What follows from a wrong key of the family
    would be wrong too.
    """
    inside = [loc[2:] for loc in broken if loc[:2] == path]
    if not isinstance(block, dict) or any(
        loc[:1] != ("kernels",) or len(loc) == 1 for loc in inside
    ):
        return None
    bad = {loc[1] for loc in inside}
    listed = block.get("kernels")
    if not listed:
        return SoundPart(block, [path], not bad)
    sound = [at for at in range(len(listed)) if at not in bad]
    kept = {**block, "kernels": [listed[at] for at in sound]}
    return SoundPart(kept, [(*path, "kernels", at) for at in sound], not bad) if sound else None


def _kernels(
    document: Document, place: int, block: object, broken: set[KeyPath]
) -> Iterator[Entry | Problem]:
    """Yield the kernels of one family; those with broken keys are left out."""
    path: KeyPath = ("families", place)
    part = sound_part(block, path, broken)
    if part is None:
        return
    family = FamilyKeys.model_validate(part.block)
    blocks = list(zip(part.paths, family.kernels or (family,), strict=True))
    named = [row for _, kernel in blocks for row in keys_of(family, kernel).arch]
    if named and part.whole:
        yield from strangers(document, path, family, named)
    for where, kernel in blocks:
        yield from _crossed(document, family, kernel, where)


def strangers(
    document: Document,
    path: KeyPath,
    block: KernelKeys | AttentionKeys,
    named: Sequence[Architecture],
) -> Iterator[Problem]:
    """Yield a problem for each architecture of ``per_arch`` that no kernel is asked for."""
    for row in block.per_arch:
        if row not in named:
            names = ", ".join(dict.fromkeys(row.name for row in named))
            yield Problem(
                file=document.file,
                line=document.line((*path, "per_arch")),
                message=f"per_arch: {row.name} is not under arch ({names}); add it or remove it",
            )


def _crossed(
    document: Document, family: FamilyKeys, kernel: KernelKeys, path: KeyPath
) -> Iterator[Entry | Problem]:
    """Yield one entry for each architecture, element types and layout of a kernel.

    What is illegal on one architecture and legal on another is skipped, not refused.
    """
    keys = keys_of(family, kernel)
    missing = [key for key in ("arch", "dtype") if not getattr(keys, key)]
    if not all(keys_of(family, kernel, arch).tile for arch in keys.arch or (None,)):
        missing.append("tile")
    for key in missing:
        yield missing_key(document, path, family.name, key, EXAMPLES[key])
    if missing:
        return
    if kernel is not family:
        yield from strangers(document, path, kernel, keys.arch)
    combinations = list(itertools.product(keys.dtype, keys.layout))
    rows = [
        [
            judged(document, family, kernel, path, arch=arch, dtypes=dtypes, layout=layout)
            for dtypes, layout in combinations
        ]
        for arch in keys.arch
    ]
    somewhere = [any(entry.spec for entry in column) for column in zip(*rows, strict=True)]
    for row in rows:
        for entry, legal_somewhere in zip(row, somewhere, strict=True):
            skipped = entry.spec is None and legal_somewhere
            yield replace(entry, skipped=True) if skipped else entry
