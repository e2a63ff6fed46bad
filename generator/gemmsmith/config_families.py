"""From a family of a file to its kernels: lists are crossed, missing keys and strangers told."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, NamedTuple, TypeVar

from gemmsmith.arch import Architecture
from gemmsmith.config_asked import AskedKernel
from gemmsmith.config_entry import merged_keys
from gemmsmith.config_model import AttentionFamilyKeys, AttentionKeys, FamilyKeys, KernelKeys
from gemmsmith.config_problems import missing_key
from gemmsmith.errors import Problem
from gemmsmith.yaml_lines import Document, KeyPath

_Entry = TypeVar("_Entry", bound=AskedKernel)


@dataclass(frozen=True)
class Language(Generic[_Entry]):
    """What families of one kind are made of."""

    family: type[FamilyKeys] | type[AttentionFamilyKeys]
    """Keys of a family."""
    kernel: type[KernelKeys] | type[AttentionKeys]
    """Keys of one kernel."""
    needed: Mapping[str, str]
    """Keys that a kernel must have, here or in its family, with an example of each."""
    crossed: Mapping[str, str]
    """Keys with lists of which each combination is a kernel; and what ``judged`` calls an item."""
    judged: Callable[..., _Entry]
    """Makes an entry of (document, family, kernel, path, arch=…) and an item of each list."""

    def merged(self, family: Any, kernel: Any, arch: Architecture | None = None) -> Any:
        """Return the keys of ``kernel`` in its family (:func:`merged_keys`)."""
        return merged_keys(self.kernel, family, kernel, arch)


class _SoundPart(NamedTuple):
    """A family of a file without the kernels whose keys are wrong."""

    block: dict[str, Any]
    paths: list[KeyPath]
    """Where its kernels are; of a family without a list of them, where it is itself."""
    whole: bool
    """Whether nothing was left out."""


def kernels_of(
    document: Document, path: KeyPath, block: object, broken: set[KeyPath], of: Language[_Entry]
) -> Iterator[_Entry | Problem]:
    """Yield the kernels of the family at ``path``; those with broken keys are left out.

    ``broken`` has the place of each key that is wrong.
    """
    part = _sound_part(block, path, broken)
    if part is None:
        return
    family = of.family.model_validate(part.block)
    kernels = family.kernels or (family,)
    named = [row for kernel in kernels for row in of.merged(family, kernel).arch]
    if named and part.whole:
        yield from _strangers(document, path, family, named)
    for where, kernel in zip(part.paths, kernels, strict=True):
        yield from _crossed(document, family, kernel, where, of)


def _sound_part(block: object, path: KeyPath, broken: set[KeyPath]) -> _SoundPart | None:
    """Return what can be judged of the family at ``path``; None where nothing can.

    What follows from a wrong key of the family would be wrong too.
    """
    inside = [loc[2:] for loc in broken if loc[:2] == path]
    if not isinstance(block, dict) or any(
        loc[:1] != ("kernels",) or len(loc) == 1 for loc in inside
    ):
        return None
    bad = {loc[1] for loc in inside}
    listed = block.get("kernels")
    if not listed:
        return _SoundPart(block, [path], not bad)
    sound = [at for at in range(len(listed)) if at not in bad]
    kept = {**block, "kernels": [listed[at] for at in sound]}
    return _SoundPart(kept, [(*path, "kernels", at) for at in sound], not bad) if sound else None


def _strangers(
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
    document: Document,
    family: FamilyKeys | AttentionFamilyKeys,
    kernel: KernelKeys | AttentionKeys,
    path: KeyPath,
    of: Language[_Entry],
) -> Iterator[_Entry | Problem]:
    """Yield one entry for each architecture and each combination of a kernel's crossed lists.

    What is illegal on one architecture and legal on another is skipped, not refused.
    """
    keys = of.merged(family, kernel)
    tiled = all(of.merged(family, kernel, arch).tile for arch in keys.arch or (None,))
    missing = [key for key in of.needed if not (tiled if key == "tile" else getattr(keys, key))]
    for key in missing:
        yield missing_key(document, path, family.name, key, of.needed[key])
    if missing:
        return
    if kernel is not family:
        yield from _strangers(document, path, kernel, keys.arch)
    combinations = [
        dict(zip(of.crossed.values(), items, strict=True))
        for items in itertools.product(*(getattr(keys, key) for key in of.crossed))
    ]
    rows = [
        [of.judged(document, family, kernel, path, arch=arch, **items) for items in combinations]
        for arch in keys.arch
    ]
    somewhere = [
        any(not entry.objections for entry in column) for column in zip(*rows, strict=True)
    ]
    for row in rows:
        for entry, legal_somewhere in zip(row, somewhere, strict=True):
            yield replace(entry, skipped=bool(entry.objections) and legal_somewhere)
