from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gemmsmith.bytepair import BytePairs, TokenizerError
from gemmsmith.gguf import read_gguf
from gemmsmith.smollm2 import ModelFileError, find_gguf, load_smollm2

ALICE = Path(__file__).parent.parent / "examples" / "data" / "alice.txt"
TINY = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "smollm",
    "tokenizer.ggml.tokens": [*"abc 1\u0120", "ab", "\u0120ab", "abc", "<end>"],
    "tokenizer.ggml.token_type": [1, 1, 1, 1, 1, 1, 1, 1, 1, 3],
    "tokenizer.ggml.merges": ["b c", "a b", "\u0120 ab", "ab c"],
    "tokenizer.ggml.eos_token_id": 9,
}


@pytest.fixture(scope="module")
def smollm2() -> BytePairs:
    try:
        return BytePairs(read_gguf(find_gguf()).metadata)
    except ModelFileError as error:
        pytest.skip(str(error))


def test_pairs_are_merged_in_the_order_of_their_ranks() -> None:
    metadata = {**TINY, "tokenizer.ggml.tokens": [*TINY["tokenizer.ggml.tokens"], "bc"]}  # type: ignore[misc]
    ours = BytePairs(metadata)
    assert ours.encode("abc ab") == [0, 10, 7]
    assert ours.encode("ab<end>ab") == [6, 9, 6]
    assert ours.decode([0, 10, 9, 7]) == "abc ab"
    assert ours.encode("") == []


def test_digits_stand_alone() -> None:
    ours = BytePairs(TINY)
    assert ours.encode("11 1") == [4, 4, 5, 4]


def test_another_tokenizer_is_refused() -> None:
    with pytest.raises(TokenizerError, match=r"the tokenizer is \('llama', 'smollm'\)"):
        BytePairs({**TINY, "tokenizer.ggml.model": "llama"})


def test_ids_are_those_of_transformers(smollm2: BytePairs) -> None:
    try:
        theirs: Any = load_smollm2()[1]
    except ModelFileError as error:
        pytest.skip(str(error))
    texts = (
        ALICE.read_text(encoding="utf-8"),
        "def f(a, b):\n    return a**2  # it's 12345 café\n\n\n  x",
        "<|im_start|>user\nHi 日本語 ñ\t\ttab   <|im_end|>",
        "I'll, we've; 'sup 1st 2nd\r\n don't",
    )
    for text in texts:
        assert smollm2.encode(text) == theirs(text).input_ids
    assert smollm2.stop == theirs.eos_token_id


def test_text_comes_back(smollm2: BytePairs) -> None:
    for text in (ALICE.read_text(encoding="utf-8"), "  12  ½ 日本語\u2003\U0001f600\r\n\x00é"):
        assert smollm2.decode(smollm2.encode(text)) == text
    assert smollm2.decode([smollm2.encode("é")[0]][:1]) in ("é", "\ufffd")
