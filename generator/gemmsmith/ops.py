"""The GEMM as a PyTorch op: schema, shapes, CPU and CUDA implementations.

``torch.ops.gemmsmith.gemm_out`` writes to a tensor of the caller's, ``torch.ops.gemmsmith.gemm``
allocates its result. Both carry what they may run as a string handle (:mod:`gemmsmith.kernelset`);
the empty one stands for the default kernels of the tensors' GPU.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from gemmsmith.errors import ArgumentError, ArgumentTypeError
from gemmsmith.execute import LaunchRecord, last_kernel, run_on_cpu, run_on_cuda
from gemmsmith.kernelset import output_letter, refuse_misfit, selection
from gemmsmith.operands import OUTPUTS, TORCH_DTYPES, check, operands
from gemmsmith.problem import GemmProblem

__all__ = ["LaunchRecord", "gemm", "last_kernel", "problem_of"]

_OF_DTYPE = {dtype: torch_dtype for torch_dtype, dtype in TORCH_DTYPES.items()}


def gemm(
    a: Tensor,
    b: Tensor,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    alpha: float = 1,  # not 1.0: dynamo takes a float default for a variable and compiles twice
    beta: float | None = None,
    out: Tensor | None = None,
    *,
    out_dtype: torch.dtype | None = None,
    kernels: str = "",
) -> Tensor:
    """Return ``alpha * a @ b + beta * residual + bias``, summed in f32 and rounded once.

    int8 is summed in int32; as int32 it is returned exactly, as fp16, bf16 or int8 it is scaled in
    f32 and rounded once, half to even, int8 saturated. Strides tell the layout: transposed and
    sliced views are read in place. Inference only.

    Args:
        a: (…, M, K), fp16, bf16 or int8 (fp32 and what no kernel fits is computed by torch).
        b: (K, N), or with the same leading dimensions as ``a``; of ``a``'s dtype.
        bias: (N,) or (1, N), of the output's dtype.
        residual: of the output's shape and dtype. It is not read where ``beta`` is 0.
        alpha: factor of the product, a whole number for an int32 result.
        beta: factor of the residual, likewise; None for 1 where there is one.
        out: where to write; a matrix with contiguous rows (or columns, for kernels of such a
            layout). It may be the residual itself, but must not overlap ``a``, ``b`` or ``bias``.
        out_dtype: of the result, where ``out`` is not given.
        kernels: handle of what may run; empty for the default kernels of the GPU.

    Returns:
        (…, M, N) of ``out_dtype``; without it of ``a``'s dtype (int32 for int8) where the kernels
        write that, else of the type that they write.

    Raises:
        ArgumentError: naming the argument, the value found and what is legal.
        NoKernelError: where named kernels do not fit the call.
        LaunchError: where CUTLASS or CUDA refuses.
    """
    for name, tensor in (("a", a), ("b", b), ("bias", bias), ("residual", residual), ("out", out)):
        if not isinstance(tensor, Tensor) and (tensor is not None or name in ("a", "b")):
            raise ArgumentTypeError(f"{name} is a {type(tensor).__name__}, not a torch.Tensor")
        if tensor is not None and tensor.layout != torch.strided:
            raise ArgumentTypeError(f"{name} is {tensor.layout}; only dense tensors have kernels")
    for name, factor in (("alpha", alpha), ("beta", 0.0 if beta is None else beta)):
        if not isinstance(factor, (int, float)):
            raise ArgumentTypeError(f"{name} is a {type(factor).__name__}, not a number")
    if residual is None and beta:
        raise ArgumentError(
            f"beta is {beta} without a residual; to add to what out holds, pass residual=out"
        )
    scale = float(residual is not None) if beta is None else float(beta)
    if out is None:
        result: Tensor = torch.ops.gemmsmith.gemm.default(
            a, b, bias, residual, alpha, scale, kernels, out_dtype
        )
        return result
    if out_dtype not in (None, out.dtype):
        raise ArgumentError(f"out_dtype is {out_dtype}, out is {out.dtype}: give one of them")
    torch.ops.gemmsmith.gemm_out.default(a, b, bias, residual, alpha, scale, kernels, out=out)
    return out


def problem_of(
    a: Tensor,
    b: Tensor,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    out: Tensor | None = None,
    *,
    kernels: str = "",
) -> GemmProblem:
    """Return what a call with these arguments asks of a kernel.

    Raises:
        ArgumentError: as :func:`gemm` does.
    """
    if out is None:
        taken = kernels if _written_dtypes(a.dtype, kernels) else ""  # else: misfit says why
        out = _new_output(a, b, bias, residual, taken, None)
    check(a, b, bias, residual, out.dtype)
    letter = output_letter(kernels, TORCH_DTYPES[a.dtype])
    return operands(a, b, bias, residual, out, letter).problem()


@cache
def _written_dtypes(dtype: torch.dtype, kernels: str) -> tuple[torch.dtype, ...]:
    """Return the output types of the kernels that take ``dtype``, the usual one first."""
    usual = OUTPUTS.get(dtype, ())
    if not kernels:
        return usual
    specs = selection(kernels).specs
    written = {_OF_DTYPE[spec.d] for spec in specs if _OF_DTYPE[spec.a] == dtype}
    return tuple(sorted(written, key=lambda each: (each != usual[0], str(each))))


def _output_dtype(a: Tensor, kernels: str, wanted: torch.dtype | None) -> torch.dtype:
    """Return ``wanted``, or the usual type that the kernels write.

    Raises:
        ArgumentTypeError: where they do not take ``a`` or do not write ``wanted``.
    """
    written = _written_dtypes(a.dtype, kernels)
    if not written:
        if not kernels:
            raise ArgumentTypeError(f"a is {a.dtype}; {', '.join(map(_word, OUTPUTS))} are legal")
        taken = ", ".join(sorted({spec.a.name for spec in selection(kernels).specs}))
        raise ArgumentTypeError(f"a is {a.dtype}; the named kernels take {taken}")
    if wanted is not None and wanted not in written:
        words = ", ".join(map(_word, written))
        raise ArgumentTypeError(f"out is {wanted}; from {a.dtype} the kernels write {words}")
    return wanted or written[0]


def _word(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _check_factors(dtype: torch.dtype, alpha: float, beta: float) -> None:
    if dtype != torch.int32:
        return
    for name, factor in (("alpha", alpha), ("beta", beta)):
        if not float(factor).is_integer():
            raise ArgumentError(
                f"{name} is {factor}: an int32 result takes whole factors; scale into"
                " out_dtype=torch.bfloat16 or torch.float16"
            )


def _new_output(
    a: Tensor,
    b: Tensor,
    bias: Tensor | None,
    residual: Tensor | None,
    kernels: str,
    out_dtype: torch.dtype | None,
) -> Tensor:
    dtype = _output_dtype(a, kernels, out_dtype)
    shape = check(a, b, bias, residual, dtype)
    if output_letter(kernels, TORCH_DTYPES[a.dtype]) == "r":
        return torch.empty(shape, dtype=dtype, device=a.device)
    if b.dim() > 2:
        transposed = (*shape[:-2], shape[-1], shape[-2])
        return torch.empty(transposed, dtype=dtype, device=a.device).mT
    rows = math.prod(shape[:-1])
    return torch.empty((shape[-1], rows), dtype=dtype, device=a.device).t().view(shape)


def _fake(
    a: Tensor,
    b: Tensor,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    kernels: str = "",
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    out = _new_output(a, b, bias, residual, kernels, out_dtype)
    _check_factors(out.dtype, alpha, beta)
    return out


def _check_out(
    a: Tensor, b: Tensor, bias: Tensor | None, residual: Tensor | None, out: Tensor, kernels: str
) -> None:
    dtype = _output_dtype(a, kernels, out.dtype)
    shape = check(a, b, bias, residual, dtype)
    if out.device != a.device:
        raise ArgumentTypeError(f"out is on {out.device}, a is on {a.device}")
    if tuple(out.shape) != shape:
        raise ArgumentError(f"out is {tuple(out.shape)}, the result is {shape}")


def _fake_out(
    a: Tensor,
    b: Tensor,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    kernels: str = "",
    *,
    out: Tensor,
) -> None:
    _check_out(a, b, bias, residual, out, kernels)
    _check_factors(out.dtype, alpha, beta)


def _gemm(
    a: Tensor,
    b: Tensor,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    kernels: str = "",
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    out = _fake(a, b, bias, residual, alpha, beta, kernels, out_dtype)
    _run(a, b, bias, residual, alpha, beta, kernels, out)
    return out


def _gemm_out(
    a: Tensor,
    b: Tensor,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    kernels: str = "",
    *,
    out: Tensor,
) -> None:
    _fake_out(a, b, bias, residual, alpha, beta, kernels, out=out)
    if out.numel() and out.data_ptr() in (a.data_ptr(), b.data_ptr()):
        raise ArgumentError(
            "out is a or b: a kernel reads them while it writes; pass a third tensor"
        )
    _run(a, b, bias, residual, alpha, beta, kernels, out)


def _run(
    a: Tensor,
    b: Tensor,
    bias: Tensor | None,
    residual: Tensor | None,
    alpha: float,
    beta: float,
    kernels: str,
    out: Tensor,
) -> None:
    if a.is_cuda:
        run_on_cuda(a, b, bias, residual, alpha, beta, kernels, out)
        return
    if kernels and out.numel() and a.shape[-1]:  # what a GPU would refuse is refused here too
        used = residual if beta else None
        refuse_misfit(kernels, problem_of(a, b, bias, used, out, kernels=kernels))
    run_on_cpu(a, b, bias, residual, alpha, beta, out)


def _forward_only(name: str) -> Callable[..., Any]:
    """Return an op's autograd implementation: refuse a derivative, else go on below autograd."""
    op = getattr(torch.ops.gemmsmith, name).default

    def refuse_derivative(*args: Any, **kwargs: Any) -> Any:
        if _derivative_wanted((*args, *kwargs.values())):
            raise ArgumentError(
                "gemmsmith.gemm is forward only: call it under torch.no_grad() or"
                " torch.inference_mode(), or with inputs that do not require grad"
            )
        with torch._C._AutoDispatchBelowAutograd():
            return op(*args, **kwargs)

    return refuse_derivative


