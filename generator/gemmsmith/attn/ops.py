"""Attention as functions of PyTorch tensors, inference only."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from gemmsmith.attn import op as _op  # noqa: F401  registers the ops
from gemmsmith.constant import is_promised
from gemmsmith.dense import check_dense
from gemmsmith.scalars import check_scalars

__all__ = ["attention", "attention_varlen"]


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = False,
    window: int | None = None,
    softcap: float | None = None,
    scale: float | None = None,
    mask: Tensor | None = None,
    lengths: Tensor | None = None,
    block_table: Tensor | None = None,
    constant_cache: bool = False,
    out: Tensor | None = None,
    kernels: str = "",
) -> Tensor:
    """Return ``softmax(scale * q @ k.T) @ v`` of each head, (B, Sq, H, D); softmax is in f32.

    Views are read in place where D is contiguous, so q, k and v may be slices of one projection.
    Head h of q reads head ``h // (H / Hkv)`` of k and v. A query that sees no key gives 0.

    Args:
        q: (B, Sq, H, D), fp16, bf16 or fp32 (fp32 is computed by torch).
        k: (B, Sk, Hkv, D) of q's dtype; with ``block_table`` (pages, page size, Hkv, D).
        v: as ``k``.
        causal: query i sees the keys j <= i + Sk - Sq: the last query sees all of them
            (bottom-right alignment); with ``lengths``, their entries stand for Sk.
        window: keys that a query sees, itself included; with ``causal`` only. Those out of its
            sight may be read all the same: they must hold finite numbers and, with a block table,
            lie on pages that there are.
        softcap: scores are ``softcap * tanh(score / softcap)``, after the scale.
        scale: factor of the scores; D ** -0.5 where not given.
        mask: broadcast to (B, H, Sq, Sk); bool (True: seen), or fp16, bf16 or fp32 numbers added to
            the scores; NaN gives NaN. torch computes these calls.
        lengths: (B,) int32, the keys of each sequence; more than there is room for are all of them.
            What k and v hold beyond them has no effect, be it NaN.
        block_table: (B, pages of a sequence) int32, where the keys of each sequence lie; needs
            ``lengths``. Entries beyond the length are not read; of the others, pages that there are
            not are an error on the CPU, and undefined on a GPU, where none is read back.
        constant_cache: promises that no work which is queued already writes ``lengths``,
            ``block_table``, or keys and values but the newest Sq of each sequence, which the kernel
            just ahead may write, as :func:`gemmsmith.rope_to_cache` does. Kernels with
            ``constant_cache`` then fetch the others while it still runs. The step before, which
            wrote what was new to it, is such work too, unless something between the two waits for
            all that is queued, as torch's own kernels do. Naming kernels that have it
            (:func:`gemmsmith.load`) is the same promise.
        out: where to write, of the result's shape and dtype; it must not overlap an input, which is
            an error where torch knows both to be views of one memory.
        kernels: handle of what may run (:func:`gemmsmith.load`); empty for the default kernels of
            the GPU, and torch where none fits.

    Raises:
        ArgumentError: naming the argument, the value found and what is legal.
        NoKernelError: where named kernels do not fit the call.
        LaunchError: where CUDA refuses.
    """
    check_dense(
        q=q,
        k=k,
        v=v,
        mask=mask,
        lengths=lengths,
        block_table=block_table,
        out=out,
        optional=("mask", "lengths", "block_table", "out"),
    )
    check_scalars("switch", causal=causal)
    check_scalars("count", optional=True, window=window)
    check_scalars("number", optional=True, softcap=softcap, scale=scale)
    check_scalars("handle", kernels=kernels)
    if constant_cache is not False:
        is_promised("constant_cache", constant_cache)
    given: tuple[Any, ...] = (q, k, v, causal, window, softcap, scale, mask, lengths, block_table)
    given += (constant_cache, kernels)
    if out is None:
        return cast(Tensor, torch.ops.gemmsmith.attention.default(*given))
    torch.ops.gemmsmith.attention_out.default(*given, out=out)
    return out


def attention_varlen(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_q: Tensor,
    cu_k: Tensor,
    max_q: int,
    max_k: int,
    *,
    causal: bool = False,
    window: int | None = None,
    softcap: float | None = None,
    scale: float | None = None,
    out: Tensor | None = None,
    kernels: str = "",
) -> Tensor:
    """Return :func:`attention` of sequences of different lengths, packed one after the other.

    Args:
        q: (Tq, H, D), the queries of all sequences.
        k: (Tk, Hkv, D), the keys of all sequences, of q's dtype.
        v: as ``k``.
        cu_q: (sequences + 1,) int32 on the device: 0, then where the queries of each sequence end.
            Rows of q beyond the last entry belong to no sequence: what their results hold is
            undefined (kernels leave them as they were, torch writes 0).
        cu_k: likewise for the keys.
        max_q: queries of the longest sequence, or more.
        max_k: keys of the longest sequence, or more.
        causal: bottom-right aligned within each sequence.
        window: as in :func:`attention`.
        softcap: as in :func:`attention`.
        scale: as in :func:`attention`.
        out: as in :func:`attention`.
        kernels: as in :func:`attention`.

    Raises:
        ArgumentError: naming the argument, the value found and what is legal.
        NoKernelError: where named kernels do not fit the call.
        LaunchError: where CUDA refuses.
    """
    check_dense(q=q, k=k, v=v, cu_q=cu_q, cu_k=cu_k, out=out, optional=("out",))
    check_scalars("count", max_q=max_q, max_k=max_k)
    check_scalars("switch", causal=causal)
    check_scalars("count", optional=True, window=window)
    check_scalars("number", optional=True, softcap=softcap, scale=scale)
    check_scalars("handle", kernels=kernels)
    given = (q, k, v, cu_q, cu_k, max_q, max_k, causal, window, softcap, scale, kernels)
    if out is None:
        return cast(Tensor, torch.ops.gemmsmith.attention_varlen.default(*given))
    torch.ops.gemmsmith.attention_varlen_out.default(*given, out=out)
    return out
