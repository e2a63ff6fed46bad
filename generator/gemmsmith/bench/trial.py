"""One kernel on one shape: whether its results are right, and how fast it is beside torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gemmsmith.bench.gpu import require_gpu
from gemmsmith.bench.measure import compare, rotating
from gemmsmith.bench.peers import fault, reference
from gemmsmith.bench.report import OURS, TORCH
from gemmsmith.bench.rounds import Policy, Ratio
from gemmsmith.choose import choose
from gemmsmith.dtypes import BF16, DType, parse_dtype
from gemmsmith.errors import ArgumentError, NoKernelError
from gemmsmith.fit import misfit
from gemmsmith.kernelset import ExactKernel, KernelSet, load
from gemmsmith.operands import TORCH_DTYPES
from gemmsmith.problem import packed_problem
from gemmsmith.progress import Progress
from gemmsmith.spec import KernelSpec

_TORCH = {dtype: torch_dtype for torch_dtype, dtype in TORCH_DTYPES.items()}
_ROWS = 4096  # rows of the exact product that are held in float64 at a time


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What a kernel did on D (m, n) = A (m, k) @ B (k, n)."""

    kernel: str
    """The kernel's name."""
    m: int
    n: int
    k: int
    checks: tuple[str, ...]
    """What was verified, in words."""
    faults: tuple[str, ...]
    """What was wrong; empty where all was right."""
    torch_us: float | None
    """µs of ``torch.mm`` on operands of the same layout and element types; None: not timed."""
    ours_us: float | None
    """µs of the kernel; None where it is wrong, which is not timed."""
    ratio: Ratio | None
    """Times of torch over ours: above 1, the kernel is faster."""

    @property
    def tflops(self) -> float | None:
        """TFLOP/s of the kernel."""
        return 2 * self.m * self.n * self.k / self.ours_us / 1e6 if self.ours_us else None

    def as_json(self) -> dict[str, Any]:
        """Return everything in plain types."""
        return {**asdict(self), "tflops": self.tflops}

    def __str__(self) -> str:
        lines = [f"{self.kernel} on {self.m} x {self.n} x {self.k}"]
        lines += [f"  right: {check}" for check in self.checks]
        lines += [f"  WRONG: {fault}" for fault in self.faults]
        if self.ours_us is not None and self.torch_us is not None:
            lines.append(
                f"  {self.ours_us:.2f} µs ({self.tflops:.1f} TFLOP/s), torch.mm"
                f" {self.torch_us:.2f} µs; torch's time over ours {self.ratio}"
            )
        return "\n".join(lines)


def try_kernel(
    shape: tuple[int, int, int],
    *,
    path: Path,
    name: str | None = None,
    dtype: str | None = None,
    seconds: float = 1.0,
    building: Progress | None = None,
) -> Trial:
    """Return how a kernel does on ``shape`` (m, n, k), on torch's current CUDA device.

    Args:
        shape: m, n and k.
        path: file or folder of kernels; the one in question is built if it is not.
        name: the kernel; None for the best of those that take ``x @ w.T`` of ``dtype``.
        dtype: element type where ``name`` is None; None for bf16.
        seconds: time for measuring.
        building: hears of the build.

    Raises:
        NoDeviceError: where there is no GPU.
        NoKernelError: where there is no such kernel or it cannot take the shape.
        CompileError, ToolchainError: where it cannot be built.
    """
    require_gpu("running a kernel")
    kernels = load(path)
    spec = kernels[name].spec if name else _best(kernels, shape, _dtype(dtype))
    alone = KernelSet([spec], arch=kernels.arch, source=kernels.source, supply=kernels.supply)
    alone.build(progress=building)
    kernel = alone[spec.name]
    results = list(verify(kernel, shape))
    faults = tuple(f"{check}: {wrong}" for check, wrong in results if wrong)
    ours = theirs = ratio = None
    if not faults:
        ours, theirs, ratio = _time(kernel, shape, seconds)
    return Trial(
        kernel=spec.name,
        m=shape[0],
        n=shape[1],
        k=shape[2],
        checks=tuple(check for check, wrong in results if not wrong),
        faults=faults,
        torch_us=theirs,
        ours_us=ours,
        ratio=ratio,
    )


def _dtype(word: str | None) -> DType:
    try:
        return BF16 if word is None else parse_dtype(word)
    except KeyError:
        raise ArgumentError(f"dtype {word!r} is no element type; use bf16 or fp16") from None


def _best(kernels: KernelSet, shape: tuple[int, int, int], dtype: DType) -> KernelSpec:
    m, n, k = shape
    problem = packed_problem(m, n, k, dtype)
    sm_count = torch.cuda.get_device_properties(torch.cuda.current_device()).multi_processor_count
    promised = replace(problem, constant_b=True)  # where no other kernel fits
    chosen = choose(kernels.specs, problem, sm_count) or choose(kernels.specs, promised, sm_count)
    if chosen is None:
        reasons = sorted({misfit(spec, problem) for spec in kernels.specs})
        raise NoKernelError(f"no kernel of {kernels.source} fits: " + "; ".join(reasons))
    return chosen.spec


