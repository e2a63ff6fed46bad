"""What a kernel must know of a call's tensors: sizes, layouts, strides, alignment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from gemmsmith.dtypes import BF16, FP16, FP32, INT8, INT32, DType
from gemmsmith.errors import ArgumentError, ArgumentTypeError
from gemmsmith.finish import PLAIN, Finish
from gemmsmith.problem import GemmProblem, alignment_of

TORCH_DTYPES: Mapping[torch.dtype, DType] = {
    torch.float16: FP16,
    torch.bfloat16: BF16,
    torch.float32: FP32,
    torch.int8: INT8,
    torch.int32: INT32,
}
OUTPUTS: Mapping[torch.dtype, tuple[torch.dtype, ...]] = {
    torch.float16: (torch.float16, torch.bfloat16, torch.float32),
    torch.bfloat16: (torch.bfloat16, torch.float16, torch.float32),
    torch.float32: (torch.float32,),
    torch.int8: (torch.int32, torch.float16, torch.bfloat16, torch.int8),
}
"""What a product of each type may be written as, the usual one first."""


@dataclass(frozen=True, kw_only=True)
class Matrix:
    """A (batch of a) matrix as an address and two strides, counted in elements."""

    tensor: Tensor
    """(rows, columns) or (batch, rows, columns)."""
    letter: str
    """``r``: rows are contiguous, ``c``: columns are."""
    leading: int
    """Distance of neighbouring rows (``r``) or columns (``c``)."""
    batch_stride: int
    """Distance of neighbouring matrices; 0 for a single one."""
    copied: bool
    """Whether the strides could not be expressed, so that ``tensor`` is a contiguous copy."""

    @property
    def alignment(self) -> int:
        """Largest power of two up to 16 that divides address and strides, in bytes."""
        size = self.tensor.element_size()
        return alignment_of(self.tensor.data_ptr(), self.leading * size, self.batch_stride * size)


@dataclass(frozen=True, kw_only=True)
class Operands:
    """The matrices of one call, flattened to at most three dimensions."""

    a: Matrix
    b: Matrix
    d: Matrix
    c: Matrix | None
    bias: Tensor | None
    """(N,), contiguous."""
    finish: Finish

    @property
    def copied(self) -> tuple[str, ...]:
        """Names of the arguments that were copied: no kernel can express their strides."""
        named = (("a", self.a), ("b", self.b), ("residual", self.c))
        return tuple(name for name, matrix in named if matrix is not None and matrix.copied)

    @property
    def addresses(self) -> tuple[int, ...]:
        """Where A, B, C, bias, D and the vectors of ``finish`` begin; 0 for what is absent."""
        return (
            self.a.tensor.data_ptr(),
            self.b.tensor.data_ptr(),
            0 if self.c is None else self.c.tensor.data_ptr(),
            0 if self.bias is None else self.bias.data_ptr(),
            self.d.tensor.data_ptr(),
            *self.finish.addresses,
        )

    def problem(self, *, constant_b: bool = False) -> GemmProblem:
        """Return the call as the legality predicate and the choice see it.

        ``constant_b``: the caller promises that no queued work writes B. The promise does not hold
        for a copy of B, which was queued just now.
        """
        a, b, d = self.a, self.b, self.d
        d_align = d.alignment
        if self.c is not None:
            d_align = min(d_align, self.c.alignment)
        if self.bias is not None:
            d_align = min(d_align, alignment_of(self.bias.data_ptr()))
        return GemmProblem(
            m=a.tensor.shape[-2],
            n=b.tensor.shape[-1],
            k=a.tensor.shape[-1],
            batch=a.tensor.shape[0] if a.tensor.dim() == 3 else 1,
            a=TORCH_DTYPES[a.tensor.dtype],
            b=TORCH_DTYPES[b.tensor.dtype],
            d=TORCH_DTYPES[d.tensor.dtype],
            layout=a.letter + b.letter + d.letter,
            a_align=a.alignment,
            b_align=b.alignment,
            d_align=d_align,
            bias=self.bias is not None,
            residual=self.c is not None,
            activation=self.finish.activation,
            gate=self.finish.gate,
            scaled=self.finish.scaled,
            zero_point=self.finish.a_zero is not None,
            constant_b=constant_b and not b.copied,
        )


def operands(
    a: Tensor,
    b: Tensor,
    bias: Tensor | None,
    residual: Tensor | None,
    out: Tensor,
    letter: str = "r",
    finish: Finish = PLAIN,
) -> Operands:
    """Return the checked arguments of a call as matrices.

    Views become strides. Strides that a kernel cannot express (no unit stride, overlapping rows,
    leading dimensions that do not collapse) make a copy of an input and refuse an output. An output
    of one row or column is described in the layout ``letter``, if its strides allow.

    Raises:
        ArgumentError: where ``out`` cannot be expressed.
    """
    d = _matrix(_flat(out, b.dim()), prefer=letter)
    moved = d.tensor.data_ptr() != out.data_ptr() and out.numel() > 0
    if d.copied or moved or _matrices_overlap(d):
        raise ArgumentError(
            f"out: strides {tuple(out.stride())} of shape {tuple(out.shape)} are no matrix with"
            " contiguous rows or columns and no element twice; pass a contiguous tensor or a slice"
            " of one"
        )
    return Operands(
        a=_matrix(_flat(a, b.dim()), prefer="r", source=a),
        b=_matrix(_flat(b, b.dim()), prefer="c", source=b),
        d=d,
        c=None if residual is None else _matrix_like(_flat(residual, b.dim()), d, residual),
        bias=None if bias is None else bias.reshape(-1).contiguous(),
        finish=finish,
    )


def _flat(tensor: Tensor, b_dim: int) -> Tensor:
    """Collapse leading dimensions: into rows where b is one matrix, else into one batch."""
    if b_dim == 2:
        return tensor if tensor.dim() == 2 else tensor.reshape(-1, tensor.shape[-1])
    if tensor.dim() == 3:
        return tensor
    return tensor.reshape(-1, tensor.shape[-2], tensor.shape[-1])


def _matrix(tensor: Tensor, *, prefer: str, source: Tensor | None = None) -> Matrix:
    letter, leading = _layout(tensor, prefer)
    copied = source is not None and tensor.numel() > 0 and tensor.data_ptr() != source.data_ptr()
    if not letter:
        tensor, copied = tensor.contiguous(), True
        letter, leading = _layout(tensor, prefer)
    batch = tensor.stride(0) if tensor.dim() == 3 and tensor.shape[0] > 1 else 0
    return Matrix(tensor=tensor, letter=letter, leading=leading, batch_stride=batch, copied=copied)


def _matrices_overlap(matrix: Matrix) -> bool:
    """Whether two matrices of the batch may share an element; those of an input may."""
    if matrix.tensor.dim() == 2 or matrix.tensor.numel() == 0:
        return False
    dimensions = zip(matrix.tensor.stride(), matrix.tensor.shape, strict=True)
    span = 1
    for stride, size in sorted((stride, size) for stride, size in dimensions if size > 1):
        if stride < span:
            return True
        span += stride * (size - 1)
    return False


def _matrix_like(tensor: Tensor, d: Matrix, source: Tensor) -> Matrix:
    """The residual, in the layout of the output it is added to."""
    matrix = _matrix(tensor, prefer=d.letter, source=source)
    if matrix.letter == d.letter:
        return matrix
    same = torch.empty_strided(
        d.tensor.shape, d.tensor.stride(), dtype=tensor.dtype, device=tensor.device
    ).copy_(tensor)
    letter, leading = _layout(same, d.letter)
    batch = same.stride(0) if same.dim() == 3 and same.shape[0] > 1 else 0
    return Matrix(tensor=same, letter=letter, leading=leading, batch_stride=batch, copied=True)


def _layout(tensor: Tensor, prefer: str) -> tuple[str, int]:
    """Return layout letter and leading dimension; an empty letter where there is none.

    A dimension of size 1 has no stride worth keeping: its leading dimension is that of a packed
    matrix, and either letter holds, so the preferred one is taken.
    """
    rows, columns = tensor.shape[-2:]
    row_stride, column_stride = tensor.stride()[-2:]
    found = {}
    if column_stride == 1 or columns == 1:
        found["r"] = row_stride if rows > 1 else columns
    if row_stride == 1 or rows == 1:
        found["c"] = column_stride if columns > 1 else rows
    packed = {"r": columns, "c": rows}
    legal = {letter: leading for letter, leading in found.items() if leading >= packed[letter]}
    for letter in (prefer, "c" if prefer == "r" else "r"):
        if letter in legal:
            return letter, legal[letter]
    return "", 0


def check(
    a: Tensor,
    b: Tensor,
    bias: Tensor | None,
    residual: Tensor | None,
    out_dtype: torch.dtype,
    gate: str = "none",
) -> tuple[int, ...]:
    """Return the shape of the result, half as wide with a ``gate``, or raise naming the argument.

    Raises:
        ArgumentError: sizes that do not go together.
        ArgumentTypeError: dtypes or devices that do not go together.
    """
    for name, tensor in (("a", a), ("b", b), ("residual", residual), ("bias", bias)):
        if tensor is not None and tensor.device != a.device:
            raise ArgumentTypeError(f"{name} is on {tensor.device}, a is on {a.device}")
    if a.dtype not in OUTPUTS:
        words = ", ".join(str(dtype).removeprefix("torch.") for dtype in OUTPUTS)
        raise ArgumentTypeError(f"a is {a.dtype}; {words} are legal")
    if b.dtype != a.dtype:
        raise ArgumentTypeError(f"b is {b.dtype}, a is {a.dtype}: both must be of one type")
    if a.dim() < 2 or b.dim() < 2:
        short = "a" if a.dim() < 2 else "b"
        raise ArgumentError(
            f"{short} has {min(a.dim(), b.dim())} dimension(s), a matrix has 2: unsqueeze it"
        )
    if a.shape[-1] != b.shape[-2]:
        raise ArgumentError(
            f"a is (…, M, K) with K={a.shape[-1]}, b is (…, K, N) with K={b.shape[-2]}:"
            " they must be equal"
        )
    if b.dim() > 2 and a.shape[:-2] != b.shape[:-2]:
        raise ArgumentError(
            f"b has batch dimensions {tuple(b.shape[:-2])}, a has {tuple(a.shape[:-2])}:"
            " they must be equal, or b one matrix (K, N)"
        )
    shape = (*a.shape[:-1], b.shape[-1] if gate == "none" else b.shape[-1] // 2)
    if residual is not None:
        _check_residual(residual, shape, out_dtype)
    if bias is not None:
        _check_bias(bias, b.shape[-1], out_dtype)
    return shape


def _check_residual(residual: Tensor, shape: tuple[int, ...], out_dtype: torch.dtype) -> None:
    if residual.dtype != out_dtype:
        raise ArgumentTypeError(f"residual is {residual.dtype}, the output is {out_dtype}")
    if tuple(residual.shape) != shape:
        raise ArgumentError(f"residual is {tuple(residual.shape)}, the output is {shape}")


def _check_bias(bias: Tensor, n: int, out_dtype: torch.dtype) -> None:
    wanted = torch.float32 if out_dtype == torch.int8 else out_dtype
    if bias.dtype != wanted:
        needed = "" if wanted == out_dtype else f", which goes with a bias of {wanted}"
        raise ArgumentTypeError(f"bias is {bias.dtype}, the output is {out_dtype}{needed}")
    if tuple(bias.shape) not in ((n,), (1, n)):
        raise ArgumentError(f"bias is {tuple(bias.shape)}; ({n},) or (1, {n}) is needed")
