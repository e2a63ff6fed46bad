"""How layers are divided over ranks, or why they cannot be: numbers alone."""

from __future__ import annotations

from gemmsmith.weight_parts import Part, share

__all__ = ["gate_up_part", "kv_share", "qkv_part", "why_heads_stay", "why_inner_stays"]


def why_heads_stay(heads: int, kv_heads: int, ranks: int) -> str:
    """Return why attention cannot be divided over ``ranks``; empty where it can.

    Each rank has as many heads as any other, and the KV heads that those read: its own ones, or,
    where there are fewer than ranks, one that is held by several.
    """
    if not _divide(heads, kv_heads, ranks):
        fitting = [n for n in range(2, heads + 1) if _divide(heads, kv_heads, n)]
        words = ", ".join(map(str, fitting)) or "no number"
        return (
            f"{heads} heads that read {kv_heads} KV heads do not divide by {ranks} ranks:"
            f" {words} would do"
        )
    return ""


def _divide(heads: int, kv_heads: int, ranks: int) -> bool:
    # the heads of a rank read whole KV heads, or all of them the same one
    return heads % ranks == 0 and (kv_heads % ranks == 0 or ranks % kv_heads == 0)


def kv_share(kv_heads: int, rank: int, ranks: int) -> tuple[int, int]:
    """Return the first of the KV heads that a rank has, and how many they are."""
    if kv_heads % ranks == 0:
        return share(kv_heads, rank, ranks)
    return rank * kv_heads // ranks, 1


def qkv_part(heads: int, kv_heads: int, head_dim: int, rank: int, ranks: int) -> Part:
    """Return what a rank has of q, k and v one after the other, whole heads of each."""
    first, count = kv_share(kv_heads, rank, ranks)
    k, v = heads * head_dim, (heads + kv_heads) * head_dim
    q = share(k, rank, ranks)
    at, size = first * head_dim, count * head_dim
    return Part(rows=(q, q._replace(start=k + at, size=size), q._replace(start=v + at, size=size)))


def why_inner_stays(inner: int, ranks: int) -> str:
    """Return why a feed-forward block cannot be divided over ``ranks``; empty where it can."""
    return f"{inner} inner features do not divide by {ranks} ranks" if inner % ranks else ""


def gate_up_part(inner: int, rank: int, ranks: int) -> Part:
    """Return what a rank has of gate and up: the same features of both."""
    return Part(rows=(share(inner, rank, ranks), share(inner, rank, ranks, inner)))
