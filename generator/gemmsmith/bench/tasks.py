"""One GEMM with all that follows it: inputs, arms of gemmsmith, and the check of a result."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

import gemmsmith
from gemmsmith.bench.graphs import Arm
from gemmsmith.bench.measure import rotating
from gemmsmith.errors import GemmsmithError, NoKernelError
from gemmsmith.finish import make_finish
from gemmsmith.fit import misfit
from gemmsmith.gemm_op import problem
from gemmsmith.kernelset import ExactKernel

_ABSMAX = 127 / 4.5  # of int8 data, whose unit normal original is cut off at 4.5
_SAMPLED = 256  # rows that are compared whole, and columns likewise
_BLOCK = 16  # columns of the result that are sampled together
_CHUNK = 4096  # rows or columns that are held in float64 at a time
_SUMMING = 0.004  # of a unit normal element: rounding of sums, and of functions, in f32
_ADDING = 2.0**-22  # of the terms of an element: a few roundings in f32, seen where terms cancel

_FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda x: x,
    "relu": torch.relu,
    "gelu": torch.nn.functional.gelu,
    "gelu_tanh": partial(torch.nn.functional.gelu, approximate="tanh"),
    "silu": torch.nn.functional.silu,
}


@dataclass(frozen=True, kw_only=True)
class Weight:
    """One weight (N, K), with its scales (N,) where it is int8."""

    values: Tensor
    """As torch has it: all rows of the gate, then all of up, where there is a gate."""
    scale: Tensor | None
    ready: Tensor
    """As gemmsmith's kernels read it: blocks of 8 rows of the gate and 8 of up."""
    ready_scale: Tensor | None


