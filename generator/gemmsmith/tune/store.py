"""Where a tuning run keeps what it found, so that a stopped one goes on where it was."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from gemmsmith.errors import MeasureError
from gemmsmith.tables import own_tables
from gemmsmith.tuned import Entry, Key, Made, Table
from gemmsmith.tuned_file import add_entry, read_table, write_table


def table_name(made: Made) -> str:
    """Return the file name of a table in the user's folder: the GPU, and a digest of its head.

    Each set of versions has a file of its own, so that no file mixes numbers of two.
    """
    gpu = re.sub(r"[^a-z0-9]+", "-", made.gpu.lower()).strip("-")
    digest = hashlib.sha256(made.model_dump_json().encode()).hexdigest()[:8]
    return f"{gpu}-{digest}.yaml"


class Store:
    """The table of one run: read once, then grown by a line for each entry."""

    def __init__(self, path: Path, table: Table) -> None:
        self.path = path
        self._entries = {entry.key: entry for entry in table.entries}

    def find(self, key: Key) -> Entry | None:
        """Return what is measured already."""
        return self._entries.get(key)

    def add(self, entry: Entry) -> None:
        """Keep an entry: it is in the file when this returns."""
        add_entry(self.path, entry)
        self._entries[entry.key] = entry

    def tidy(self) -> None:
        """Write the file anew, sorted and each entry once."""
        write_table(self.path, read_table(self.path))


def open_store(made: Made, out: Path | None = None) -> Store:
    """Return the store at ``out``, by default the user's own for this GPU and these versions.

    Raises:
        MeasureError: where the file at ``out`` was measured with something else.
        ConfigError: where it cannot be read.
    """
    path = own_tables() / table_name(made) if out is None else out
    if not path.exists():
        write_table(path, Table(made=made))
    table = read_table(path)
    differing = [
        f"{name} {then}, here is {now}"
        for name, then in table.made
        if then != (now := getattr(made, name))
    ]
    if differing:
        raise MeasureError(
            f"{path} was measured with {'; '.join(differing)}: name another file, or remove it"
        )
    return Store(path, table)
