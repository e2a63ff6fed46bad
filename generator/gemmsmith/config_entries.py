"""The kernels that configuration files ask for, each with its place in the file."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from gemmsmith.arch import Architecture, Store
from gemmsmith.config_model import AlignmentKeys, DTypes, FamilyKeys, FileKeys, KernelKeys
from gemmsmith.config_problems import EXAMPLES, sentences
from gemmsmith.dtypes import INT8, INT32, DType, accumulator_of
from gemmsmith.errors import IllegalKernelError, Objection, Problem
from gemmsmith.spec import Alignment, Cluster, KernelSpec, Layout, Tile, widest_alignment
from gemmsmith.yaml_lines import Document, KeyPath, read_yaml


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One kernel that a file asks for: its spec, or why it cannot exist."""

    file: str
    """Path of the file as the user gave it."""
    line: int
    """1-based line of the kernel's entry."""
    family: str
    """Name of the family."""
    title: str
    """Architecture, element types, layout and tile in words; legal or not."""
    arch: Architecture
    """The architecture asked for."""
    spec: KernelSpec | None
    """The kernel; None where it is illegal."""
    objections: tuple[Objection, ...] = ()
    """The rules that it breaks; empty for a legal kernel."""
    lines: tuple[int, ...] = ()
    """For each objection the line of its key."""

    @property
    def problems(self) -> tuple[Problem, ...]:
        """The objections with file, line, family and kernel."""
        return tuple(
            Problem(
                file=self.file,
                line=line,
                message=f"family {self.family!r}, kernel on line {self.line} ({self.title}):"
                f" {objection}",
            )
            for line, objection in zip(self.lines, self.objections, strict=True)
        )


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    return sorted(file for file in path.iterdir() if file.suffix in (".yaml", ".yml"))


def read_entries(path: Path) -> tuple[list[Entry], list[Problem]]:
    """Return the kernels of a file or folder, legal or not, and what is wrong with the YAML.

    A kernel whose keys are wrong is among the problems and not among the entries.
    """
    files = _files(path)
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
    families = data.get("families")
    blocks = families if isinstance(families, list) else []
    problems += _same_names(document, blocks)
    broken = {error["loc"] for error in errors} | document.refused
    found = [
        result
        for place, block in enumerate(blocks)
        for result in _kernels(document, place, block, broken)
    ]
    entries = [result for result in found if isinstance(result, Entry)]
    problems += [result for result in found if isinstance(result, Problem)]
    return entries, sorted(problems, key=lambda problem: problem.line)


def _same_names(document: Document, blocks: list[object]) -> Iterator[Problem]:
    first: dict[str, int] = {}
    for place, block in enumerate(blocks):
        name = block.get("name") if isinstance(block, dict) else None
        if not isinstance(name, str):
            continue
        line = document.line(("families", place, "name"))
        if name in first:
            message = f"two families are named {name!r}, on line {first[name]} and on line {line}"
            yield Problem(file=document.file, line=line, message=f"{message}; rename one")
        first.setdefault(name, line)


def _kernels(
    document: Document, place: int, block: object, broken: set[KeyPath]
) -> Iterator[Entry | Problem]:
    """Yield the kernels of one family; those with broken keys are left out."""
    path: KeyPath = ("families", place)
    inside = [loc[2:] for loc in broken if loc[:2] == path]
    if not isinstance(block, dict) or any(
        loc[:1] != ("kernels",) or len(loc) == 1 for loc in inside
    ):
        return  # what follows from a wrong family key would be wrong too
    bad = {loc[1] for loc in inside}
    listed = block.get("kernels")
    sound = [at for at in range(len(listed or ())) if at not in bad]
    family = FamilyKeys.model_validate(
        {**block, "kernels": [listed[at] for at in sound]} if listed else block
    )
    for at, kernel in zip(sound, family.kernels or (), strict=True):
        yield from _crossed(document, family, kernel, (*path, "kernels", at))
    if not listed:
        yield from _crossed(document, family, family, path)


