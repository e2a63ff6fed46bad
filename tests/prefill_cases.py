"""Attention calls in poisoned, guarded memory, and the judge of what they write."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attention_data import exact, tokens
from paged_data import NAN, poisoned

_BESIDE = 8  # elements that lie behind each head of a guarded output


@dataclass(frozen=True, kw_only=True)
class Case:
    """One call of :func:`gemmsmith.attention`, but for its head_dim and dtype."""

    queries: int
    keys: int
    heads: int = 4
    kv_heads: int = 2
    batch: int = 1
    causal: bool = False
    window: int | None = None
    softcap: float | None = None
    scale: float | None = None
    lengths: tuple[int, ...] | None = None
    fused: bool = False
    """Whether q, k and v are parts of one projection."""

    def __str__(self) -> str:
        told = {name: value for name, value in vars(self).items() if value not in (None, False)}
        return " ".join(f"{name}={value}" for name, value in told.items())

    @property
    def how(self) -> dict[str, Any]:
        """The options that the op and the reference share."""
        names = ("causal", "window", "softcap", "scale")
        return {name: getattr(self, name) for name in names}


def _both(**sizes: Any) -> list[Case]:
    return [Case(**sizes, causal=causal) for causal in (False, True)]


SIZES = (
    *((128, 128), (256, 256), (64, 64), (257, 257), (1, 300), (5, 2), (64, 1000), (300, 129)),
    *((1000, 1000), (513, 513)),
)
WINDOWS = ((1000, 1), (1000, 100), (1000, 700), (257, 64), (300, 5000), (4100, 1024))
GROUPS = ((28, 4), (32, 8), (64, 8), (71, 1), (9, 3))
CASES: tuple[Case, ...] = (
    *(case for q, k in SIZES for case in _both(batch=2, queries=q, keys=k)),
    *(
        Case(queries=length, keys=length, heads=2, kv_heads=1, causal=True, window=window)
        for length, window in WINDOWS
    ),
    *(case for cap in (50.0, 2.0) for case in _both(queries=300, keys=300, softcap=cap)),
    Case(queries=300, keys=300, heads=4, kv_heads=4, causal=True, scale=0.3),
    *(
        Case(queries=257, keys=257, heads=heads, kv_heads=kv_heads, causal=True, fused=True)
        for heads, kv_heads in GROUPS
    ),
    *_both(queries=4097, keys=4097, heads=2, kv_heads=1),
    *_both(batch=3, queries=200, keys=256, lengths=(1, 200, 256)),
    Case(batch=2, queries=200, keys=500, causal=True, window=50, lengths=(0, 333)),
)
ENDS_Q, ENDS_K = (0, 20, 20, 257, 700), (0, 25, 30, 300, 743)
"""Where packed sequences end; one has no queries."""


def operands(case: Case, size: int, dtype: torch.dtype, device: str) -> tuple[Tensor, ...]:
    """Return q, k and v as views with gaps or parts of one buffer, NaN beyond the lengths."""
    if case.fused:
        torch.manual_seed(0)
        widths = [size * heads for heads in (case.heads, case.kv_heads, case.kv_heads)]
        buffer = torch.randn(case.batch, case.queries, sum(widths), device=device).to(dtype)
        return tuple(part.unflatten(-1, (-1, size)) for part in buffer.split(widths, -1))
    heads = (case.heads, case.kv_heads)
    sizes = (case.batch, case.queries, case.keys, *heads, size)
    q, k, v = tokens(*sizes, dtype=dtype, device=device)
    return q, *poisoned(k, v, list(case.lengths or [case.keys] * case.batch))


def guarded(like: Tensor) -> tuple[Tensor, Tensor]:
    """Return memory full of NaN, and in its midst an output of ``like``'s shape (…, S, H, D)."""
    *batch, queries, heads, size = like.shape
    room = like.new_full((*batch, queries + 2, heads, size + _BESIDE), NAN)
    return room, room[..., 1:-1, :, :size]


def check_case(attention: Callable[..., Any], case: Case, size: int, like: Tensor) -> None:
    """Call ``attention`` with dtype and device of ``like``, and judge all that it writes."""
    q, k, v = operands(case, size, like.dtype, like.device.type)
    room, out = guarded(q)
    how: dict[str, Any] = dict(case.how)
    if case.lengths is not None:
        how["lengths"] = torch.tensor(case.lengths, dtype=torch.int32, device=q.device)
    attention(q, k, v, out=out, **how)
    ends = None if case.lengths is None else list(case.lengths)
    judge(room, out, exact(q, k, v, **case.how, lengths=ends))


def check_packed(varlen: Callable[..., Any], size: int, like: Tensor, *, causal: bool) -> None:
    """Call ``varlen`` with four sequences, keys beyond them NaN, and judge all that it writes."""
    sizes = (1, ENDS_Q[-1], ENDS_K[-1] + 17, 4, 2, size)
    parts = tokens(*sizes, dtype=like.dtype, device=like.device.type)
    q, k, v = (part[0] for part in parts)
    k[ENDS_K[-1] :], v[ENDS_K[-1] :] = NAN, NAN
    cu_q, cu_k = (torch.tensor(ends, dtype=torch.int32).to(q.device) for ends in (ENDS_Q, ENDS_K))
    room, out = guarded(q)
    varlen(q, k, v, cu_q, cu_k, 443, 443, causal=causal, out=out)
    right = torch.zeros(q.shape, dtype=torch.float64, device=q.device)
    for place in range(len(ENDS_Q) - 1):
        rows, keys = (slice(ends[place], ends[place + 1]) for ends in (ENDS_Q, ENDS_K))
        right[rows] = exact(q[None, rows], k[None, keys], v[None, keys], causal=causal)[0]
    judge(room, out, right)


def judge(room: Tensor, out: Tensor, right: Tensor) -> None:
    """Assert that ``out`` is right, each row by its own size, and that nothing beside it changed.

    An element may be off by 2 steps of its dtype, of itself and of the largest of its row; a row
    of zeros not at all.
    """
    beside = room.clone()
    beside[..., 1:-1, :, : out.shape[-1]] = NAN
    changed = int((~beside.isnan()).sum())
    assert not changed, f"{changed} elements beside the output were written"
    unwritten = int((~out.isfinite()).sum())
    assert not unwritten, f"{unwritten} of {out.numel()} elements are not finite, or not written"
    size = right.abs()
    bound = 2 * torch.finfo(out.dtype).eps * (size + size.amax(-1, keepdim=True))
    wrong = (out.double() - right).abs() > bound
    if wrong.any():
        at = tuple(int(index) for index in wrong.nonzero()[0])
        raise AssertionError(
            f"{int(wrong.sum())} of {out.numel()} elements are wrong, the first at {at}:"
            f" {out[at].item():.5g} where {right[at].item():.5g} is right"
        )
