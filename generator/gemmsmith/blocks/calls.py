"""What transformers hands to an attention layer beside its tensors, taken apart.

The names change with its versions; those that a block does not know are refused, not passed over.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor

from gemmsmith.errors import ArgumentError

__all__ = ["attention_names", "cache_of", "check_named", "updated"]

_CACHES = ("cache", "past_key_values", "past_key_value")
_PASSED_OVER = frozenset(
    {
        "position_ids",
        "position_embeddings",
        "cache_position",
        "use_cache",
        "return_dict",
        "output_hidden_states",
        "num_items_in_batch",
        "logits_to_keep",
        "kwargs",
        *_CACHES,
    }
)


def attention_names(forward: Any, known: Iterable[str]) -> str:
    """Return which parameters of a layer's ``forward`` are not known; empty where all are."""
    legal = _PASSED_OVER | {"self", "output_attentions", *known}
    unknown = [name for name in inspect.signature(forward).parameters if name not in legal]
    return f"its forward has {', '.join(unknown)}, which is not known" if unknown else ""


def check_named(named: Mapping[str, Any], *, cached: bool = True) -> None:
    """Raise ArgumentError where a call asks for what a block does not do.

    Args:
        named: the call's keywords that the block's ``forward`` does not name.
        cached: whether the block takes a cache.
    """
    for name, value in named.items():
        if value is None or value is False:
            continue
        if name in _PASSED_OVER and (cached or name not in _CACHES):
            continue
        if name == "output_attentions":
            raise ArgumentError(
                "output_attentions: the weights of a fused attention are not kept;"
                " convert(model, blocks=False) leaves attention as it is"
            )
        raise ArgumentError(
            f"{name} is given, which gemmsmith's blocks do not know;"
            " convert(model, blocks=False) leaves blocks as they are"
        )


def cache_of(named: Mapping[str, Any]) -> Any:
    """Return the cache of keys and values that a call brings, under whatever name; or None."""
    found = [named[name] for name in _CACHES if named.get(name) is not None]
    cache = found[0] if found else None
    return getattr(cache, "self_attention_cache", cache)  # an encoder-decoder pair's first


def updated(
    named: Mapping[str, Any], k: Tensor, v: Tensor, layer: int | None
) -> tuple[Tensor, Tensor]:
    """Return all keys and values of a call (B, keys, Hkv, D), those of its cache first.

    Args:
        named: the call's keywords.
        k: (B, S, Hkv, D), of the call's tokens.
        v: likewise.
        layer: the layer's number, by which a cache knows it.

    Raises:
        ArgumentError: where a cache gives something else.
    """
    cache = cache_of(named)
    if cache is None:
        return k, v
    at = named.get("cache_position")  # of older versions, whose static cache needs it
    more = () if at is None else ({"cache_position": at},)
    keys, values = cache.update(k.transpose(1, 2), v.transpose(1, 2), layer, *more)
    for tensor in (keys, values):
        if tensor.dim() != 4 or tensor.shape[:2] != (k.shape[0], k.shape[2]):
            raise ArgumentError(
                f"{type(cache).__name__} gives {tuple(tensor.shape)};"
                f" ({k.shape[0]}, {k.shape[2]}, keys, head_dim) is legal"
            )
    return keys.transpose(1, 2), values.transpose(1, 2)
