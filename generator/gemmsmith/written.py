"""Checks of tensors that an op writes: each element once, and none that it reads meanwhile."""

from __future__ import annotations

from math import gcd

from torch import Tensor

from gemmsmith.errors import ArgumentError


def check_written(name: str, tensor: Tensor) -> None:
    """Raise ArgumentError where ``tensor`` is an expanded view, whose elements coincide."""
    if is_expanded(tensor):
        raise ArgumentError(
            f"{name} is an expanded view, {tuple(tensor.shape)} by strides"
            f" {tuple(tensor.stride())}: its elements would be written more than once"
        )


def is_expanded(tensor: Tensor) -> bool:
    """Return whether elements of ``tensor`` coincide by a stride of 0."""
    strides = tensor.stride()
    return 0 in strides and any(
        stride == 0 and size > 1 for size, stride in zip(tensor.shape, strides, strict=True)
    )


def begin_alike(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors with elements begin at one address."""
    return bool(one.numel() and other.numel() and one.data_ptr() == other.data_ptr())


def check_caches_apart(k_cache: Tensor, v_cache: Tensor, q: Tensor, k: Tensor, v: Tensor) -> None:
    """Raise ArgumentError where a cache, which is written, shares an element with another of these.

    Tensors of different storages are not looked at.
    """
    tensors = (k_cache, v_cache, q, k, v)
    keys, values, *read = [each.untyped_storage().data_ptr() for each in tensors]
    if keys != values and keys not in read and values not in read:
        return  # all but always
    named = list(zip(("k_cache", "v_cache", "q", "k", "v"), tensors, strict=True))
    for first, (name, cache) in enumerate(named[:2], 1):
        for other_name, other in named[first:]:
            if share_elements(cache, other):
                raise ArgumentError(
                    f"{name} and {other_name} share memory: one of them would be written over the"
                    " other"
                )


def share_elements(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors share an element, as strides and addresses tell.

    Parts of a fused row that interleave without touching share none. Tensors that torch does not
    know to be views of one memory, or of elements of two sizes, share where they begin alike.
    """
    if begin_alike(one, other):
        return True
    if not one.numel() or not other.numel() or one.element_size() != other.element_size():
        return False
    if one.untyped_storage().data_ptr() != other.untyped_storage().data_ptr():
        return False
    reach: dict[int, list[int]] = {}  # by stride: how far its index in one may be ahead of other's
    for sign, tensor in ((1, one), (-1, other)):
        for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
            if stride and size > 1:
                reach.setdefault(stride, [0, 0])[sign > 0] += sign * (size - 1)
    terms = [(stride, least, most) for stride, (least, most) in sorted(reach.items(), reverse=True)]
    return _is_sum(int(other.storage_offset() - one.storage_offset()), terms)


def _is_sum(distance: int, terms: list[tuple[int, int, int]]) -> bool:
    """Return whether ``distance`` is the sum of strides, each taken from least to most times."""
    if not terms:
        return distance == 0
    (stride, least, most), *rest = terms
    if distance % gcd(*(term[0] for term in terms)):
        return False
    low = sum(step * few for step, few, _ in rest)
    high = sum(step * many for step, _, many in rest)
    first = max(least, -((high - distance) // stride))
    last = min(most, (distance - low) // stride)
    return any(_is_sum(distance - times * stride, rest) for times in range(first, last + 1))
