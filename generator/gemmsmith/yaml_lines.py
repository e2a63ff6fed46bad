"""YAML files as plain data, with the line of every key and list item beside it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from gemmsmith.errors import Problem

KeyPath = tuple[str | int, ...]
"""Keys and list positions from the top of a file to one value."""

MAX_DEPTH = 16  # the format is seven deep; an anchor inside itself is endless
MAX_VALUES = 100_000  # aliases of aliases grow exponentially

MAX_DIGITS = 18  # a longer number stays text, which no key takes; int() of it might take minutes

_INT = re.compile(rf"[-+]?(?:0|[1-9][0-9]{{0,{MAX_DIGITS - 1}}})\Z")
_FLOAT = re.compile(
    r"[-+]?(?:(?:[0-9]{1,18}\.[0-9]{0,18}|\.[0-9]{1,18})(?:[eE][-+]?[0-9]{1,2})?"
    r"|[0-9]{1,18}[eE][-+]?[0-9]{1,2})\Z"
)
_BOOL = re.compile(r"(?:true|false|yes|no|on|off)\Z", re.IGNORECASE)
_TAGS = ("null", "bool", "int", "float", "str", "seq", "map", "merge")


@dataclass(frozen=True, kw_only=True)
class Document:
    """One YAML file: its data, where each part stands, and what could not be read."""

    file: str
    """Path as the user gave it."""
    data: object
    """Nested dicts, lists, text, numbers and booleans; None where nothing could be read."""
    lines: dict[KeyPath, int]
    """1-based line of the key (in mappings) or item (in lists) at each path."""
    problems: tuple[Problem, ...] = ()
    """What is wrong with the file as YAML."""
    refused: frozenset[KeyPath] = frozenset()
    """Paths whose keys or values are among the problems; their data is None or missing."""

    def place(self, path: KeyPath) -> KeyPath:
        """The longest beginning of ``path`` that stands in the file.

        A single item stands where a list of it could, so a 0 that is not there is passed over.
        """
        found: KeyPath = ()
        for part in path:
            if (*found, part) in self.lines:
                found = (*found, part)
            elif part != 0:
                break
        return found

    def line(self, path: KeyPath) -> int:
        """Line of ``path``, or of the nearest thing around it; 1 in an empty file."""
        return self.lines.get(self.place(path), 1)


class _Loader(yaml.SafeLoader):
    """Knows the booleans of YAML 1.1, the floats of YAML 1.2, decimal integers and nothing else.

    PyYAML's own rules take ``1E3`` as text, ``010`` as 8 and ``1:30`` as 90.
    """

    yaml_implicit_resolvers = {}  # noqa: RUF012 - PyYAML's way to replace its rules


for _tag, _rule in (
    ("null", re.compile(r"(?:~|null|Null|NULL|)\Z")),
    ("bool", _BOOL),
    ("int", _INT),
    ("float", _FLOAT),
    ("merge", re.compile(r"<<\Z")),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", _rule, None)


def read_yaml(path: Path) -> Document:
    """Return the data of the YAML file ``path`` with line numbers; never raises for a bad file."""
    file = str(path)

    def unreadable(line: int, message: str) -> Document:
        problem = Problem(file=file, line=line, message=message)
        return Document(file=file, data=None, lines={}, problems=(problem,))

    try:
        raw = path.read_bytes()
    except OSError as error:
        return unreadable(0, f"cannot be read: {error.strerror or error}")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        return unreadable(
            line, f"byte {raw[error.start]:#04x} is not UTF-8; save the file as UTF-8"
        )
    try:
        root = yaml.compose(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        words = ", ".join(word for word in (error.context, error.problem) if word)
        return unreadable(mark.line + 1 if mark else 0, f"is not valid YAML: {words}")
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        return unreadable(line, f"character {error.character:#x} is not allowed in YAML")
    except RecursionError:
        return unreadable(1, f"is nested deeper than {MAX_DEPTH} levels")
    if root is None:
        return Document(file=file, data=None, lines={})
    walk = _Walk(file=file)
    data = walk.value(root, ())
    return Document(
        file=file,
        data=data,
        lines=walk.lines,
        problems=tuple(walk.problems),
        refused=frozenset(walk.refused),
    )


@dataclass(kw_only=True)
class _Walk:
    """One pass over PyYAML's node tree."""

    file: str
    lines: dict[KeyPath, int] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    refused: list[KeyPath] = field(default_factory=list)
    values: int = 0

    def refuse(self, node: yaml.Node, path: KeyPath, message: str) -> None:
        line = node.start_mark.line + 1
        self.refused.append(path)
        self.problems.append(Problem(file=self.file, line=line, message=message))

    def value(self, node: yaml.Node, path: KeyPath) -> object:
        self.lines.setdefault(path, node.start_mark.line + 1)
        self.values += 1
        if self.values >= MAX_VALUES or len(path) > MAX_DEPTH:
            if not self.problems or self.values < MAX_VALUES:
                self.refuse(
                    node, path, f"holds more than {MAX_VALUES:,} values or {MAX_DEPTH} levels"
                )
            self.values = MAX_VALUES
            return None
        tag = node.tag.removeprefix("tag:yaml.org,2002:")
        if tag not in _TAGS:
            self.refuse(node, path, f"tag {node.tag} is not taken; write plain text or numbers")
            return None
        if isinstance(node, yaml.MappingNode):
            return self.mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self.value(item, (*path, place)) for place, item in enumerate(node.value)]
        return self.scalar(node, tag, path)

    def scalar(self, node: yaml.Node, tag: str, path: KeyPath) -> object:
        text = str(node.value)
        if tag == "null":
            key = path[-1] if path else "the file"
            self.refuse(node, path, f"{key}: no value; give one or remove the key")
            return None
        if tag == "bool" and _BOOL.match(text):
            return text.lower() in ("true", "yes", "on")
        if tag == "int" and _INT.match(text):
            return int(text)
        if tag == "float" and _FLOAT.match(text):
            return float(text)
        return text

    def mapping(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, object]:
        found: dict[str, object] = {}
        first: dict[str, int] = {}
        merged: list[yaml.Node] = []
        for key_node, value_node in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                merged += value_node.value if value_node.tag.endswith(":seq") else [value_node]
                continue
            key = self.key(key_node, path)
            if key is None:
                continue
            here, line = (*path, key), key_node.start_mark.line + 1
            if key in first:
                words = f"is given twice, on line {first[key]} and on line {line}; remove one"
                self.refuse(key_node, here, f"key {key!r} {words}")
                continue
            first[key] = self.lines[here] = line
            found[key] = self.value(value_node, here)
        for source in merged:
            inherited = self.value(source, path)
            if not isinstance(inherited, dict):
                self.refuse(
                    source, path, "<< takes a mapping (or a list of them), such as <<: *name"
                )
                continue
            found = {**inherited, **found}
        return found

    def key(self, node: yaml.Node, path: KeyPath) -> str | None:
        if not isinstance(node, yaml.ScalarNode):
            self.refuse(node, path, "a key must be plain text")
            return None
        kind = node.tag.removeprefix("tag:yaml.org,2002:")
        if kind == "str":
            return str(node.value)
        words = {"bool": "a boolean", "int": "a number", "float": "a number"}
        text = str(node.value)
        self.refuse(
            node,
            (*path, text),
            f"key {text} is {words.get(kind, 'no text')} in YAML; put it in quotes: '{text}'",
        )
        return None
