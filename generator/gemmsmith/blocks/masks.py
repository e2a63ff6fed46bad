"""What a mask of transformers says that a kernel can be told in fewer words.

transformers hands one mask to all layers of a forward pass: none where ``is_causal`` says it all,
else (B or 1, heads or 1, queries, keys), bool or numbers. Kernels want to know that it is causal,
with which window, and where each sequence ends: a mask that says no more than that is read once a
forward pass, which waits for the GPU. It is passed on as it is where it says more (padding on the
left), and where its numbers cannot be read: under ``torch.compile`` and in a CUDA graph.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass

import torch
from torch import Tensor

from gemmsmith.errors import ArgumentError

__all__ = ["Sight", "sight"]

_REMEMBERED = 4
"""Masks whose meaning is kept: models with two kinds of layers have two in a forward pass."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Sight:
    """Which keys queries see, as :func:`gemmsmith.attention` takes it."""

    keys: int
    """Only the first so many keys count."""
    causal: bool = False
    window: int | None = None
    lengths: Tensor | None = None
    """(B,) int32, keys of each sequence."""
    mask: Tensor | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class _Read:
    mask: weakref.ref[Tensor]
    version: int
    asked: tuple[int, int, bool, int | None]
    sight: Sight


_read: list[_Read] = []


def sight(
    mask: Tensor | None, queries: int, keys: int, *, causal: bool, window: int | None = None
) -> Sight:
    """Return what ``mask`` lets each of ``queries`` see of ``keys``.

    Args:
        mask: what transformers hands to an attention layer.
        queries: length of the sequences of queries.
        keys: length of the keys, those of the cache included.
        causal: whether the layer is of a decoder.
        window: keys that a query of the layer sees, itself included.

    Raises:
        ArgumentError: where it is of another kind, as those of other attention implementations.
    """
    if mask is None:
        if not causal or queries == 1:  # what a cache hands a single query is all that it may see
            return Sight(keys=keys)
        # the first tokens into a static cache: the rest of its keys is empty
        return Sight(keys=queries, causal=True, window=_narrow(window, queries))
    if not isinstance(mask, Tensor) or mask.dim() != 4:
        found = tuple(mask.shape) if isinstance(mask, Tensor) else type(mask).__name__
        raise ArgumentError(
            f"attention_mask is {found}; (batch, heads, queries, keys) of transformers'"
            ' attention implementations "sdpa" and "eager" is legal'
        )
    if not _readable(mask):
        return Sight(keys=keys, mask=mask)
    version = 0 if mask.is_inference() else mask._version
    asked = (queries, keys, causal, window)
    for each in _read:
        if each.mask() is mask and (each.version, each.asked) == (version, asked):
            return each.sight
    seen = _meaning(mask, queries, keys, causal, window)
    _read.insert(0, _Read(mask=weakref.ref(mask), version=version, asked=asked, sight=seen))
    del _read[_REMEMBERED:]
    return seen


def _readable(mask: Tensor) -> bool:
    if torch.compiler.is_compiling() or mask.is_meta or type(mask) is not Tensor:
        return False
    return not (mask.is_cuda and torch.cuda.is_current_stream_capturing())


def _meaning(mask: Tensor, queries: int, keys: int, causal: bool, window: int | None) -> Sight:
    given = Sight(keys=keys, mask=mask)
    if mask.shape[1] != 1 or mask.shape[2] not in (1, queries) or mask.shape[3] != keys or not keys:
        return given
    rows = mask[:, 0]  # (B or 1, queries or 1, keys), each different one once
    rows = rows[:1] if rows.stride(0) == 0 else rows
    rows = rows[:, :1] if rows.stride(1) == 0 else rows
    seen, plain = rows, None
    if rows.dtype != torch.bool:
        seen = rows == 0
        plain = (seen | (rows <= torch.finfo(rows.dtype).min / 2)).all()
    position = torch.arange(keys, device=mask.device)
    ends = torch.where(seen[:, -1], position + 1, 0).amax(-1)  # (B or 1,)
    last = ends[:, None] - 1
    if causal:
        last = last + torch.arange(1 - queries, 1, device=mask.device)  # (B or 1, queries)
    right = position <= last[..., None]
    if causal and window is not None:
        right = right & (position > last[..., None] - window)
    no_more = (right == seen).all()
    no_more = no_more if plain is None else no_more & plain
    says_no_more, least, most = torch.stack((no_more.long(), ends.min(), ends.max())).tolist()
    if not says_no_more:
        return given
    narrow = _narrow(window, most) if causal else None
    return Sight(
        keys=most,
        causal=causal and (queries > 1 or narrow is not None),
        window=narrow,
        lengths=None if least == most else ends.int(),
    )


def _narrow(window: int | None, keys: int) -> int | None:
    return None if window is None or window >= keys else window
