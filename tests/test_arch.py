"""The architecture table and the words that name its rows."""

from __future__ import annotations

import pytest

from gemmsmith.arch import (
    ARCHITECTURES,
    SM_70,
    SM_80,
    SM_90A,
    Architecture,
    architecture_of,
    parse_architecture,
    portable,
)
from gemmsmith.dtypes import (
    BF16,
    DTYPE_WORDS,
    FP16,
    FP32,
    INPUTS,
    INT8,
    INT32,
    accumulator_of,
    parse_dtype,
    parse_input,
)
from gemmsmith.errors import UnknownArchitectureError

KNOWN = "sm_70, sm_75, sm_80, sm_86, sm_87, sm_89, sm_90a"


@pytest.mark.parametrize("word", ["sm_90", "sm90", "90"])
def test_k13_sm_90_means_sm_90a(word: str) -> None:
    assert parse_architecture(word) is SM_90A


@pytest.mark.parametrize("row", ARCHITECTURES, ids=lambda row: row.name)
def test_every_spelling_of_a_row(row: Architecture) -> None:
    major, minor = row.capability
    spellings = {row.name, row.suffix, *row.aliases, f"{major}{minor}", f"{major}.{minor}"}
    spellings |= {f"sm_{major}{minor}", f"sm{major}{minor}", f"sm_{major}.{minor}"}
    if row.name.endswith("a"):
        spellings |= {f"{major}{minor}a", f"{major}.{minor}a"}
    for spelling in spellings:
        for written in (spelling, spelling.upper(), f" {spelling.capitalize()}\n"):
            assert parse_architecture(written) is row, written


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("sm_60", ""),
        ("sm_100", ""),
        ("", ""),
        ("a", ""),
        ("auto", ""),
        ("100.0", ""),  # what YAML makes of 1e2
        ("800", ""),
        ("0x50", ""),
        ("080", ""),
        ("-80", "; did you mean sm_80?"),
        ("8", "; did you mean sm_80 or sm_86 or sm_87 or sm_89?"),
        ("9", "; did you mean sm_90a?"),
        ("80a", "; did you mean sm_80?"),
        ("compute_89", "; did you mean sm_89?"),
        ("sm-7.5", "; did you mean sm_75?"),
        ("9.0b", "; did you mean sm_90a?"),
        ("hoper", "; did you mean hopper?"),
        ("9.0a+PTX", "; kernels are machine code without PTX: write sm_90a"),
        ("8.0;9.0a+PTX", "; name one architecture at a time, or write a list: [8.0, 9.0]"),
        ("80 90", "; name one architecture at a time, or write a list: [8.0, 9.0]"),
    ],
)
def test_unknown_words_name_what_may_be_meant(word: str, hint: str) -> None:
    with pytest.raises(UnknownArchitectureError) as caught:
        parse_architecture(word)
    assert str(caught.value) == f"arch {word!r} is not known{hint} (known: {KNOWN})"


def test_rows_by_capability() -> None:
    assert architecture_of((8, 0)) is SM_80
    assert architecture_of((9, 0)) is SM_90A
    assert [architecture_of(row.capability) for row in ARCHITECTURES] == list(ARCHITECTURES)
    with pytest.raises(UnknownArchitectureError, match=r"10\.0 \(have: sm_70 \(7\.0\), sm_75"):
        architecture_of((10, 0))


def test_facts_of_the_rows() -> None:
    assert {row.name: (row.smem_per_block, row.api, row.gencode) for row in ARCHITECTURES} == {
        "sm_70": (98_304, "2.x", "arch=compute_70,code=sm_70"),
        "sm_75": (65_536, "2.x", "arch=compute_75,code=sm_75"),
        "sm_80": (166_912, "2.x", "arch=compute_80,code=sm_80"),
        "sm_86": (101_376, "2.x", "arch=compute_86,code=sm_86"),
        "sm_87": (166_912, "2.x", "arch=compute_87,code=sm_87"),
        "sm_89": (101_376, "2.x", "arch=compute_89,code=sm_89"),
        "sm_90a": (232_448, "3.x", "arch=compute_90a,code=sm_90a"),
    }
    assert {row.name: " ".join(str(dtype) for dtype in row.inputs) for row in ARCHITECTURES} == {
        "sm_70": "fp16",
        "sm_75": "fp16 int8",
        "sm_80": "fp16 bf16 int8",
        "sm_86": "fp16 bf16 int8",
        "sm_87": "fp16 bf16 int8",
        "sm_89": "fp16 bf16 int8",
        "sm_90a": "fp16 bf16 int8",
    }
    for row in ARCHITECTURES:
        words = {dtype.name for dtype in row.inputs}
        assert set(row.instructions) == set(row.sass) == words
        assert set(row.accumulators) == set(row.outputs) == words
        spare = row.multiprocessor.shared_memory - row.multiprocessor.shared_memory_reserved
        assert row.smem_per_block == spare, row.name


def test_portable_rows_run_on_hopper_and_say_what_that_proves() -> None:
    row = portable(SM_80)
    assert (row.name, row.suffix, row.capability) == ("sm_80", "sm80_on_sm90", (9, 0))
    assert (row.gencode, row.runs_on) == ("arch=compute_90,code=sm_90", "sm_90")
    assert (row.smem_per_block, row.instructions) == (SM_80.smem_per_block, SM_80.instructions)
    assert (row.proves, SM_80.proves) == ("correctness only", "")
    volta = portable(SM_70)
    assert (volta.last_toolkit, volta.first_toolkit) == (None, (11, 8))
    assert volta.proves == "indexing, epilogue and layouts only"
    with pytest.raises(UnknownArchitectureError, match="sm_90a kernels run on sm_90a alone"):
        portable(SM_90A)


def test_rows_are_distinct_and_hashable() -> None:
    assert len(set(ARCHITECTURES)) == len({row.suffix for row in ARCHITECTURES}) == 7
    every = [word for row in ARCHITECTURES for word in row.aliases]
    assert len(set(every)) == len(every)


def test_words_of_element_types() -> None:
    assert {word: parse_dtype(word.upper()).name for word in DTYPE_WORDS} == {
        "fp16": "fp16",
        "f16": "fp16",
        "float16": "fp16",
        "half": "fp16",
        "bf16": "bf16",
        "bfloat16": "bf16",
        "fp32": "fp32",
        "f32": "fp32",
        "float32": "fp32",
        "float": "fp32",
        "int8": "int8",
        "s8": "int8",
        "i8": "int8",
        "int32": "int32",
        "s32": "int32",
        "i32": "int32",
    }
    assert [dtype.bytes for dtype in (FP16, BF16, FP32, INT8, INT32)] == [2, 2, 4, 1, 4]
    assert (accumulator_of(FP16), accumulator_of(INT8)) == (FP32, INT32)
    with pytest.raises(KeyError):
        parse_dtype("int4")


def test_words_for_inputs_are_those_that_some_tensor_core_takes() -> None:
    taken = {dtype for row in ARCHITECTURES for dtype in row.inputs}
    assert set(INPUTS) == taken
    assert parse_input("half") == FP16
    for word in ("fp32", "int32", "int4"):
        with pytest.raises(KeyError):
            parse_input(word)
