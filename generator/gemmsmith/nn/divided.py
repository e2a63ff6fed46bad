"""Layers of which each process holds a part: their outputs are summed or gathered."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from torch import Tensor, distributed

from gemmsmith.errors import ArgumentError
from gemmsmith.nn.int8 import Int8Linear
from gemmsmith.nn.prepared import PreparedLinear
from gemmsmith.weight_parts import Part, Span

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

__all__ = [
    "GatheredLinear",
    "Int8GatheredLinear",
    "Int8SummedLinear",
    "SummedLinear",
    "gathered",
    "summed",
]

_Divided = TypeVar("_Divided", "SummedLinear", "GatheredLinear")


class SummedLinear(PreparedLinear):
    """Some of the input features (row parallel); every rank gets the sum of all ranks' products.

    The bias is rank 0's alone, and only there a residual is added, so that both count once.
    """

    mesh: DeviceMesh
    """Who holds the other parts; one dimension."""

    def widened(self, residual: Tensor | None) -> Tensor | None:
        """Return a residual (..., N) as the product adds it: on rank 0 alone."""
        return super().widened(residual) if self.mesh.get_local_rank() == 0 else None

    def unpadded(self, y: Tensor) -> Tensor:
        """Return the sum (..., N) of the products of all ranks."""
        total = super().unpadded(y).contiguous()
        distributed.all_reduce(total, group=self.mesh.get_group())
        return total

    def activated(self, input: Tensor, activation: str) -> Tensor:  # noqa: A002  torch's name
        """Refuse: an activation is of the sum, which no rank's kernel has."""
        raise ArgumentError(
            f"{activation} of a layer that is divided along K has no kernel: apply it to its output"
        )


class GatheredLinear(PreparedLinear):
    """Some of the output features (column parallel); every rank gets those of all ranks."""

    mesh: DeviceMesh
    """Who holds the other parts; one dimension."""

    def unpadded(self, y: Tensor) -> Tensor:
        """Return the outputs (..., N) of all ranks from the product of this one."""
        own = super().unpadded(y).contiguous()
        parts = own.new_empty((self.mesh.size(), *own.shape))
        _gather(parts.flatten(0, 1), own, group=self.mesh.get_group())
        return parts.movedim(0, -2).flatten(-2)


class Int8SummedLinear(SummedLinear, Int8Linear):
    """:class:`SummedLinear` of int8 weights; a rank scales the features that it has by their own
    largest magnitude."""


class Int8GatheredLinear(GatheredLinear, Int8Linear):
    """:class:`GatheredLinear` of int8 weights."""


# its name since torch 2.13, where the older one warns
_gather = getattr(distributed, "all_gather_single", None) or distributed.all_gather_into_tensor


def summed(layer: PreparedLinear, columns: Span, mesh: DeviceMesh) -> SummedLinear:
    """Return the layer of a rank that has some of the input features."""
    kind = Int8SummedLinear if isinstance(layer, Int8Linear) else SummedLinear
    bias = mesh.get_local_rank() == 0
    return _on(mesh, layer.part(Part(columns=columns), kind, mesh.size(), bias=bias))


def gathered(layer: PreparedLinear, rows: Span, mesh: DeviceMesh) -> GatheredLinear:
    """Return the layer of a rank that has some of the output features."""
    kind = Int8GatheredLinear if isinstance(layer, Int8Linear) else GatheredLinear
    return _on(mesh, layer.part(Part(rows=(rows,)), kind, mesh.size()))


def _on(mesh: DeviceMesh, layer: _Divided) -> _Divided:
    layer.mesh = mesh
    return layer
