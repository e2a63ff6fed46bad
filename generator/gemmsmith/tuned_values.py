"""What the keys of a tuned table's entries may hold: what ``gemmsmith tune`` writes, no more."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any, get_args

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from gemmsmith.arch import ARCHITECTURES
from gemmsmith.buckets import BUCKETS
from gemmsmith.config_problems import unknown_word
from gemmsmith.dtypes import DTYPES, INPUTS
from gemmsmith.spec import Layout

RASTERS = (1, 2)
"""Orders of tiles that are tried beside the kernel's own: along m first, along n first."""
SWIZZLES = (1, 2, 4, 8)
"""Largest groups of tiles that are tried."""
SPLITS = (2, 3, 4, 6, 8)
"""Parts of K that are tried with stream-K kernels."""
PLAIN = "plain"
"""The epilogue of a call that asks for none of :data:`EPILOGUE_WORDS`."""
EPILOGUE_WORDS = ("scaled", "zero_point", "activation", "gate", "residual", "constant")
"""What an entry's epilogue is joined of by ``+``, in this order."""
_OUTPUTS = {dtype for row in ARCHITECTURES for each in row.outputs.values() for dtype in each}


def wrong(text: str) -> PydanticCustomError:
    """Return what a validator raises for the sentence ``text`` about its key."""
    return PydanticCustomError("sentence", "{text}", {"text": text})


def epilogue_word(words: Iterable[str]) -> str:
    """Return the epilogue that asks for ``words``, in the one spelling that entries have."""
    asked = set(words)
    return "+".join(word for word in EPILOGUE_WORDS if word in asked) or PLAIN


def knobs_fault(kernel: str, *, raster: int, swizzle: int, splits: int) -> str:
    """Return which run-time knob the kernel of that name does not have; empty where it has all."""
    words = kernel.partition("@")[0].split("_")
    if splits and "streamk" not in words:
        return f"splits: {splits} goes with stream_k kernels; {kernel} is none, remove the key"
    name, value = ("raster", raster) if raster else ("swizzle", swizzle)
    if value and not {"pp", "coop"} & set(words):
        kinds = "pingpong and cooperative kernels"
        return f"{name}: {value} goes with {kinds}; {kernel} is neither, remove the key"
    return ""


def _bucket(m: int) -> int:
    if m not in BUCKETS:
        raise wrong(f"{m} is no bucket of M; use {', '.join(map(str, BUCKETS))}")
    return m


def _epilogue(found: str) -> str:
    words = found.split("+")
    if found == epilogue_word(words):
        return found
    if set(words) <= {*EPILOGUE_WORDS, PLAIN}:
        raise wrong(f"{found!r} is spelt {epilogue_word(words)}")
    strange = next(word for word in words if word not in (*EPILOGUE_WORDS, PLAIN))
    told = unknown_word(strange, (PLAIN, *EPILOGUE_WORDS), "epilogue")
    raise wrong(f"{told}; several are joined by +, in this order")


def _one_of(legal: Sequence[str], what: str) -> Callable[[Any], Any]:
    def check(found: str) -> str:
        if found not in legal:
            raise wrong(unknown_word(found, tuple(legal), what))
        return found

    return check


def _knob(legal: Sequence[int]) -> Callable[[Any], Any]:
    def check(found: int) -> int:
        if found and found not in legal:
            raise wrong(f"{found} is not tried; use {', '.join(map(str, legal))}, or remove it")
        return found

    return check


def _names(dtypes: Iterable[object]) -> list[str]:
    wanted = set(dtypes)
    return [dtype.name for dtype in DTYPES if dtype in wanted]


Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Bucket = Annotated[int, AfterValidator(_bucket)]
Input = Annotated[str, AfterValidator(_one_of(_names(INPUTS), "element type of a"))]
Output = Annotated[str, AfterValidator(_one_of(_names(_OUTPUTS), "element type of d"))]
LayoutWord = Annotated[str, AfterValidator(_one_of(get_args(Layout), "layout"))]
Epilogue = Annotated[str, AfterValidator(_epilogue)]
Raster = Annotated[int, AfterValidator(_knob(RASTERS))]
Swizzle = Annotated[int, AfterValidator(_knob(SWIZZLES))]
Splits = Annotated[int, AfterValidator(_knob(SPLITS))]
