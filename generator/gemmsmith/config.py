"""YAML files of kernel families, read into kernel specs.

A file holds families; a family's keys are the defaults of its kernels, and lists under ``arch``,
``dtype`` and ``layout`` are crossed. Everything wrong with all files is reported at once.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path

from gemmsmith.arch import Architecture, parse_architecture
from gemmsmith.attn.config import load_attention
from gemmsmith.attn.spec import AttentionSpec
from gemmsmith.config_asked import AskedKernel
from gemmsmith.config_entries import read_entries
from gemmsmith.config_entry import Entry
from gemmsmith.config_model import schema
from gemmsmith.errors import ConfigError, Problem
from gemmsmith.spec import KernelSpec

__all__ = ["Entry", "inspect_file", "load_kernels", "load_specs", "schema", "skipped_entries"]


def load_specs(path: Path | str, *, arch: Sequence[str] | None = None) -> tuple[KernelSpec, ...]:
    """Return the GEMM kernels of a YAML file, or of all in a folder, in their order and each once.

    ``arch`` keeps the kernels of these architectures only. A kernel asked for twice is returned
    once, with a warning. Kernels that are skipped are left out (:func:`skipped_entries`).

    Raises:
        ConfigError: with every problem of every file, or where nothing is left.
        UnknownArchitectureError: where a word of ``arch`` names no architecture.
    """
    wanted = _wanted(arch)
    specs, entries = _gemms(path)
    if not specs and not entries:
        message = "asks for attention kernels alone; this is about GEMMs, under the key families"
        raise ConfigError([Problem(file=str(path), line=0, message=message)])
    kept = tuple(spec for spec in specs if wanted is None or spec.arch in wanted)
    if not kept:
        raise nothing_left(path, specs, entries, wanted or ())
    return kept


def load_kernels(
    path: Path | str, *, arch: Sequence[str] | None = None
) -> tuple[tuple[KernelSpec, ...], tuple[AttentionSpec, ...]]:
    """Return the GEMM and the attention kernels of a file or folder, as :func:`load_specs` does.

    Raises:
        ConfigError: with every problem of every file, or where neither kind has a kernel left.
        UnknownArchitectureError: where a word of ``arch`` names no architecture.
    """
    wanted = _wanted(arch)
    problems: list[Problem] = []
    attention: tuple[AttentionSpec, ...] = ()
    specs: tuple[KernelSpec, ...] = ()
    entries: list[Entry] = []
    try:
        specs, entries = _gemms(path)
    except ConfigError as error:
        problems += error.problems
    try:
        attention = load_attention(path)
    except ConfigError as error:
        problems += error.problems
    if problems:
        each = dict.fromkeys(problems)  # what is wrong with the YAML itself both have found
        raise ConfigError(sorted(each, key=lambda problem: (problem.file, problem.line)))
    kept = tuple(spec for spec in specs if wanted is None or spec.arch in wanted)
    kept_attention = tuple(spec for spec in attention if wanted is None or spec.arch in wanted)
    if not kept and not kept_attention:
        raise nothing_left(path, (*specs, *attention), entries, wanted or ())
    return kept, kept_attention


def _gemms(path: Path | str) -> tuple[tuple[KernelSpec, ...], list[Entry]]:
    """Return the GEMM kernels, each once, and all entries."""
    entries, problems = read_entries(Path(path))
    problems += [problem for entry in entries for problem in entry.problems]
    if problems:
        raise ConfigError(sorted(problems, key=lambda problem: (problem.file, problem.line)))
    first: dict[str, Entry] = {}
    for entry in entries:
        if entry.spec is None:
            continue  # skipped
        earlier = first.setdefault(entry.spec.name, entry)
        here = f"{entry.file}:{entry.line}"
        if earlier is entry:
            continue
        if earlier.spec != entry.spec:
            problems.append(_two_of_one_name(earlier, entry))
        else:
            warnings.warn(
                f"{here}: {entry.spec.name} is already asked for at {earlier.file}:{earlier.line};"
                " it is built once",
                stacklevel=3,
            )
    if problems:
        raise ConfigError(problems)
    return tuple(entry.spec for entry in first.values() if entry.spec is not None), entries


def nothing_left(
    path: Path | str,
    specs: Sequence[KernelSpec | AttentionSpec | AskedKernel],
    entries: Sequence[AskedKernel],
    wanted: Sequence[Architecture],
) -> ConfigError:
    """Return that ``path`` has kernels, those of ``specs``, and none of the ``wanted`` rows."""
    have = ", ".join(dict.fromkeys(spec.arch.name for spec in specs))
    asked = ", ".join(row.name for row in wanted)
    message = f"has kernels for {have}, none for {asked or 'an empty list of architectures'}"
    why = dict.fromkeys(
        f"{entry.title}: {entry.reason}"
        for entry in entries
        if entry.skipped and entry.arch in wanted
    )
    message += "".join(f"\n  skipped {reason}" for reason in why)
    return ConfigError([Problem(file=str(path), line=0, message=message)])


def inspect_file(path: Path | str) -> tuple[Entry, ...]:
    """Return every kernel that a file or folder asks for, with what is wrong with each.

    Raises:
        ConfigError: where a file cannot be read as families; legality is not judged here.
    """
    entries, problems = read_entries(Path(path))
    if problems:
        raise ConfigError(problems)
    return tuple(entries)


def skipped_entries(path: Path | str, *, arch: Sequence[str] | None = None) -> tuple[Entry, ...]:
    """Return the kernels of a file or folder that their architecture cannot have, in their order.

    Each was asked for together with architectures that can have it; ``Entry.reason`` says why not.
    ``arch`` keeps those of these architectures only.

    Raises:
        ConfigError: where a file cannot be read as families.
        UnknownArchitectureError: where a word of ``arch`` names no architecture.
    """
    wanted = _wanted(arch)
    return tuple(
        entry
        for entry in inspect_file(path)
        if entry.skipped and (wanted is None or entry.arch in wanted)
    )


def _wanted(arch: Sequence[str] | None) -> tuple[Architecture, ...] | None:
    if arch is None:
        return None
    words = [arch] if isinstance(arch, str) else arch
    return tuple(parse_architecture(word) for word in words)


def _two_of_one_name(earlier: Entry, entry: Entry) -> Problem:
    assert entry.spec is not None, "only legal kernels have names"
    return Problem(
        file=entry.file,
        line=entry.line,
        message=f"{entry.spec.name} names two different kernels: this one and the one at"
        f" {earlier.file}:{earlier.line}; remove one",
    )
