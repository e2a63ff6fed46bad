"""A step of decoding as one op: new keys and values go to their cache, and queries attend to it."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from gemmsmith import rope_ops as _rope_ops  # noqa: F401  registers the ops
from gemmsmith.attn import op as _op  # noqa: F401  likewise
from gemmsmith.attn.arguments import Attention, Newest
from gemmsmith.attn.execute import append_and_attend, refuse_misfit
from gemmsmith.attn.with_torch import check_pages
from gemmsmith.constant import is_promised
from gemmsmith.dense import check_dense
from gemmsmith.errors import ArgumentError
from gemmsmith.op_library import Op, register_ops
from gemmsmith.rope_shapes import check_new_tokens
from gemmsmith.scalars import check_scalars
from gemmsmith.written import check_caches_apart, check_written

__all__ = ["attention_with_kvcache"]


def attention_with_kvcache(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    lengths: Tensor,
    inv_freq: Tensor | None = None,
    *,
    block_table: Tensor | None = None,
    window: int | None = None,
    softcap: float | None = None,
    scale: float | None = None,
    interleaved: bool = False,
    attention_factor: float = 1.0,
    constant_cache: bool = False,
    kernels: str = "",
) -> Tensor:
    """Return what the newest tokens of each sequence attend to, (B, S, H, D), and cache them.

    It is :func:`gemmsmith.rope_to_cache` at positions ``lengths - S`` to ``lengths - 1`` and causal
    :func:`gemmsmith.attention` over the cache, to the same bits where the same kernel attends; q
    stays as it is. With one token a sequence both are one kernel, to which no other has to bring
    the cache up to date; else, and where no kernel takes the call, they are two.

    Under ``torch.compile`` with dynamic shapes let each cache be a tensor of its own: inductor
    drops the offset of a view that an op writes (https://github.com/pytorch/pytorch/issues/198068).

    Args:
        q: (B, S, H, D), fp16, bf16 or fp32; views of a fused qkv buffer are fine.
        k: (B, S, Hkv, D), the keys of these tokens, of q's dtype, not yet rotated.
        v: likewise.
        k_cache: (B, capacity, Hkv, D), or with ``block_table`` (pages, page size, Hkv, D).
        v_cache: likewise.
        lengths: (B,) int32, the keys of each sequence, these S among them. A token whose place
            would be below 0 is kept nowhere. More than there is room for are an ArgumentError on
            the CPU; on a GPU, where none is read back, those beyond the cache's end are not kept.
        inv_freq: as :func:`gemmsmith.rope` takes it, ``interleaved`` and ``attention_factor`` too;
            None leaves q and k as they are, whatever the factor.
        block_table: as in :func:`gemmsmith.attention`.
        window: as in :func:`gemmsmith.attention`: keys out of its sight may be read all the same,
            so that they must hold finite numbers and, with a block table, lie on pages that there
            are.
        softcap: as in :func:`gemmsmith.attention`.
        scale: as in :func:`gemmsmith.attention`.
        constant_cache: as in :func:`gemmsmith.attention`; the promise covers ``inv_freq`` too.
        kernels: as in :func:`gemmsmith.attention`; on a GPU those that are named must append
            themselves where each sequence has one token.

    Raises:
        ArgumentError: naming the argument, the value found and what is legal.
        NoKernelError: where named kernels do not fit the call.
        LaunchError: where CUDA refuses.
    """
    check_dense(q=q, k=k, v=v, k_cache=k_cache, v_cache=v_cache, lengths=lengths)
    check_dense(inv_freq=inv_freq, block_table=block_table, optional=("inv_freq", "block_table"))
    check_scalars("switch", interleaved=interleaved)
    check_scalars("count", optional=True, window=window)
    check_scalars("number", optional=True, softcap=softcap, scale=scale)
    check_scalars("number", attention_factor=attention_factor)
    check_scalars("handle", kernels=kernels)
    if constant_cache is not False:
        is_promised("constant_cache", constant_cache)
    given: tuple[Any, ...] = (q, k, v, k_cache, v_cache, lengths, inv_freq, block_table)
    given += (window, softcap, scale, interleaved, attention_factor, constant_cache, kernels)
    return cast(Tensor, torch.ops.gemmsmith.attention_with_kvcache.default(*given))


def _checked(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    lengths: Tensor,
    inv_freq: Tensor | None,
    block_table: Tensor | None,
    window: int | None,
    softcap: float | None,
    scale: float | None,
    interleaved: bool,
    attention_factor: float,
    constant_cache: bool,
    kernels: str,
) -> Attention:
    """Return the call of attention.

    Raises:
        ArgumentError: naming the argument, the value found and what is legal.
    """
    call = Attention(
        q,
        k_cache,
        v_cache,
        causal=True,
        window=window,
        softcap=softcap,
        scale=scale,
        mask=None,
        lengths=lengths,
        block_table=block_table,
        constant_cache=constant_cache,
        kernels=kernels,
        newest=Newest(k, v, inv_freq, interleaved, attention_factor),
    )
    call.check()
    check_new_tokens(q, k, v, k_cache, inv_freq, attention_factor)
    for name, cache in (("k_cache", k_cache), ("v_cache", v_cache)):
        check_written(name, cache)
    return call


def _run(q: Tensor, *args: Any) -> Tensor:
    call = _checked(q, *args)
    assert call.newest is not None, "the call appends"
    check_caches_apart(call.k, call.v, q, call.newest.k, call.newest.v)
    refuse_misfit(call._replace(newest=None))
    if q.is_cuda and q.numel() and q.shape[1] == 1:
        out = q.new_empty(q.shape)
        if append_and_attend(call, out):
            return out
    return _in_two(call)


def _in_two(call: Attention) -> Tensor:
    """Return the result of the two ops that this one stands for."""
    newest = call.newest
    assert newest is not None, "the call appends"
    assert call.lengths is not None, "the call is checked"
    if not call.q.is_cuda:
        check_room("lengths", call.lengths, call.key_length)
        if call.block_table is not None:
            check_pages("k_cache", call.k, call.lengths, call.block_table)
    q, tokens = call.q.clone(), call.q.shape[1]
    positions = call.lengths[:, None] + torch.arange(-tokens, 0, device=q.device)
    turned, factor = newest.inv_freq, newest.attention_factor
    if turned is None:  # by nothing: it is the kernel that leaves tokens out without a wait
        turned = torch.zeros(1, dtype=torch.float32, device=q.device)
        factor = 1.0
    torch.ops.gemmsmith.rope_to_cache.default(
        q,
        newest.k,
        newest.v,
        call.k,
        call.v,
        positions,
        turned,
        None,
        call.block_table,
        newest.interleaved,
        factor,
    )
    given = (q, *call[1:-1])
    return cast(Tensor, torch.ops.gemmsmith.attention.default(*given))


def check_room(name: str, lengths: Tensor, room: int) -> None:
    """Raise ArgumentError where ``lengths``, on the CPU, count more keys than a cache has room for.

    They are those of each sequence with the newest among them, told by ``name``.
    """
    if bool((lengths > room).any()):
        raise ArgumentError(
            f"{name} holds {int(lengths.max())}, the cache {room} keys of a sequence: the newest"
            " have no place in it"
        )


def _fake(q: Tensor, *args: Any) -> Tensor:
    refuse_misfit(_checked(q, *args)._replace(newest=None))
    return q.new_empty(q.shape)


_SCHEMA = (
    "(Tensor q, Tensor k, Tensor v, Tensor(a!) k_cache, Tensor(b!) v_cache, Tensor lengths,"
    " Tensor? inv_freq, Tensor? block_table, int? window, float? softcap, float? scale,"
    " bool interleaved, float attention_factor, bool constant_cache, str kernels) -> Tensor"
)
_OPS: dict[str, Op] = {"attention_with_kvcache": (_SCHEMA, _run, _fake)}

_library = register_ops(_OPS)