def _derivative_wanted(values: tuple[Any, ...]) -> bool:
    """Whether a backward, a forward-mode or a torch.func derivative of the call would be taken."""
    interpreter = torch._C._functorch.peek_interpreter_stack()
    if interpreter is not None and interpreter.key() in _DERIVATIVES:
        return True
    tensors = [value for value in values if isinstance(value, Tensor)]
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        return True
    return forward_ad._current_level >= 0 and any(
        forward_ad.unpack_dual(tensor).tangent is not None  # type: ignore[no-untyped-call]
        for tensor in tensors
    )


_DERIVATIVES = (torch._C._functorch.TransformType.Grad, torch._C._functorch.TransformType.Jvp)


def _register() -> torch.library.Library:
    """Return the library that owns the ops; they live as long as it does."""
    library: Any = torch.library.Library("gemmsmith", "DEF")  # type: ignore[no-untyped-call]
    operands = "Tensor a, Tensor b, Tensor? bias=None, Tensor? residual=None"
    scalars = "float alpha=1.0, float beta=0.0, str kernels=''"
    tags = (torch.Tag.pt2_compliant_tag,)
    library.define(f"gemm({operands}, {scalars}, ScalarType? out_dtype=None) -> Tensor", tags=tags)
    library.define(f"gemm_out({operands}, {scalars}, *, Tensor(a!) out) -> ()", tags=tags)
    for device in ("CPU", "CUDA"):
        library.impl("gemm", _gemm, device)
        library.impl("gemm_out", _gemm_out, device)
    for name in ("gemm", "gemm_out"):
        library.impl(name, _forward_only(name), "Autograd")
    torch.library.register_fake("gemmsmith::gemm", _fake, lib=library)
    torch.library.register_fake("gemmsmith::gemm_out", _fake_out, lib=library)
    registered: torch.library.Library = library
    return registered


_library = _register()
