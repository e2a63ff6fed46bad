"""A call of the rotary kernel from tensors that were checked."""

from __future__ import annotations

import torch
from torch import Tensor

from gemmsmith.launcher import RopeCall

MOST_HEAD_DIM = 2048
"""Elements of a head whose angles fit a block's table."""


def misfit(heads: tuple[Tensor | None, ...], inv_freq: Tensor) -> str:
    """Return why there is no call for the kernel, empty where there is one.

    ``heads`` are all tensors whose last dimension is a head.
    """
    given = [tensor for tensor in heads if tensor is not None]
    size = given[0].shape[-1]
    if size > MOST_HEAD_DIM:
        return f"head_dim is {size}, rotary kernels have up to {MOST_HEAD_DIM}"
    if any(tensor.stride(-1) != 1 and size > 1 for tensor in given):
        return "heads are not contiguous, which rotary kernels want"
    if inv_freq.stride(0) != 1 and inv_freq.shape[0] > 1:
        return "inv_freq is not contiguous, which rotary kernels want"
    return ""


def rope_call(
    q: Tensor,
    k: Tensor,
    positions: Tensor,
    inv_freq: Tensor,
    *,
    interleaved: bool,
    attention_factor: float,
    v: Tensor | None = None,
    k_cache: Tensor | None = None,
    v_cache: Tensor | None = None,
    slots: Tensor | None = None,
    block_table: Tensor | None = None,
) -> RopeCall:
    """Return the call; ``positions`` and ``slots`` have the tokens' shape."""
    packed = q.dim() == 3
    values = (
        1 if packed else q.shape[0],
        q.shape[-3],
        q.shape[-2],
        k.shape[-2],
        q.shape[-1],
        inv_freq.shape[0],
        q.data_ptr(),
        k.data_ptr(),
        _address(v),
        _address(k_cache),
        _address(v_cache),
        positions.data_ptr(),
        _address(slots),
        inv_freq.data_ptr(),
        _address(block_table),
        *_strides(q, packed, 3),
        *_strides(k, packed, 3),
        *_strides(v, packed, 3),
        *_strides(k_cache, False, 3),
        *_strides(v_cache, False, 3),
        *_strides(positions, packed, 2),
        *_strides(slots, packed, 2),
        0 if block_table is None else block_table.stride(0),
        0 if block_table is None else block_table.shape[1],
        0 if k_cache is None else k_cache.shape[0],
        0 if k_cache is None else k_cache.shape[1],
        attention_factor,
        int(interleaved),
        int(positions.dtype == torch.int64),
        int(slots is not None and slots.dtype == torch.int64),
        int(inv_freq.dtype == torch.float64),
    )
    return RopeCall._make(values)


def _address(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def _strides(tensor: Tensor | None, packed: bool, count: int) -> tuple[int, ...]:
    """Return the first ``count`` strides, without a batch after a 0 for it."""
    if tensor is None:
        return (0,) * count
    return (0, *tensor.stride()[: count - 1]) if packed else tensor.stride()[:count]
