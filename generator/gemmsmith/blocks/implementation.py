"""What all attention layers of transformers have to be like for a block to take their place."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Iterator
from typing import Any

import torch

from gemmsmith.blocks.calls import attention_names

__all__ = ["IMPLEMENTATIONS", "attention_obstacles", "replaced", "unknown_version", "watched"]

IMPLEMENTATIONS = ("sdpa", "eager")
"""Attention implementations whose masks are understood."""
OLDEST = 5
"""Major version of transformers from which on the blocks' calls are known."""


def unknown_version() -> str:
    """Return why the blocks of the transformers that is loaded are not known; empty if they are."""
    transformers = sys.modules.get("transformers")
    version = str(getattr(transformers, "__version__", "0"))
    major = version.partition(".")[0]
    if major.isdigit() and int(major) < OLDEST:
        return f"transformers {version} is older than {OLDEST}.0, whose blocks are known"
    return ""


def attention_obstacles(module: Any, known: Iterable[str], *needed: str) -> Iterator[str]:
    """Give why an attention layer is not one of those that are known.

    Args:
        module: the layer.
        known: parameters of its forward that the block takes.
        needed: attributes that the block reads.
    """
    if reason := attention_names(type(module).forward, known):
        yield reason
    missing = [name for name in ("config", "layer_idx", *needed) if not hasattr(module, name)]
    if missing:
        yield f"has no {', '.join(missing)}"
        return
    found = getattr(module.config, "_attn_implementation", None)
    if found not in IMPLEMENTATIONS:
        yield (
            f'its attention implementation is {found!r}; model.set_attn_implementation("sdpa")'
            " first"
        )
    if getattr(module.config, "output_attentions", False):
        yield "config.output_attentions asks for weights, which a fused attention does not keep"


def replaced(module: torch.nn.Module) -> str:
    """Return that an object's forward is not its class's; empty where it is."""
    if "forward" in vars(module):
        return "its forward is replaced on the object, as accelerate's hooks do; remove that first"
    return ""


def watched(module: torch.nn.Module, called: Collection[str]) -> str:
    """Return which modules within a block do more than their class says; empty where none does.

    Args:
        module: the block.
        called: modules of it that ours calls as they are.
    """
    hooked = []
    for name, each in module.named_modules():
        if not name or name in called:
            continue
        if reason := replaced(each):
            return f"{name}: {reason}"
        if each._forward_hooks or each._forward_pre_hooks:
            hooked.append(name)
    if not hooked:
        return ""
    has = "has hooks" if len(hooked) == 1 else "have hooks"
    return f"{', '.join(hooked)} {has}, which a fused block would not call; remove them first"
