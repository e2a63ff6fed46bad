"""Wrong keys and words become sentences with file, line and the nearest legal one."""

from __future__ import annotations

from pathlib import Path

import pytest

from config_files import AMPERE, HOPPER, load, problem, problems
from gemmsmith.dtypes import FP16


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1E3", "stages: found 1000.0, not a whole number; write 1000"),
        ("1e1", "stages: found 10.0, not a whole number; write 10"),
        ("3.0", "stages: found 3.0, not a whole number; write 3"),
        ("1e-5", "stages: 1e-05 is not a whole number or auto"),
        ("010", "stages: found the text '010'; write 10"),
        ("'3'", "stages: found the text '3'; write 3"),
        ("1_0", "stages: found the text '1_0'; write 10"),
        ("1:30", "stages: '1:30' is not a whole number or auto"),
        ("yes", "stages: true is not a whole number or auto"),
    ],
)
def test_c06_numbers(tmp_path: Path, text: str, message: str) -> None:
    assert problem(tmp_path, HOPPER + f"    stages: {text}\n") == (7, message)


def test_c06_alpha_and_beta_belong_to_the_call(tmp_path: Path) -> None:
    found = problems(tmp_path, HOPPER + "    epilogue: {alpha: 1e-5, beta: 1E3}\n")
    assert [(p.line, p.message) for p in found] == [
        (7, f"epilogue: unknown key '{key}': alpha and beta are arguments of each call; remove it")
        for key in ("alpha", "beta")
    ]


def test_c08_typos_are_told_at_once_with_the_nearest_key(tmp_path: Path) -> None:
    found = problems(
        tmp_path,
        """\
        families:
          - name: f
            arch: sm_80
            stage: 4
            aligment: 8
            tile_shape: [128, 128, 32]
            dtypes: {A: fp16}
            dtype: {a: f17}
            schedule: multstage
            layout: [rcr, rcx]
        """,
    )
    assert [p.line for p in found] == [4, 5, 6, 7, 8, 9, 10]
    words = [p.message for p in found]
    for message, near in zip(words[:4], ("stages", "alignment", "tile", "dtype"), strict=True):
        assert f"did you mean {near}?" in message
        assert "Legal keys: tile, warp, stages, schedule" in message
    assert "(it takes fp16, f16, float16, half, bf16" in words[3]
    assert words[4].startswith("dtype.a: 'f17' is not an element type")
    assert "did you mean f16? Legal: fp16, f16, float16, half, bf16, bfloat16" in words[4]
    assert words[5] == (
        "schedule: 'multstage' is no schedule; did you mean multistage?"
        " Legal: multistage, warp_specialized, pingpong, cooperative, lean"
    )
    assert words[6].startswith("layout[2]: 'rcx' is no layout; did you mean r")
    assert "Legal: rcr, rrr" in words[6]


def test_c08_aliases_of_an_element_type(tmp_path: Path) -> None:
    (spec,) = load(tmp_path, AMPERE.replace("fp16", "{a: f16}"))
    assert (spec.a, spec.d) == (FP16, FP16)


def test_c08_keys_inside_mappings(tmp_path: Path) -> None:
    found = problems(
        tmp_path,
        HOPPER.replace("bf16", "{a: bf16, c: fp32}")
        + "    alignment: {x: 8}\n    epilogue: {activate: relu}\n",
    )
    assert [p.message for p in found] == [
        "dtype: unknown key 'c'; did you mean d? Legal keys: a, b, acc, d",
        "alignment: unknown key 'x'. Legal keys: a, b, d",
        (
            "epilogue: unknown key 'activate'; did you mean activation? (it takes none, any, relu,"
            " gelu, gelu_tanh, silu) Legal keys: bias, residual, activation, gate, scaled,"
            " zero_point"
        ),
    ]


def test_a_name_without_a_value_is_told_once(tmp_path: Path) -> None:
    line, message = problem(tmp_path, HOPPER.replace("name: prefill", "name: ~"))
    assert (line, message) == (2, "name: no value; give one or remove the key")


def test_auto_is_chosen_outside_the_file(tmp_path: Path) -> None:
    line, message = problem(tmp_path, HOPPER.replace("sm_90a", "auto"))
    assert line == 3
    assert message.startswith("arch: auto is not for a file: name every architecture")
    assert "--arch auto or load(..., arch='auto')" in message


@pytest.mark.parametrize(
    ("key", "told"),
    [
        ("bias: no", "{bias: false}"),
        ("residual: true", "{residual: true}"),
        ("bias: 1", "{bias: true}"),
    ],
)
def test_keys_of_the_epilogue_are_told_their_place(tmp_path: Path, key: str, told: str) -> None:
    line, message = problem(tmp_path, f"{HOPPER}    {key}\n")
    assert line == 7
    assert message == f"unknown key {key.split(':')[0]!r}; write epilogue: {told}"


@pytest.mark.parametrize(
    ("number", "told"),
    [
        ("9" * 23, "is out of range: it has 23 digits"),
        ("'0128'", "found the text '0128'; write 128"),
    ],
)
def test_a_number_that_is_text(tmp_path: Path, number: str, told: str) -> None:
    line, message = problem(tmp_path, HOPPER.replace("128", number))
    assert line == 6
    assert message.startswith("tile[1]: ")
    assert message.endswith(told)
