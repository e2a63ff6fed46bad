"""Specs survive the way through JSON, and what is not understood is named."""

from __future__ import annotations

import dataclasses
import json
import re
from typing import Any

import pytest

from fakes import ampere, hopper
from gemmsmith.arch import SM_80, portable
from gemmsmith.config import load_specs
from gemmsmith.errors import IllegalKernelError
from gemmsmith.resources import configs_dir
from gemmsmith.spec_dict import spec_from_dict, spec_to_dict
from real_kernels import AMPERE, EVERY


def test_every_spec_comes_back_through_json() -> None:
    specs = [*load_specs(configs_dir() / "kernels"), *EVERY, ampere(), hopper(swap=True)]
    specs.append(dataclasses.replace(AMPERE, arch=portable(SM_80)))
    assert specs[-1].name.endswith("sm80_on_sm90")
    for spec in specs:
        back = spec_from_dict(json.loads(json.dumps(spec_to_dict(spec))))
        assert back == spec
        assert back.name == spec.name
        assert type(back.tile) is type(spec.tile)


def test_the_words_are_those_of_the_files() -> None:
    values = spec_to_dict(AMPERE)
    assert (values["arch"], values["a"], values["d"], values["acc"]) == (
        "sm_80",
        "fp16",
        "fp32",
        "fp32",
    )
    assert (values["tile"], values["warp"], values["alignment"]) == (
        [64, 64, 32],
        [32, 32, 32],
        [8, 8, 1],
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"colour": "red"}, "unknown colour"),
        ({"a": "fp4"}, "fp4"),
        ({"arch": "sm_123"}, "'sm_123' is not known"),
        ({"runs_on": "sm_75"}, "no kernels of sm_80 for sm_75"),
        ({"swap": []}, "unhashable"),
        ({"residual": 0}, "residual is 0, not true or false"),
        ({"activation": None}, "activation is None, not none or any or relu or gelu"),
        ({"tile": [1, 2]}, "TypeError"),
    ],
)
def test_what_is_not_known_is_named(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        spec_from_dict({**spec_to_dict(AMPERE), **change})


def test_what_breaks_the_rules_of_today_is_refused() -> None:
    with pytest.raises(IllegalKernelError, match="stages"):
        spec_from_dict({**spec_to_dict(AMPERE), "stages": 99})
