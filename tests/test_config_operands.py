"""Element types and layouts that a file asks for are judged by its architecture, on loading."""

from __future__ import annotations

from pathlib import Path

import pytest

from config_files import AMPERE, HOPPER, load, problem, problems

INT8 = """\
families:
  - name: f
    arch: ARCH
    dtype: int8
    layout: LAYOUT
    tile: [128, 128, 64]
"""
WEIGHT = "use b: col (store the weight as [N, K])"


@pytest.mark.parametrize(
    ("word", "needs"),
    [
        ("int8", "int8; int8 needs sm_75 or later"),
        ("{a: int8, b: int8, acc: int32, d: int32}", "int8; int8 needs sm_75 or later"),
        ("bf16", "bf16; bf16 needs sm_80 or later"),
        ("{a: bf16, b: bf16, acc: fp32, d: bf16}", "bf16; bf16 needs sm_80 or later"),
    ],
)
@pytest.mark.parametrize("keys", ["", "    warp: [64, 64, 32]\n    stages: 2\n"])
def test_c09_element_types_that_volta_lacks(
    tmp_path: Path, word: str, needs: str, keys: str
) -> None:
    text = "families:\n  - name: f\n    arch: sm_70\n    dtype: fp16\n    tile: [128, 128, 32]\n"
    line, message = problem(tmp_path, text.replace("fp16", word) + keys)
    assert line == 4
    assert message.endswith(f": dtype: sm_70 tensor cores take fp16, not {needs}")
    smallest = needs.split()[3]
    depth = text.replace("32]", "64]") if "int8" in word else text
    (spec,) = load(tmp_path, depth.replace("fp16", word).replace("sm_70", smallest))
    assert spec.arch.name == smallest
    (spec,) = load(tmp_path, text + keys)
    assert (spec.arch.name, spec.a.name) == ("sm_70", "fp16")


def test_c09_bf16_accumulates_in_fp32_alone(tmp_path: Path) -> None:
    line, message = problem(tmp_path, HOPPER.replace("bf16", "{a: bf16, acc: fp16}"))
    assert line == 4
    assert message.endswith("dtype: bf16 products accumulate in fp32, not fp16; set acc: fp32")


@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_90a"])
@pytest.mark.parametrize(
    ("layout", "fix"),
    [
        ("rrr", f"{WEIGHT}: layout: rcr"),
        ("ccr", "use a: row: layout: rcr"),
        ("crr", f"use a: row and {WEIGHT}: layout: rcr"),
        ("rrc", f"{WEIGHT}: layout: rcc"),
    ],
)
def test_c15_int8_operands_are_contiguous_along_k(
    tmp_path: Path, arch: str, layout: str, fix: str
) -> None:
    found = problems(tmp_path, INT8.replace("ARCH", arch).replace("LAYOUT", layout))
    told = [(p.line, p.message.split("): ", 1)[1]) for p in found]
    assert (5, f"layout: {layout}: int8 instructions read both operands along K; {fix}") in told
    (spec,) = load(tmp_path, INT8.replace("ARCH", arch).replace("LAYOUT", "rcr"))
    assert (spec.a.name, spec.layout) == ("int8", "rcr")


@pytest.mark.parametrize("arch", ["sm_70", "sm_75", "sm_80", "sm_90a"])
@pytest.mark.parametrize("layout", ["rrr", "ccr", "crr", "rcr"])
def test_c15_fp16_takes_every_layout(tmp_path: Path, arch: str, layout: str) -> None:
    text = INT8.replace("ARCH", arch).replace("LAYOUT", layout).replace("int8", "fp16")
    (spec,) = load(tmp_path, text.replace("64]", "32]"))
    assert spec.layout == layout


def test_c15_a_layout_in_other_words(tmp_path: Path) -> None:
    line, message = problem(tmp_path, AMPERE + "    layout: {a: row, b: row}\n")
    assert line == 8
    assert "one of rcr, rrr, ccr, crr, rcc, rrc, ccc, crc does" in message
