"""The arguments of an attention call, checked: they serve the op's fake implementations too."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from gemmsmith.errors import ArgumentError, ArgumentTypeError
from gemmsmith.scalars import check_finite
from gemmsmith.written import check_written, share_elements

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
"""What attention reads and writes, and masks add to scores."""


class Newest(NamedTuple):
    """Keys and values that a call appends to its cache; they and q are turned by RoPE first."""

    k: Tensor
    """(B, S, Hkv, D)."""
    v: Tensor
    inv_freq: Tensor | None
    interleaved: bool
    attention_factor: float


class Attention(NamedTuple):
    """One call of :func:`gemmsmith.attention`, or of what appends to the cache ``k`` and ``v``."""

    q: Tensor
    k: Tensor
    v: Tensor
    causal: bool
    window: int | None
    softcap: float | None
    scale: float | None
    mask: Tensor | None
    lengths: Tensor | None
    block_table: Tensor | None
    constant_cache: bool = False
    kernels: str = ""
    """Handle of what may run; empty for the default kernels of the GPU, and torch."""
    newest: Newest | None = None

    @property
    def true_scale(self) -> float:
        """The factor of the scores."""
        return float(self.q.shape[-1] ** -0.5 if self.scale is None else self.scale)

    @property
    def key_length(self) -> int:
        """Keys of the longest sequence that the memory has room for."""
        if self.block_table is None:
            return self.k.shape[1]
        return self.block_table.shape[1] * self.k.shape[1]

    def check(self) -> tuple[int, ...]:
        """Return the shape of the result.

        Raises:
            ArgumentError: naming the argument, the value found and what is legal.
        """
        names = ("q", "k", "v") if self.newest is None else ("q", "k_cache", "v_cache")
        _check_types(self.q, self.k, self.v, names)
        check_numbers(self.causal, self.window, self.softcap, self.scale)
        for name, tensor in ((names[0], self.q), (names[1], self.k), (names[2], self.v)):
            if tensor.dim() != 4:
                axes = "pages, page size" if self.block_table is not None and name != "q" else None
                wanted = f"({axes or 'batch, sequence'}, heads, head_dim)"
                raise ArgumentError(f"{name} is {tuple(tensor.shape)}; {wanted} is needed")
        _check_heads(self.q, self.k, self.v, names)
        batch, queries, heads, _ = self.q.shape
        if self.block_table is None:
            if self.k.shape[0] != batch:
                raise ArgumentError(f"{names[1]} has batch {self.k.shape[0]}, q has {batch}")
        else:
            if self.lengths is None:
                raise ArgumentError(
                    "block_table goes with lengths: the keys of each sequence, int32 (batch,)"
                )
            _check_integers("block_table", self.block_table, self.q)
            if self.block_table.dim() != 2 or self.block_table.shape[0] != batch:
                raise ArgumentError(
                    f"block_table is {tuple(self.block_table.shape)}; ({batch}, pages) is needed"
                )
        if self.lengths is not None:
            _check_integers("lengths", self.lengths, self.q)
            if tuple(self.lengths.shape) != (batch,):
                raise ArgumentError(
                    f"lengths is {tuple(self.lengths.shape)}; ({batch},) is needed, the keys of"
                    " each sequence"
                )
        if self.mask is not None:
            check_mask(self.mask, self.q.device, (batch, heads, queries, self.key_length))
        return tuple(self.q.shape)


class PackedAttention(NamedTuple):
    """One call of :func:`gemmsmith.attention_varlen`."""

    q: Tensor
    k: Tensor
    v: Tensor
    cu_q: Tensor
    cu_k: Tensor
    max_q: int
    max_k: int
    causal: bool
    window: int | None
    softcap: float | None
    scale: float | None
    kernels: str = ""
    """As in :class:`Attention`."""

    @property
    def true_scale(self) -> float:
        """The factor of the scores."""
        return float(self.q.shape[-1] ** -0.5 if self.scale is None else self.scale)

    def check(self) -> tuple[int, ...]:
        """Return the shape of the result.

        Raises:
            ArgumentError: naming the argument, the value found and what is legal.
        """
        _check_types(self.q, self.k, self.v)
        check_numbers(self.causal, self.window, self.softcap, self.scale)
        for name, tensor in (("q", self.q), ("k", self.k), ("v", self.v)):
            if tensor.dim() != 3:
                raise ArgumentError(
                    f"{name} is {tuple(tensor.shape)}; (tokens, heads, head_dim) is needed"
                )
        _check_heads(self.q, self.k, self.v)
        for name, cu in (("cu_q", self.cu_q), ("cu_k", self.cu_k)):
            _check_integers(name, cu, self.q)
            if cu.dim() != 1 or cu.shape[0] < 2:
                raise ArgumentError(
                    f"{name} is {tuple(cu.shape)}; (sequences + 1,) is needed: 0, then where each"
                    " sequence ends"
                )
        if self.cu_q.shape != self.cu_k.shape:
            raise ArgumentError(
                f"cu_q has {self.cu_q.shape[0]} entries, cu_k has {self.cu_k.shape[0]}: both need"
                " one a sequence, and the 0 before them"
            )
        for name, longest in (("max_q", self.max_q), ("max_k", self.max_k)):
            if longest < 0:
                raise ArgumentError(f"{name} is {longest}; the longest sequence has 0 or more")
        return tuple(self.q.shape)


def check_out(out: Tensor, q: Tensor, shape: tuple[int, ...]) -> None:
    """Raise ArgumentError where the result cannot be written to ``out``."""
    if out.dtype != q.dtype or out.device != q.device:
        raise ArgumentTypeError(
            f"out is {out.dtype} on {out.device}, q is {q.dtype} on {q.device}: they must agree"
        )
    if tuple(out.shape) != shape:
        raise ArgumentError(f"out is {tuple(out.shape)}, the result is {shape}")
    check_written("out", out)


def check_no_overlap(out: Tensor, *read: Tensor) -> None:
    """Raise ArgumentError where ``out`` and an input share an element."""
    if any(share_elements(out, tensor) for tensor in read):
        raise ArgumentError(
            "out overlaps q, k or v: a kernel reads them while it writes; pass a fourth tensor"
        )


def _check_types(
    q: Tensor, k: Tensor, v: Tensor, names: tuple[str, str, str] = ("q", "k", "v")
) -> None:
    if q.dtype not in DTYPES:
        words = ", ".join(str(dtype).removeprefix("torch.") for dtype in DTYPES)
        raise ArgumentTypeError(f"q is {q.dtype}; {words} are legal")
    for name, tensor in ((names[1], k), (names[2], v)):
        if tensor.dtype != q.dtype or tensor.device != q.device:
            raise ArgumentTypeError(
                f"{name} is {tensor.dtype} on {tensor.device}, q is {q.dtype} on {q.device}: they"
                " must agree"
            )


def _check_heads(
    q: Tensor, k: Tensor, v: Tensor, names: tuple[str, str, str] = ("q", "k", "v")
) -> None:
    if k.shape != v.shape:
        raise ArgumentError(
            f"{names[1]} is {tuple(k.shape)}, {names[2]} is {tuple(v.shape)}: they must agree"
        )
    if q.shape[-1] == 0 or q.shape[-1] != k.shape[-1]:
        raise ArgumentError(
            f"q has head_dim {q.shape[-1]}, {names[1]} has {k.shape[-1]}: the same, from 1 up, is"
            " needed"
        )
    heads, kv_heads = q.shape[-2], k.shape[-2]
    if kv_heads == 0 or heads % kv_heads:
        raise ArgumentError(
            f"q has {heads} heads, {names[1]} has {kv_heads}: each head of k serves an equal group"
            " of q's"
        )


def check_numbers(
    causal: bool, window: int | None, softcap: float | None, scale: float | None
) -> None:
    """Raise ArgumentError where a number is none that attention has."""
    if window is not None:
        if window < 1:
            raise ArgumentError(
                f"window is {window}: it counts the keys that a query sees, itself included, from"
                " 1 up; None is no window"
            )
        if not causal:
            raise ArgumentError("window goes with causal=True: it is a query's last keys")
    if softcap is not None:
        if not softcap > 0:
            raise ArgumentError(f"softcap is {softcap}: it must be above 0; None is no cap")
        check_finite("softcap", softcap)
    if scale is not None:
        check_finite("scale", scale)


def _check_integers(name: str, tensor: Tensor, q: Tensor) -> None:
    if tensor.dtype != torch.int32 or tensor.device != q.device:
        raise ArgumentTypeError(
            f"{name} is {tensor.dtype} on {tensor.device}; torch.int32 on {q.device} is needed"
        )


def check_mask(mask: Tensor, device: torch.device, scores: tuple[int, int, int, int]) -> None:
    """Raise ArgumentError where a mask does not broadcast to the scores on ``device``."""
    if mask.device != device or mask.dtype not in (torch.bool, *DTYPES):
        raise ArgumentTypeError(
            f"mask is {mask.dtype} on {mask.device}; torch.bool (True: seen), or float16, bfloat16"
            f" or float32 that is added to the scores, on {device}, is needed"
        )
    sizes = (1,) * (4 - mask.dim()) + tuple(mask.shape)
    if mask.dim() > 4 or any(
        size not in (1, wanted) for size, wanted in zip(sizes, scores, strict=True)
    ):
        raise ArgumentError(
            f"mask is {tuple(mask.shape)}; it must broadcast to {scores}: batch, heads, queries,"
            " keys"
        )