def _crossed(
    document: Document, family: FamilyKeys, kernel: KernelKeys, path: KeyPath
) -> Iterator[Entry | Problem]:
    """Yield one entry for each architecture, element types and layout of a kernel."""
    given = {
        key: getattr(block, key) for block in (family, kernel) for key in block.model_fields_set
    }
    keys = KernelKeys.model_construct(
        **{key: value for key, value in given.items() if key in KernelKeys.model_fields}
    )
    missing = [key for key in ("arch", "dtype", "tile") if not getattr(keys, key)]
    for key in missing:
        message = f"family {family.name!r}: key {key!r} is missing, here and in the family"
        example = f"; for example {EXAMPLES[key]}"
        yield Problem(file=document.file, line=document.line(path), message=message + example)
    if missing:
        return
    for arch, dtypes, layout in itertools.product(keys.arch, keys.dtype, keys.layout):
        yield _entry(document, family.name, keys, arch, dtypes, layout, path)


def _entry(
    document: Document,
    family: str,
    keys: KernelKeys,
    arch: Architecture,
    dtypes: DTypes,
    layout: Layout,
    path: KeyPath,
) -> Entry | Problem:
    assert keys.tile is not None, "a kernel without a tile is refused earlier"
    line = document.line(path)
    tile = Tile(*keys.tile)
    types = " ".join(
        f"{key} {getattr(dtypes, key)}" for key in sorted(dtypes.model_fields_set - {"a"})
    )
    title = " ".join(word for word in (arch.name, str(dtypes.a), types, layout, str(tile)) if word)
    schedule = keys.schedule or (arch.schedules[0] if len(arch.schedules) == 1 else None)
    if schedule is None:
        message = (
            f"family {family!r}, kernel on line {line} ({title}): key 'schedule' is missing;"
            f" {arch.name} has {', '.join(arch.schedules)}"
        )
        return Problem(file=document.file, line=line, message=message)
    store = keys.store or arch.stores[0]
    output = dtypes.d or (INT32 if dtypes.a == INT8 else dtypes.a)
    try:
        spec = KernelSpec(
            arch=arch,
            tile=tile,
            schedule=schedule,
            a=dtypes.a,
            b=dtypes.b or dtypes.a,
            acc=dtypes.acc or accumulator_of(dtypes.a),
            d=output,
            layout=layout,
            warp=Tile(*keys.warp) if keys.warp else None,
            stages=keys.stages,
            cluster=Cluster(*keys.cluster[:2]),
            store=store,
            scheduler=keys.scheduler,
            swap=keys.swap,
            bias=keys.epilogue.bias,
            residual=keys.epilogue.residual,
            alignment=_alignment(keys.alignment, dtypes.a, dtypes.b or dtypes.a, output, store),
        )
        objections: tuple[Objection, ...] = ()
    except IllegalKernelError as error:
        spec, objections = None, tuple(_for_both_apis(keys, error.objections))
    at = [((*path, objection.key), (*path[:2], objection.key)) for objection in objections]
    return Entry(
        file=document.file,
        line=line,
        family=family,
        title=title,
        arch=arch,
        spec=spec,
        objections=objections,
        lines=tuple(
            document.lines.get(own) or document.lines.get(shared) or line for own, shared in at
        ),
    )


def _alignment(given: AlignmentKeys, a: DType, b: DType, d: DType, store: Store) -> Alignment:
    widest = widest_alignment(a, b, d, store)
    return Alignment(
        a=widest.a if given.a is None else given.a,
        b=widest.b if given.b is None else given.b,
        d=widest.d if given.d is None else given.d,
    )


def _for_both_apis(keys: KernelKeys, objections: tuple[Objection, ...]) -> Iterator[Objection]:
    """Tell a kernel of a 2.x and a 3.x architecture at once how to have both."""
    both = len({row.api for row in keys.arch}) > 1
    names = ", ".join(row.name for row in keys.arch)
    for objection in objections:
        if both and objection.key in ("schedule", "store", "warp", "stages", "cluster", "swap"):
            apart = f"({names} share few keys: give each its own entry under kernels, with arch:)"
            yield replace(objection, fix=f"{objection.fix} {apart}".strip())
        else:
            yield objection
