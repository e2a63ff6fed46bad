"""The GEMM shapes of real models, read from ``configs/models/*.yaml`` or a file of the user's."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

from gemmsmith.errors import ConfigError, Problem
from gemmsmith.resources import configs_dir

_SHAPE_KEYS = ("op", "n", "k")
_FILE_KEYS = ("model", "shapes")
_OPTIONAL_KEYS = ("head_dim",)


@dataclass(frozen=True, kw_only=True)
class LinearShape:
    """One linear layer's weight: y (M, n) = x (M, k) @ w (n, k).T."""

    op: str
    """What the layer does in the model: ``qkv``, ``attn_out``, ``gate_up``, ``down`` …"""
    n: int
    """Output features."""
    k: int
    """Input features."""


@dataclass(frozen=True, kw_only=True)
class ModelShapes:
    """The linear layers of one model's transformer block."""

    model: str
    """The model's name, as in tables."""
    shapes: tuple[LinearShape, ...]
    """Its weights, each once."""
    head_dim: int = 0
    """Elements of an attention head; 0 where the file does not say it."""


def model_names() -> tuple[str, ...]:
    """Return the names of the models that come with gemmsmith."""
    return tuple(sorted(path.stem for path in (configs_dir() / "models").glob("*.yaml")))


def load_model(model: str | Path) -> ModelShapes:
    """Return the shapes of a model that comes with gemmsmith, or of a YAML file (``*.yaml``).

    Raises:
        ConfigError: with all problems of the file, or naming the nearest model where none fits.
    """
    word = str(model)
    if word.endswith((".yaml", ".yml")):
        return _read(Path(word))
    if word in model_names():
        return _read(configs_dir() / "models" / f"{word}.yaml")
    near = difflib.get_close_matches(word.lower(), model_names(), n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    known = ", ".join(model_names())
    message = f"model {word!r} is not known{hint} (known: {known}; or a path to a .yaml file)"
    raise ConfigError([Problem(file=word, line=0, message=message)])


def _read(path: Path) -> ModelShapes:
    try:
        root = yaml.compose(path.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
    except OSError as error:
        message = f"cannot be read: {error.strerror}"
        raise ConfigError([Problem(file=str(path), line=0, message=message)]) from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark else 0
        raise ConfigError([Problem(file=str(path), line=line, message=str(error))]) from error
    return _Reader(str(path)).model(root)


class _Reader:
    """Turns the nodes of one file into values and keeps every problem met."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._problems: list[Problem] = []

    def model(self, root: yaml.Node | None) -> ModelShapes:
        fields = self._fields(root, _FILE_KEYS, "the file", _OPTIONAL_KEYS)
        name = self._word(fields.get("model"), "model")
        shapes = tuple(self._shapes(fields.get("shapes")))
        head_dim = self._size(fields.get("head_dim"), "head_dim")
        if self._problems:
            raise ConfigError(self._problems)
        return ModelShapes(model=name, shapes=shapes, head_dim=head_dim)

    def _shapes(self, node: yaml.Node | None) -> Iterator[LinearShape]:
        if node is None:
            return
        if not isinstance(node, yaml.SequenceNode) or not node.value:
            self._fault(node, "shapes must be a list of {op, n, k}")
            return
        for item in node.value:
            fields = self._fields(item, _SHAPE_KEYS, "a shape")
            yield LinearShape(
                op=self._word(fields.get("op"), "op"),
                n=self._size(fields.get("n"), "n"),
                k=self._size(fields.get("k"), "k"),
            )

    def _fields(
        self,
        node: yaml.Node | None,
        keys: tuple[str, ...],
        what: str,
        optional: tuple[str, ...] = (),
    ) -> dict[str, yaml.Node]:
        if not isinstance(node, yaml.MappingNode):
            self._fault(node, f"{what} must have the keys {', '.join(keys)}")
            return {}
        fields: dict[str, yaml.Node] = {}
        known = keys + optional
        for key, value in node.value:
            word = str(key.value)
            if word not in known:
                near = difflib.get_close_matches(word, known, n=1)
                hint = f"; did you mean {near[0]}?" if near else ""
                self._fault(key, f"key {word!r} is not known{hint} (known: {', '.join(known)})")
            elif word in fields:
                self._fault(key, f"key {word!r} is given twice")
            fields[word] = value
        for key in keys:
            if key not in fields:
                self._fault(node, f"{what} has no {key}")
        return fields

    def _word(self, node: yaml.Node | None, key: str) -> str:
        if node is None:
            return ""
        if isinstance(node, yaml.ScalarNode) and node.value:
            return str(node.value)
        self._fault(node, f"{key} must be a word")
        return ""

    def _size(self, node: yaml.Node | None, key: str) -> int:
        if node is None:
            return 0
        text = str(node.value)
        if isinstance(node, yaml.ScalarNode) and text.isdecimal() and int(text) > 0:
            return int(text)
        self._fault(node, f"{key} must be a whole number from 1 up, not {text!r}")
        return 0

    def _fault(self, node: yaml.Node | None, message: str) -> None:
        line = node.start_mark.line + 1 if node else 0
        self._problems.append(Problem(file=self._file, line=line, message=message))
