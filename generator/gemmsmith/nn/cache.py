"""Keys and values that a decoder has seen, in memory that stays where it is."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from gemmsmith.errors import ArgumentError

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
        ArgumentError: where a size is below 1.
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
        for name, size in sizes.items():
            if size < 1:
                raise ArgumentError(f"{name} is {size}; a number from 1 up is needed")
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
        """Return the memory of one layer."""
        return self.layers[index]

    def claim(self, tokens: int) -> None:
        """Make sure that ``tokens`` more fit behind the longest sequence.

        Raises:
            ArgumentError: where they do not.
        """
        if self.longest + tokens > self.capacity:
            raise ArgumentError(
                f"the cache holds {self.capacity} tokens of a sequence; {self.longest} are there"
                f" and {tokens} more do not fit: make it with a larger capacity"
            )

    def advance(self, tokens: int | Tensor, most: int | None = None) -> None:
        """Count tokens that have been written: as many for each sequence, or (B,) of them.

        Args:
            tokens: a number, or int32 or int64 (B,) on the device.
            most: the largest of a tensor, which is not read back; the host counts with it.

        Raises:
            ArgumentError: where a tensor comes without ``most``, or they do not fit.
        """
        if isinstance(tokens, Tensor) and most is None:
            raise ArgumentError("tokens on the device come with most, the largest of them")
        count = tokens if isinstance(tokens, int) else int(most or 0)
        self.claim(count)
        self.lengths += tokens
        self.longest += count

    def append(self, index: int, k: Tensor, v: Tensor) -> None:
        """Write keys and values (B, S, Hkv, D), as they are, behind those of a layer.

        Lengths stay: :meth:`advance` counts the tokens once all layers have theirs.

        Raises:
            ArgumentError: where they do not fit.
        """
        self.claim(k.shape[1])
        slots = self.lengths.long()[:, None] + torch.arange(k.shape[1], device=k.device)
        rows = torch.arange(self.batch, device=k.device)[:, None]
        memory = self.layer(index)
        memory.k[rows, slots] = k
        memory.v[rows, slots] = v

    def reset(self) -> None:
        """Forget all tokens; memory stays."""
        self.lengths.zero_()
        self.longest = 0

    def reorder(self, rows: Tensor) -> None:
        """Let sequence i go on from what sequence ``rows[i]`` was, as beam search does.

        Args:
            rows: int32 or int64 (B,).

        Raises:
            ArgumentError: where there are not B of them.
        """
        if tuple(rows.shape) != (self.batch,):
            raise ArgumentError(f"rows is {tuple(rows.shape)}; ({self.batch},) is needed")
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
