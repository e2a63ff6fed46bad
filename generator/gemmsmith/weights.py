"""Weights in the form that kernels read, made once at load, and the way back.

A kernel reads a weight (N, K) with K contiguous and both sizes padded; one with a gate reads the
rows of gate and up in turns, eight by eight. Checkpoints store [K, N] (GPT-2's Conv1D), gate and up
apart, or one after the other, and query, key and value apart, which one product makes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor
from torch.nn import functional

from gemmsmith.errors import ArgumentError, ArgumentTypeError
from gemmsmith.row_math import PADDING
from gemmsmith.spec import GATE_BLOCK

__all__ = ["ORDERS", "Order", "Preparation", "interleave", "join", "prepare"]

Order = Literal["", "separate", "gate_up", "up_gate"]
ORDERS: tuple[str, ...] = get_args(Order)


@dataclass(frozen=True, kw_only=True)
class Preparation:
    """What :func:`prepare` did to a weight: enough to do it again and to undo it."""

    shape: tuple[int, int]
    """Size of a tensor as it was given; gate and up apart have one size, and of tensors that were
    joined it is that of all together."""
    padding: tuple[int, int]
    """Zero rows, for gate and up those of each, and zero columns that were added to (N, K)."""
    interleaved: Order = ""
    """How gate and up were given whose rows now take turns: ``separate`` tensors, ``gate_up`` or
    ``up_gate`` in one; empty for a weight that is none of these."""
    transposed: bool = False
    """Whether what was given is [K, N]."""
    joined: tuple[int, ...] = ()
    """Rows of each tensor, where several were given that now follow each other; else empty."""

    @property
    def features(self) -> tuple[int, int]:
        """Output and input features without padding; those of gate and up are counted together."""
        n, k = reversed(self.shape) if self.transposed else self.shape
        return (2 * n if self.interleaved == "separate" else n), k

    @property
    def padded(self) -> tuple[int, int]:
        """Size of the prepared weight."""
        n, k = self.features
        parts = 2 if self.interleaved else 1
        return n + parts * self.padding[0], k + self.padding[1]

    @property
    def changes(self) -> bool:
        """Whether the prepared weight is not simply the given one."""
        return (
            self.padding != (0, 0) or bool(self.interleaved) or self.transposed or bool(self.joined)
        )

    def __str__(self) -> str:
        words = []
        if self.transposed:
            words.append("transposed to K-major")
        if self.interleaved:
            words.append("gate and up interleaved by 8 rows")
        if self.joined:
            words.append(f"{len(self.joined)} joined to one ({' + '.join(map(str, self.joined))})")
        if self.padding != (0, 0):
            (n, k), (padded_n, padded_k) = self.features, self.padded
            words.append(f"padded from {n}x{k} to {padded_n}x{padded_k}")
        return ", ".join(words) or "as given"

    def apply(self, *given: Tensor) -> Tensor:
        """Return weights, or vectors with a value for each output feature, as kernels read them."""
        tensors, dimensions = given, given[0].dim()
        if self.joined:
            tensors = (torch.cat(given),)
        if dimensions == 2 and self.transposed:
            tensors = tuple(tensor.t() for tensor in tensors)
        parts: Sequence[Tensor] = tensors
        if self.interleaved in ("gate_up", "up_gate"):
            parts = tensors[0].chunk(2)
            parts = parts if self.interleaved == "gate_up" else parts[::-1]
        rows, columns = self.padding
        sides = (0, rows) if dimensions == 1 else (0, columns, 0, rows)
        if any(sides):
            parts = [functional.pad(part, sides) for part in parts]
        return (interleave(*parts) if len(parts) == 2 else parts[0]).contiguous()

    def restore(self, prepared: Tensor) -> tuple[Tensor, ...]:
        """Return what :meth:`apply` was given, of a prepared weight or vector."""
        parts: Sequence[Tensor] = (prepared,)
        n, k = self.features
        if self.interleaved:
            n //= 2
            blocks = prepared.reshape(-1, 2, GATE_BLOCK, *prepared.shape[1:])
            parts = [half.flatten(0, 1) for half in blocks.unbind(1)]
        parts = [part[:n] if part.dim() == 1 else part[:n, :k] for part in parts]
        if self.interleaved in ("gate_up", "up_gate"):
            parts = [torch.cat(parts if self.interleaved == "gate_up" else parts[::-1])]
        if prepared.dim() == 2 and self.transposed:
            parts = [part.t() for part in parts]
        if self.joined:
            parts = torch.split(parts[0], list(self.joined))
        return tuple(part.contiguous() for part in parts)


def prepare(
    weight: Tensor, up: Tensor | None = None, *, order: Order = "", transposed: bool = False
) -> tuple[Tensor, Preparation]:
    """Return a weight as kernels read it, (padded N, padded K), K contiguous, and what was done.

    Nothing is copied where nothing has to be done.

    Args:
        weight: (N, K); with ``up`` the gate's.
        up: what the activated gate is multiplied by, of the gate's size.
        order: what a single ``weight`` (2N, K) of both holds first: ``gate_up`` (Phi-3, merged
            Llama weights, xformers' ``w12``) or ``up_gate`` (diffusers' GEGLU, flash-attn's
            GatedMlp). The wrong one gives numbers that look right and mean nothing.
        transposed: the tensors are stored [K, N], as those of GPT-2.

    Raises:
        ArgumentError: naming the argument, the value found and what is legal.
    """
    for name, tensor in (("weight", weight), ("up", up)):
        if not isinstance(tensor, Tensor) and (tensor is not None or name == "weight"):
            raise ArgumentTypeError(f"{name} is a {type(tensor).__name__}, not a torch.Tensor")
        if tensor is not None and tensor.dim() != 2:
            raise ArgumentError(f"{name} is {tuple(tensor.shape)}; a matrix is needed")
    if order not in ORDERS:
        words = ", ".join(word for word in ORDERS if word)
        raise ArgumentError(f"order is {order!r}; {words} or nothing are legal")
    if up is not None:
        _check_alike(weight, up)
        if order in ("gate_up", "up_gate"):
            raise ArgumentError(f"order {order} is of one tensor with both halves; up is given too")
        order = "separate"
    elif order == "separate":
        raise ArgumentError("order separate needs two tensors, gate and up")
    n, k = reversed(weight.shape) if transposed else weight.shape
    if order in ("gate_up", "up_gate"):
        if n % 2:
            raise ArgumentError(f"order {order}: weight has {n} output features, not two halves")
        n //= 2
    preparation = Preparation(
        shape=(weight.shape[0], weight.shape[1]),
        padding=(-n % PADDING, -k % PADDING),
        interleaved=order,
        transposed=transposed,
    )
    return preparation.apply(*(weight,) if up is None else (weight, up)), preparation


def join(weights: Sequence[Tensor]) -> tuple[Tensor, Preparation]:
    """Return weights that read the same input as one, (padded N, padded K), and what was done.

    One product makes the outputs of all, one after the other.

    Args:
        weights: (N, K) each, of one K, dtype and device.

    Raises:
        ArgumentError: where they are not alike in that, or there are none.
    """
    if not weights:
        raise ArgumentError("weights is empty; one or more are needed")
    for weight in weights:
        if weight.dim() != 2:
            raise ArgumentError(f"a weight is {tuple(weight.shape)}; a matrix is needed")
    kinds = {(weight.shape[1], weight.dtype, weight.device) for weight in weights}
    if len(kinds) > 1:
        found = ", ".join(sorted(f"K={k} {dtype} on {device}" for k, dtype, device in kinds))
        raise ArgumentError(f"weights are {found}; what one product makes is alike in these")
    rows = tuple(weight.shape[0] for weight in weights)
    n, k = sum(rows), weights[0].shape[1]
    preparation = Preparation(shape=(n, k), padding=(-n % PADDING, -k % PADDING), joined=rows)
    return preparation.apply(*weights), preparation


def interleave(gate: Tensor, up: Tensor) -> Tensor:
    """Return the rows of two weights, or values of two biases or scales, in turns, 8 by 8.

    The result is what ``gemmsmith.gemm(x, result.t(), gate="silu")`` wants.

    Args:
        gate: (N, K) or (N,), N a multiple of 8.
        up: the same of what the activated gate is multiplied by.

    Raises:
        ArgumentError: where the two are not alike or N is no multiple of 8.
    """
    _check_alike(gate, up)
    if gate.dim() == 0 or gate.shape[0] % GATE_BLOCK:
        raise ArgumentError(
            f"gate is {tuple(gate.shape)}; its first size must be a multiple of {GATE_BLOCK}:"
            " pad both with zeros"
        )
    halves = [part.reshape(-1, GATE_BLOCK, *part.shape[1:]) for part in (gate, up)]
    return torch.stack(halves, dim=1).flatten(0, 2)


def _check_alike(gate: Tensor, up: Tensor) -> None:
    found = [(tuple(part.shape), part.dtype, part.device) for part in (gate, up)]
    if found[0] != found[1]:
        words = [f"{shape} {dtype} on {device}" for shape, dtype, device in found]
        raise ArgumentError(f"gate is {words[0]}, up is {words[1]}; both must be alike")
