"""The architecture table and the words that name its rows."""

from __future__ import annotations

import pytest

from gemmsmith.arch import ARCHITECTURES, SM_80, SM_90A, architecture_of, parse_architecture
from gemmsmith.dtypes import BF16, DTYPE_WORDS, FP16, FP32, parse_dtype
from gemmsmith.errors import UnknownArchitectureError


@pytest.mark.parametrize("word", ["sm_80", "sm80", "80", "8.0", "Ampere", " SM_80 "])
def test_spellings_of_sm_80(word: str) -> None:
    assert parse_architecture(word) is SM_80


@pytest.mark.parametrize("word", ["sm_90a", "SM90a", "90a", "9.0", "9.0a", "hopper"])
def test_spellings_of_sm_90a(word: str) -> None:
    assert parse_architecture(word) is SM_90A


@pytest.mark.parametrize("word", ["sm_90", "sm90", "90"])
def test_k13_sm_90_means_sm_90a(word: str) -> None:
    assert parse_architecture(word) is SM_90A


@pytest.mark.parametrize("word", ["sm_70", "sm_89", "8", "9", "", "a", "80a", "auto"])
def test_unknown_words_name_the_known_ones(word: str) -> None:
    with pytest.raises(UnknownArchitectureError) as caught:
        parse_architecture(word)
    assert str(caught.value) == f"arch {word!r} is not known (known: sm_80, sm_90a)"


def test_a_misspelt_nickname_gets_the_nearest() -> None:
    with pytest.raises(UnknownArchitectureError, match="did you mean hopper"):
        parse_architecture("hoper")


def test_rows_by_capability() -> None:
    assert architecture_of((8, 0)) is SM_80
    assert architecture_of((9, 0)) is SM_90A
    with pytest.raises(UnknownArchitectureError, match=r"8\.9 \(have: sm_80 \(8\.0\), sm_90a"):
        architecture_of((8, 9))


def test_facts_of_the_rows() -> None:
    assert (SM_80.smem_per_block, SM_90A.smem_per_block) == (166_912, 232_448)
    assert (SM_80.api, SM_90A.api) == ("2.x", "3.x")
    assert (SM_80.gencode, SM_90A.gencode) == (
        "arch=compute_80,code=sm_80",
        "arch=compute_90a,code=sm_90a",
    )
    assert SM_90A.accumulators == {"fp16": (FP32, FP16), "bf16": (FP32,)}


def test_rows_are_distinct_and_hashable() -> None:
    assert len(set(ARCHITECTURES)) == len({row.suffix for row in ARCHITECTURES}) == 2


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
    }
    assert (FP16.bytes, BF16.bytes, FP32.bytes) == (2, 2, 4)
    with pytest.raises(KeyError):
        parse_dtype("int8")
