"""Which angles the tokens of a model are turned by (RoPE), with the scalings of its checkpoint."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gemmsmith.dense import check_dense
from gemmsmith.errors import ArgumentError
from gemmsmith.rope_math import rope_frequencies
from gemmsmith.rope_shapes import check_frequencies
from gemmsmith.scalars import check_finite, check_scalars

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Rotary", "scaled_frequencies"]


def scaled_frequencies(
    rotary_dim: int, base: float, scaling: Mapping[str, Any] | None = None
) -> Tensor:
    """Return inverse frequencies, f64 (rotary_dim / 2,), as a checkpoint's ``rope_scaling`` says.

    Args:
        rotary_dim: elements of a head that are rotated.
        base: ``rope_theta``.
        scaling: None, or a mapping with ``rope_type``: ``default``, ``linear`` (``factor``) or
            ``llama3`` (``factor``, ``low_freq_factor``, ``high_freq_factor``,
            ``original_max_position_embeddings``; formula of Llama 3.1's release).

    Raises:
        ArgumentError: naming a type that is not among these, or the key that is missing.
    """
    frequencies = rope_frequencies(rotary_dim, base)
    given = scaling or {}
    kind = given.get("rope_type", given.get("type", "default"))
    if kind == "default":
        return frequencies
    if kind == "linear":
        return frequencies / _number(given, "factor")
    if kind != "llama3":
        raise ArgumentError(f"rope scaling is {kind!r}; default, linear and llama3 are known")
    factor = _number(given, "factor")
    low, high = _number(given, "low_freq_factor"), _number(given, "high_freq_factor")
    original = _number(given, "original_max_position_embeddings")
    turns = original * frequencies / (2 * math.pi)  # that a pair makes over the first context
    kept = ((turns - low) / (high - low)).clamp(0, 1)
    return frequencies * (kept + (1 - kept) / factor)


def _number(scaling: Mapping[str, Any], key: str) -> float:
    if not isinstance(scaling.get(key), (int, float)):
        raise ArgumentError(f"rope scaling {dict(scaling)} has no number {key}")
    return float(scaling[key])


class Rotary(torch.nn.Module):
    """The inverse frequencies of a model, f64 whatever its dtype, and how pairs are made.

    ``.to(dtype)`` leaves them as they are: rounded, positions beyond some hundreds would be lost. A
    ``state_dict`` does not hold them, as they follow from a model's configuration.

    Args:
        inv_freq: radians a position, f32 or f64, one for each pair of elements that is rotated.
        interleaved: pairs are neighbours (2i, 2i + 1); without it, halves (i, i + rotary / 2).
        attention_factor: cosine and sine are multiplied by it.

    Raises:
        ArgumentError: naming the argument, the value found and what is legal.
    """

    inv_freq: Tensor
    """(rotary / 2,), f64."""

    def __init__(
        self, inv_freq: Tensor, *, interleaved: bool = False, attention_factor: float = 1.0
    ) -> None:
        super().__init__()
        check_dense(inv_freq=inv_freq)
        check_frequencies(inv_freq)
        check_scalars("switch", interleaved=interleaved)
        check_scalars("number", attention_factor=attention_factor)
        check_finite("attention_factor", attention_factor)
        self.register_buffer("inv_freq", inv_freq.detach().double(), persistent=False)
        self.interleaved = interleaved
        self.attention_factor = attention_factor

    @property
    def pairing(self) -> dict[str, Any]:
        """The keywords of :func:`gemmsmith.rope` beside the frequencies."""
        return {"interleaved": self.interleaved, "attention_factor": self.attention_factor}

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        before = self.inv_freq
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if self.inv_freq.dtype != before.dtype:
            self.inv_freq = before.to(self.inv_freq.device)
        return self

    def extra_repr(self) -> str:
        """Return what is rotated and how."""
        pairs = "neighbours" if self.interleaved else "halves"
        return f"{2 * self.inv_freq.shape[0]} elements of a head, {pairs}"
