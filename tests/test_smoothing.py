"""Column scales: which are chosen, within which limits, and what they gain."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import gemmsmith
from gemmsmith import smoothing
from gemmsmith.errors import ArgumentError
from gemmsmith.smoothing import check_column_scale, smooth, spread

BF16 = torch.bfloat16


def weight(n: int = 96, k: int = 64) -> Tensor:
    return torch.randn(n, k, generator=torch.Generator().manual_seed(1)).to(BF16)


def inputs(*shape: int, outliers: tuple[int, ...] = (3, 40)) -> Tensor:
    x = torch.randn(shape or (50, 64), generator=torch.Generator().manual_seed(2))
    for column in outliers:
        x[..., column] *= 50
    return x.to(BF16)


def off(x: Tensor, w: Tensor, scale: Tensor | None) -> float:
    """Return int8's relative error by the row operations themselves."""
    q, rows = gemmsmith.quantize_rows(x, column_scale=scale)
    qw, channels = gemmsmith.quantize_weight(w, scale)
    found = (q.double() @ qw.double().t()) * rows.double()[:, None] * channels.double()
    exact = x.double() @ w.double().t()
    return float((found - exact).norm() / exact.norm())


def test_outliers_are_taken_out_of_the_input() -> None:
    x, w = inputs(), weight()
    found = smooth(w, x)
    assert found.exponent in smoothing.EXPONENTS
    scale = found.column_scale
    assert scale is not None
    assert (scale.shape, scale.dtype) == ((64,), BF16)
    assert scale.float().log2().frac().count_nonzero() == 0
    others = [column for column in range(64) if column not in (3, 40)]
    assert scale[[3, 40]].max() * 8 <= scale[others].min()
    assert found.error < 0.5 * found.plain_error
    assert found.plain_error == pytest.approx(off(x, w, None), rel=0.01)
    assert found.error == pytest.approx(off(x, w, scale), rel=0.01)


def test_the_best_exponent_wins_and_none_may() -> None:
    x, w = inputs(), weight()
    errors = {}
    for exponent in smoothing.EXPONENTS:
        size, reach = w.float().abs().amax(0), x.float().abs().amax(0)
        errors[exponent] = off(x, w, smoothing._column_scale(reach, size, exponent).to(BF16))
    assert smooth(w, x).exponent == min(errors, key=lambda each: errors[each])
    even, alike = torch.ones(8, 64).to(BF16), torch.ones(16, 64).to(BF16)
    found = smooth(alike, even)
    assert (found.exponent, found.column_scale) == (None, None)
    assert found.error == found.plain_error


def test_channels_that_are_never_seen_or_never_read_keep_their_values() -> None:
    x, w = inputs(), weight()
    x[:, 7], w[:, 9] = 0, 0
    w[:, 40] = 0  # an outlier that nothing reads
    scale = smooth(w, x).column_scale
    assert scale is not None
    assert scale[[7, 9, 40]].tolist() == [1, 1, 1]
    assert scale.isfinite().all()
    nothing = smooth(w, torch.zeros(4, 64, dtype=BF16))
    assert (nothing.exponent, nothing.error) == (None, 0.0)


def test_scales_stay_within_their_limits() -> None:
    x, w = inputs(), weight()
    x[:, 5] *= 2.0**-60  # hardly reached
    x[:, 6] *= 2.0**60
    reach, size = x.float().abs().amax(0), w.float().abs().amax(0)
    scale = smoothing._column_scale(reach, size, 0.8)
    assert scale[5] == 2.0**smoothing.MOST == 8
    assert scale[6] == 2.0**smoothing.LEAST == torch.finfo(torch.float16).tiny
    assert scale.median() == 1
    check_column_scale(scale, 64)


def test_more_than_the_rows_may_bound_the_channels() -> None:
    x, w = inputs(), weight()
    largest = x.abs().amax(0)
    largest[11] *= 64
    plain, scaled = smooth(w, x).column_scale, smooth(w, x, largest=largest).column_scale
    assert plain is not None
    assert scaled is not None
    assert scaled[11] <= plain[11] / 4


def test_rows_that_are_not_finite_are_left_out() -> None:
    x, w = inputs(2, 30, 64), weight()
    right = smooth(w, x.reshape(-1, 64)[2:])
    x[0, 0, 3], x[0, 1, 4] = torch.nan, torch.inf
    found = smooth(w, x)
    assert found.exponent == right.exponent
    assert found.column_scale is not None
    assert right.column_scale is not None
    assert torch.equal(found.column_scale, right.column_scale)
    with pytest.raises(ArgumentError, match="no row of finite numbers"):
        smooth(w, torch.full((3, 64), torch.nan))
    with pytest.raises(ArgumentError, match=r"weight is \(96, 64\), inputs are \(3, 63\)"):
        smooth(w, torch.ones(3, 63))


def test_many_rows_and_outputs_are_judged_by_some() -> None:
    assert spread(torch.arange(1000)[:, None], 5).flatten().tolist() == [0, 249, 499, 749, 999]
    found = smooth(weight(500), inputs(40, 20, 64))
    assert found.exponent is not None
    assert found.error < 0.5 * found.plain_error


def test_what_is_no_column_scale_is_refused() -> None:
    ones = torch.ones(8)
    check_column_scale(ones, 8)
    check_column_scale(torch.ones(8, device="meta"), 8)
    with pytest.raises(ArgumentError, match=r"column_scale is \(8,\); \(9,\) fits"):
        check_column_scale(ones, 9)
    for bad in (0.3, -2.0, 0.0, 2.0**-15, 2.0**15, torch.nan, torch.inf):
        with pytest.raises(ArgumentError, match=r"powers of two from 2\^-14 to 2\^14 are legal"):
            check_column_scale(torch.cat((ones, torch.tensor([bad]))), 9)
