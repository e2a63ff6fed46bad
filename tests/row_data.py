"""Calls of row kernels on poisoned memory, beside what torch computes: for the CPU and the GPU."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gemm_data import GuardedOutput, untouched
from gemmsmith.arch import Architecture
from gemmsmith.launcher import RowKernel
from gemmsmith.row_execute import row_call
from gemmsmith.row_math import gated, normalized, quantized
from gemmsmith.row_math import padded as padded_columns
from gemmsmith.rowspec import ROW_OPERATIONS, GateKind, RowOperation, RowSpec, row_specs

EPS = 1e-5
MATRIX_OPERATIONS = tuple(operation for operation in ROW_OPERATIONS if operation != "rope")


def matrix_specs(arch: Architecture) -> tuple[RowSpec, ...]:
    """Return the row kernels that take a matrix."""
    return tuple(spec for spec in row_specs(arch) if spec.operation in MATRIX_OPERATIONS)


@dataclass(frozen=True, kw_only=True)
class RowCase:
    """One call; strides are columns and what lies between rows."""

    rows: int
    columns: int
    residual: bool = False
    kind: GateKind = "silu"
    interleaved: bool = False
    gap: int = 0
    """Elements between the end of a row of the input and the next one."""
    out_gap: int = 0
    """The same for the output."""
    column_scale: bool = False
    """Whether what is quantised is multiplied by a value for each column."""
    skew: int = 0
    """Elements by which the input begins past a 16-byte boundary."""

    def __str__(self) -> str:
        words = [f"{self.rows}x{self.columns}", self.kind]
        words += ["interleaved"] if self.interleaved else []
        words += ["residual"] if self.residual else []
        words += ["scaled"] if self.column_scale else []
        words += [f"gap{self.gap}"] if self.gap else []
        words += [f"outgap{self.out_gap}"] if self.out_gap else []
        words += [f"skew{self.skew}"] if self.skew else []
        return "-".join(words)


@dataclass(frozen=True, kw_only=True)
class RowResult:
    """What a kernel wrote, and what torch says, each on the CPU."""

    out: Tensor
    right: Tensor
    scale: Tensor | None
    right_scale: Tensor | None
    total: Tensor | None
    right_total: Tensor | None
    overrun: bool
    """Whether something outside the outputs was written."""


def inputs(case: RowCase, width: int, dtype: torch.dtype, device: str) -> Tensor:
    """Return normal data (rows, width) between NaN, with a zero row, a NaN row and an infinity."""
    values = torch.randn(case.rows, width, device=device)
    if case.rows > 4:
        values[1] = 0.0
        values[2, -1] = float("nan")
        values[3, 0] = float("inf")
    stride = width + case.gap
    room = torch.full((case.skew + case.rows * stride + 64,), float("nan"), device=device)
    return room.to(dtype).as_strided((case.rows, width), (stride, 1), case.skew).copy_(values)


def run_case(
    kernel: RowKernel,
    operation: RowOperation,
    case: RowCase,
    dtype: torch.dtype,
    device: str,
    stream: int,
) -> RowResult:
    """Run ``kernel`` on guarded, poisoned outputs; return what it wrote beside torch's numbers."""
    torch.manual_seed(0)
    columns = case.columns
    gate, norm = "gate" in operation, "norm" in operation
    x = inputs(case, 2 * columns if gate else columns, dtype, device)
    weighed = norm or case.column_scale
    weight = torch.randn(columns, device=device).to(dtype) if weighed else None
    residual = None
    if norm and case.residual:
        residual = inputs(case, columns, dtype, device)
        residual.copy_(residual.roll(1, 0))
    into = "quantize" in operation
    width = padded_columns(columns) if into else columns
    out_type = torch.int8 if into else dtype
    out = GuardedOutput((case.rows, width), "r", out_type, device, padding=case.out_gap)
    scale = GuardedOutput((1, case.rows), "r", torch.float32, device)
    total = GuardedOutput((case.rows, columns), "r", dtype, device)
    call = row_call(
        x,
        out.out,
        scale.out if into else None,
        columns=columns,
        weight=weight,
        eps=EPS,
        residual=residual,
        total=total.out if residual is not None else None,
        kind=case.kind,
        interleaved=case.interleaved,
    )
    status = kernel.launch(call, stream)
    assert status == 0, kernel.explain(status)
    on_cpu = x.cpu().contiguous()
    sums = None
    if gate:
        values = gated(on_cpu, case.kind, case.interleaved)
    elif norm:
        assert weight is not None
        added = None if residual is None else residual.cpu()
        values, sums = normalized(on_cpu, weight.cpu(), EPS, added)
    else:
        values = on_cpu.float()
    if case.column_scale:
        assert weight is not None
        values = values * weight.cpu().float()
    right, right_scale = quantized(values) if into else (values.to(dtype), None)
    assert untouched(total.out) or residual is not None
    return RowResult(
        out=out.out.cpu(),
        right=right,
        scale=scale.out[0].cpu() if into else None,
        right_scale=right_scale,
        total=None if residual is None else total.out.cpu(),
        right_total=sums,
        overrun=out.overrun() or scale.overrun() or total.overrun(),
    )


