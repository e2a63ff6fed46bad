"""Checks of the arguments of rotary operations; the ops' fake implementations too."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gemmsmith.errors import ArgumentError, ArgumentTypeError
from gemmsmith.row_shapes import DTYPES
from gemmsmith.scalars import check_finite
from gemmsmith.written import check_written

FREQUENCY_DTYPES = (torch.float32, torch.float64)
INDEX_DTYPES = (torch.int32, torch.int64)


def check_rope(
    q: Tensor,
    k: Tensor,
    positions: Tensor,
    inv_freq: Tensor,
    interleaved: bool = False,
    attention_factor: float = 1.0,
) -> None:
    """Raise ArgumentError where the arguments of :func:`gemmsmith.rope` do not fit together."""
    _check_heads(q)
    _check_like("k", k, q)
    _check_indices("positions", positions, q)
    _check_frequencies(inv_freq, q)
    check_finite("attention_factor", attention_factor)
    for name, tensor in (("q", q), ("k", k)):
        check_written(name, tensor)


def check_rope_to_cache(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    positions: Tensor,
    inv_freq: Tensor,
    slots: Tensor | None = None,
    block_table: Tensor | None = None,
    interleaved: bool = False,
    attention_factor: float = 1.0,
) -> None:
    """Raise ArgumentError where the arguments of :func:`gemmsmith.rope_to_cache` do not fit."""
    _check_heads(q)
    _check_like("k", k, q)
    _check_like("v", v, q)
    if v.shape[-2] != k.shape[-2]:
        raise ArgumentError(f"v has {v.shape[-2]} heads, k has {k.shape[-2]}")
    _check_indices("positions", positions, q)
    _check_frequencies(inv_freq, q)
    check_finite("attention_factor", attention_factor)
    for name, cache in (("k_cache", k_cache), ("v_cache", v_cache)):
        _check_type(name, cache, q)
        if cache.dim() != 4 or cache.shape[2:] != k.shape[-2:]:
            raise ArgumentError(
                f"{name} is {tuple(cache.shape)}; (sequences, capacity, {k.shape[-2]},"
                f" {k.shape[-1]}) is needed, or (pages, page size, …) with a block table"
            )
    if v_cache.shape != k_cache.shape:
        raise ArgumentError(f"v_cache is {tuple(v_cache.shape)}, k_cache {tuple(k_cache.shape)}")
    if slots is not None:
        if block_table is not None:
            raise ArgumentError("slots and block_table each say where tokens go: pass one of them")
        _check_indices("slots", slots, q)
    elif q.dim() != 4:
        raise ArgumentError(
            f"q is {tuple(q.shape)}: packed tokens do not tell their sequences; pass slots, or q,"
            " k and v as (batch, tokens, heads, head_dim)"
        )
    elif block_table is None and k_cache.shape[0] != q.shape[0]:
        raise ArgumentError(
            f"k_cache holds {k_cache.shape[0]} sequences, q has {q.shape[0]}; pass"
            " k_cache[:batch], a block table or slots"
        )
    if block_table is not None:
        _check_table(block_table, q)
    for name, tensor in (("q", q), ("k_cache", k_cache), ("v_cache", v_cache)):
        check_written(name, tensor)


def check_new_tokens(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    k_cache: Tensor,
    inv_freq: Tensor | None,
    attention_factor: float,
) -> None:
    """Raise ArgumentError where tokens' ``k`` and ``v`` fit neither ``q`` nor their cache."""
    _check_like("k", k, q)
    _check_like("v", v, q)
    for name, tensor in (("k", k), ("v", v)):
        if tensor.shape[-2] != k_cache.shape[-2]:
            raise ArgumentError(
                f"{name} has {tensor.shape[-2]} heads, k_cache has {k_cache.shape[-2]}"
            )
    if inv_freq is not None:
        _check_frequencies(inv_freq, q)
    check_finite("attention_factor", attention_factor)