def verify(
    kernel: ExactKernel, shape: tuple[int, int, int], *, device: str = "cuda"
) -> Iterator[tuple[str, str]]:
    """Yield each check of ``kernel`` in words, and what is wrong, empty where all is right.

    Integers of -1, 0 and 1 must come out exactly, with bias and residual too where the kernel has
    them; random data is compared with float64. Every output begins as NaN and is computed twice.
    """
    m, n, k = shape
    spec = kernel.spec
    make, store = _Maker(spec.a, device), _Maker(spec.d, device)
    a, b = make.integers(m, k, spec.layout[0]), make.integers(k, n, spec.layout[1])
    product = _product(a, b)
    run = partial(_twice, kernel, store)
    yield "integers, exactly", _inexact(run(a, b), product)
    if spec.bias:
        bias = store.integers(1, n, "r")
        found = run(a, b, bias=bias)
        yield "integers with bias, exactly", _inexact(found, product + bias.double())
    if spec.residual:
        residual = store.integers(m, n, spec.layout[2])
        found = run(a, b, residual=residual)
        yield "integers with residual, exactly", _inexact(found, product + residual.double())
    del product
    a, b = make.normal(m, k, spec.layout[0]), make.normal(k, n, spec.layout[1])
    wrong = fault(run(a, b), reference(a, b.t()), half_sums=spec.acc.bytes == 2)
    yield "random normal data, against float64", wrong


@dataclass(frozen=True)
class _Maker:
    """Makes matrices of one element type, row-major (r) or column-major (c)."""

    dtype: DType
    device: str

    def integers(self, rows: int, columns: int, layout: str) -> Tensor:
        """Return -1, 0 and 1: their sums stay exact in every accumulator."""
        return self._laid(rows, columns, layout, partial(torch.randint, -1, 2))

    def normal(self, rows: int, columns: int, layout: str) -> Tensor:
        """Return standard normal data."""
        return self._laid(rows, columns, layout, torch.randn)

    def nothing(self, rows: int, columns: int, layout: str) -> Tensor:
        """Return NaN, which shows where it is left."""
        return self._laid(rows, columns, layout, torch.empty).fill_(math.nan)

    def _laid(self, rows: int, columns: int, layout: str, make: Callable[..., Tensor]) -> Tensor:
        size = (rows, columns) if layout == "r" else (columns, rows)
        made = make(size, dtype=_TORCH[self.dtype], device=self.device)
        if made.is_cuda:  # a kernel with constant_b needs B to be written
            torch.cuda.synchronize()
        return made if layout == "r" else made.t()


def _product(a: Tensor, b: Tensor) -> Tensor:
    """Return a @ b in float64, some rows at a time."""
    starts = range(0, a.shape[0], _ROWS)
    return torch.cat([a[start : start + _ROWS].double() @ b.double() for start in starts])


def _twice(
    kernel: ExactKernel,
    store: _Maker,
    a: Tensor,
    b: Tensor,
    *,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
) -> Tensor:
    """Return the kernel's result, all NaN where two runs do not give equal bits."""
    size = (a.shape[0], b.shape[1], kernel.spec.layout[2])
    first, second = (kernel(a, b, bias, residual, out=store.nothing(*size)) for _ in range(2))
    return first if torch.equal(first, second) else store.nothing(*size)


def _inexact(found: Tensor, right: Tensor) -> str:
    """Return how ``found`` differs from ``right`` rounded to its type; empty where it does not."""
    rounded = right.to(found.dtype)
    wrong = (found != rounded).flatten()
    count = int(wrong.sum())
    if not count:
        return ""
    row, column = divmod(int(wrong.int().argmax()), found.shape[1])
    return (
        f"{count} of {wrong.numel()} elements are wrong (NaN: left unwritten, or two runs differ);"
        f" row {row}, column {column}: {float(found[row, column])} where"
        f" {float(rounded[row, column])} is right"
    )


def _time(
    kernel: ExactKernel, shape: tuple[int, int, int], seconds: float
) -> tuple[float, float, Ratio]:
    """Return µs of the kernel and of torch.mm, and the ratio; B comes from memory, not a cache."""
    m, n, k = shape
    spec = kernel.spec
    make = _Maker(spec.a, "cuda")
    a = make.normal(m, k, spec.layout[0])
    weights = rotating(lambda: make.normal(k, n, spec.layout[1]), k * n * spec.b.bytes)
    found = compare(
        {
            TORCH: [partial(torch.mm, a, b) for b in weights],
            OURS: [partial(kernel, a, b) for b in weights],
        },
        baseline=TORCH,
        policy=Policy(seconds=seconds),
    )
    return found.median(OURS), found.median(TORCH), found.ratio(TORCH, OURS)
