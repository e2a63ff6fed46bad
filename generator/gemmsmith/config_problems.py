"""What is wrong with a configuration, as sentences that say what would be legal."""

from __future__ import annotations

import difflib
import reprlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from gemmsmith.arch import ARCHITECTURES
from gemmsmith.attn.spec import ATTENTION_SCHEDULES
from gemmsmith.config_model import (
    WORDS,
    AlignmentKeys,
    ArchKeys,
    AttentionArchKeys,
    AttentionFamilyKeys,
    AttentionKeys,
    DTypes,
    EpilogueKeys,
    FamilyKeys,
    FileKeys,
    KernelKeys,
)
from gemmsmith.errors import Problem
from gemmsmith.yaml_lines import MAX_DIGITS, Document, KeyPath

_OTHER_NAMES = {
    "tile_shape": "tile",
    "threadblock": "tile",
    "stream_k": "scheduler",
    "split_k": "scheduler",
    "swap_ab": "swap",
    "pdl": "dependent_launch",
    "kernel": "kernels",
    "c": "d",
}
_LISTS = ("families", "attention", "kernels", "entries", "timings")
EXAMPLES = {
    "tile": "tile: [128, 128, 64]",
    "warp": "warp: [64, 64, 32]",
    "cluster": "cluster: [2, 1]",
    "layout": "layout: rcr",
    "arch": "arch: sm_90a",
    "dtype": "dtype: bf16, or dtype: {a: bf16, acc: fp32, d: bf16}",
    "epilogue": "epilogue: {bias: true, residual: false}",
    "alignment": "alignment: {a: 8, b: 8, d: 8}",
    "stages": "stages: auto, or a number such as stages: 3",
    "families": "families: followed by entries that begin with '- name:'",
    "attention": "attention: followed by entries that begin with '- name:'",
    "head_dim": "head_dim: 128",
    "kernels": "kernels: followed by entries such as '- {tile: [128, 128, 64]}'",
    "per_arch": "per_arch: {sm_90a: {cluster: [2, 1]}}",
}
"""How to write the keys that are not one plain word."""
ATTENTION_EXAMPLES = {
    **EXAMPLES,
    "tile": "tile: [128, 128]",
    "dtype": "dtype: bf16",
    "kernels": "kernels: followed by entries such as '- {tile: [128, 128]}'",
    "per_arch": "per_arch: {sm_80: {tile: [64, 64]}}",
}
"""Likewise, of attention kernels."""


Models = Mapping[str, type[BaseModel]]
"""What may stand under a key; under the empty one, at the top of the file."""
_FILE: Models = {
    "": FileKeys,
    "families": FamilyKeys,
    "kernels": KernelKeys,
    "dtype": DTypes,
    "epilogue": EpilogueKeys,
    "alignment": AlignmentKeys,
}
_ATTENTION: Models = {"": FileKeys, "attention": AttentionFamilyKeys, "kernels": AttentionKeys}


def sentences(
    errors: Iterable[Mapping[str, Any]], document: Document, models: Models = _FILE
) -> Iterator[Problem]:
    """Yield a problem with file and line for each of pydantic's ``errors`` in ``document``.

    What ``document`` itself refused is among its own problems and not told again. ``models`` say
    which keys are legal where.
    """
    listed = list(errors)
    for error in listed:
        where: KeyPath = error["loc"]
        inside = (other["loc"] for other in listed if other is not error)
        if error["type"] == "too_short" and any(loc[: len(where)] == where for loc in inside):
            continue  # pydantic counts the valid items only
        place = document.place(where)
        if place in document.refused:
            continue
        shown = place[:-1] if error["type"] == "extra_forbidden" else place
        yield Problem(
            file=document.file,
            line=document.line(place),
            message=f"{_spelt(shown)}{_sentence(error, _models_at(where, models))}",
        )


def missing_key(document: Document, path: KeyPath, family: str, key: str, example: str) -> Problem:
    """Return that a kernel's entry at ``path`` lacks a key, as its family does."""
    message = f"family {family!r}: key {key!r} is missing, here and in the family"
    message += f"; for example {example}"
    return Problem(file=document.file, line=document.line(path), message=message)


def same_names(document: Document, key: str, names: Iterable[object]) -> dict[int, Problem]:
    """Return a problem for each family under ``key`` that is named like one before it, by place.

    ``names`` has one for each family; what is no text is no name.
    """
    first: dict[str, int] = {}
    problems: dict[int, Problem] = {}
    for place, name in enumerate(names):
        if not isinstance(name, str):
            continue
        line = document.line((key, place, "name"))
        if name in first:
            message = f"two families are named {name!r}, on line {first[name]} and on line {line}"
            message += "; rename one"
            problems[place] = Problem(file=document.file, line=line, message=message)
        first.setdefault(name, line)
    return problems


def _models_at(where: KeyPath, models: Models) -> Models:
    return _ATTENTION if models is _FILE and where[:1] == ("attention",) else models


def nearest(word: str, legal: Iterable[str]) -> str:
    """The legal word that ``word`` most resembles; empty where none does."""
    near = difflib.get_close_matches(word.lower(), legal, n=1, cutoff=0.5)
    return near[0] if near else ""