def check_frequencies(inv_freq: Tensor) -> None:
    """Raise ArgumentError where inverse frequencies are no vector of f32 or f64."""
    if inv_freq.dtype not in FREQUENCY_DTYPES:
        raise ArgumentTypeError(
            f"inv_freq is {inv_freq.dtype}; float32 or float64 is needed: in fewer bits the angles"
            " of high positions are lost (a module's .to(dtype) rounds its buffers; make them"
            " again from the base, for example by gemmsmith.rope_frequencies)"
        )
    if inv_freq.dim() != 1 or inv_freq.shape[0] == 0:
        raise ArgumentError(
            f"inv_freq is {tuple(inv_freq.shape)}; one dimension is needed, an element for each"
            " pair that is rotated"
        )


def _check_heads(q: Tensor) -> None:
    if q.dtype not in DTYPES:
        words = ", ".join(str(dtype).removeprefix("torch.") for dtype in DTYPES)
        raise ArgumentTypeError(f"q is {q.dtype}; {words} are legal")
    if q.dim() not in (3, 4):
        raise ArgumentError(
            f"q is {tuple(q.shape)}; (tokens, heads, head_dim) or (batch, tokens, heads, head_dim)"
            " is needed"
        )


def _check_type(name: str, tensor: Tensor, q: Tensor) -> None:
    if tensor.dtype != q.dtype or tensor.device != q.device:
        raise ArgumentTypeError(
            f"{name} is {tensor.dtype} on {tensor.device}, q is {q.dtype} on {q.device}: they must"
            " agree"
        )


def _check_like(name: str, tensor: Tensor, q: Tensor) -> None:
    _check_type(name, tensor, q)
    *tokens, _, size = q.shape
    if tensor.dim() != q.dim() or [*tensor.shape[:-2], tensor.shape[-1]] != [*tokens, size]:
        raise ArgumentError(
            f"{name} is {tuple(tensor.shape)}, q is {tuple(q.shape)}: all but the heads must agree"
        )


def _check_indices(name: str, tensor: Tensor, q: Tensor) -> None:
    if tensor.dtype not in INDEX_DTYPES:
        raise ArgumentTypeError(f"{name} is {tensor.dtype}; int32 or int64 is needed")
    if tensor.device != q.device:
        raise ArgumentTypeError(f"{name} is on {tensor.device}, q is on {q.device}")
    tokens = q.shape[:-2]
    if tensor.shape != tokens and not _expands(tensor.shape, tokens):
        raise ArgumentError(
            f"{name} is {tuple(tensor.shape)}; {tuple(tokens)} is needed, or what expands to it"
        )


def _expands(shape: Sequence[int], to: Sequence[int]) -> bool:
    if len(shape) > len(to):
        return False
    return all(
        one == other or one == 1 for one, other in zip(reversed(shape), reversed(to), strict=False)
    )


def _check_frequencies(inv_freq: Tensor, q: Tensor) -> None:
    check_frequencies(inv_freq)
    if inv_freq.device != q.device:
        raise ArgumentTypeError(f"inv_freq is on {inv_freq.device}, q is on {q.device}")
    if 2 * inv_freq.shape[0] > q.shape[-1]:
        raise ArgumentError(
            f"inv_freq is {tuple(inv_freq.shape)}; one dimension of 1 to {q.shape[-1] // 2} is"
            f" needed, half of what is rotated of head_dim {q.shape[-1]}"
        )


def _check_table(block_table: Tensor, q: Tensor) -> None:
    if block_table.dtype != torch.int32 or block_table.device != q.device:
        raise ArgumentTypeError(
            f"block_table is {block_table.dtype} on {block_table.device}; int32 on {q.device} is"
            " needed"
        )
    if block_table.dim() != 2 or block_table.shape[0] != q.shape[0]:
        raise ArgumentError(
            f"block_table is {tuple(block_table.shape)}; ({q.shape[0]}, pages) is needed"
        )
