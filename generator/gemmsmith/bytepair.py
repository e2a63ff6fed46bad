"""A byte-level byte-pair tokenizer, from the vocabulary that a GGUF file carries."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any

from gemmsmith.errors import GemmsmithError

__all__ = ["BytePairs", "TokenizerError"]

_CONTROL = 3  # a token type of GGUF: it stands for no text
_PIECES = re.compile(r" ?L+| ?N+| ?P+|[ S]+(?![LNP])|[ S]+")
_SHORTENED = re.compile(r"'(?:s|t|re|ve|m|ll|d)")


class TokenizerError(GemmsmithError):
    """A vocabulary is of another kind of tokenizer."""


class BytePairs:
    """Turns text into token ids and back as GPT-2's tokenizer does, digits one by one (SmolLM).

    Args:
        metadata: that of a GGUF file whose ``tokenizer.ggml.model`` is ``gpt2`` and whose
            ``tokenizer.ggml.pre`` is ``smollm``.

    Raises:
        TokenizerError: where it is another.
    """

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        kind = (metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre"))
        if kind != ("gpt2", "smollm"):
            raise TokenizerError(f"the tokenizer is {kind}; ('gpt2', 'smollm') is known")
        self._tokens: list[str] = metadata["tokenizer.ggml.tokens"]
        types = metadata.get("tokenizer.ggml.token_type", ())
        self._control = {
            text: index
            for index, (text, kind) in enumerate(zip(self._tokens, types, strict=False))
            if kind == _CONTROL
        }
        merges: list[str] = metadata["tokenizer.ggml.merges"]
        self._ranks = {tuple(merge.split(" ")): rank for rank, merge in enumerate(merges)}
        self.stop = int(metadata["tokenizer.ggml.eos_token_id"])
        """Id of the token that ends a text."""

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {text: index for index, text in enumerate(self._tokens)}

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text; control tokens in it, as ``<|im_start|>``, are themselves."""
        found: list[int] = []
        words = "|".join(re.escape(word) for word in self._control)
        for part in re.split(f"({words})", text) if words else [text]:
            if part in self._control:
                found.append(self._control[part])
            else:
                found += [token for piece in _pieces(part) for token in self._merged(piece)]
        return found

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids; control tokens are left out."""
        control = set(self._control.values())
        letters = "".join(self._tokens[index] for index in ids if index not in control)
        return bytes(_BYTES[letter] for letter in letters).decode("utf-8", "replace")

    def _merged(self, piece: str) -> list[int]:
        """Return the ids of a piece: its letters, pairs merged in the order of their ranks."""
        parts = [_LETTERS[byte] for byte in piece.encode("utf-8")]
        while len(parts) > 1:
            pairs = list(pairwise(parts))
            best = min(pairs, key=lambda pair: self._ranks.get(pair, len(self._ranks)))
            if best not in self._ranks:
                break
            merged, at = [], 0
            while at < len(parts):
                both = tuple(parts[at : at + 2]) == best
                merged.append("".join(best) if both else parts[at])
                at += 2 if both else 1
            parts = merged
        return [self._ids[part] for part in parts]


def _pieces(text: str) -> Iterator[str]:
    """Yield the pieces of a text that are tokenized apart."""
    for part in _without_digits(text):
        kinds = "".join(_kind(letter) for letter in part)
        at = 0
        while at < len(part):
            short = _SHORTENED.match(part, at)
            match = short or _PIECES.match(kinds, at)
            assert match is not None, "every letter has a kind"
            yield part[at : match.end()]
            at = match.end()


def _without_digits(text: str) -> Iterator[str]:
    """Yield what is between the digits of a text, and each digit."""
    start = 0
    for at, letter in enumerate(text):
        if unicodedata.category(letter)[0] == "N":
            yield text[start:at]
            yield letter
            start = at + 1
    yield text[start:]


def _kind(letter: str) -> str:
    if letter == " ":
        return letter
    if letter.isspace():
        return "S"
    category = unicodedata.category(letter)[0]
    return category if category in "LN" else "P"


def _letters() -> dict[int, str]:
    """Return the letter that stands for each byte: itself where it prints, else one above 255."""
    printing = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printing]
    found = {byte: chr(byte) for byte in printing}
    return found | {byte: chr(256 + index) for index, byte in enumerate(others)}


_LETTERS = _letters()
_BYTES = {letter: byte for byte, letter in _LETTERS.items()}
