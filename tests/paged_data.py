"""Keys and values in memory that is NaN where nothing may be read, with pages and without."""

from __future__ import annotations

import torch
from torch import Tensor

NAN = float("nan")
NO_PAGE = 1 << 29  # an entry that is not to be looked at


def scattered(k: Tensor, v: Tensor, lengths: list[int], size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return k and v in shuffled pages of ``size`` keys, and the table of each sequence.

    The stores are views with gaps; all but the first ``lengths`` keys is NaN, and what the tables
    say of further pages is no page.
    """
    batch, keys, heads, dim = k.shape
    pages = -(-keys // size)
    pool = batch * pages + 3
    order = torch.randperm(pool, device=k.device)
    k_store = torch.full((pool, 2, size, heads, dim), NAN, dtype=k.dtype, device=k.device)[:, 0]
    v_store = torch.full((pool, size, 2, heads, dim), NAN, dtype=k.dtype, device=k.device)[:, :, 1]
    table = torch.full((batch, pages + 2), NO_PAGE, dtype=torch.int32, device=k.device)[:, :pages]
    for b, length in enumerate(lengths):
        for page in range(-(-length // size)):
            at = int(order[b * pages + page])
            table[b, page] = at
            part = slice(page * size, min(length, (page + 1) * size))
            k_store[at, : part.stop - part.start] = k[b, part]
            v_store[at, : part.stop - part.start] = v[b, part]
    return k_store, v_store, table


def poisoned(k: Tensor, v: Tensor, lengths: list[int]) -> tuple[Tensor, Tensor]:
    """Return k and v as views with gaps, NaN beyond each sequence's length."""
    batch, keys, heads, dim = k.shape
    k_room = torch.full((batch, keys, heads, dim + 8), NAN, dtype=k.dtype, device=k.device)
    v_room = torch.full((batch, heads, keys, dim), NAN, dtype=k.dtype, device=k.device)
    k_view, v_view = k_room[..., :dim], v_room.transpose(1, 2)
    for b, length in enumerate(lengths):
        k_view[b, :length], v_view[b, :length] = k[b, :length], v[b, :length]
    return k_view, v_view