def check_bits(result: RowResult) -> None:
    """Assert that a kernel wrote torch's very bits, any NaN for NaN, and nothing else."""
    assert not result.overrun
    for found, right in (
        (result.out, result.right),
        (result.scale, result.right_scale),
        (result.total, result.right_total),
    ):
        if found is not None and right is not None:
            torch.testing.assert_close(found, right, rtol=0, atol=0, equal_nan=True)


def check_gate(result: RowResult) -> None:
    """Assert that a kernel's gate is torch's up to 2^-18 before rounding (2^-16 in fp32).

    gelu's 1 + erf cancels on its way to small values, on either side.
    """
    assert not result.overrun
    if result.scale is not None and result.right_scale is not None:
        torch.testing.assert_close(
            result.scale, result.right_scale, rtol=2.0**-18, atol=0, equal_nan=True
        )
        difference = (result.out.int() - result.right.int()).abs()
        assert difference.max() <= 1
        assert difference.float().mean() < 1e-3
        return
    fp32 = result.right.dtype == torch.float32
    steps = (2.0**-16 if fp32 else 2.0**-18) + torch.finfo(result.right.dtype).eps
    torch.testing.assert_close(result.out, result.right, rtol=steps, atol=1e-30, equal_nan=True)
    finite = result.right.isfinite()
    assert (result.out[finite] != result.right[finite]).float().mean() < (
        1e-2 if result.right.dtype != torch.float32 else 1.1
    )


SHAPES = (
    RowCase(rows=1, columns=4096),
    RowCase(rows=6, columns=8),
    RowCase(rows=7, columns=128, gap=8, out_gap=16),
    RowCase(rows=5, columns=100),
    RowCase(rows=5, columns=96, skew=1),
    RowCase(rows=9, columns=1),
    RowCase(rows=5, columns=1001, gap=3, out_gap=1),
    RowCase(rows=5, columns=14336),
    RowCase(rows=1, columns=24592),
    RowCase(rows=1, columns=40000),
    RowCase(rows=1, columns=33001),
    RowCase(rows=260, columns=2048),
)


def cases(operation: RowOperation) -> tuple[RowCase, ...]:
    """Return the shapes that reach every path of a kernel of that operation."""
    if "norm" in operation:
        with_residual = tuple(replace(case, residual=True) for case in SHAPES)
        return (*SHAPES, *with_residual)
    scaled = tuple(replace(case, column_scale=True) for case in SHAPES)
    if operation == "quantize":
        return (*SHAPES, *scaled)
    if "gate" in operation:
        kinds: tuple[GateKind, ...] = ("gelu", "gelu_tanh")
        small = tuple(replace(SHAPES[2], kind=kind) for kind in kinds)
        blocks = tuple(replace(case, interleaved=True) for case in SHAPES if case.columns % 8 == 0)
        if operation == "gate_quantize":
            blocks += scaled + tuple(replace(case, column_scale=True) for case in blocks[::3])
        return (*SHAPES, *small, *blocks)
    return SHAPES
