"""Keys and values that a decoder has seen, in memory that stays where it is."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from gemmsmith.attn.arguments import DTYPES
from gemmsmith.errors import ArgumentError, ArgumentTypeError
from gemmsmith.nn.checks import check_counts, check_integers, check_within

__all__ = ["KVCache", "KeysValues"]


class KeysValues(NamedTuple):
    """The memory of one layer; what lies beyond a sequence's length is never read as numbers."""

    k: Tensor
    """(B, capacity, Hkv, D), rotated."""
    v: Tensor
    """(B, capacity, Hkv, D)."""


class KVCache:
    """Keys and values of a batch of sequences, with room for ``capacity`` tokens of each.

    Memory is allocated once and written in place, each layer's apart (under ``torch.compile`` with
    dynamic shapes inductor drops the offset of a view that an op writes:
    https://github.com/pytorch/pytorch/issues/198068), and how long each sequence is stands on the
    device, so that a CUDA graph of a step is good for every step. What is asked of the cache is
    checked on the host, by the longest sequence: :meth:`claim` before tokens are written,
    :meth:`advance` once they are.

    Args:
        layers: layers of the model.
        batch: sequences, B.
        capacity: tokens of a sequence that there is room for.
        kv_heads: heads of keys and values, Hkv.
        head_dim: elements of a head, D.
        dtype: of keys and values.
        device: where they are.

    Raises:
        ArgumentError: where a size is below 1, or attention does not read the dtype.
    """

    layers: tuple[KeysValues, ...]
    """Memory of each layer."""
    lengths: Tensor
    """(B,) int32, on the device: tokens of each sequence."""
    longest: int
    """Tokens that the longest sequence may have, known to the host."""

    def __init__(
        self,
        layers: int,
        batch: int,
        capacity: int,
        kv_heads: int,
        head_dim: int,
        *,
        dtype: torch.dtype = torch.bfloat16,
        device: torch.device | str | None = None,
    ) -> None:
        sizes = {"layers": layers, "batch": batch, "capacity": capacity}
        sizes |= {"kv_heads": kv_heads, "head_dim": head_dim}
        check_counts(**sizes)
        for name, size in sizes.items():
            if size < 1:
                raise ArgumentError(f"{name} is {size}; a number from 1 up is needed")
        if dtype not in DTYPES:
            words = ", ".join(str(each).removeprefix("torch.") for each in DTYPES)
            raise ArgumentTypeError(f"dtype is {dtype}; {words} are legal")
        shape = (batch, capacity, kv_heads, head_dim)
        kind: dict[str, Any] = {"dtype": dtype, "device": device}
        self.layers = tuple(
            KeysValues(torch.empty(shape, **kind), torch.empty(shape, **kind))
            for _ in range(layers)
        )
        self.lengths = torch.zeros(batch, dtype=torch.int32, device=device)
        self.longest = 0

    @property
    def batch(self) -> int:
        """Sequences."""
        return self.layers[0].k.shape[0]

    @property
    def capacity(self) -> int:
        """Tokens of a sequence that there is room for."""
        return self.layers[0].k.shape[1]

    def layer(self, index: int) -> KeysValues:
        """Return the memory of one layer.

        Raises:
            ArgumentError: where there is no such layer.
        """
        check_counts(layer=index)
        if not 0 <= index < len(self.layers):
            raise ArgumentError(f"layer is {index}; 0 to {len(self.layers) - 1} are there")
        return self.layers[index]

    def claim(self, tokens: int) -> None:
        """Make sure that ``tokens`` more fit behind the longest sequence.

        Raises:
            ArgumentError: where they do not.
        """
        check_counts(tokens=tokens)
        if tokens < 0:
            raise ArgumentError(f"tokens is {tokens}; a number from 0 up is needed")
        if self.longest + tokens > self.capacity:
            raise ArgumentError(
                f"the cache holds {self.capacity} tokens of a sequence; {self.longest} are there"
                f" and {tokens} more do not fit: make it with a larger capacity"
            )

    def advance(self, tokens: int | Tensor, most: int | None = None) -> None:
        """Count tokens that have been written: as many for each sequence, or (B,) of them.

        Args:
            tokens: a number from 0 up, or int32 or int64 (B,) of them, on the device.
            most: the largest of a tensor, which is not read back; the host counts with it.

        Raises:
            ArgumentError: where a tensor comes without ``most``, or they do not fit. What a tensor
                on a GPU holds is not read back.
        """
        if not isinstance(tokens, Tensor):
            self.claim(tokens)
            count = tokens
        elif most is None:
            raise ArgumentError("tokens on the device come with most, the largest of them")
        else:
            check_counts(most=most)
            if most < 0:
                raise ArgumentError(f"most is {most}; a number from 0 up is needed")
            self.claim(most)
            check_integers("tokens", tokens, (self.batch,), self.lengths.device)
            check_within("tokens", tokens, 0, most)
            count = most
        self.lengths += tokens
        self.longest += count

    def append(self, index: int, k: Tensor, v: Tensor) -> None:
        """Write keys and values (B, S, Hkv, D), as they are, behind those of a layer.

        Lengths stay: :meth:`advance` counts the tokens once all layers have theirs.

        Raises:
            ArgumentError: where they do not fit.
        """
        memory = self.layer(index)
        self._check_like(memory, k, v)
        self.claim(k.shape[1])
        slots = self.lengths.long()[:, None] + torch.arange(k.shape[1], device=k.device)
        rows = torch.arange(self.batch, device=k.device)[:, None]
        memory.k[rows, slots] = k
        memory.v[rows, slots] = v

    def _check_like(self, memory: KeysValues, k: Tensor, v: Tensor) -> None:
        for name, tensor, kept in (("k", k, memory.k), ("v", v, memory.v)):
            if not isinstance(tensor, Tensor):
                raise ArgumentTypeError(f"{name} is a {type(tensor).__name__}, not a torch.Tensor")
            if tensor.dtype != kept.dtype or tensor.device != kept.device:
                raise ArgumentTypeError(
                    f"{name} is {tensor.dtype} on {tensor.device}, the cache {kept.dtype} on"
                    f" {kept.device}"
                )
            sizes = (kept.shape[0], *kept.shape[2:])
            if tensor.dim() != 4 or (tensor.shape[0], *tensor.shape[2:]) != sizes:
                batch, heads, size = sizes
                raise ArgumentError(
                    f"{name} is {tuple(tensor.shape)}; ({batch}, tokens, {heads}, {size}) is needed"
                )
        if k.shape != v.shape:
            raise ArgumentError(f"k is {tuple(k.shape)}, v is {tuple(v.shape)}: they must agree")

    def reset(self) -> None:
        """Forget all tokens; memory stays."""
        self.lengths.zero_()
        self.longest = 0

    def reorder(self, rows: Tensor) -> None:
        """Let sequence i go on from what sequence ``rows[i]`` was, as beam search does.

        Args:
            rows: int32 or int64 (B,), on the device.

        Raises:
            ArgumentError: where there are not B of them, or one is no sequence: what a tensor on a
                GPU holds is not read back.
        """
        check_integers("rows", rows, (self.batch,), self.lengths.device)
        check_within("rows", rows, 0, self.batch - 1)
        for layer in self.layers:
            for memory in layer:  # one copy at a time
                memory.copy_(memory.index_select(0, rows))
        self.lengths.copy_(self.lengths.index_select(0, rows))

    def __repr__(self) -> str:
        k, count = self.layers[0].k, len(self.layers)
        batch, capacity, heads, size = k.shape
        mega = 2 * count * k.numel() * k.element_size() / 1e6
        return (
            f"KVCache({count} layers, {batch} sequences of up to {capacity} tokens, {heads} heads"
            f" of {size}, {k.dtype} on {k.device}, {mega:.1f} MB)"
        )
