"""Kernels that work on the rows of a matrix one by one, and the kinds of kernels in all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, TypeVar, get_args

from gemmsmith.arch import Architecture
from gemmsmith.attn.spec import AttentionSpec
from gemmsmith.dtypes import BF16, FP16, FP32, DType
from gemmsmith.errors import IllegalKernelError, Objection
from gemmsmith.spec import KernelSpec

RowOperation = Literal["quantize", "rms_norm", "rms_norm_quantize", "gate", "gate_quantize", "rope"]
ROW_OPERATIONS: tuple[RowOperation, ...] = get_args(RowOperation)
"""All but ``rope``, whose rows are the heads of a token, take a matrix."""

GateKind = Literal["silu", "gelu", "gelu_tanh"]
GATE_KINDS: tuple[GateKind, ...] = get_args(GateKind)
"""Activations of a gate, in the order of the C interface's numbers."""


@dataclass(frozen=True, kw_only=True)
class RowSpec:
    """One kernel that normalises, gates, quantises or rotates each row, on one architecture.

    Raises:
        IllegalKernelError: where the architecture does not compute with the type.
    """

    arch: Architecture
    """Row of the architecture table."""
    operation: RowOperation
    """What it does; ``…_quantize`` writes int8 and a scale a row, others the input's type."""
    dtype: DType
    """Element type of the input."""

    def __post_init__(self) -> None:
        legal = row_dtypes(self.arch)
        if self.dtype not in legal:
            words = ", ".join(dtype.name for dtype in legal)
            raise IllegalKernelError(
                [
                    Objection(
                        key="dtype",
                        reason=f"{self.arch.name} has row kernels for {words}, none for"
                        f" {self.dtype.name}",
                    )
                ]
            )

    @property
    def name(self) -> str:
        """The kernel's name in reports, files, C++ symbols, logs and tables."""
        return f"rows_{self.operation}_{self.dtype.name}_{self.arch.suffix}"

    @property
    def dependent_launch(self) -> bool:
        """Whether it starts before the kernel ahead has ended: always, where that exists."""
        return self.arch.dependent_launch


AnySpec: TypeAlias = KernelSpec | RowSpec | AttentionSpec
"""What can be rendered, compiled, kept and exported."""
SpecT = TypeVar("SpecT", bound=KernelSpec | RowSpec | AttentionSpec)


def row_dtypes(arch: Architecture) -> tuple[DType, ...]:
    """Return the element types that row kernels of ``arch`` read.

    bf16 only where the tensor cores have it: nothing else on such a GPU takes it.
    """
    return tuple(dtype for dtype in (FP16, BF16, FP32) if dtype in (*arch.inputs, FP32))


def row_specs(arch: Architecture) -> tuple[RowSpec, ...]:
    """Return all row kernels of ``arch``."""
    return tuple(
        RowSpec(arch=arch, operation=operation, dtype=dtype)
        for dtype in row_dtypes(arch)
        for operation in ROW_OPERATIONS
    )
