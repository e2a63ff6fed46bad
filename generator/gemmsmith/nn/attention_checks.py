"""Checks of what an attention block is given: all of them come before its cache is written."""

from __future__ import annotations

import torch
from torch import Tensor

from gemmsmith.attn.arguments import check_mask
from gemmsmith.attn.with_kvcache import check_room
from gemmsmith.dense import check_dense
from gemmsmith.errors import ArgumentError, ArgumentTypeError
from gemmsmith.nn.cache import KeysValues
from gemmsmith.nn.checks import is_readable
from gemmsmith.nn.int8 import Int8Linear, QuantizedRows
from gemmsmith.nn.prepared import PreparedLinear
from gemmsmith.nn.rotary import Rotary

__all__ = [
    "check_cache",
    "check_keys",
    "check_reads",
    "check_residual",
    "check_rotary",
    "check_sight",
    "rows_of",
]


def rows_of(input: object) -> Tensor:  # noqa: A002  torch's name
    """Return the tensor (B, S, …) of a block's input.

    Raises:
        ArgumentError: where it is no such tensor.
    """
    rows = input.q if isinstance(input, QuantizedRows) else input
    if not isinstance(rows, Tensor):
        raise ArgumentTypeError(f"input is a {type(rows).__name__}, not a torch.Tensor")
    if rows.dim() != 3:
        raise ArgumentError(f"input is {tuple(rows.shape)}; (B, S, K) is needed")
    return rows


def check_reads(layer: PreparedLinear, input: object) -> None:  # noqa: A002  torch's name
    """Raise ArgumentTypeError where rows are quantised and ``layer`` is not."""
    if isinstance(input, QuantizedRows) and not isinstance(layer, Int8Linear):
        raise ArgumentTypeError("input is QuantizedRows, which only an int8 block reads")


def check_rotary(rotary: object, size: int) -> None:
    """Raise ArgumentError where it is neither None nor turns heads of ``size`` elements."""
    if rotary is None:
        return
    if not isinstance(rotary, Rotary):
        raise ArgumentTypeError(
            f"rotary is a {type(rotary).__name__}; a gemmsmith.nn.Rotary is needed, or None"
        )
    turned = 2 * rotary.inv_freq.shape[0]
    if turned > size:
        raise ArgumentError(f"rotary turns {turned} elements of a head, which has {size}")


def check_cache(cache: object, first: int | None) -> None:
    """Raise ArgumentError where it is no layer's memory, or too short for ``first`` tokens."""
    if not isinstance(cache, KeysValues):
        raise ArgumentTypeError(
            f"cache is a {type(cache).__name__}; the memory of one layer is needed, as"
            " KVCache.layer(index) gives it"
        )
    if first is not None and first > cache.k.shape[1]:
        raise ArgumentError(f"the cache holds {cache.k.shape[1]} tokens; {first} do not fit")


def check_keys(keys: Tensor, rows: Tensor, cache: KeysValues) -> None:
    """Raise ArgumentError where keys are not int32 (B,), or more than the cache has room for.

    What a tensor on a GPU holds is not read back.
    """
    if not isinstance(keys, Tensor):
        raise ArgumentTypeError(f"keys is a {type(keys).__name__}, not a torch.Tensor")
    if keys.dtype != torch.int32 or keys.device != rows.device:
        raise ArgumentTypeError(
            f"keys is {keys.dtype} on {keys.device}; torch.int32 on {rows.device} is needed"
        )
    if keys.shape != rows.shape[:1]:
        raise ArgumentError(
            f"keys is {tuple(keys.shape)}; ({rows.shape[0]},) is needed, the keys of each sequence"
        )
    if is_readable(keys):
        check_room("keys", keys, cache.k.shape[1])


def check_sight(mask: Tensor, rows: Tensor, heads: int, keys: int) -> None:
    """Raise ArgumentError where a mask does not fit the scores (B, heads, S, keys)."""
    check_dense(mask=mask)
    check_mask(mask, rows.device, (rows.shape[0], heads, rows.shape[1], keys))
    _check_forward_only("mask", mask)


def check_residual(residual: Tensor, rows: Tensor, dtype: torch.dtype, features: int) -> None:
    """Raise ArgumentError where it is not (B, S, features) of ``dtype``, as the block's output."""
    if not isinstance(residual, Tensor):
        raise ArgumentTypeError(f"residual is a {type(residual).__name__}, not a torch.Tensor")
    if residual.dtype != dtype or residual.device != rows.device:
        raise ArgumentTypeError(
            f"residual is {residual.dtype} on {residual.device}, the output {dtype} on"
            f" {rows.device}: they must agree"
        )
    if residual.shape[:-1] != rows.shape[:-1] or residual.shape[-1] != features:
        wanted = (*rows.shape[:-1], features)
        raise ArgumentError(f"residual is {tuple(residual.shape)}, the output is {wanted}")
    _check_forward_only("residual", residual)


def _check_forward_only(name: str, tensor: Tensor) -> None:
    if tensor.requires_grad and torch.is_grad_enabled():
        raise ArgumentError(
            f"{name} requires grad, and attention blocks are forward only: call them under"
            " torch.no_grad() or torch.inference_mode()"
        )
