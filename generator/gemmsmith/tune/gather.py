"""The entries that a set of kernels is reduced by, and what to know about them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from gemmsmith.errors import MeasureError
from gemmsmith.settings import settings
from gemmsmith.tables import tables_for
from gemmsmith.tuned import Entry, Table, same_gpu
from gemmsmith.tuned_file import read_table
from gemmsmith.wording import counted


@dataclass(frozen=True, kw_only=True)
class Gathered:
    """Entries of tuned tables."""

    entries: tuple[Entry, ...]
    gpus: tuple[str, ...]
    """Names of the GPUs that the tables are of."""
    notes: tuple[str, ...]
    """What was left out, and which table is of another GPU than the one asked for."""


def gather(
    files: Sequence[Path],
    gpu: str,
    sm_count: int,
    capability: tuple[int, int],
    *,
    constant_b: bool,
    weights: Collection[tuple[int, int]] | None = None,
) -> Gathered:
    """Return the entries of ``files``, or without any those of the tables in use for that GPU.

    Entries of calls that promise a constant B are left out unless ``constant_b``: their kernels
    count on the promise. ``weights`` are the (n, k) that are meant; None: all.

    Raises:
        MeasureError: where tables are switched off and no file is named.
        ConfigError: where a file cannot be read.
    """
    notes: list[str] = []
    if files:
        read = [(path, read_table(path)) for path in files]
        entries = [entry for _, table in read for entry in table.entries]
        notes += [
            note for path, table in read if (note := _other(path, table, gpu, sm_count, capability))
        ]
        gpus = tuple(dict.fromkeys(table.made.gpu for _, table in read))
    elif settings().tuned is None:
        raise MeasureError(
            "GEMMSMITH_TUNED is none, so that no table is in use: name some with --table, or unset"
            " GEMMSMITH_TUNED"
        )
    else:
        entries = [each.entry for each in tables_for(gpu, sm_count, capability).entries.values()]
        gpus = (gpu,)
    if weights is not None:
        entries = [entry for entry in entries if (entry.n, entry.k) in weights]
        if not entries:
            notes.append("no entry is of a weight of the models that --model names")
    kept = [entry for entry in entries if constant_b or not _promised(entry)]
    if left := len(entries) - len(kept):
        notes.append(
            f"{counted(left, 'entry', 'entries')} of calls with constant_b left out:"
            " --constant-b counts them too"
        )
    return Gathered(entries=tuple(kept), gpus=gpus, notes=tuple(notes))


def _promised(entry: Entry) -> bool:
    return "constant" in entry.epilogue.split("+")


def _other(path: Path, table: Table, gpu: str, sm_count: int, capability: tuple[int, int]) -> str:
    made = table.made
    if same_gpu(made, gpu, sm_count, capability):
        return ""
    return (
        f"{path}: is of {made.gpu} with {made.sm_count} multiprocessors and {made.arch},"
        f" not of {gpu} with {sm_count} and capability {'{}.{}'.format(*capability)};"
        " counted all the same"
    )
