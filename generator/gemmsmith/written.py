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
    return (
        0 in strides
        and tensor.numel() != 0
        and any(
            stride == 0 and size > 1 for size, stride in zip(tensor.shape, strides, strict=True)
        )
    )


def steps(tensor: Tensor) -> tuple[int, ...]:
    """Return the strides of a tensor's dimensions, 0 for one that has no second element."""
    return tuple(
        stride if size > 1 else 0
        for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
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
    """Return whether two tensors share a byte, as strides and addresses tell.

    Parts of a fused row that interleave without touching share none. Tensors that torch does not
    know to be views of one memory share where they begin alike. Of views that would take long to
    tell apart it says, as torch does, that they share none.
    """
    if begin_alike(one, other):
        return True
    if not one.numel() or not other.numel():
        return False
    if one.untyped_storage().data_ptr() != other.untyped_storage().data_ptr():
        return False
    distance, size = other.data_ptr() - one.data_ptr(), one.element_size()
    alike = size == other.element_size() and distance % size == 0
    reach: dict[int, list[int]] = {}  # by stride: how far its index in one may be ahead of other's
    for sign, tensor in ((1, one), (-1, other)):
        unit = 1 if alike else tensor.element_size()
        strides = [unit * stride for stride in tensor.stride()]
        for count, stride in zip((*tensor.shape, unit), (*strides, 1), strict=True):
            if stride and count > 1:
                reach.setdefault(stride, [0, 0])[sign > 0] += sign * (count - 1)
    order = sorted(reach.items(), reverse=True)
    terms = tuple((stride, least, most) for stride, (least, most) in order)
    return _is_sum(distance // size if alike else distance, terms, set())


_MOST_LOOKS = 1000  # some milliseconds


def _is_sum(
    distance: int, terms: tuple[tuple[int, int, int], ...], looked: set[tuple[int, int]]
) -> bool:
    """Return whether ``distance`` is the sum of strides, each taken from least to most times.

    ``looked``: distances that are no sums of so many last terms. False after too many of them.
    """
    if not terms:
        return distance == 0
    if (distance, len(terms)) in looked:
        return False
    looked.add((distance, len(terms)))
    (stride, least, most), *rest = terms
    if distance % gcd(*(term[0] for term in terms)):
        return False
    low = sum(step * few for step, few, _ in rest)
    high = sum(step * many for step, _, many in rest)
    first = max(least, -((high - distance) // stride))
    last = min(most, (distance - low) // stride)
    for times in range(first, last + 1):
        if _is_sum(distance - times * stride, tuple(rest), looked):
            return True
        if len(looked) > _MOST_LOOKS:
            break
    return False
