"""How a result is judged beside an exact one."""

from __future__ import annotations

import math

import pytest
import torch

from gemmsmith.bench.judged import judge


def test_judge_measures_against_the_row() -> None:
    right = torch.tensor([[3.0, 4.0], [0.3, 0.4]], dtype=torch.float64)
    assert judge(right.float(), right, 1e-6)[0] == ""
    off = right.clone()
    off[1, 0] += 0.1  # of a root mean square of 0.354
    why, error = judge(off, right, 0.2)
    assert why == "row 1, column 0: 0.4 where 0.3 is right"
    assert error == pytest.approx(100 * 0.1 / math.sqrt(25.25))
    assert judge(off, right, 0.3)[0] == ""
    off[0, 1] = math.nan
    assert judge(off, right, 0.3)[0] == "1 of 4 elements are NaN or were not written"
    off[0, 1] = math.inf
    assert judge(off, right, 0.3)[0].startswith("row 0, column 1: inf")
