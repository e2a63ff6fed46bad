"""What row kernels compute, in torch: on the CPU, and where a GPU has no kernel.

Quantising and norms give the kernels' very bits: all is rounded to f32 where they do, and sums of
squares add eight neighbours in f32 and then those sums in f64, whose order no longer shows. Gates
agree to some 2^-20: a kernel takes the GPU's quick exponential.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gemmsmith.rowspec import GateKind
from gemmsmith.spec import GATE_BLOCK

PADDING = 16
"""int8 rows and their weights are padded with zeros to a multiple of it: 16 B, for TMA."""
CHUNK = 8
"""Elements whose squares are summed in f32."""
SMALLEST = 2.0**-100
"""Rows whose largest magnitude is below count as zero; 127 / it could overflow."""


def padded(columns: int) -> int:
    """Return the width of an int8 matrix that holds ``columns``."""
    return (columns + PADDING - 1) // PADDING * PADDING


def quantized(values: Tensor) -> tuple[Tensor, Tensor]:
    """Return f32 ``values`` (M, K) as int8 (M, padded K) and the scale of each row (M,), f32."""
    rows, columns = values.shape
    q = torch.zeros(rows, padded(columns), dtype=torch.int8, device=values.device)
    if columns == 0:
        return q, torch.zeros(rows, dtype=torch.float32, device=values.device)
    most = values.abs().amax(-1)
    usable = most.isfinite() & (most >= SMALLEST)
    full = torch.full_like(most, 127.0)  # a Python number would become a product with 1/127
    inverse = torch.where(usable, full / most, 0.0)
    scale = torch.where(most.isfinite(), torch.where(usable, most / full, 0.0), most)
    exact = values.double() * inverse.double()[:, None]  # as a fused multiply-add has it
    q[:, :columns] = torch.where(usable[:, None], exact.round(), 0.0)
    return q, scale


def normalized(
    x: Tensor, weight: Tensor, eps: float, residual: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return the f32 RMSNorm of ``x + residual`` (M, K), and the sum in ``x``'s dtype."""
    total = x if residual is None else (x.float() + residual.float()).to(x.dtype)
    values = total.float()
    columns = torch.full_like(values[:, 0], x.shape[-1])
    mean = _squares(values).float() / columns
    root = (mean + eps).double().sqrt().float()  # torch's f32 root may be off by one bit
    factor = torch.ones_like(mean) / root
    return values * factor[:, None] * weight.float(), total


def gated(x: Tensor, kind: GateKind, interleaved: bool) -> Tensor:
    """Return ``activation(gate) * up`` in f32 (M, N) from ``x`` (M, 2N)."""
    rows, columns = x.shape
    if interleaved:
        gate, up = x.reshape(rows, columns // (2 * GATE_BLOCK), 2, GATE_BLOCK).float().unbind(2)
        gate, up = gate.reshape(rows, columns // 2), up.reshape(rows, columns // 2)
    else:
        gate, up = x.float().chunk(2, -1)
    return _activated(gate, kind) * up


def _activated(gate: Tensor, kind: GateKind) -> Tensor:
    if kind == "gelu":
        below: Tensor = torch.special.ndtr(gate)
        return gate * below
    t = gate
    if kind == "gelu_tanh":  # 0.5 (1 + tanh(t / 2)) = 1 / (1 + exp(-t))
        t = 1.5957691216057308 * (gate + 0.044715 * gate * gate * gate)
    denominator: Tensor = 1.0 + (-t).exp()
    return gate / denominator


def _squares(values: Tensor) -> Tensor:
    """Return the f64 sum of squares of each row."""
    missing = -values.shape[-1] % CHUNK
    squares = torch.nn.functional.pad(values * values, (0, missing))
    sums = squares.reshape(values.shape[0], -1, CHUNK)
    while sums.shape[-1] > 1:
        sums = sums[..., 0::2] + sums[..., 1::2]
    return sums[..., 0].double().sum(-1)
