"""Parts of prepared weights hold the rows and columns that they name, whatever was done to them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from gemmsmith.weight_parts import Part, Span, share
from gemmsmith.weights import Preparation, join, prepare


def numbered(n: int, k: int, first: int = 0) -> Tensor:
    return torch.arange(first, first + n * k, dtype=torch.float32).view(n, k)


def stored(part: Part, whole: Preparation, prepared: Tensor) -> tuple[Tensor, ...]:
    """Return the part in the form that a checkpoint has it in."""
    made = part.take(whole, prepared)
    mine = part.preparation(whole)
    assert mine.padded[0] == made.shape[0]
    assert made.is_contiguous()
    assert made.untyped_storage().nbytes() == made.numel() * 4  # not a view of the whole
    return mine.restore(made)


def test_shares_follow_each_other() -> None:
    assert [share(12, rank, 3) for rank in range(3)] == [(0, 4), (4, 4), (8, 4)]
    assert share(12, 1, 3, 12) == (16, 4)


@pytest.mark.parametrize("transposed", [False, True])
def test_rows_and_columns_of_one_weight(transposed: bool) -> None:
    given = numbered(24, 16)
    prepared, whole = prepare(given.t() if transposed else given, transposed=transposed)
    (rows,) = stored(Part(rows=(Span(8, 8),)), whole, prepared)
    assert torch.equal(rows.t() if transposed else rows, given[8:16])
    (columns,) = stored(Part(columns=Span(5, 3)), whole, prepared)
    assert torch.equal(columns.t() if transposed else columns, given[:, 5:8])
    bias = whole.apply(given[:, 0])
    assert torch.equal(Part(columns=Span(5, 3)).take(whole, bias), bias)


def test_rows_of_joined_weights_are_those_of_each() -> None:
    q, k, v = numbered(12, 8), numbered(6, 8, 1000), numbered(6, 8, 2000)
    prepared, whole = join([q, k, v])
    part = Part(rows=(Span(6, 6), Span(12 + 3, 3), Span(18 + 3, 3)))
    mine = stored(part, whole, prepared)
    for found, right in zip(mine, (q[6:], k[3:], v[3:]), strict=True):
        assert torch.equal(found, right)
    bias = whole.apply(q[:, 0], k[:, 0], v[:, 0])
    assert torch.equal(stored(part, whole, bias)[1], k[3:, 0])


@pytest.mark.parametrize("order", ["", "gate_up", "up_gate"])
def test_gate_and_up_are_divided_in_pairs(order: str) -> None:
    """Each half's own 10 rows, which are padded to 16, so that 8 of gate and 8 of up take turns."""
    gate, up = numbered(20, 16), numbered(20, 16, 1000)
    pair = (up, gate) if order == "up_gate" else (gate, up)
    given = (torch.cat(pair),) if order else pair
    prepared, whole = prepare(*given, order=order)  # type: ignore[arg-type]
    part = Part(rows=(Span(10, 10), Span(30, 10)))
    mine = torch.cat(stored(part, whole, prepared))
    assert torch.equal(mine, torch.cat([half[10:] for half in pair]))
    made = part.take(whole, prepared)
    assert made.shape == (32, 16)
    assert torch.equal(made[:8], gate[10:18])
    assert torch.equal(made[8:16], up[10:18])
    assert torch.equal(made[24:26], up[18:20])
