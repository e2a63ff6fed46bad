"""The registered op behind :func:`gemmsmith.gemm`: schema, shapes, CPU and CUDA implementations.

``torch.ops.gemmsmith.gemm_out`` writes to a tensor of the caller's, ``torch.ops.gemmsmith.gemm``
allocates its result. Both carry what they may run as a string handle (:mod:`gemmsmith.selection`);
the empty one stands for the default kernels of the tensors' GPU.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import torch
from torch import Tensor

from gemmsmith.arguments import Arguments
from gemmsmith.errors import ArgumentError, ArgumentTypeError
from gemmsmith.execute import run_on_cpu, run_on_cuda, run_settled
from gemmsmith.finish import Finish
from gemmsmith.op_library import Op, register_ops
from gemmsmith.operands import OUTPUTS, TORCH_DTYPES, check, operands
from gemmsmith.problem import GemmProblem
from gemmsmith.selection import output_letter, refuse_misfit, selection
from gemmsmith.written import begin_alike, is_expanded, share_elements, steps

_OF_DTYPE = {dtype: torch_dtype for torch_dtype, dtype in TORCH_DTYPES.items()}


@cache
def written_dtypes(dtype: torch.dtype, kernels: str) -> tuple[torch.dtype, ...]:
    """Return the output types of the kernels that take ``dtype``, the usual one first."""
    usual = OUTPUTS.get(dtype, ())
    if not kernels or selection(kernels).torch_may_run:
        return usual
    specs = selection(kernels).specs
    written = {_OF_DTYPE[spec.d] for spec in specs if _OF_DTYPE[spec.a] == dtype}
    return tuple(sorted(written, key=lambda each: (each != usual[0], str(each))))


def _output_dtype(a: Tensor, kernels: str, wanted: torch.dtype | None) -> torch.dtype:
    """Return ``wanted``, or the usual type that the kernels write.

    Raises:
        ArgumentTypeError: where they do not take ``a`` or do not write ``wanted``.
    """
    written = written_dtypes(a.dtype, kernels)
    if not written:
        if not kernels or selection(kernels).torch_may_run:
            raise ArgumentTypeError(f"a is {a.dtype}; {', '.join(map(_word, OUTPUTS))} are legal")
        taken = ", ".join(sorted({spec.a.name for spec in selection(kernels).specs})) or "no GEMM"
        raise ArgumentTypeError(f"a is {a.dtype}; the named kernels take {taken}")
    if wanted is not None and wanted not in written:
        words = ", ".join(map(_word, written))
        raise ArgumentTypeError(f"out is {wanted}; from {a.dtype} the kernels write {words}")
    return wanted or written[0]


def _word(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _check_factors(call: Arguments, dtype: torch.dtype) -> None:
    """Raise where a result of ``dtype`` cannot hold what the call makes of its sums."""
    if call.b_sum is not None and call.a_zero_point is None:
        raise ArgumentError("b_sum is given without a_zero_point, which alone needs it")
    if call.out_scale != 1 and dtype != torch.int8:
        raise ArgumentError(f"out_scale is {call.out_scale}: it goes with int8, not {dtype}")
    if dtype != torch.int32:
        return
    for name, factor in (("alpha", call.alpha), ("beta", call.beta)):
        if not float(factor).is_integer():
            raise ArgumentError(
                f"{name} is {factor}: an int32 result takes whole factors; scale into"
                " out_dtype=torch.bfloat16 or torch.float16"
            )
    asked = {
        "a_scale": call.a_scale is not None,
        "b_scale": call.b_scale is not None,
        "activation": call.activation != "none",
        "gate": call.gate != "none",
    }
    for name in (name for name, given in asked.items() if given):
        raise ArgumentError(
            f"{name} is given, but the result is int32, exact sums: pass out_dtype=torch.bfloat16,"
            " torch.float16 or torch.int8"
        )


def new_output(
    a: Tensor,
    b: Tensor,
    bias: Tensor | None,
    residual: Tensor | None,
    kernels: str,
    out_dtype: torch.dtype | None,
    gate: str = "none",
) -> Tensor:
    """Return memory for the result of a call, in the layout that its kernels write."""
    dtype = _output_dtype(a, kernels, out_dtype)
    shape = check(a, b, bias, residual, dtype, gate)
    if output_letter(kernels, TORCH_DTYPES[a.dtype]) == "r":
        return torch.empty(shape, dtype=dtype, device=a.device)
    if b.dim() > 2:
        transposed = (*shape[:-2], shape[-1], shape[-2])
        return torch.empty(transposed, dtype=dtype, device=a.device).mT
    rows = math.prod(shape[:-1])
    return torch.empty((shape[-1], rows), dtype=dtype, device=a.device).t().view(shape)


def problem(
    a: Tensor,
    b: Tensor,
    bias: Tensor | None,
    residual: Tensor | None,
    out: Tensor,
    finish: Finish,
    kernels: str,
) -> GemmProblem:
    """Return what the checked call asks of a kernel."""
    check(a, b, bias, residual, out.dtype, finish.gate)
    letter = output_letter(kernels, TORCH_DTYPES[a.dtype])
    promised = bool(kernels) and selection(kernels).constant_b
    return operands(a, b, bias, residual, out, letter, finish).problem(constant_b=promised)


class _Call(Arguments):
    """A call of the op: what it checks."""

    __slots__ = ()

    def new_output(self) -> Tensor:
        """Return memory for the result of the checked call."""
        a, b, bias, residual, _, _, kernels = self[:7]
        out = new_output(a, b, bias, residual, kernels, self.out_dtype, self.gate)
        _check_factors(self, out.dtype)
        return out

    def check_output(self, out: Tensor) -> None:
        """Check the call and that its result can be written to ``out``."""
        a = self.a
        dtype = _output_dtype(a, self.kernels, out.dtype)
        shape = check(a, self.b, self.bias, self.residual, dtype, self.gate)
        if out.device != a.device:
            raise ArgumentTypeError(f"out is on {out.device}, a is on {a.device}")
        if tuple(out.shape) != shape:
            raise ArgumentError(f"out is {tuple(out.shape)}, the result is {shape}")
        if is_expanded(out):
            raise ArgumentError(f"out has elements in one place (strides {out.stride()})")
        _check_factors(self, out.dtype)

    def check_apart(self, out: Tensor) -> None:
        """Raise ArgumentError where ``out`` shares memory with what is read while it is written."""
        for name in ("a", "b", "bias", "a_scale", "b_scale", "a_zero_point", "b_sum"):
            read = getattr(self, name)
            if read is not None and share_elements(out, read):
                raise ArgumentError(
                    f"out overlaps {name}: a kernel reads it while it writes; pass another tensor"
                )
        residual = self.residual
        if residual is None or not self.beta or not share_elements(out, residual):
            return
        if not begin_alike(out, residual) or steps(out) != steps(residual):
            raise ArgumentError("out overlaps residual; it may be that tensor, or share none of it")

    def run(self, out: Tensor, *, fresh: bool) -> None:
        """Write the result of the checked call to ``out``, made for it where ``fresh``."""
        a, b, bias, residual, _, beta, kernels = self[:7]
        if _on_gpu(a):
            run_on_cuda(self, out, fresh=fresh)
            return
        if kernels and out.numel() and a.shape[-1]:  # what a GPU would refuse is refused here too
            used = residual if beta else None
            refuse_misfit(kernels, problem(a, b, bias, used, out, self.finish(), kernels))
        run_on_cpu(self, out)


def _on_gpu(tensor: Tensor) -> bool:
    return tensor.is_cuda


def _fake(*args: Any, **kwargs: Any) -> Tensor:
    return _Call(*args, **kwargs).new_output()


def _fake_out(*args: Any, out: Tensor, **kwargs: Any) -> None:
    _Call(*args, **kwargs).check_output(out)


def _gemm(*args: Any, **kwargs: Any) -> Tensor:
    call = _Call(*args, **kwargs)
    if _on_gpu(call.a):
        settled = run_settled(call, None)
        if settled is not None:
            return settled
    out = call.new_output()
    call.run(out, fresh=True)
    return out


def _gemm_out(*args: Any, out: Tensor, **kwargs: Any) -> None:
    call = _Call(*args, **kwargs)
    if _on_gpu(call.a) and run_settled(call, out) is not None:
        return
    call.check_output(out)
    call.check_apart(out)
    call.run(out, fresh=False)


_OPERANDS = "Tensor a, Tensor b, Tensor? bias=None, Tensor? residual=None"
_SCALARS = "float alpha=1.0, float beta=0.0, str kernels=''"
_WORDS = "str activation='none', str gate='none'"
_VECTORS = "Tensor? a_scale=None, Tensor? b_scale=None, Tensor? a_zero_point=None"
_REST = f"{_SCALARS}, {_WORDS}, {_VECTORS}, Tensor? b_sum=None, float out_scale=1.0"
_OPS: dict[str, Op] = {
    "gemm": (f"({_OPERANDS}, {_REST}, ScalarType? out_dtype=None) -> Tensor", _gemm, _fake),
    "gemm_out": (f"({_OPERANDS}, {_REST}, *, Tensor(a!) out) -> ()", _gemm_out, _fake_out),
}

_library = register_ops(_OPS)
