"""A GEMM by torch: on the CPU, and on a GPU where no kernel takes the call."""

from __future__ import annotations

import torch
from torch import Tensor

from gemmsmith.arguments import Arguments
from gemmsmith.autocast import without_autocast
from gemmsmith.finish import PLAIN, Finish, finished


def in_f32(call: Arguments, finish: Finish, out: Tensor) -> None:
    """Compute in fp32 and round once, whatever the device; sums of int8 products are exact."""
    a, b, bias, residual, alpha, beta = call[:6]
    exactly = torch.float64 if a.dtype == torch.int8 else torch.float32  # holds every int8 sum
    with without_autocast(out.device):
        sums = torch.matmul(a.to(exactly), b.to(exactly))
    if a.dtype == torch.int8 and out.dtype != torch.int32 and finish.a_zero is None:
        sums = sums.float()
    result = finished(sums, finish, alpha, bias)
    if residual is not None and beta != 0.0:
        result = result + beta * residual.to(result.dtype)
    if out.dtype == torch.int8:
        result = (result * finish.out_scale).round().clamp(-128, 127)
    out.copy_(result)


def fall_back(call: Arguments, finish: Finish, out: Tensor) -> None:
    """Compute with torch's own GEMM; with an epilogue in fp32, so that it is rounded once."""
    a, b, bias, residual, alpha, beta = call[:6]
    plain = bias is None and alpha == 1.0 and finish is PLAIN and (residual is None or beta == 0.0)
    if plain and out.dtype == a.dtype and a.shape[-1] and a.is_floating_point():
        with without_autocast(out.device):
            torch.matmul(a, b, out=out)
    else:
        in_f32(call, finish, out)
