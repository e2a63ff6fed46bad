"""Rotary position embedding (RoPE) as PyTorch ops that write in place, inference only.

Two elements of a head make a pair, which is turned by an angle, the product of the token's position
and the pair's inverse frequency. Checkpoints differ in what makes a pair: element ``i`` and element
``i + rotary / 2`` (halves: Llama, Mistral, Qwen2, GPT-NeoX as transformers has them; the default
here), or elements ``2 i`` and ``2 i + 1`` (interleaved: GPT-J, Llama's own release).

Angles are exact whatever the tensors' type (:mod:`gemmsmith.rope_math`).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gemmsmith.autocast import without_autocast
from gemmsmith.dense import check_dense
from gemmsmith.errors import ArgumentError
from gemmsmith.op_library import Op, register_ops
from gemmsmith.rope_call import misfit, rope_call
from gemmsmith.rope_math import angles, places, rope_frequencies, rotated
from gemmsmith.rope_shapes import check_rope, check_rope_to_cache
from gemmsmith.row_execute import record, run_on_cuda, say_once
from gemmsmith.scalars import check_scalars
from gemmsmith.written import begin_alike, check_caches_apart

__all__ = ["rope", "rope_frequencies", "rope_to_cache"]


def rope(
    q: Tensor,
    k: Tensor,
    positions: Tensor,
    inv_freq: Tensor,
    *,
    interleaved: bool = False,
    attention_factor: float = 1.0,
) -> None:
    """Rotate ``q`` and ``k`` in place by the angles ``positions * inv_freq``.

    Args:
        q: (T, H, D) or (B, S, H, D), fp16, bf16 or f32; views of a fused qkv buffer are fine.
        k: (T, Hkv, D) or (B, S, Hkv, D), of ``q``'s dtype.
        positions: int32 or int64, (T,) or (B, S), or what expands to that.
        inv_freq: inverse frequencies in radians a position, f32 or f64, one for each pair: the
            first ``2 * len(inv_freq)`` of the D elements of a head are rotated, the others stay.
            Scaled ones (Llama 3, YaRN) are as good as :func:`rope_frequencies`.
        interleaved: pairs are neighbours (2i, 2i + 1); without it, halves (i, i + rotary / 2).
        attention_factor: cosine and sine are multiplied by it (YaRN).

    Raises:
        ArgumentError: naming the argument, the value found and what is legal.
        LaunchError: where CUDA refuses.
    """
    check_dense(q=q, k=k, positions=positions, inv_freq=inv_freq)
    check_scalars("switch", interleaved=interleaved)
    check_scalars("number", attention_factor=attention_factor)
    torch.ops.gemmsmith.rope.default(q, k, positions, inv_freq, interleaved, attention_factor)


def rope_to_cache(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    positions: Tensor,
    inv_freq: Tensor,
    *,
    slots: Tensor | None = None,
    block_table: Tensor | None = None,
    interleaved: bool = False,
    attention_factor: float = 1.0,
) -> None:
    """Rotate ``q`` in place and write rotated ``k``, and ``v``, to a KV cache: one kernel.

    A token goes to the place of its position: ``k_cache[b, position]``, with a block table
    ``k_cache[block_table[b, position // page], position % page]``. One whose position is below 0
    is kept nowhere (padding). So is one past the cache's end or on a page that there is not, on a
    GPU: positions are not read back there. On the CPU that is an error.

    Under ``torch.compile`` with dynamic shapes let each cache be a tensor of its own: inductor
    drops the offset of a view that an op writes (https://github.com/pytorch/pytorch/issues/198068).

    Args:
        q: (B, S, H, D), fp16, bf16 or f32; views of a fused qkv buffer are fine. With ``slots``
            also packed, (T, H, D), as ``k`` and ``v`` are then.
        k: (B, S, Hkv, D), of ``q``'s dtype; it is only read.
        v: likewise.
        k_cache: (B, capacity, Hkv, D), or pages (num_pages, page_size, Hkv, D), of ``q``'s dtype.
        v_cache: likewise.
        positions: int32 or int64, (B, S) or what expands to that, for example (B, 1).
        inv_freq: as :func:`rope` takes it, ``interleaved`` and ``attention_factor`` too.
        slots: int32 or int64, like ``positions``: place of each token instead of its position,
            counted through the cache: ``index * k_cache.shape[1] + offset``; below 0 for none.
        block_table: (B, pages of a sequence) int32: index of each page in the cache.

    Raises:
        ArgumentError: naming the argument, the value found and what is legal.
        LaunchError: where CUDA refuses.
    """
    check_dense(q=q, k=k, v=v, k_cache=k_cache, v_cache=v_cache)
    check_dense(
        positions=positions,
        inv_freq=inv_freq,
        slots=slots,
        block_table=block_table,
        optional=("slots", "block_table"),
    )
    check_scalars("switch", interleaved=interleaved)
    check_scalars("number", attention_factor=attention_factor)
    torch.ops.gemmsmith.rope_to_cache.default(
        q,
        k,
        v,
        k_cache,
        v_cache,
        positions,
        inv_freq,
        slots,
        block_table,
        interleaved,
        attention_factor,
    )


def _rope(
    q: Tensor,
    k: Tensor,
    positions: Tensor,
    inv_freq: Tensor,
    interleaved: bool = False,
    attention_factor: float = 1.0,
) -> None:
    check_rope(q, k, positions, inv_freq, interleaved, attention_factor)
    _refuse_one(q, k)
    positions = positions.expand(q.shape[:-2])
    if q.is_cuda and _on_cuda(
        q, k, positions, inv_freq, interleaved=interleaved, attention_factor=attention_factor
    ):
        return
    with without_autocast(q.device):
        cosine, sine = angles(positions, inv_freq, attention_factor)
        for heads in (q, k):
            heads.copy_(rotated(heads, cosine, sine, interleaved))
    record("torch" if q.is_cuda else "cpu")


def _rope_to_cache(
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
    check_rope_to_cache(
        q,
        k,
        v,
        k_cache,
        v_cache,
        positions,
        inv_freq,
        slots,
        block_table,
        interleaved,
        attention_factor,
    )
    _refuse_one(q, k)
    check_caches_apart(k_cache, v_cache, q, k, v)
    tokens = q.shape[:-2]
    positions = positions.expand(tokens)
    slots = None if slots is None else slots.expand(tokens)
    way: dict[str, Any] = {"interleaved": interleaved, "attention_factor": attention_factor}
    way |= {"v": v, "k_cache": k_cache, "v_cache": v_cache}
    way |= {"slots": slots, "block_table": block_table}
    if q.is_cuda and _on_cuda(q, k, positions, inv_freq, **way):
        return
    place = places(k_cache, positions, slots, block_table)
    if not q.is_cuda:
        name, given = ("positions", positions) if slots is None else ("slots", slots)
        _refuse_beyond(k_cache, name, given, place.kept)
    row, slot = place.row[place.kept], place.slot[place.kept]
    with without_autocast(q.device):
        cosine, sine = angles(positions, inv_freq, attention_factor)
        k_cache[row, slot] = rotated(k, cosine, sine, interleaved)[place.kept]
        v_cache[row, slot] = v[place.kept]
        q.copy_(rotated(q, cosine, sine, interleaved))
    record("torch" if q.is_cuda else "cpu")


def _on_cuda(q: Tensor, k: Tensor, positions: Tensor, inv_freq: Tensor, **way: Any) -> bool:
    """Queue the kernel; False where there is none for the call."""
    caches = (way.get("k_cache"), way.get("v_cache"))
    if q.numel() == 0:
        return True
    reason = misfit((q, k, way.get("v"), *caches), inv_freq)
    if reason:
        say_once(f"rope: {reason}")
        return False
    table = way.get("block_table")
    if table is not None:
        way["block_table"] = table if table.stride(1) == 1 else table.contiguous()
    call = rope_call(q, k, positions, inv_freq, **way)
    if not run_on_cuda("rope", q.dtype, call, q.device.index):
        return False
    for written in (q, *(caches if caches[0] is not None else (k,))):
        if not written.is_inference():
            torch.autograd.graph.increment_version(written)
    return True


def _refuse_one(q: Tensor, k: Tensor) -> None:
    if begin_alike(q, k):  # parts of a fused buffer would take long to tell apart
        raise ArgumentError("q and k are one memory: one of them would be written over the other")


def _refuse_beyond(cache: Tensor, name: str, given: Tensor, kept: Tensor) -> None:
    beyond = given[(given >= 0) & ~kept]
    if beyond.numel():
        raise ArgumentError(
            f"{name} holds {int(beyond[0])}, which has no place in the cache of"
            f" {tuple(cache.shape)}; below 0 marks a token that is not kept"
        )


_ROPE = "Tensor(a!) q, Tensor(b!) k, Tensor positions, Tensor inv_freq"
_CACHE = (
    "Tensor(a!) q, Tensor k, Tensor v, Tensor(b!) k_cache, Tensor(c!) v_cache,"
    " Tensor positions, Tensor inv_freq, Tensor? slots=None, Tensor? block_table=None"
)
_WAY = "bool interleaved=False, float attention_factor=1.0"
_OPS: dict[str, Op] = {
    "rope": (f"({_ROPE}, {_WAY}) -> ()", _rope, check_rope),
    "rope_to_cache": (f"({_CACHE}, {_WAY}) -> ()", _rope_to_cache, check_rope_to_cache),
}

_library = register_ops(_OPS)
