"""The build matrix: architectures by data types by toolkits, each cell as the cache has it."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, TypeAlias, get_args

import gemmsmith
from gemmsmith.arch import Architecture, portable
from gemmsmith.attn.spec import AttentionSpec
from gemmsmith.build import build
from gemmsmith.card import Card
from gemmsmith.cuda import dotted, target_objection
from gemmsmith.errors import UnknownArchitectureError
from gemmsmith.lookup import find_cached
from gemmsmith.matrix_table import Row, Table, read_matrix
from gemmsmith.progress import Progress
from gemmsmith.spec import KernelSpec
from gemmsmith.toolchain import Toolchain
from gemmsmith.toolchains import Toolkit, survey

State = Literal["built", "to build", "skipped", "failed"]
Kept: TypeAlias = KernelSpec | AttentionSpec
"""What has a place in the matrix."""

PORTABLE = "sm_90"
"""The one target that kernels of other architectures can be compiled for."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """The kernels of one data type, for one architecture, by one toolkit."""

    arch: str
    dtype: str
    """Element type of A and B; of q, k and v."""
    toolkit: str
    """CUDA release, for example ``13.0``; empty where this machine has none for the cell."""
    nvcc: str
    """Path of the compiler; empty where it is not here."""
    state: State
    reason: str = ""
    """Why it is skipped, or the first error of what failed."""
    no_toolkit: bool = False
    """Whether it is skipped for want of a toolkit."""
    built: tuple[str, ...] = ()
    """Names of the kernels that are compiled."""
    missing: tuple[str, ...] = ()
    """Names of the kernels that are to be compiled, or could not be."""
    seconds: float = 0.0
    """Wall time of the compilers, shared out over the kernels of a run."""
    size: int = 0
    """Bytes of the libraries, shared out likewise."""
    note: str = ""
    """What its kernels can prove or where they can be loaded, where that is not all."""


@dataclass(frozen=True, kw_only=True)
class Matrix:
    """All cells, by architecture, toolkit and data type."""

    cells: tuple[Cell, ...]
    run_on: str | None

    @property
    def failed(self) -> bool:
        """Whether a cell failed."""
        return any(cell.state == "failed" for cell in self.cells)

    @property
    def lacks_toolkit(self) -> bool:
        """Whether a cell is skipped for want of a toolkit."""
        return any(cell.no_toolkit for cell in self.cells)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        states = [cell.state for cell in self.cells]
        return {
            "gemmsmith": gemmsmith.__version__,
            "run_on": self.run_on,
            "cells": [asdict(cell) for cell in self.cells],
            "totals": {state: states.count(state) for state in get_args(State)},
        }


@dataclass(frozen=True, kw_only=True)
class _Column:
    """One toolkit for one architecture."""

    release: str
    toolchain: Toolchain | None
    problem: str = ""
    """Why it cannot be used here."""
    absent: bool = False
    """Whether that is because it is not here."""


@dataclass(frozen=True, kw_only=True)
class _Slot:
    """A cell before anybody looked into the cache."""

    cell: Cell
    """With the reason for which it is skipped, or failed, where there is one."""
    specs: tuple[Kept, ...] = ()
    toolchain: Toolchain | None = field(default=None)


def make_matrix(
    specs: Sequence[Kept],
    archs: Sequence[Architecture] | None = None,
    *,
    plan: bool = False,
    run_on: str | None = None,
    skipped: Mapping[tuple[str, str], str] | None = None,
    table: Table | None = None,
    jobs: int | None = None,
    progress: Progress | None = None,
) -> Matrix:
    """Return the matrix of ``specs``, compiling what is missing unless ``plan`` is set.

    Args:
        specs: kernels of any architectures.
        archs: rows to show; by default all of the table.
        plan: whether to compile nothing.
        run_on: ``sm_90`` for the variants of older architectures' GEMM kernels that a Hopper GPU
            runs.
        skipped: why a file's kernels cannot exist, by names of architecture and input type.
        table: what is meant to be built; by default :func:`read_matrix`'s.
        jobs: compilers at once.
        progress: hears of the compiling.

    Raises:
        UnknownArchitectureError: where ``run_on`` is another target.
        CacheError: where a kernel is missing and the cache cannot be written.
    """
    if run_on is not None and run_on != PORTABLE:
        raise UnknownArchitectureError(
            f"--run-on {run_on}: older architectures' kernels can be compiled for {PORTABLE} alone"
        )
    table = table or read_matrix()
    widest = sorted(table.rows, key=lambda row: -len(row.dtypes))  # its order is the one to show
    dtypes = tuple(dict.fromkeys(dtype for row in widest for dtype in row.dtypes))
    slots = [
        slot
        for row in table.rows
        if archs is None or row.arch in archs
        for slot in _slots(row, dtypes, specs, table, run_on, skipped or {})
    ]
    cells = [_looked_up(slot) for slot in slots]
    if not plan:
        cells = _built(slots, cells, jobs, progress)
    return Matrix(cells=tuple(cells), run_on=run_on)


def _slots(
    row: Row,
    dtypes: Sequence[str],
    specs: Sequence[Kept],
    table: Table,
    run_on: str | None,
    skipped: Mapping[tuple[str, str], str],
) -> list[_Slot]:
    """Return the cells of one architecture, all toolkits."""
    own = [spec for spec in specs if spec.arch == row.arch]
    note, arch = "", row.arch
    if run_on is not None and row.arch.api == "2.x":
        arch = portable(row.arch)
        own = [replace(spec, arch=arch) for spec in own if isinstance(spec, KernelSpec)]
        note = f"runs on {run_on}: {arch.proves}"
    elif run_on is not None:
        why = f"{row.arch.name} kernels run on {row.arch.name} alone"
        return [_skipped(row, dtype, "", why) for dtype in dtypes]
    elif row.host not in (None, platform.machine()):
        note = f"device code only: a library that loads on its {row.host} host is built there"
    slots = []
    for column in _columns(row, arch, table):
        for dtype in dtypes:
            wanted = tuple(spec for spec in own if _input(spec) == dtype)
            why = _no_kernels(row, dtype, wanted, skipped.get((row.arch.name, dtype), ""))
            if why:
                slots.append(_skipped(row, dtype, column.release, why))
                continue
            cell = Cell(
                arch=row.arch.name,
                dtype=dtype,
                toolkit=column.release,
                nvcc=str(column.toolchain.nvcc) if column.toolchain else "",
                state="skipped" if column.absent else "failed" if column.problem else "to build",
                reason=column.problem,
                no_toolkit=column.absent,
                missing=tuple(spec.name for spec in wanted),
                note=note,
            )
            slots.append(_Slot(cell=cell, specs=wanted, toolchain=column.toolchain))
    return slots


def _input(spec: Kept) -> str:
    return (spec.a if isinstance(spec, KernelSpec) else spec.dtype).name


def _no_kernels(row: Row, dtype: str, wanted: Sequence[Kept], illegal: str) -> str:
    if dtype not in [known.name for known in row.arch.inputs]:
        return f"{row.arch.name} has no tensor cores for {dtype}"
    if dtype not in row.dtypes:
        return "the matrix leaves it out"
    return "" if wanted else illegal or "no kernel asks for it"


def _skipped(row: Row, dtype: str, release: str, why: str) -> _Slot:
    return _Slot(
        cell=Cell(
            arch=row.arch.name, dtype=dtype, toolkit=release, nvcc="", state="skipped", reason=why
        )
    )


def _columns(row: Row, arch: Architecture, table: Table) -> list[_Column]:
    """Return the toolkits for ``arch``: those of the table, after what else this machine has.

    The machine's usual toolkit counts where it can target ``arch``, whatever the table says.
    """
    here = [
        toolkit
        for toolkit in survey()
        if toolkit.version is None or target_objection(toolkit.version, arch) is None
    ]
    releases = list(row.releases)
    if arch != row.arch:  # the table speaks of the hardware's own target
        releases = []
    usual = next((toolkit for toolkit in here if toolkit.usual and toolkit.version), None)
    if usual is None and not releases:
        usual = next((toolkit for toolkit in here if toolkit.version), None)
    if usual is not None and usual.version is not None and dotted(usual.version) not in releases:
        releases.insert(0, dotted(usual.version))
    return [_column(release, here, table) for release in releases or row.releases]


def _column(release: str, here: Sequence[Toolkit], table: Table) -> _Column:
    problems = []
    for toolkit in here:
        if toolkit.version is not None and dotted(toolkit.version) == release:
            if toolkit.toolchain is not None:
                return _Column(release=release, toolchain=toolkit.toolchain)
            problems.append(toolkit.problem)
    if problems:
        return _Column(release=release, toolchain=None, problem="; ".join(problems))
    way = table.ways.get(release)
    how = f": {way}" if way else ""
    return _Column(
        release=release, toolchain=None, problem=f"no CUDA {release} here{how}", absent=True
    )


def _looked_up(slot: _Slot) -> Cell:
    """Return the cell as the cache has it; a toolkit that is gone leaves its kernels behind."""
    if not slot.specs:
        return slot.cell
    if slot.toolchain is not None:
        found = find_cached(slot.specs, toolchain=slot.toolchain)
    elif slot.cell.no_toolkit:
        release = slot.cell.toolkit.split(".")
        found = {
            spec: kernel
            for spec, kernel in find_cached(slot.specs).items()
            if kernel.built_with.get("nvcc", "").split(".")[:2] == release
        }
    else:
        return slot.cell
    if slot.cell.no_toolkit and len(found) < len(slot.specs):
        return slot.cell
    return _filled(slot, {spec.name: kernel.card for spec, kernel in found.items()})


def _filled(slot: _Slot, cards: Mapping[str, Card], errors: Sequence[str] = ()) -> Cell:
    """Return the cell with the kernels that have a card built, and the others failed or missing."""
    names = [spec.name for spec in slot.specs]
    missing = tuple(name for name in names if name not in cards)
    state: State = "failed" if errors else "to build" if missing else "built"
    return replace(
        slot.cell,
        state=state,
        reason=errors[0] if errors else "",
        no_toolkit=False,
        built=tuple(name for name in names if name in cards),
        missing=missing,
        seconds=round(sum(c.compile_seconds / c.compiled_with for c in cards.values()), 1),
        size=sum(c.library_bytes // c.compiled_with for c in cards.values()),
    )


def _built(
    slots: Sequence[_Slot], cells: Sequence[Cell], jobs: int | None, progress: Progress | None
) -> list[Cell]:
    """Compile what is missing, one build a toolchain, and return all cells as they are then."""
    after = list(cells)
    places: dict[Toolchain, list[int]] = {}
    for place, (slot, cell) in enumerate(zip(slots, cells, strict=True)):
        if slot.toolchain is not None and cell.state == "to build":
            places.setdefault(slot.toolchain, []).append(place)
    for toolchain, some in places.items():
        specs = [spec for place in some for spec in slots[place].specs]
        report = build(specs, toolchain=toolchain, jobs=jobs, progress=progress)
        cards = {kernel.spec.name: kernel.card for kernel in report.built}
        errors = {failure.spec.name: str(failure.error) for failure in report.failed}
        for place in some:
            own = [spec.name for spec in slots[place].specs]
            after[place] = _filled(
                slots[place],
                {name: cards[name] for name in own if name in cards},
                [errors[name].partition("\n")[0] for name in own if name in errors],
            )
    return after
