"""The gated feed-forward block of Llama, Mistral and Qwen2."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gemmsmith.blocks.activations import function_of
from gemmsmith.blocks.block import Block
from gemmsmith.blocks.joining import gated
from gemmsmith.nn import FeedForward
from gemmsmith.rowspec import GATE_KINDS

__all__ = ["GatedMlp"]


class GatedMlp(Block):
    """Gate and up in one product that applies the gate, and down."""

    parts = ("gate_proj", "up_proj", "down_proj")
    joined = (("gate_proj", "up_proj"),)
    does = "gate and up in one product"
    stored = {  # noqa: RUF012
        "block.gate_up.gate.": "gate_proj.",
        "block.gate_up.up.": "up_proj.",
        "block.down.": "down_proj.",
    }

    block: FeedForward

    @classmethod
    def obstacle(cls, module: Any, above: Any) -> str:
        """Return why the block cannot be swapped, beside its linear layers; or nothing."""
        if not hasattr(module, "act_fn"):
            return "has no act_fn"
        if function_of(module.act_fn) not in GATE_KINDS:
            return (
                f"its gate is {type(module.act_fn).__qualname__}; {', '.join(GATE_KINDS)} are known"
            )
        return ""

    @classmethod
    def contents(cls, module: Any, above: Any) -> tuple[dict[str, torch.nn.Module], dict[str, Any]]:
        """Return what the block holds, of the three linear layers."""
        kind: Any = function_of(module.act_fn)
        block = gated(module.gate_proj, module.up_proj, module.down_proj, kind)
        return {"block": block.train(module.training)}, {}

    def forward(self, x: Tensor) -> Tensor:
        """Return (..., hidden) from (..., hidden)."""
        y: Tensor = self.block(x)
        return y
