"""The plan by which torch's ``parallelize_module`` divides our blocks.

torch's own styles take plain linear layers. Ours are fused: q, k and v are divided each by itself,
gate and up in pairs, then prepared anew, so that they are interleaved and padded as a whole weight
is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import torch
from torch.distributed.tensor.parallel import ParallelStyle

from gemmsmith.nn.attention import Attention
from gemmsmith.nn.decoder import Decoder
from gemmsmith.nn.divided import gathered, summed
from gemmsmith.nn.division import gate_up_part, kv_share, qkv_part
from gemmsmith.nn.feed_forward import FeedForward
from gemmsmith.nn.int8 import Int8Linear
from gemmsmith.nn.prepared import PreparedLinear
from gemmsmith.weight_parts import Part, share

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

__all__ = ["DividedAttention", "DividedFeedForward", "GatheredHead", "plan_of"]


class DividedAttention(ParallelStyle):
    """Whole heads to each rank, output summed; every rank has the same weights before."""

    def _apply(self, module: torch.nn.Module, device_mesh: DeviceMesh) -> torch.nn.Module:
        block = cast(Attention, module)
        rank, ranks = device_mesh.get_local_rank(), device_mesh.size()
        part = qkv_part(block.heads, block.kv_heads, block.head_dim, rank, ranks)
        columns = share(block.heads * block.head_dim, rank, ranks)
        options = block.options
        options["heads"] //= ranks
        options["kv_heads"] = kv_share(block.kv_heads, rank, ranks)[1]
        o = summed(block.o, columns, device_mesh)
        block.hold(_columns(block.qkv, part, ranks), o, **options)
        return block


class DividedFeedForward(ParallelStyle):
    """Some inner features to each rank, output summed; every rank has the same weights before."""

    def _apply(self, module: torch.nn.Module, device_mesh: DeviceMesh) -> torch.nn.Module:
        block = cast(FeedForward, module)
        rank, ranks = device_mesh.get_local_rank(), device_mesh.size()
        inner = block.down.in_features
        gate_up = _columns(block.gate_up, gate_up_part(inner, rank, ranks), ranks)
        block.hold(gate_up, summed(block.down, share(inner, rank, ranks), device_mesh))
        return block


class GatheredHead(ParallelStyle):
    """Of a decoder: some logits to each rank, gathered; the embedding stays whole."""

    def _apply(self, module: torch.nn.Module, device_mesh: DeviceMesh) -> torch.nn.Module:
        decoder = cast(Decoder, module)
        head = decoder.head
        rows = share(head.out_features, device_mesh.get_local_rank(), device_mesh.size())
        decoder.head = gathered(head, rows, device_mesh)
        return decoder


def _columns(layer: PreparedLinear, part: Part, ranks: int) -> PreparedLinear:
    """Return the layer of some of the output features."""
    return layer.part(part, Int8Linear if isinstance(layer, Int8Linear) else PreparedLinear, ranks)


def plan_of(
    module: torch.nn.Module, ranks: int
) -> tuple[ParallelStyle | None, dict[str, ParallelStyle]]:
    """Return what is to be done with a module itself, and by name with those in it."""
    plan: dict[str, ParallelStyle] = {}
    for name, block in module.named_modules():
        if isinstance(block, Attention):
            plan[name] = DividedAttention()
        elif isinstance(block, FeedForward):
            plan[name] = DividedFeedForward()
        elif isinstance(block, Decoder) and block.head.out_features % ranks == 0:
            plan[name] = GatheredHead()
    return plan.pop("", None), plan
