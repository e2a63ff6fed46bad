"""Column scales that keep the outliers of an int8 layer's input from costing all the rest.

A row of activations has one scale, so that a channel of large values leaves few steps to the
others. Multiplying channel j by f_j before it is quantised and dividing the weights that read it by
f_j leaves the product as it is and moves the spread into the weights, which have steps to spare:
1 / f_j = max|x_j|^a / max|w_j|^(1 - a) over sample inputs (SmoothQuant, arXiv 2211.10438). The
exponent a is the one whose layer is least off on samples; none at all is among the candidates.

The f_j are rounded to powers of two, which costs next to nothing and makes every step but the
rounding to int8 exact: the product with the input, the quotient of the weight, casts between bf16,
fp16 and f32, and folding them into a norm's weight.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gemmsmith.errors import ArgumentError

__all__ = ["MOST_ROWS", "Smoothing", "check_column_scale", "smooth", "spread"]

MOST_ROWS = 256
"""Rows of a layer's input that are kept: their errors are alike, their memory adds up."""
MOST_OUTPUTS = 128
"""Outputs of a layer that exponents are compared by: their errors are alike too."""
JUDGED_ROWS = 128
"""Rows that they are compared by."""
EXPONENTS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8)
LEAST, MOST = -14, 3
"""Powers of two that a column scale may hold, around 0, its median. 2^-14 is fp16's smallest normal
number; a channel that samples hardly reach is not magnified more than 8 times, so that it does not
drown the others when another text reaches it."""


@dataclass(frozen=True, kw_only=True)
class Smoothing:
    """What :func:`smooth` found to be best for a layer."""

    exponent: float | None
    """How much of the spread of the inputs moves into the weights, 0 to 1; None: better none."""
    column_scale: Tensor | None
    """(K,) of the weight's dtype, powers of two: the input is multiplied by it."""
    error: float
    """Relative error of the layer with it, over JUDGED_ROWS rows and MOST_OUTPUTS outputs."""
    plain_error: float
    """The same without a column scale."""


def smooth(weight: Tensor, inputs: Tensor, *, largest: Tensor | None = None) -> Smoothing:
    """Return the column scale with which int8 is least off for ``inputs @ weight.T``.

    Args:
        weight: (N, K), floating-point.
        inputs: (..., K), samples of what the layer reads, taken evenly where they are many. Rows
            that hold NaN or infinity are left out.
        largest: (K,), the largest magnitude of each channel where more than ``inputs`` was seen.

    Raises:
        ArgumentError: where sizes do not fit or no row of ``inputs`` is finite.
    """
    if weight.dim() != 2 or inputs.shape[-1:] != weight.shape[1:]:
        raise ArgumentError(
            f"weight is {tuple(weight.shape)}, inputs are {tuple(inputs.shape)};"
            " (N, K) and (..., K) fit"
        )
    with torch.no_grad():
        rows = inputs.detach().reshape(-1, inputs.shape[-1]).to(weight.device)
        rows = rows[rows.isfinite().all(-1)]
        if not len(rows):
            raise ArgumentError("inputs have no row of finite numbers to choose column scales by")
        reach = (rows.abs().amax(0) if largest is None else largest.to(weight.device)).float()
        low, high = torch.aminmax(weight, dim=0)
        size = torch.maximum(-low, high).float()
        rows, some = (
            spread(rows, JUDGED_ROWS).float(),
            spread(weight.detach(), MOST_OUTPUTS).float(),
        )
        exact = rows @ some.t()
        norm = float(exact.norm())
        candidates: dict[float | None, Tensor | None] = {None: None}
        candidates.update((a, _column_scale(reach, size, a)) for a in EXPONENTS)
        off = torch.stack([_off(rows, some, exact, scale) for scale in candidates.values()])
        errors = dict(zip(candidates, (off / (norm or 1.0)).tolist(), strict=True))
        best = min(errors, key=lambda a: errors[a])
        scale = candidates[best]
    return Smoothing(
        exponent=best,
        column_scale=None if scale is None else scale.to(weight.dtype),
        error=errors[best],
        plain_error=errors[None],
    )


def check_column_scale(scale: Tensor, columns: int) -> None:
    """Raise ArgumentError where ``scale`` is not (columns,) of powers of two in the legal range."""
    if tuple(scale.shape) != (columns,):
        raise ArgumentError(f"column_scale is {tuple(scale.shape)}; ({columns},) fits")
    if scale.is_meta:
        return
    mantissa, _ = torch.frexp(scale.float())
    legal = (mantissa == 0.5) & (scale >= 2.0**LEAST) & (scale <= 2.0**-LEAST)
    if not bool(legal.all()):
        found = float(scale[~legal][0])
        raise ArgumentError(
            f"column_scale holds {found:g}; powers of two from 2^{LEAST} to 2^{-LEAST} are legal:"
            " they are the same in every dtype"
        )


def spread(rows: Tensor, most: int) -> Tensor:
    """Return at most ``most`` rows, evenly spread; the first, whose values are often extreme."""
    if len(rows) <= most:
        return rows
    return rows[torch.linspace(0, len(rows) - 1, most, device=rows.device).long()]


def _column_scale(reach: Tensor, size: Tensor, exponent: float) -> Tensor:
    """Return powers of two (K,), f32; 1 for a channel that samples or weights leave at zero."""
    powers = (1 - exponent) * size.log2() - exponent * reach.log2()
    known = powers.isfinite()
    middle = powers[known].median() if bool(known.any()) else powers.new_zeros(())
    return torch.where(known, (powers - middle).round().clamp(LEAST, MOST), 0.0).exp2()


def _off(rows: Tensor, weight: Tensor, exact: Tensor, scale: Tensor | None) -> Tensor:
    """Return the norm of what int8 is off by."""
    if scale is not None:
        rows, weight = rows * scale, weight / scale
    off: Tensor = (_int8(rows) @ _int8(weight).t() - exact).square().sum().sqrt()
    return off


def _int8(values: Tensor) -> Tensor:
    """Return what int8 leaves of f32 rows; as row_math has it but for rows near zero."""
    step = torch.linalg.vector_norm(values, torch.inf, dim=-1, keepdim=True) / 127
    step = torch.where(step > 0, step, 1.0)
    return (values / step).round_().mul_(step)
