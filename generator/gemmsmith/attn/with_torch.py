"""Attention in torch's own operations: on the CPU, and where no kernel fits.

What lies beyond a sequence's keys is set to zero first, because a key that is masked still counts
where it is NaN, as 0 * NaN; and queries that see no key are set to zero last, because torch's
function has NaN there on some devices.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from gemmsmith.attn.arguments import Attention, PackedAttention
from gemmsmith.errors import ArgumentError

_SCORES_AT_ONCE = 1 << 26  # f32 scores that are in memory together, 256 MiB


def attend(call: Attention) -> Tensor:
    """Return the result of a checked call, (batch, queries, heads, head_dim)."""
    k, v = call.k, call.v
    queries, keys = call.q.shape[1], call.key_length
    position = torch.arange(keys, device=call.q.device)
    if keys == 0:
        return torch.zeros_like(call.q)
    if call.block_table is not None:
        k, v = _gathered(call, call.block_table)
    ends = torch.full((1, 1), keys, device=call.q.device)
    if call.lengths is not None:
        ends = call.lengths.long().clamp(0, keys)[:, None]
        beyond = (position >= ends)[..., None, None]
        k, v = k.masked_fill(beyond, 0), v.masked_fill(beyond, 0)
    cut = call.lengths is not None or call.window is not None or call.mask is not None
    cut = cut or (call.causal and call.true_scale <= 0)  # torch: 0 or -1 times -inf, a NaN
    if not cut and call.softcap is None and (not call.causal or queries == keys):
        return _torchs(call, k, v, None, causal=call.causal)
    last = ends - queries + torch.arange(queries, device=call.q.device)
    return _with_mask(call, k, v, _seen(last, position, ends, call.causal, call.window))


def attend_packed(call: PackedAttention) -> Tensor:
    """Return the result of a checked call on packed sequences, (tokens, heads, head_dim).

    Every query meets every key: the device alone knows the lengths, and is not waited for.
    """
    device, sequences = call.q.device, call.cu_q.shape[0] - 1
    if call.k.shape[0] == 0:
        return torch.zeros_like(call.q)
    cu_q, cu_k = call.cu_q.long(), call.cu_k.long()
    token = torch.arange(call.q.shape[0], device=device)
    position = torch.arange(call.k.shape[0], device=device)
    of_token = torch.searchsorted(cu_q, token, right=True) - 1
    of_key = torch.searchsorted(cu_k, position, right=True) - 1
    beyond = (of_key == sequences)[:, None, None]
    ends = cu_k[(of_token + 1).clamp(max=sequences)]
    last = ends - cu_q[(of_token + 1).clamp(max=sequences)] + token
    seen = _seen(last[None], position, ends[None], call.causal, call.window)
    seen = seen & (of_token[:, None] == of_key) & (of_token < sequences)[:, None]
    dense = Attention(
        q=call.q[None],
        k=call.k.masked_fill(beyond, 0)[None],
        v=call.v.masked_fill(beyond, 0)[None],
        causal=call.causal,
        window=call.window,
        softcap=call.softcap,
        scale=call.scale,
        mask=None,
        lengths=None,
        block_table=None,
    )
    return _with_mask(dense, dense.k, dense.v, seen)[0]


def check_pages(name: str, cache: Tensor, lengths: Tensor, block_table: Tensor) -> None:
    """Raise ArgumentError where ``lengths`` count a page that there is not in the cache ``name``.

    It reads tensors back, so that it is for those on the CPU.
    """
    pages = cache.shape[0]
    used = _used(cache, lengths, block_table)
    missing = block_table[used & ((block_table < 0) | (block_table >= pages))]
    if missing.numel():
        raise ArgumentError(
            f"block_table holds {int(missing[0])} for a page that lengths count; {name} has {pages}"
            " pages, counted from 0"
        )


def _used(cache: Tensor, lengths: Tensor, block_table: Tensor) -> Tensor:
    """Return which pages of each sequence its length counts, (batch, pages)."""
    places = torch.arange(block_table.shape[1], device=block_table.device)
    return places * cache.shape[1] < lengths[:, None]


def _gathered(call: Attention, block_table: Tensor) -> tuple[Tensor, Tensor]:
    """Return k and v of (batch, keys, …) from their pages; of unused ones, page 0.

    Raises:
        ArgumentError: on the CPU, where a page is used that there is not.
    """
    assert call.lengths is not None, "checked: paged calls have lengths"
    if not call.k.is_cuda:  # a GPU would have to be waited for
        check_pages("k", call.k, call.lengths, block_table)
    table = torch.where(_used(call.k, call.lengths, block_table), block_table.long(), 0)
    if call.k.shape[0] == 0:
        empty = call.k.new_zeros(table.shape[0], call.key_length, *call.k.shape[2:])
        return empty, empty
    return call.k[table].flatten(1, 2), call.v[table].flatten(1, 2)


def _seen(last: Tensor, position: Tensor, end: Tensor, causal: bool, window: int | None) -> Tensor:
    """Return which keys each query sees, (batch or 1, queries or 1, keys).

    ``last`` (batch or 1, queries) is the last key of each query where the call is causal; ``end``
    (batch or 1, queries or 1) is where its keys end.
    """
    seen = position < end[..., None]
    if causal:
        seen = seen & (position <= last[..., None])
    if window is not None:
        seen = seen & (position > last[..., None] - window)
    return seen


def _with_mask(call: Attention, k: Tensor, v: Tensor, seen: Tensor) -> Tensor:
    """Return the result where ``seen`` (batch or 1, queries or 1, keys) and the mask cut keys."""
    mask = seen[:, None]
    if call.mask is not None and call.mask.dtype == torch.bool:
        mask = mask & call.mask
    elif call.mask is not None:
        mask = torch.where(mask, call.mask, float("-inf"))
    seen = mask if mask.dtype == torch.bool else mask != float("-inf")  # NaN is no blindness
    blind = ~seen.any(-1)
    if call.softcap is None and mask.dtype in (torch.bool, call.q.dtype):
        result = _torchs(call, k, v, mask.expand(-1, -1, call.q.shape[1], -1), causal=False)
    else:
        result = _in_f32(call, k, v, mask)
    return result.masked_fill(blind.transpose(1, 2)[..., None], 0)


def _torchs(call: Attention, k: Tensor, v: Tensor, mask: Tensor | None, *, causal: bool) -> Tensor:
    return scaled_dot_product_attention(
        call.q.transpose(1, 2),
        k.transpose(1, 2),
        v.transpose(1, 2),
        attn_mask=mask,
        is_causal=causal,
        scale=call.true_scale,
        enable_gqa=call.q.shape[2] != k.shape[2],
    ).transpose(1, 2)


def _in_f32(call: Attention, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """Return the result by its formula in f32, some queries at a time."""
    batch, queries, heads, _ = call.q.shape
    group = heads // k.shape[2]
    keys = k.float().repeat_interleave(group, 2).transpose(1, 2)
    values = v.float().repeat_interleave(group, 2).transpose(1, 2)
    step = max(1, _SCORES_AT_ONCE // max(1, batch * heads * k.shape[1]))
    parts = []
    for first in range(0, queries, step):
        q = call.q[:, first : first + step].float().transpose(1, 2)
        scores = q @ keys.mT * call.true_scale
        if call.softcap is not None:
            scores = call.softcap * torch.tanh(scores / call.softcap)
        cut = mask if mask.shape[2] == 1 else mask[:, :, first : first + step]
        if cut.dtype == torch.bool:
            scores = scores.masked_fill(~cut, float("-inf"))
        else:
            scores = scores + cut
        parts.append((scores.softmax(-1) @ values).transpose(1, 2))
    return torch.cat(parts, 1).to(call.q.dtype) if parts else torch.empty_like(call.q)
