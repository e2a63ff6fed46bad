"""Linear layers of ours, bf16 or int8, put together to one product."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from gemmsmith.errors import ArgumentError
from gemmsmith.nn import FeedForward, Int8FeedForward, Int8Linear, PreparedLinear
from gemmsmith.rowspec import GateKind

__all__ = ["gated", "joined"]


def joined(layers: Mapping[str, torch.nn.Linear]) -> PreparedLinear:
    """Return one layer that makes the outputs of several, side by side.

    Raises:
        ArgumentError: where they do not go together.
    """
    int8 = _int8(layers)
    return Int8Linear.joined(int8) if int8 else PreparedLinear.joined(layers)


def gated(
    gate: torch.nn.Linear, up: torch.nn.Linear, down: torch.nn.Linear, kind: GateKind
) -> FeedForward:
    """Return the block of three layers, all bf16 or all int8.

    Raises:
        ArgumentError: where they do not go together.
    """
    int8 = _int8({"gate": gate, "up": up, "down": down})
    if not int8:
        return FeedForward(gate, up, down, kind)
    gate_up = Int8Linear.interleaved(int8["gate"], int8["up"])
    return Int8FeedForward.of_layers(gate_up, int8["down"], kind)


def _int8(layers: Mapping[str, torch.nn.Linear]) -> dict[str, Int8Linear]:
    """Return the layers where they are int8, all of them; empty where none is."""
    found = {name: layer for name, layer in layers.items() if isinstance(layer, Int8Linear)}
    if len(found) not in (0, len(layers)):
        raise ArgumentError(f"of {', '.join(layers)} only {', '.join(found)} are int8")
    return found
