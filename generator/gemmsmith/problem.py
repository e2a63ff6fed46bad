"""One call of a GEMM: sizes, element types, strides and what the epilogue must add."""

from __future__ import annotations

from dataclasses import dataclass

from gemmsmith.dtypes import DType


def alignment_of(*sizes: int) -> int:
    """Return the largest power of two up to 16 that divides all of ``sizes``, in bytes."""
    bits = 16
    for size in sizes:
        bits |= size
    return bits & -bits


@dataclass(frozen=True, kw_only=True)
class GemmProblem:
    """D (M, N) = A (M, K) @ B (K, N), ``batch`` times, as a kernel has to see it."""

    m: int
    """Rows of A and D."""
    n: int
    """Columns of B and D."""
    k: int
    """Columns of A, rows of B."""
    batch: int = 1
    """Number of independent products."""
    a: DType
    """Element type of A."""
    b: DType
    """Element type of B."""
    d: DType
    """Element type of D and residual."""
    layout: str = "rcr"
    """Row- (r) or column-major (c) of A, B and D, read off their strides."""
    a_align: int = 16
    """Largest power of two up to 16 that divides A's address, row and batch stride, in bytes."""
    b_align: int = 16
    """The same of B."""
    d_align: int = 16
    """The same of D, residual and bias together."""
    bias: bool = False
    """Whether a bias vector is added."""
    residual: bool = False
    """Whether beta * C is added."""
    activation: str = "none"
    """Function of product and bias."""
    gate: str = "none"
    """Function of the gate half; D then has N / 2 columns."""
    scaled: bool = False
    """Whether rows or columns of the product have scales."""
    zero_point: bool = False
    """Whether rows of A have zero points."""
    constant_b: bool = False
    """Whether the caller promises that no work which is queued already writes B."""

    @property
    def columns(self) -> int:
        """Columns of D."""
        return self.n if self.gate == "none" else self.n // 2

    @property
    def contiguous(self) -> tuple[tuple[str, int], tuple[str, int], tuple[str, int]]:
        """Name and size of the dimension along which A, B and D lie contiguous in memory."""
        m, n, k = ("M", self.m), ("N", self.n), ("K", self.k)
        d_columns = n if self.gate == "none" else ("N/2", self.columns)
        rows, columns = (m, k, m), (k, n, d_columns)
        a, b, d = (
            column if letter == "r" else row
            for letter, row, column in zip(self.layout, rows, columns, strict=True)
        )
        return a, b, d


def packed_problem(
    m: int,
    n: int,
    k: int,
    dtype: DType,
    *,
    d: DType | None = None,
    layout: str = "rcr",
    activation: str = "none",
    gate: str = "none",
    residual: bool = False,
    scaled: bool = False,
    constant_b: bool = False,
) -> GemmProblem:
    """Return the call on whole tensors without padding between rows, as allocators give them."""
    written = d or dtype
    columns = n if gate == "none" else n // 2
    stretches = ((k, m), (n, k), (columns, m))  # contiguous extent of A, B, D: row, column-major
    a_align, b_align, d_align = (
        alignment_of((row if letter == "r" else column) * each.bytes)
        for letter, (row, column), each in zip(
            layout, stretches, (dtype, dtype, written), strict=True
        )
    )
    return GemmProblem(
        m=m,
        n=n,
        k=k,
        a=dtype,
        b=dtype,
        d=written,
        layout=layout,
        a_align=a_align,
        b_align=b_align,
        d_align=d_align,
        activation=activation,
        gate=gate,
        residual=residual,
        scaled=scaled,
        constant_b=constant_b,
    )
