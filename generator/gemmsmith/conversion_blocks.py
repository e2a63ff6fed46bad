"""The blocks of a model: which of transformers' are known, and how they are swapped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from gemmsmith import nn
from gemmsmith.blocks.activations import ActivatedBlock, function_of
from gemmsmith.blocks.block import Block
from gemmsmith.blocks.gated_mlp import GatedMlp
from gemmsmith.blocks.implementation import replaced, unknown_version, watched
from gemmsmith.blocks.known import known_block
from gemmsmith.conversion_fit import misfit_of_layer
from gemmsmith.conversion_layers import linear_of
from gemmsmith.conversion_report import BlockLeft, Layer, Left, SwappedBlock
from gemmsmith.errors import ArgumentError
from gemmsmith.operands import TORCH_DTYPES
from gemmsmith.row_math import padded

if TYPE_CHECKING:
    from gemmsmith.kernelset import KernelSet

__all__ = ["Plan", "groups_of", "plan_blocks", "swap_blocks"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Plan:
    """A block of a model that is of a known kind."""

    name: str
    """Path of the module inside the model."""
    module: torch.nn.Module
    kind: str
    """Its class in transformers."""
    ours: type[Block]
    above: torch.nn.Module | None
    """The nearest module that it is part of and that has the position embedding."""
    dtype: torch.dtype
    """What its layers read and write."""
    reason: str
    """Why it is not swapped; empty where its layers decide."""

    def path(self, part: str) -> str:
        """Return the path of one of the block's layers inside the model."""
        return f"{self.name}.{part}" if self.name else part


def plan_blocks(model: torch.nn.Module) -> list[Plan]:
    """Return the blocks of ``model`` that are of a known kind, in its order."""
    modules = dict(model.named_modules())
    plans = []
    for name, module in modules.items():
        ours = known_block(module)
        if ours is None:
            continue
        above = _above(name, modules)
        reason = unknown_version() or replaced(module) or _parts_missing(module, ours)
        reason = reason or watched(module, ours.called)
        plans.append(
            Plan(
                name=name,
                module=module,
                kind=type(module).__qualname__,
                ours=ours,
                above=above,
                dtype=_dtype(module),
                reason=reason or ours.obstacle(module, above),
            )
        )
    return plans


def _above(name: str, modules: Mapping[str, torch.nn.Module]) -> torch.nn.Module | None:
    while name:
        name = name.rpartition(".")[0]
        if hasattr(modules[name], "rotary_emb"):
            return modules[name]
    return None


def _dtype(module: torch.nn.Module) -> torch.dtype:
    """Return what a block reads and writes; bf16 where layers that are int8 already do not say."""
    dtype = next(iter(module.parameters())).dtype
    return torch.bfloat16 if dtype == torch.int8 else dtype


def _parts_missing(module: torch.nn.Module, ours: type[Block]) -> str:
    missing = [name for name in ours.parts if linear_of(getattr(module, name, None)) is None]
    return f"{', '.join(missing)} of it are no linear layers" if missing else ""


def groups_of(plans: Sequence[Plan]) -> dict[str, str]:
    """Return the layers that become one product with others: layer to a name of the product."""
    return {
        plan.path(part): plan.path("+".join(parts))
        for plan in plans
        if not plan.reason
        for parts in plan.ours.joined
        for part in parts
    }


def swap_blocks(
    plans: Sequence[Plan],
    layers: Mapping[str, Layer],
    kernels: KernelSet | None,
    constant_weights: bool,
) -> tuple[list[SwappedBlock], list[BlockLeft]]:
    """Swap the blocks whose layers all run on gemmsmith, one after the other.

    A block that is not swapped stays as it is, with the layers that it has.

    Args:
        plans: the blocks.
        layers: the linear layers of the model by name, as they were swapped or left.
        kernels: as :func:`gemmsmith.convert` has them.
        constant_weights: likewise.
    """
    swapped, left = [], []
    for plan in plans:
        reason = plan.reason or _why_its_layers_do_not_fit(plan, layers, kernels)
        if not reason:
            try:
                plan.ours.take(plan.module, plan.above)
            except ArgumentError as error:
                reason = str(error)
        if reason:
            left.append(BlockLeft(name=plan.name, kind=plan.kind, reason=reason))
            continue
        for module in plan.module.modules():
            if isinstance(module, nn.Linear):
                if kernels is not None:
                    module.use(kernels)
                module.constant_weight = constant_weights
        swapped.append(SwappedBlock(name=plan.name, kind=plan.kind, does=plan.ours.does))
    return swapped, left


def _why_its_layers_do_not_fit(
    plan: Plan, layers: Mapping[str, Layer], kernels: KernelSet | None
) -> str:
    for part in plan.ours.parts:
        layer = layers.get(plan.path(part))
        if layer is None:
            return f"{part} has a second name in the model, which the block would part it from"
        if isinstance(layer, Left):
            return f"{part} stays: {layer.reason}"
    for parts in plan.ours.joined:
        tied = [part for part in parts if layers[plan.path(part)].tied_to]
        if tied:
            other = layers[plan.path(tied[0])].tied_to
            return f"{tied[0]} is tied to {other}, which a product of several would part it from"
    return _misfit(plan, kernels)


def _misfit(plan: Plan, kernels: KernelSet | None) -> str:
    """Return why the products that the block's layers become have no kernel."""
    products = [(parts, "none", "none") for parts in plan.ours.joined]
    if kernels is not None and issubclass(plan.ours, GatedMlp):  # default kernels: in two steps
        products = [(products[0][0], function_of(plan.module.act_fn), "none")]
    elif kernels is not None and issubclass(plan.ours, ActivatedBlock):
        products = [((plan.ours.activated,), "none", plan.ours.function_in(plan.module))]
    for parts, gate, activation in products:
        found = [getattr(plan.module, part) for part in parts]
        reason = misfit_of_layer(
            kernels,
            found[0].weight.device,
            padded(sum(each.out_features for each in found)),
            padded(found[0].in_features),
            TORCH_DTYPES[plan.dtype],
            found[0].bias is not None,
            found[0].weight.dtype == torch.int8,
            gate=gate,
            activation=activation,
        )
        if reason:
            return f"{' and '.join(parts)} as one product: {reason}"
    return ""