@dataclass(frozen=True, kw_only=True)
class Expected:
    """Some elements of a right result."""

    rows: Tensor
    columns: Tensor
    right: Tensor
    """float64 (rows, columns)."""
    bound: Tensor
    """By how much each may be off."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """y = act(x @ w.T [* a_scale * b_scale] + bias) + residual, or a gate of it, on random data.

    Products are about unit normal, so that functions are met where they bend.
    """

    x: Tensor
    """Activations (M, K)."""
    weights: tuple[Weight, ...]
    """Enough of them to outgrow the caches."""
    out: Tensor
    """Memory for a result (M, N), with a gate (M, N / 2)."""
    a_scale: Tensor | None = None
    """(M,) f32, for int8."""
    bias: Tensor | None = None
    residual: Tensor | None = None
    activation: str = "none"
    gate: str = "none"

    def arm(self, kernels: str = "", out: Tensor | None = None) -> Arm:
        """Return calls of :func:`gemmsmith.gemm`, one a weight; without ``out`` it allocates."""
        return [partial(self.call, index, kernels, out) for index in range(len(self.weights))]

    def call(self, index: int = 0, kernels: str = "", out: Tensor | None = None) -> Tensor:
        """Return gemmsmith's result for the weight ``index``."""
        weight = self.weights[index]
        return gemmsmith.gemm(
            self.x,
            weight.ready.t(),
            self.bias,
            self.residual,
            out=out,
            activation=self.activation,
            gate=self.gate,
            a_scale=self.a_scale,
            b_scale=weight.ready_scale,
            out_dtype=self.out.dtype if out is None else None,
            kernels=kernels,
        )

    def misfit(self, kernel: ExactKernel) -> str:
        """Return why ``kernel`` cannot do this; empty where it can."""
        weight, b = self.weights[0], self.weights[0].ready.t()
        if kernel.spec.scaled != (self.a_scale is not None):
            return "other kernels are meant for this"
        finish = make_finish(
            self.x,
            b,
            self.activation,
            self.gate,
            self.a_scale,
            weight.ready_scale,
            None,
            None,
            1.0,
        )
        wanted = problem(self.x, b, self.bias, self.residual, self.out, finish, kernel.handle)
        return misfit(kernel.spec, wanted)

    def poisoned(self) -> Tensor:
        """Return ``out``, all NaN: what a kernel leaves unwritten shows."""
        return self.out.fill_(math.nan)

    def run(self, kernels: str = "", known: Sequence[Expected] | None = None) -> str:
        """Return what is wrong with what gemmsmith writes over NaN; empty where it is right.

        ``known`` is what :meth:`expected` gave, where several kernels are to be judged.

        Raises:
            NoKernelError: where no kernel fits.
        """
        try:
            self.call(0, kernels, self.poisoned())
        except NoKernelError:
            raise
        except GemmsmithError as error:
            return f"{type(error).__name__}: {error}"
        return self.fault(self.out, known=known)

    def fault(
        self, result: Tensor, *, slack: float = 0.0, known: Sequence[Expected] | None = None
    ) -> str:
        """Return what is wrong with a result for the first weight; empty where it is right.

        No element may be NaN. One row of each stretch of rows is compared with float64 whole, and
        of all rows one block of columns of each stretch of columns. ``slack`` is how far elements
        may be off besides, for what is rounded more than once.
        """
        unwritten = int(torch.isnan(result).sum())
        if unwritten:
            return f"{unwritten} of {result.numel()} elements are NaN or were not written"
        for part in self._parts() if known is None else known:
            found = result[part.rows][:, part.columns].double()
            excess = (found - part.right).abs() - part.bound - slack
            at = int(torch.where(excess.isnan(), math.inf, excess).argmax())
            row, column = divmod(at, len(part.columns))
            if not float(excess[row, column]) <= 0:
                return (
                    f"row {int(part.rows[row])}, column {int(part.columns[column])}:"
                    f" {found[row, column]:.5g} where {part.right[row, column]:.5g} is right"
                )
        return ""

    def expected(self) -> tuple[Expected, ...]:
        """Return the sampled elements of a right result, to judge several results by."""
        return tuple(self._parts())

    def _parts(self) -> Iterator[Expected]:
        m, n = self.out.shape
        rows = sampled(m, _SAMPLED, self.out.device)
        yield from self._stretches(rows, torch.arange(n, device=self.out.device))
        if len(rows) == m:
            return
        blocks = sampled(n // _BLOCK, _SAMPLED // _BLOCK, self.out.device)
        within = torch.arange(_BLOCK, device=self.out.device)
        every = torch.arange(m, device=self.out.device)
        yield from self._stretches(every, (blocks[:, None] * _BLOCK + within).flatten())

    def _stretches(self, rows: Tensor, columns: Tensor) -> Iterator[Expected]:
        for some_rows in torch.split(rows, _CHUNK):
            for some in torch.split(columns, _CHUNK):
                right, bound = self._expected(some_rows, some)
                yield Expected(rows=some_rows, columns=some, right=right, bound=bound)

    def _expected(self, rows: Tensor, columns: Tensor) -> tuple[Tensor, Tensor]:
        """Return these elements in float64, and by how much a right result may be off."""
        value = self._products(rows, columns)
        summing = 0.0 if self.a_scale is not None else _SUMMING  # int32 sums are exact
        if self.gate != "none":
            up = self._products(rows, columns + self.out.shape[1])
            gate = _FUNCTIONS[self.gate](value)
            allowed = _SUMMING * (1.2 * up.abs() + gate.abs() + 0.1)
            value = gate * up
        else:
            value = _FUNCTIONS[self.activation](value)
            allowed = torch.full_like(value, summing if self.activation == "none" else _SUMMING)
        if self.residual is not None:
            residual = self.residual[rows][:, columns].double()
            allowed = allowed + _ADDING * (value.abs() + residual.abs())
            value = value + residual
        return value, allowed + torch.finfo(self.out.dtype).eps * value.abs()

    def _products(self, rows: Tensor, columns: Tensor) -> Tensor:
        weight = self.weights[0]
        value = self.x[rows].double() @ weight.values[columns].double().t()
        if self.a_scale is not None and weight.scale is not None:
            value = value * self.a_scale[rows, None].double() * weight.scale[columns].double()
        return value if self.bias is None else value + self.bias[columns].double()


def make_task(
    m: int,
    n: int,
    k: int,
    dtype: torch.dtype,
    *,
    gate: str = "none",
    activation: str = "none",
    bias: bool = False,
    residual: bool = False,
    device: str = "cuda",
) -> Task:
    """Return a task on a weight (n, k), scaled by token and by feature where ``dtype`` is int8."""
    whole = dtype == torch.int8
    written = torch.bfloat16 if whole else dtype
    new = partial(torch.randn, device=device, dtype=written)
    x, a_scale = _data(m, k, dtype, device)

    def weight() -> Weight:
        values, scale = _data(n, k, dtype, device)
        scale = None if scale is None else scale.div_(math.sqrt(k))
        values = values if whole else values.div_(math.sqrt(k))
        if gate == "none":
            return Weight(values=values, scale=scale, ready=values, ready_scale=scale)
        blocks = None if scale is None else interleaved(scale)
        return Weight(values=values, scale=scale, ready=interleaved(values), ready_scale=blocks)

    columns = n if gate == "none" else n // 2
    return Task(
        x=x,
        weights=rotating(weight, n * k * dtype.itemsize),
        out=torch.empty(m, columns, dtype=written, device=device),
        a_scale=a_scale,
        bias=new(n) if bias else None,
        residual=new(m, columns) if residual else None,
        activation=activation,
        gate=gate,
    )


def interleaved(fused: Tensor) -> Tensor:
    """Return (2 I, …), the gate's rows before those of up, in blocks of 8 of each."""
    blocks = fused.reshape(2, -1, 8, *fused.shape[1:]).transpose(0, 1)
    return blocks.reshape(fused.shape)


def linear_of(weight: Tensor) -> torch.nn.Linear:
    """Return torch's layer of a weight (n, k), which it does not copy."""
    n, k = weight.shape
    layer = torch.nn.Linear(k, n, bias=False, device="meta", dtype=weight.dtype)
    layer.weight = torch.nn.Parameter(weight, requires_grad=False)
    return layer


def sampled(size: int, count: int, device: torch.device) -> Tensor:
    """Return up to ``count`` indices below ``size``: ends, and a random one of each stretch."""
    if size <= count:
        return torch.arange(size, device=device)
    inner = count - 2
    places = torch.arange(inner, device=device) + torch.rand(inner, device=device)
    found = (places * (size / inner)).long().clamp(max=size - 1)
    return torch.cat([found, torch.tensor([0, size - 1], device=device)])


def _data(rows: int, columns: int, dtype: torch.dtype, device: str) -> tuple[Tensor, Tensor | None]:
    """Return unit normal data, int8 with scales (rows,) that bring it back to about that."""
    if dtype != torch.int8:
        return torch.randn(rows, columns, dtype=dtype, device=device), None
    values = torch.empty(rows, columns, dtype=torch.int8, device=device)
    for part in torch.split(values, _CHUNK):
        normal = torch.randn(part.shape, dtype=torch.float32, device=device)
        part.copy_(normal.mul_(_ABSMAX).round_().clamp_(-127, 127))
    scale = torch.rand(rows, dtype=torch.float32, device=device).add_(0.5).div_(_ABSMAX)
    return values, scale
