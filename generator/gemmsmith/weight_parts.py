"""Parts of prepared weights: some output features, or some input features, of each tensor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from gemmsmith.row_math import PADDING
from gemmsmith.weights import Preparation

__all__ = ["Part", "Span", "share"]


class Span(NamedTuple):
    """Features that follow each other."""

    start: int
    size: int


def share(features: int, rank: int, ranks: int, start: int = 0) -> Span:
    """Return what ``rank`` of ``ranks`` has of features that begin at ``start``, all alike."""
    size = features // ranks
    return Span(start + rank * size, size)


@dataclass(frozen=True, kw_only=True)
class Part:
    """Which features of a weight (N, K) one has, in the order of the weights that were given."""

    rows: tuple[Span, ...] = ()
    """Of the output features, those of gate after each other and then those of up; empty: all."""
    columns: Span | None = None
    """Of the input features; None: all."""

    def preparation(self, whole: Preparation) -> Preparation:
        """Return how the part is prepared: as the whole, with a padding of its own."""
        sizes = self._stored(whole)
        n, k = sum(sizes), whole.features[1] if self.columns is None else self.columns.size
        stored = sizes[0] if whole.interleaved == "separate" else n
        rows = n // 2 if whole.interleaved else n
        return replace(
            whole,
            shape=(k, stored) if whole.transposed else (stored, k),
            padding=(-rows % PADDING, -k % PADDING),
            joined=tuple(sizes) if whole.joined else (),
        )

    def take(self, whole: Preparation, prepared: Tensor) -> Tensor:
        """Return the part, prepared and a copy, of a weight or a vector (N,) prepared as a whole.

        Args:
            whole: what was done to it.
            prepared: the result of that.
        """
        stored = whole.restore(prepared)
        rows = int(prepared.dim() == 2 and whole.transposed)  # dimension of the output features
        given = torch.cat(stored, rows)
        if self.rows:
            given = torch.cat([given.narrow(rows, *span) for span in self.rows], rows)
        if self.columns is not None and prepared.dim() == 2:
            given = given.narrow(1 - rows, *self.columns)
        made = self.preparation(whole).apply(*torch.split(given, self._stored(whole), rows))
        shared = made.untyped_storage().data_ptr() == prepared.untyped_storage().data_ptr()
        return made.clone() if shared else made

    def _stored(self, whole: Preparation) -> list[int]:
        """Return how many output features the part has of each tensor that was given."""
        n = whole.features[0]
        sizes: Sequence[int] = whole.joined or (n,)
        if whole.interleaved == "separate":
            sizes = (n // 2, n // 2)
        if not self.rows:
            return list(sizes)
        found, start = [], 0
        for size in sizes:
            ends = [(max(start, a), min(start + size, a + n)) for a, n in self.rows]
            found.append(sum(max(0, end - begin) for begin, end in ends))
            start += size
        return found
