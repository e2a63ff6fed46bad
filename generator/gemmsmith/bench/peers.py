"""Inputs, arms and the check of results for a benchmark of one GEMM shape."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch

from gemmsmith.bench.graphs import Arm
from gemmsmith.bench.measure import rotating

_SAMPLED_ROWS = 256  # rows whose every element is compared; the others are compared as sums
_CHUNK = 4096  # rows or columns that are held in float64 at a time


class Gemm(Protocol):
    """A product a (M, K) @ b (K, N), written to ``out`` where it is given."""

    def __call__(
        self, a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor | None = None
    ) -> torch.Tensor: ...


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """Random normal data of one shape, with weights enough to outgrow the caches."""

    x: torch.Tensor
    """Activations (M, K)."""
    weights: tuple[torch.Tensor, ...]
    """Weights (N, K), one for each input set."""
    out: torch.Tensor
    """Memory for a result (M, N)."""

    def poisoned(self) -> torch.Tensor:
        """Return ``out``, all NaN: what a kernel leaves unwritten shows."""
        return self.out.fill_(math.nan)


def make_inputs(m: int, n: int, k: int, dtype: torch.dtype, *, device: str = "cuda") -> Inputs:
    """Return data for y (m, n) = x (m, k) @ w (n, k).T."""

    def weight() -> torch.Tensor:
        return torch.randn(n, k, dtype=dtype, device=device)

    return Inputs(
        x=torch.randn(m, k, dtype=dtype, device=device),
        weights=rotating(weight, n * k * dtype.itemsize),
        out=torch.empty(m, n, dtype=dtype, device=device),
    )


def torch_arm(inputs: Inputs) -> Arm:
    """Return ``F.linear`` as users call it: the output allocated, extra kernels included."""
    return [partial(torch.nn.functional.linear, inputs.x, w) for w in inputs.weights]


def gemm_arm(gemm: Gemm, inputs: Inputs) -> Arm:
    """Return ``gemm`` with its output allocated, as the rival of :func:`torch_arm`."""
    return [partial(gemm, inputs.x, w.t()) for w in inputs.weights]


def kernel_arm(kernel: Gemm, inputs: Inputs) -> Arm:
    """Return ``kernel`` writing to one output, so that many arms need no memory each."""
    return [partial(kernel, inputs.x, w.t(), out=inputs.out) for w in inputs.weights]


@dataclass(frozen=True, kw_only=True)
class Reference:
    """x @ w.T in float64: sampled rows element by element, all rows as a random signed sum."""

    rows: torch.Tensor
    """Sampled rows of the result: the first, the last and random ones between."""
    values: torch.Tensor
    """Elements of these rows (rows, N)."""
    signs: torch.Tensor
    """Random ±1 (N,)."""
    sums: torch.Tensor
    """(x @ w.T) @ signs (M,)."""
    k: int
    """Length of the dot products."""


def reference(x: torch.Tensor, w: torch.Tensor) -> Reference:
    """Return what x (M, K) @ w (N, K).T is, for standard normal x and w."""
    m, n = x.shape[0], w.shape[0]
    edge = _SAMPLED_ROWS // 4
    rows = torch.randperm(m, device=x.device)[:_SAMPLED_ROWS]
    if m > _SAMPLED_ROWS:
        rows[:edge] = torch.arange(edge, device=x.device)
        rows[edge : 2 * edge] = torch.arange(m - edge, m, device=x.device)
    signs = torch.randint(0, 2, (n,), device=x.device).double() * 2 - 1
    sampled = x[rows].double()
    values = torch.empty(len(rows), n, dtype=torch.float64, device=x.device)
    folded = torch.zeros(x.shape[1], dtype=torch.float64, device=x.device)
    for start in range(0, n, _CHUNK):
        part = w[start : start + _CHUNK].double()
        values[:, start : start + _CHUNK] = sampled @ part.t()
        folded += signs[start : start + _CHUNK] @ part
    sums = _times_vector(x, folded)
    return Reference(rows=rows, values=values, signs=signs, sums=sums, k=x.shape[1])


def _times_vector(matrix: torch.Tensor, vector: torch.Tensor) -> torch.Tensor:
    """Return matrix @ vector in float64, some rows at a time."""
    starts = range(0, matrix.shape[0], _CHUNK)
    return torch.cat([matrix[start : start + _CHUNK].double() @ vector for start in starts])


def fault(result: torch.Tensor, right: Reference, *, half_sums: bool = False) -> str:
    """Return what is wrong with a result (M, N); empty where it is right.

    An element may be off by the rounding of its type and by the rounding of a sum of ``k``
    products, which is far less than leaving out one of them; ``half_sums`` allows for sums
    in fp16, which are far coarser.
    """
    unwritten = int(torch.isnan(result).sum())
    if unwritten:
        return f"{unwritten} of {result.numel()} elements are NaN or were not written"
    spread = math.sqrt(right.k)  # standard deviation of an element
    rounding = torch.finfo(result.dtype).eps
    summing = 0.15 if half_sums else 0.004
    found = result[right.rows].double()
    bound = rounding * right.values.abs() + summing * spread
    if message := _worst(found, right.values, bound, right.rows):
        return message
    sums = _times_vector(result, right.signs)
    limit = 8 * (rounding / 2 + summing / 4) * spread * math.sqrt(result.shape[1])
    off = (sums - right.sums).abs()
    row = int(off.argmax())
    if not float(off[row]) <= limit:
        return f"row {row}: its signed sum is off by {off[row]:.3g}, more than {limit:.3g}"
    return ""


def _worst(
    found: torch.Tensor, right: torch.Tensor, bound: torch.Tensor, rows: torch.Tensor
) -> str:
    excess = (found - right).abs() - bound
    at = int(excess.argmax())
    row, column = divmod(at, right.shape[1])
    if float(excess[row, column]) <= 0:
        return ""
    return (
        f"row {int(rows[row])}, column {column}: {found[row, column]:.5g} where "
        f"{right[row, column]:.5g} is right"
    )
