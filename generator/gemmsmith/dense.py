"""The check that comes before an op: what it is given are dense tensors."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor

from gemmsmith.errors import ArgumentTypeError


def check_dense(*, optional: Collection[str] = (), **named: object) -> None:
    """Raise ArgumentTypeError where one is no dense tensor; those that are optional may be None."""
    for name, tensor in named.items():
        if tensor is None and name in optional:
            continue
        if not isinstance(tensor, Tensor):
            raise ArgumentTypeError(f"{name} is a {type(tensor).__name__}, not a torch.Tensor")
        if tensor.layout != torch.strided:
            raise ArgumentTypeError(f"{name} is {tensor.layout}; only dense tensors have kernels")
