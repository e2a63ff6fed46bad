"""The kernels that configuration files ask for, each with its place in the file."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from gemmsmith.config_entry import Entry, judged
from gemmsmith.config_families import Language, kernels_of
from gemmsmith.config_model import FamilyKeys, FileKeys, KernelKeys
from gemmsmith.config_problems import EXAMPLES, same_names, sentences
from gemmsmith.errors import Problem
from gemmsmith.yaml_lines import Document, read_yaml

_GEMMS = Language(
    family=FamilyKeys,
    kernel=KernelKeys,
    needed={key: EXAMPLES[key] for key in ("arch", "dtype", "tile")},
    crossed={"dtype": "dtypes", "layout": "layout"},
    judged=judged,
)


def files_of(path: Path) -> list[Path]:
    """Return the YAML file ``path``, or those of the folder."""
    if not path.is_dir():
        return [path]
    return sorted(file for file in path.iterdir() if file.suffix in (".yaml", ".yml"))


def read_entries(path: Path) -> tuple[list[Entry], list[Problem]]:
    """Return the kernels of a file or folder, legal or not, and what is wrong with the YAML.

    A kernel whose keys are wrong is among the problems and not among the entries.
    """
    files = files_of(path)
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
    if not {"families", "attention"} & set(data):
        message = f"key 'families' is missing; for example {EXAMPLES['families']}"
        problems.append(Problem(file=document.file, line=document.line(()), message=message))
    families = data.get("families")
    blocks = families if isinstance(families, list) else []
    names = [block.get("name") if isinstance(block, dict) else None for block in blocks]
    problems += same_names(document, "families", names).values()
    broken = {error["loc"] for error in errors} | document.refused
    found = [
        result
        for place, block in enumerate(blocks)
        for result in kernels_of(document, ("families", place), block, broken, _GEMMS)
    ]
    entries = [result for result in found if isinstance(result, Entry)]
    problems += [result for result in found if isinstance(result, Problem)]
    return entries, sorted(problems, key=lambda problem: problem.line)
