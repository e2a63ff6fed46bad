"""What a product is timed with: its operands, the right result, the faults that are found."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from gemmsmith.bench import peers
from product_data import M, N, inputs_fixture  # noqa: F401  fixture


@pytest.fixture(scope="module")
def right(inputs: peers.Inputs) -> peers.Reference:
    return peers.reference(inputs.x, inputs.weights[0])


def product(inputs: peers.Inputs) -> torch.Tensor:
    return (inputs.x.double() @ inputs.weights[0].double().t()).bfloat16()


def test_inputs_outgrow_the_caches() -> None:
    made = peers.make_inputs(4, 4096, 1024, torch.float16, device="cpu")
    assert sum(w.numel() * 2 for w in made.weights) >= 120e6
    assert made.x.shape == (4, 1024)
    assert made.weights[0].shape == (4096, 1024)
    assert float(made.x.float().std()) == pytest.approx(1.0, abs=0.1)
    assert bool(made.poisoned().isnan().all())


def test_reference_samples_both_ends(right: peers.Reference) -> None:
    rows = set(right.rows.tolist())
    assert {*range(64), *range(M - 64, M)} <= rows
    assert len(right.rows) == 256
    assert right.values.shape == (256, N)


def test_right_result_is_right(inputs: peers.Inputs, right: peers.Reference) -> None:
    assert peers.fault(product(inputs), right) == ""
    rounded_sums = (inputs.x.float() @ inputs.weights[0].float().t()).half().float() * 1.0005
    assert peers.fault(rounded_sums.bfloat16(), right, half_sums=True) == ""


def leave_unwritten(result: torch.Tensor, inputs: peers.Inputs) -> None:
    result[M - 1, N - 1] = math.nan


def forget_last_k(result: torch.Tensor, inputs: peers.Inputs) -> None:
    x, w = inputs.x.clone(), inputs.weights[0]
    x[:, -1] = 0
    result.copy_(x.double() @ w.double().t())


def swap_rows(result: torch.Tensor, inputs: peers.Inputs) -> None:
    result[[5, 6]] = result[[6, 5]]


def shift_columns(result: torch.Tensor, inputs: peers.Inputs) -> None:
    result[:, 8:16] = result[:, 16:24].clone()


def overflow(result: torch.Tensor, inputs: peers.Inputs) -> None:
    result[0, 0] = math.inf


FAULTS = [leave_unwritten, forget_last_k, swap_rows, shift_columns, overflow]


@pytest.mark.parametrize("spoil", FAULTS, ids=lambda spoil: spoil.__name__)
def test_faults_are_found(
    inputs: peers.Inputs,
    right: peers.Reference,
    spoil: Callable[[torch.Tensor, peers.Inputs], None],
) -> None:
    result = product(inputs)
    spoil(result, inputs)
    assert peers.fault(result, right)


def test_fault_in_a_row_that_was_not_sampled_is_found(
    inputs: peers.Inputs, right: peers.Reference
) -> None:
    hidden = next(row for row in range(M) if row not in set(right.rows.tolist()))
    result = product(inputs)
    result[hidden, :128] = -result[hidden, :128].roll(1)
    assert peers.fault(result, right).startswith(f"row {hidden}: its signed sum is off")
