"""What blocks that take the place of transformers' have in common.

A block keeps its object, with hooks and attributes, and gets a class of ours, as linear layers do;
what it holds changes, the keys of its ``state_dict`` do not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch

from gemmsmith.errors import ArgumentError

__all__ = ["Block"]


class Block(torch.nn.Module):
    """A part of a transformer that runs on gemmsmith, for inference."""

    parts: ClassVar[tuple[str, ...]] = ()
    """Linear layers of the block that ours is made of."""
    joined: ClassVar[tuple[tuple[str, ...], ...]] = ()
    """Those of them that read one input and become one product."""
    called: ClassVar[tuple[str, ...]] = ()
    """Modules of the block that ours calls as they are, with their hooks."""
    does: ClassVar[str] = ""
    """What runs, in some words."""
    stored: ClassVar[Mapping[str, str]] = {}
    """Beginnings of the names that modules of ours give their parameters, and what a ``state_dict``
    has in their place."""

    @classmethod
    def obstacle(cls, module: torch.nn.Module, above: torch.nn.Module | None) -> str:
        """Return why a block of transformers cannot be swapped, beside its layers; or nothing.

        Args:
            module: the block.
            above: what it is part of that knows its position embedding; None where nothing does.
        """
        raise NotImplementedError

    @classmethod
    def contents(
        cls, module: torch.nn.Module, above: torch.nn.Module | None
    ) -> tuple[dict[str, torch.nn.Module], dict[str, Any]]:
        """Return the modules and attributes of ours that take the place of the block's parts.

        The linear layers in ``parts`` are ours already. Nothing of the block is changed.

        Raises:
            ArgumentError: where they do not fit each other.
        """
        raise NotImplementedError

    @classmethod
    def take(cls, module: torch.nn.Module, above: torch.nn.Module | None) -> None:
        """Make a block of transformers one of ours: wholly, or where that fails not at all.

        Raises:
            ArgumentError: where its layers do not fit each other.
        """
        modules, attributes = cls.contents(module, above)
        kept = {name: each for name, each in module._modules.items() if name not in cls.parts}
        module.__class__ = cls
        vars(module).update(attributes)
        module._modules = {**modules, **kept}

    def state_dict(self, *args: Any, **named: Any) -> Any:
        """Return the parameters under the names that the block of transformers has."""
        stored = super().state_dict(*args, **named)
        prefix = named.get("prefix", "")
        own = [key.removeprefix(prefix) for key in stored if key.startswith(prefix)]
        names = {_renamed(name, self.stored): stored.pop(prefix + name) for name in own}
        for name in sorted(names, key=self._place):  # out and in again: after what others stored
            stored[prefix + name] = names[name]
        return stored

    def _place(self, name: str) -> int:
        part = name.partition(".")[0]
        return self.parts.index(part) if part in self.parts else len(self.parts)

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *rest: Any, **named: Any
    ) -> None:
        # a dictionary of this call alone, from which torch picks that of each module within
        back = {theirs: ours for ours, theirs in self.stored.items()}
        for key in [key for key in state_dict if key.startswith(prefix)]:
            tensor = state_dict.pop(key)
            state_dict[prefix + _renamed(key[len(prefix) :], back)] = tensor
        super()._load_from_state_dict(state_dict, prefix, *rest, **named)

    def refuse_dropout(self, probability: float) -> None:
        """Raise ArgumentError where a call in training mode would drop attention weights."""
        if self.training and probability:
            raise ArgumentError(
                f"attention dropout is {probability} and the model is in training mode:"
                " blocks are for inference; call model.eval()"
            )


def _renamed(name: str, beginnings: Mapping[str, str]) -> str:
    for beginning, other in beginnings.items():
        if name.startswith(beginning):
            return other + name.removeprefix(beginning)
    return name
