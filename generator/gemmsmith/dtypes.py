"""The element types, one row each, and the words that users may call them by."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class DType:
    """One element type."""

    name: str
    """The one spelling used in kernel names, YAML reports and tables."""
    bytes: int
    """Size of one element in bytes."""
    aliases: tuple[str, ...]
    """Other spellings that a configuration may use."""

    def __str__(self) -> str:
        return self.name


FP16 = DType(name="fp16", bytes=2, aliases=("f16", "float16", "half"))
BF16 = DType(name="bf16", bytes=2, aliases=("bfloat16",))
FP32 = DType(name="fp32", bytes=4, aliases=("f32", "float32", "float"))
INT8 = DType(name="int8", bytes=1, aliases=("s8", "i8"))
INT32 = DType(name="int32", bytes=4, aliases=("s32", "i32"))

DTYPES: tuple[DType, ...] = (FP16, BF16, FP32, INT8, INT32)

INPUTS: tuple[DType, ...] = (BF16, FP16, INT8)
"""Element types of A and B: those that tensor cores of some architecture here multiply."""


def accumulator_of(dtype: DType) -> DType:
    """Return the type that products of ``dtype`` are summed in where nothing else is said."""
    return INT32 if dtype == INT8 else FP32


_BY_WORD = {word: dtype for dtype in DTYPES for word in (dtype.name, *dtype.aliases)}

DTYPE_WORDS: tuple[str, ...] = tuple(_BY_WORD)
"""All spellings that :func:`parse_dtype` takes."""


def parse_dtype(word: str) -> DType:
    """Return the element type that ``word`` names.

    Raises:
        KeyError: where ``word`` is none of :data:`DTYPE_WORDS`.
    """
    return _BY_WORD[word.lower()]


def parse_input(word: str) -> DType:
    """Return the element type of A and B that ``word`` names.

    Raises:
        KeyError: where ``word`` names none of :data:`INPUTS`.
    """
    dtype = parse_dtype(word)
    if dtype not in INPUTS:
        raise KeyError(word)
    return dtype
