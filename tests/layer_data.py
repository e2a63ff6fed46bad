"""Layers of torch, inputs for them, and how far ours are off."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

BF16 = torch.bfloat16
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
on_each = pytest.mark.parametrize("device", DEVICES)


def linear(
    k: int, n: int, bias: bool = True, device: str = "cpu", dtype: torch.dtype = BF16
) -> torch.nn.Linear:
    torch.manual_seed(k + n)
    return torch.nn.Linear(k, n, bias=bias, dtype=dtype).requires_grad_(False).to(device)


def numbers(*shape: int, device: str = "cpu", dtype: torch.dtype = BF16) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(5)).to(device, dtype)


def outliers(*shape: int, device: str = "cpu") -> Tensor:
    """Return numbers with two columns that are far larger than the others."""
    x = numbers(*shape, device=device)
    x[..., 3] *= 60
    x[..., 17] *= 30
    return x


def exact(layer: torch.nn.Linear, x: Tensor) -> Tensor:
    """Return the unquantised layer's output in f64, on the CPU."""
    y = x.cpu().double() @ layer.weight.cpu().double().t()
    return y if layer.bias is None else y + layer.bias.cpu().double()


def relative(found: Tensor, right: Tensor) -> float:
    return float(((found.detach().cpu().double() - right).norm() / right.norm()).detach())
