"""The GEMM as a function of PyTorch tensors."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling

from gemmsmith import constant, direct
from gemmsmith.dense import check_dense
from gemmsmith.errors import ArgumentError, ArgumentTypeError
from gemmsmith.execute import LaunchRecord, last_kernel
from gemmsmith.finish import PLAIN
from gemmsmith.gemm_op import new_output, problem, written_dtypes
from gemmsmith.invariant import handle_of
from gemmsmith.problem import GemmProblem

__all__ = ["LaunchRecord", "gemm", "last_kernel", "problem_of"]


def gemm(
    a: Tensor,
    b: Tensor,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    alpha: float = 1,  # not 1.0: dynamo takes a float default for a variable and compiles twice
    beta: float | None = None,
    out: Tensor | None = None,
    *,
    activation: str = "none",
    gate: str = "none",
    a_scale: Tensor | None = None,
    b_scale: Tensor | None = None,
    a_zero_point: Tensor | None = None,
    b_sum: Tensor | None = None,
    out_scale: float = 1,
    out_dtype: torch.dtype | None = None,
    kernels: str = "",
    deterministic: str = "",
    constant_b: bool = False,
) -> Tensor:
    """Return ``activation(alpha * a @ b + bias) + beta * residual``, in f32, rounded once.

    int8 is summed in int32, which K up to 131,071 cannot overflow (beyond, sums past 2**31 wrap);
    as int32 it is returned exactly, as fp16, bf16 or int8 it is scaled in f32 and rounded once,
    half to even, int8 saturated. Strides tell the layout: transposed and sliced views are read in
    place. Inference only.

    Args:
        a: (…, M, K), fp16, bf16 or int8 (fp32 and what no kernel fits is computed by torch).
        b: (K, N), or with the same leading dimensions as ``a``; of ``a``'s dtype.
        bias: (N,) or (1, N), of the output's dtype; f32 for int8 outputs.
        residual: of the output's shape and dtype. It is not read where ``beta`` is 0.
        alpha: factor of the product, a whole number for an int32 result.
        beta: factor of the residual, likewise; None for 1 where there is one.
        out: where to write; a matrix with contiguous rows (or columns, for kernels of such a
            layout). It may be the residual itself, but must not overlap it otherwise, nor
            anything else that is read: the first call of its shapes is checked for that, later ones
            for an output that begins where ``a`` or ``b`` does.
        activation: ``relu``, ``gelu``, ``gelu_tanh`` or ``silu`` of product and bias.
        gate: ``silu``, ``gelu`` or ``gelu_tanh`` of one half of the columns, times the other half:
            the result is (…, M, N / 2). Columns come in blocks of 16, 8 of the gate and then 8 of
            up (:func:`gemmsmith.interleave`).
        a_scale: f32, for each row of ``a`` (M values) or all of them: factors of the product.
        b_scale: f32, for each column of ``b`` (N values) or all of them: factors of the product.
        a_zero_point: int32, for each row of ``a`` or all of them: taken off int8 values before they
            are multiplied.
        b_sum: (N,) int32, minus the sums of ``b``'s columns, if at hand: a zero point needs them.
        out_scale: factor of int8 results, before they are rounded and saturated.
        out_dtype: of the result, where ``out`` is not given.
        kernels: handle of what may run; empty for the default kernels of the GPU.
        deterministic: ``batch``: K is summed in one order for every M, so that a row's bits do not
            depend on the rows beside it; not on the CPU, where torch computes.
        constant_b: promises that no work which is queued already writes ``b``, be it a kernel, a
            copy or an update in place. A default kernel may then read ``b`` while the kernels ahead
            of it still run, which saves a microsecond at few tokens; the bits are those of the same
            kernel without the promise. Where it is broken the result may be of the old ``b``, or of
            parts of it. After ``b`` is written, wait for that (``torch.cuda.synchronize()``) before
            a call that promises: a call between that does not promise is not enough.

    Returns:
        (…, M, N), with a gate (…, M, N / 2), of ``out_dtype``; without it of ``a``'s dtype (int32
        for int8) where the kernels write that, else of the type that they write.

    Raises:
        ArgumentError: naming the argument, the value found and what is legal.
        NoKernelError: where named kernels do not fit the call.
        LaunchError: where CUTLASS or CUDA refuses.
    """
    if deterministic:
        factors = residual is not None and (alpha != 1 or beta not in (None, 1))
        kernels = handle_of(deterministic, kernels, factors=factors)
    if constant_b is not False and constant.is_promised("constant_b", constant_b):
        kernels = constant.handle_of(kernels)
    if not is_dynamo_compiling():
        settled = direct.launch(
            a,
            b,
            bias,
            residual,
            alpha,
            beta,
            kernels,
            activation,
            gate,
            a_scale,
            b_scale,
            a_zero_point,
            b_sum,
            out_scale,
            out_dtype,
            out,
            0,
        )
        if settled is not None:
            return settled
    check_dense(
        a=a,
        b=b,
        bias=bias,
        residual=residual,
        out=out,
        a_scale=a_scale,
        b_scale=b_scale,
        a_zero_point=a_zero_point,
        b_sum=b_sum,
        optional=_OPTIONAL,
    )
    for name, factor in (("alpha", alpha), ("beta", 0.0 if beta is None else beta)):
        if not isinstance(factor, (int, float)):
            raise ArgumentTypeError(f"{name} is a {type(factor).__name__}, not a number")
    words: tuple[tuple[str, object, type, str], ...] = (
        ("activation", activation, str, "a word"),
        ("gate", gate, str, "a word"),
        ("kernels", kernels, str, "the handle of a set or of a kernel"),
        ("out_dtype", out_dtype or torch.int32, torch.dtype, "a torch.dtype"),
    )
    for name, value, kind, legal in words:
        if not isinstance(value, kind):
            raise ArgumentTypeError(f"{name} is a {type(value).__name__}, not {legal}")
    if residual is None and beta:
        raise ArgumentError(
            f"beta is {beta} without a residual; to add to what out holds, pass residual=out"
        )
    scale = float(residual is not None) if beta is None else float(beta)
    functions = (activation, gate, a_scale, b_scale, a_zero_point, b_sum, out_scale)
    given = (a, b, bias, residual, alpha, scale, kernels, *functions)
    if out is None:
        result: Tensor = torch.ops.gemmsmith.gemm.default(*given, out_dtype)
        return result
    if out_dtype not in (None, out.dtype):
        raise ArgumentError(f"out_dtype is {out_dtype}, out is {out.dtype}: give one of them")
    torch.ops.gemmsmith.gemm_out.default(*given, out=out)
    return out


_OPTIONAL = ("bias", "residual", "out", "a_scale", "b_scale", "a_zero_point", "b_sum")


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
        taken = kernels if written_dtypes(a.dtype, kernels) else ""  # else: misfit says why
        out = new_output(a, b, bias, residual, taken, None)
    return problem(a, b, bias, residual, out, PLAIN, kernels)
