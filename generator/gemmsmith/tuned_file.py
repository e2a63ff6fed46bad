"""Files of tuned tables: a head, then one line for each entry, so that a line can be added."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from gemmsmith.config_problems import Models, sentences
from gemmsmith.errors import ConfigError, Problem
from gemmsmith.memo import remember
from gemmsmith.tuned import FORMAT, Entry, Made, Table, Timing
from gemmsmith.yaml_flow import flow
from gemmsmith.yaml_lines import read_yaml

_Fast: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # in C where PyYAML was built so
_ABOUT = """\
# Which kernel was the fastest at which shape, as gemmsmith tune measured it. Times are in µs, a
# ratio is torch's time over the kernel's; of two entries for one shape the later one counts.
"""


class _Twice(Exception):
    """A mapping has a key more than once: the line, and what to tell."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(message)
        self.line = line


class _Loader(_Fast):  # type: ignore[misc]
    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        first: dict[str, int] = {}
        for key, _ in node.value:
            line = key.start_mark.line + 1
            if str(key.value) in first:
                words = f"is given twice, on line {first[key.value]} and on line {line}; remove one"
                raise _Twice(line, f"key {key.value!r} {words}")
            first[str(key.value)] = line
        found: dict[Any, Any] = super().construct_mapping(node, deep)
        return found


def read_table(path: Path) -> Table:
    """Return the table of a file; of entries for one shape the last alone is kept.

    Raises:
        ConfigError: with file, line and what is wrong.
    """
    try:
        plain = json.loads(remember("tuned table, keys once", [path], lambda: _as_json(path)))
    except OSError as error:
        raise _error(path, 0, f"cannot be read: {error.strerror or error}") from error
    except _Twice as error:
        raise _error(path, error.line, str(error)) from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark else 0
        raise _error(path, line, f"is not valid YAML: {error}") from error
    except (UnicodeDecodeError, TypeError, RecursionError) as error:
        raise _error(path, 0, f"is no table: {error}") from error
    if not isinstance(plain, dict):
        found = "is empty" if plain is None else "is no tuned table"
        text = f"{found}: one has the keys made and entries, as gemmsmith tune --out writes them"
        raise _error(path, 1, text)
    if plain.get("entries", ()) is None:
        plain["entries"] = []  # a run that was stopped before its first entry
    made = plain.get("made")
    version = made.get("format", FORMAT) if isinstance(made, dict) else FORMAT
    if version != FORMAT:
        text = f"is of format {version}, this gemmsmith reads {FORMAT}: tune again"
        raise _error(path, 0, text)
    try:
        table = Table.model_validate_json(json.dumps(plain))
    except ValidationError as error:
        raise ConfigError(_problems(path, error)) from error
    last = {entry.key: entry for entry in table.entries}
    return Table(made=table.made, entries=tuple(last.values()))


def _problems(path: Path, error: ValidationError) -> list[Problem]:
    document = read_yaml(path)
    empty = document.data if isinstance(document.data, dict) else {}
    allowed = document.line(("entries",)) if empty.get("entries", ()) is None else 0
    told = [each for each in document.problems if each.line != allowed]
    models: Models = {"": Table, "made": Made, "entries": Entry, "timings": Timing}
    told += sentences(error.errors(), document, models)
    if not told:  # the two readers of YAML differ in what they took
        return [Problem(file=str(path), line=0, message=f"is no tuned table: {error}")]
    return sorted(told, key=lambda each: each.line)


def _as_json(path: Path) -> str:
    return json.dumps(yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader))


def _error(path: Path, line: int, message: str) -> ConfigError:
    return ConfigError([Problem(file=str(path), line=line, message=message)])


def write_table(path: Path, table: Table) -> None:
    """Write a table in place of the file, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    head = "".join(f"  {name}: {flow(value)}\n" for name, value in table.made)
    ordered = sorted(table.entries, key=lambda e: (e.a, e.d, e.layout, e.epilogue, e.k, e.n, e.m))
    text = f"{_ABOUT}made:\n{head}entries:\n" + "".join(map(entry_line, ordered))
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(text, encoding="utf-8")
    draft.replace(path)


def add_entry(path: Path, entry: Entry) -> None:
    """Add one entry to the end of a table's file, in one write: a killed run leaves whole lines."""
    handle = os.open(path, os.O_WRONLY | os.O_APPEND)
    try:
        os.write(handle, entry_line(entry).encode())
    finally:
        os.close(handle)


def entry_line(entry: Entry) -> str:
    """Return the line of YAML for an entry."""
    return f"  - {flow(entry.model_dump(exclude_defaults=True))}\n"