def _spelt(place: KeyPath) -> str:
    """The last keys of a path, as ``epilogue.bias`` or ``tile[2]``, with a colon."""
    path = list(place)
    while len(path) >= 2 and path[0] in _LISTS and isinstance(path[1], int):
        path = path[2:]
    words = "".join(f"[{part + 1}]" if isinstance(part, int) else f".{part}" for part in path)
    return f"{words.removeprefix('.')}: " if words else ""


def _sentence(error: Mapping[str, Any], models: Models) -> str:
    kind: str = error["type"]
    found = error["input"]
    where: KeyPath = error["loc"]
    examples = ATTENTION_EXAMPLES if models is _ATTENTION else EXAMPLES
    words = [part for part in where if isinstance(part, str)]
    key = words[-1] if words else ""
    key = "per_arch" if "per_arch" in words[-2:] else key  # an architecture's name is no key
    if kind == "extra_forbidden":
        return _unknown_key(str(where[-1]), where, found, models)
    if kind == "sentence":
        return str(error["ctx"]["text"])
    if kind == "missing":
        example = f"; for example {examples[key]}" if key in examples else ""
        return f"key {key!r} is missing{example}"
    if kind == "dtype":
        return _unknown_dtype(str(found))
    if kind == "literal_error":
        legal = ATTENTION_SCHEDULES if models is _ATTENTION else WORDS[key]
        return unknown_word(found, legal, key)
    if kind == "string_type":
        return _no_text(found)
    if kind == "bool_type":
        return f"{_shown(found)} is not true or false"
    if kind == "int_type":
        return _no_whole_number(found, key)
    if kind == "greater_than":
        return f"{_shown(found)} is not above {error['ctx']['gt']:g}"
    if kind in ("too_short", "too_long"):
        count = len(found) if isinstance(found, list) else 0
        return f"{_shown(found)} has {count} entries; write {examples.get(key, 'more')}"
    if key in examples:
        return f"{_shown(found)} does not fit; write {examples[key]}"
    return f"{_shown(found)} does not fit here: {error['msg']}"


def _shown(value: object) -> str:
    text = {True: "true", False: "false"}.get(value) if isinstance(value, bool) else None
    return text or reprlib.repr(value)


def _unknown_key(key: str, where: KeyPath, value: object, models: Models) -> str:
    parents = [part for part in where[:-1] if isinstance(part, str)]
    parent = parents[-1] if parents else ""
    in_arch = AttentionArchKeys if models is _ATTENTION else ArchKeys  # a word under per_arch
    legal = tuple(models.get(parent, in_arch).model_fields)
    if parent == "kernels" and key == "name":
        return "unknown key 'name': a kernel is named by its fields; only the family has a name"
    if parent == "epilogue" and key in ("alpha", "beta"):
        return f"unknown key {key!r}: alpha and beta are arguments of each call; remove it"
    if models is _FILE and "epilogue" in legal and key in EpilogueKeys.model_fields:
        shown = _shown(value) if isinstance(value, bool) else "true"
        return f"unknown key {key!r}; write epilogue: {{{key}: {shown}}}"
    other = _OTHER_NAMES.get(key, "")
    near = other if other in legal else nearest(key, legal)
    values = f" (it takes {', '.join(WORDS[near])})" if near in WORDS else ""
    hint = f"; did you mean {near}?{values}" if near else "."
    return f"unknown key {key!r}{hint} Legal keys: {', '.join(legal)}"


def unknown_word(found: object, legal: tuple[str, ...], key: str) -> str:
    """Return that ``found`` is no ``key``, the legal word it resembles, and all legal ones."""
    if not isinstance(found, str):
        return f"{_shown(found)} does not fit; one of {', '.join(legal)} does"
    near = nearest(found, legal)
    hint = f"; did you mean {near}?" if near else "."
    return f"{found!r} is no {key}{hint} Legal: {', '.join(legal)}"


def _unknown_dtype(found: str) -> str:
    near = nearest(found, WORDS["dtype"])
    hint = f"; did you mean {near}?" if near else "."
    rows = "; ".join(
        f"{row.name} takes {', '.join(dtype.name for dtype in row.inputs)}" for row in ARCHITECTURES
    )
    return (
        f"{found!r} is not an element type that gemmsmith has kernels for{hint}"
        f" Legal: {', '.join(WORDS['dtype'])} ({rows})"
    )


def _no_text(found: object) -> str:
    if isinstance(found, bool):
        kind = "yes" if found else "no"
        return (
            f"found the boolean {_shown(found)}, not text; put it in quotes, for example '{kind}'"
        )
    if isinstance(found, int | float):
        return f"found the number {found}, not text; put it in quotes: '{found}'"
    return f"{_shown(found)} is not text"


def _no_whole_number(found: object, key: str) -> str:
    if isinstance(found, float) and found.is_integer():
        return f"found {found}, not a whole number; write {int(found)}"
    if isinstance(found, str) and found.replace("_", "").isdecimal():
        digits = found.replace("_", "").lstrip("0") or "0"
        if len(digits) > MAX_DIGITS:
            return f"{_shown(found)} is out of range: it has {len(digits)} digits"
        return f"found the text {found!r}; write {digits}"
    auto = " or auto" if key == "stages" else ""
    return f"{_shown(found)} is not a whole number{auto}"
