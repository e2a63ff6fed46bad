"""Checks of what decoders and their caches are given: of values only where none waits for a GPU."""

from __future__ import annotations

import torch
from torch import Tensor

from gemmsmith.errors import ArgumentError, ArgumentTypeError
from gemmsmith.rope_shapes import INDEX_DTYPES

__all__ = ["check_counts", "check_integers", "check_within", "is_readable"]


def check_counts(**counts: object) -> None:
    """Raise ArgumentTypeError where one is no whole number; True and False are none."""
    for name, count in counts.items():
        if not isinstance(count, int) or isinstance(count, bool):
            raise ArgumentTypeError(f"{name} is {count!r}; a whole number is needed")


def check_integers(
    name: str, tensor: object, sizes: tuple[int | str, ...], device: torch.device
) -> None:
    """Raise ArgumentError where a tensor is not int32 or int64, of ``sizes`` and on ``device``.

    Args:
        name: the argument.
        tensor: what was given for it.
        sizes: its shape; a word stands for any size.
        device: where the model or cache is.
    """
    if not isinstance(tensor, Tensor):
        raise ArgumentTypeError(f"{name} is a {type(tensor).__name__}, not a torch.Tensor")
    if tensor.dtype not in INDEX_DTYPES or tensor.device != device:
        raise ArgumentTypeError(
            f"{name} is {tensor.dtype} on {tensor.device}; int32 or int64 on {device} is needed"
        )
    shape = tuple(tensor.shape)
    if len(shape) != len(sizes) or any(
        not isinstance(wanted, str) and size != wanted
        for size, wanted in zip(shape, sizes, strict=True)
    ):
        words = ", ".join(map(str, sizes)) + ("," if len(sizes) == 1 else "")
        raise ArgumentError(f"{name} is {shape}; ({words}) is needed")


def is_readable(tensor: Tensor) -> bool:
    """Return whether values can be looked at now, without waiting for a GPU."""
    return tensor.is_cpu and type(tensor) is Tensor and not torch.compiler.is_compiling()


def check_within(name: str, tensor: Tensor, least: int, most: int) -> None:
    """Raise ArgumentError where a value lies beyond; those on a GPU are not read back."""
    if not is_readable(tensor) or tensor.numel() == 0:
        return
    low, high = map(int, tensor.aminmax())
    if low < least or high > most:
        found = low if low < least else high
        raise ArgumentError(f"{name} holds {found}; {least} to {most} are legal")
