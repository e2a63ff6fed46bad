"""Operands with exact answers, and memory that shows what a kernel must write and must not."""

from __future__ import annotations

import math

import torch
from torch import Tensor

GUARD = 1024
"""Elements before and behind a guarded output that no kernel may touch."""


def matrix(rows: int, columns: int, letter: str, values: Tensor) -> Tensor:
    """Return ``values`` (rows, columns) stored row-major (``r``) or column-major (``c``)."""
    if letter == "r":
        return values.reshape(rows, columns).contiguous()
    return values.reshape(rows, columns).t().contiguous().t()


def poison_of(dtype: torch.dtype) -> float:
    """Return NaN, or for whole numbers the largest, which no result here is."""
    return math.nan if dtype.is_floating_point else torch.iinfo(dtype).max


def untouched(values: Tensor) -> bool:
    """Whether all of ``values`` is still :func:`poison_of` its type."""
    if values.dtype.is_floating_point:
        return bool(values.isnan().all())
    return bool((values == poison_of(values.dtype)).all())


def padded(values: Tensor, letter: str, padding: int) -> Tensor:
    """Return ``values`` (…, rows, columns) in rows or columns that poison keeps apart."""
    lines = values if letter == "r" else values.mT
    length = lines.shape[-1]
    room = lines.new_full((*lines.shape[:-1], length + padding), poison_of(lines.dtype))
    room[..., :length] = lines
    return room[..., :length] if letter == "r" else room[..., :length].mT


def small_integers(*shape: int, dtype: torch.dtype, device: str, most: int = 3) -> Tensor:
    """Return integers in [-most, most]: f32 sums of products are exact to K = 2^24 / most^2."""
    return torch.randint(-most, most + 1, shape, device=device).to(dtype)


class GuardedOutput:
    """An output (…, M, N) full of poison inside a larger buffer that must stay so around it.

    Its rows (``r``) or columns (``c``) are ``padding`` elements apart, which must stay so too.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        letter: str,
        dtype: torch.dtype,
        device: str,
        padding: int = 0,
    ) -> None:
        *batch, m, n = shape
        lines, length = (m, n) if letter == "r" else (n, m)
        room = (*batch, lines, length + padding)
        size = math.prod(room)

        def output(buffer: Tensor) -> Tensor:
            inside = buffer[GUARD : GUARD + size].view(room)[..., :length]
            return inside if letter == "r" else inside.mT

        self._buffer = torch.full((size + 2 * GUARD,), poison_of(dtype), dtype=dtype, device=device)
        self.out = output(self._buffer)
        self._outside = torch.ones_like(self._buffer, dtype=torch.bool)
        output(self._outside).fill_(False)

    def overrun(self) -> bool:
        """Whether something was written outside the output, or between its rows or columns."""
        return not untouched(self._buffer[self._outside])


def rounded(exact: Tensor, dtype: torch.dtype) -> Tensor:
    """Return an exact f64 result rounded once to ``dtype``; int8 half to even and saturated."""
    if dtype == torch.int8:
        return exact.round().clamp(-128, 127).to(dtype)
    if dtype == torch.int32:
        return exact.to(dtype)
    return exact.float().to(dtype)


def error_bound(exact: Tensor, magnitude: Tensor, k: int, dtype: torch.dtype) -> Tensor:
    """Return what a kernel that sums in f32 may be off: 1 ulp of the output + K 2^-24 sum|a||b|."""
    eps = torch.finfo(dtype).eps
    exponent = torch.floor(torch.log2(exact.abs().clamp_min(torch.finfo(dtype).tiny)))
    return eps * torch.exp2(exponent) + k * 2.0**-24 * magnitude
