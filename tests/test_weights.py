from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import gemmsmith
from gemmsmith.errors import ArgumentError, ArgumentTypeError
from gemmsmith.weights import Preparation, join, prepare


def numbered(n: int, k: int) -> Tensor:
    return torch.arange(n * k, dtype=torch.float32).reshape(n, k)


def test_a_weight_that_fits_is_not_copied() -> None:
    weight = numbered(32, 48)
    prepared, record = prepare(weight)
    assert prepared.data_ptr() == weight.data_ptr()
    assert torch.equal(prepared, weight)
    assert record == Preparation(shape=(32, 48), padding=(0, 0))
    assert not record.changes
    assert str(record) == "as given"


def test_sizes_are_padded_with_zeros_to_multiples_of_16() -> None:
    weight = numbered(5, 17) + 1
    prepared, record = prepare(weight)
    assert prepared.shape == record.padded == (16, 32)
    assert torch.equal(prepared[:5, :17], weight)
    assert prepared[5:].count_nonzero() == prepared[:, 17:].count_nonzero() == 0
    assert str(record) == "padded from 5x17 to 16x32"
    assert torch.equal(record.restore(prepared)[0], weight)


def test_a_weight_stored_k_by_n_becomes_k_major() -> None:
    """GPT-2's Conv1D computes x @ weight with weight [K, N]."""
    weight, x = numbered(20, 24), torch.randn(3, 20)
    prepared, record = prepare(weight, transposed=True)
    assert record.features == (24, 20)
    assert prepared.shape == (32, 32)
    assert prepared.is_contiguous()
    padded = torch.nn.functional.pad(x, (0, 12))
    assert torch.allclose((padded @ prepared.t())[:, :24], x @ weight)
    assert torch.equal(record.restore(prepared)[0], weight)


def test_gate_and_up_take_turns_eight_by_eight() -> None:
    gate, up = numbered(16, 3), 1000 + numbered(16, 3)
    mixed = gemmsmith.interleave(gate, up)
    assert torch.equal(mixed, torch.cat((gate[:8], up[:8], gate[8:], up[8:])))
    bias = gemmsmith.interleave(gate[:, 0], up[:, 0])
    assert torch.equal(bias, mixed[:, 0])


CASES: list[dict[str, Any]] = [
    {},
    {"transposed": True},
    {"order": "gate_up"},
    {"order": "up_gate"},
    {"order": "up_gate", "transposed": True},
    {"up": True},
    {"up": True, "transposed": True},
]


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize(("n", "k"), [(32, 32), (24, 20), (6, 33)])
def test_what_was_done_can_be_undone_and_done_again(n: int, k: int, case: dict[str, Any]) -> None:
    case = dict(case)
    shape = (k, n) if case.get("transposed") else (n, k)
    given = [torch.randn(shape), torch.randn(shape)][: 1 + case.pop("up", False)]
    prepared, record = prepare(*given, **case)
    assert prepared.shape == record.padded
    assert prepared.is_contiguous()
    assert prepared.shape[0] % 16 == prepared.shape[1] % 16 == 0
    restored = record.restore(prepared)
    assert len(restored) == len(given)
    for found, want in zip(restored, given, strict=True):
        assert torch.equal(found, want)
        assert found.is_contiguous()
    assert torch.equal(record.apply(*restored), prepared)


@pytest.mark.parametrize(("order", "first"), [("gate_up", "gate"), ("up_gate", "up")])
def test_y16_which_half_is_the_gate_is_said_by_the_order(order: Any, first: str) -> None:
    gate, up = torch.full((16, 8), 1.0), torch.full((16, 8), 2.0)
    fused = torch.cat((gate, up) if first == "gate" else (up, gate))
    prepared, record = prepare(fused, order=order)
    apart, _ = prepare(gate, up)
    assert torch.equal(prepared, apart)
    assert prepared[:8, :8].unique().tolist() == [1.0]
    assert prepared[8:16, :8].unique().tolist() == [2.0]
    assert torch.equal(record.restore(prepared)[0], fused)
    bias = torch.cat((gate[:, 0], up[:, 0]) if first == "gate" else (up[:, 0], gate[:, 0]))
    assert torch.equal(record.apply(bias), prepared[:, 0])
    assert torch.equal(record.restore(record.apply(bias))[0], bias)


@pytest.mark.parametrize(
    ("given", "extra", "words"),
    [
        ([numbered(8, 8)[0]], {}, r"weight is \(8,\); a matrix is needed"),
        ([None], {}, "weight is a NoneType, not a torch.Tensor"),
        ([numbered(8, 8), numbered(8, 9)], {}, r"gate is \(8, 8\) .* up is \(8, 9\)"),
        ([numbered(8, 8), numbered(8, 8).half()], {}, "up is .*float16"),
        ([numbered(8, 8)], {"order": "up_down"}, "order is 'up_down'; separate, gate_up, up_gate"),
        ([numbered(8, 8)], {"order": "separate"}, "separate needs two tensors"),
        ([numbered(8, 8), numbered(8, 8)], {"order": "gate_up"}, "up is given too"),
        ([numbered(7, 8)], {"order": "gate_up"}, "weight has 7 output features, not two halves"),
    ],
)
def test_what_cannot_be_prepared_is_named(given: Any, extra: Any, words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        prepare(*given, **extra)


def test_interleave_refuses_odd_sizes() -> None:
    with pytest.raises(ArgumentError, match=r"gate is \(12, 4\); .* multiple of 8"):
        gemmsmith.interleave(numbered(12, 4), numbered(12, 4))
    with pytest.raises(ArgumentTypeError, match="not a torch"):
        prepare(numbered(8, 8), "up")  # type: ignore[arg-type]


def test_joined_weights_follow_each_other_and_come_apart_again() -> None:
    parts = [numbered(rows, 20) + rows for rows in (24, 8, 9)]
    joined, record = join(parts)
    assert joined.shape == record.padded == (48, 32)
    assert torch.equal(joined[24:32, :20], parts[1])
    assert joined[41:].count_nonzero() == joined[:, 20:].count_nonzero() == 0
    for found, want in zip(record.restore(joined), parts, strict=True):
        assert torch.equal(found, want)
    vector = record.apply(*(part[:, 3] for part in parts))
    assert torch.equal(vector, joined[:, 3])
    assert torch.equal(record.restore(vector)[2], parts[2][:, 3])
    assert str(record) == "3 joined to one (24 + 8 + 9), padded from 41x20 to 48x32"
    with pytest.raises(ArgumentError, match=r"K=20 .*float16 .*, K=20 .*float32 on cpu"):
        join([parts[0], parts[1].half()])
    with pytest.raises(ArgumentError, match="weights is empty"):
        join([])
