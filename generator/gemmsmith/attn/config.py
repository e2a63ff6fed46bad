"""The attention kernels that configuration files ask for, each with its place in the file."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from gemmsmith.arch import parse_architecture
from gemmsmith.attn.config_entry import AttentionEntry, judged
from gemmsmith.attn.spec import AttentionSpec
from gemmsmith.config_entries import files_of
from gemmsmith.config_families import Language, kernels_of
from gemmsmith.config_model import AttentionFamilyKeys, AttentionKeys, FileKeys
from gemmsmith.config_problems import ATTENTION_EXAMPLES, same_names, sentences
from gemmsmith.errors import ConfigError, Problem
from gemmsmith.yaml_lines import Document, read_yaml

__all__ = ["AttentionEntry", "inspect_attention", "load_attention"]

_ATTENTION = Language(
    family=AttentionFamilyKeys,
    kernel=AttentionKeys,
    needed={key: ATTENTION_EXAMPLES[key] for key in ("arch", "dtype", "head_dim", "tile")},
    crossed={"dtype": "dtype", "head_dim": "head_dim"},
    judged=judged,
)


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
        yield from kernels_of(document, ("attention", place), block, broken, _ATTENTION)
