"""Kernels as a YAML file that describes exactly them."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

from gemmsmith.config import load_specs
from gemmsmith.config_model import EpilogueKeys
from gemmsmith.dtypes import DType, accumulator_of
from gemmsmith.spec import SCHEDULE_WORDS, KernelSpec, widest_alignment
from gemmsmith.spec_dict import spec_to_dict
from gemmsmith.yaml_flow import flow

_OWN = ("tile", "warp", "cluster", "split_k", "stages", "alignment")  # what differs within a family
_TYPES = ("a", "b", "acc", "d")
_USUAL = {
    "cluster": [1, 1],
    "scheduler": "static",
    "swap": False,
    "dependent_launch": False,
    "constant_b": False,
    "layout": "rcr",
}


def families_yaml(specs: Sequence[KernelSpec], about: str, also: Sequence[DType] = ()) -> str:
    """Return a file of these kernels, alike ones in a family; ``about`` is its comment.

    ``also`` are element types for which the same kernels are wanted, where A, B and D are alike.
    """
    ordered = sorted(specs, key=lambda spec: (_head(spec), spec.name))
    lines = [*(f"# {line}" for line in about.splitlines()), "families:"]
    names: dict[str, int] = {}
    for head, kernels in groupby(ordered, key=_head):
        common = json.loads(head)
        word = "-".join([SCHEDULE_WORDS[common["schedule"]] or "multistage", *_marks(common)])
        names[word] = names.get(word, 0) + 1
        number = "" if names[word] == 1 else f"-{names[word]}"
        lines.append(f"  - name: {word}{number}")
        some = list(kernels)
        common["dtype"] = _types(some[0], also)
        lines += [f"    {key}: {flow(value)}" for key, value in common.items()]
        lines.append("    kernels:")
        lines += [f"      - {flow(_own(spec))}" for spec in some]
    text = "\n".join(lines) + "\n"
    _prove(text, specs, also)
    return text


def _head(spec: KernelSpec) -> str:
    """What the kernels of a family share, as JSON."""
    plain = spec_to_dict(spec)
    epilogue = {
        key: plain[key]
        for key, field in EpilogueKeys.model_fields.items()
        if plain[key] != field.default
    }
    rest = {
        key: value
        for key, value in plain.items()
        if key not in (*_OWN, *_TYPES, *EpilogueKeys.model_fields, "runs_on")
        and (key not in _USUAL or _USUAL[key] != value)
    }
    types = {key: plain[key] for key in _TYPES}
    return json.dumps({**rest, "dtype": types, **({"epilogue": epilogue} if epilogue else {})})


def _marks(common: Mapping[str, Any]) -> list[str]:
    words = [common["dtype"]["a"]] if common["dtype"]["a"] != common["dtype"]["d"] else []
    words += ["streamk"] if common.get("scheduler") == "stream_k" else []
    words += ["swap"] if common.get("swap") else []
    return words + [str(key).replace("_", "-") for key in common.get("epilogue", {})]


def _types(spec: KernelSpec, also: Sequence[DType]) -> Any:
    alike = spec.a == spec.b == spec.d and spec.acc == accumulator_of(spec.a)
    if alike and also:
        return [dtype.name for dtype in dict.fromkeys((spec.a, *also))]
    return {key: getattr(spec, key).name for key in _TYPES}


def _own(spec: KernelSpec) -> dict[str, Any]:
    plain = spec_to_dict(spec)
    usual = {
        "warp": None,
        "stages": None,
        "cluster": [1, 1],
        "split_k": 1,
        "alignment": list(widest_alignment(spec.a, spec.b, spec.d, spec.store)),
    }
    own = {key: plain[key] for key in _OWN if key not in usual or plain[key] != usual[key]}
    if "alignment" in own:
        own["alignment"] = spec.alignment._asdict()
    return own


def _prove(text: str, specs: Sequence[KernelSpec], also: Sequence[DType]) -> None:
    """Assert that the file describes exactly the kernels: a field it left out would show."""
    wanted = set(specs)
    for spec in specs:
        if isinstance(_types(spec, also), list):
            wanted |= {replace(spec, a=dtype, b=dtype, d=dtype) for dtype in also}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernels.yaml"
        file.write_text(text, encoding="utf-8")
        assert set(load_specs(file)) == wanted, text
