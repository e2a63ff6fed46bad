"""Numbers, switches and handles: which kinds and sizes of them the ops take."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import gemmsmith
from gemmsmith.errors import ArgumentError, ArgumentTypeError
from gemmsmith.scalars import Kind, check_scalars

ONES = torch.ones(1, 8, 2, 16)
ENDS = torch.tensor([0, 8], dtype=torch.int32)
LENGTHS = torch.tensor([8], dtype=torch.int32)
TURNED = torch.ones(8)

LEGAL: list[tuple[Kind, object]] = [
    ("switch", True),
    ("switch", 0),
    ("switch", np.bool_(True)),
    ("switch", torch.tensor(False)),
    ("count", 2**63 - 1),
    ("count", np.int32(3)),
    ("count", torch.tensor(3)),
    ("number", 3),
    ("number", -0.5),
    ("number", np.float32(3)),
    ("number", np.int64(3)),
    ("number", torch.tensor(3.0).bfloat16()),
    ("handle", ""),
]
WRONG: list[tuple[Kind, object, str]] = [
    ("switch", -1, "x is -1; True or False is needed"),
    ("switch", 2**70, "True or False is needed"),
    ("switch", 1.0, "x is 1.0; True or False is needed"),
    ("switch", torch.tensor(2.0), "x is tensor(2.); True or False is needed"),
    ("count", True, "x is True; a whole number is needed"),
    ("count", np.float32(2.0), "a whole number is needed"),
    ("count", torch.tensor(2.0), "x is tensor(2.); a whole number is needed"),
    ("count", torch.tensor([2, 3]), "x is tensor([2, 3]); a whole number is needed"),
    ("count", torch.tensor(2, device="meta"), "a whole number is needed"),
    ("number", True, "x is True; a number is needed"),
    ("number", np.bool_(True), "a number is needed"),
    ("number", 1j, "x is 1j; a number is needed"),
    ("handle", None, "x is None; the handle of a set or of a kernel is needed"),
    ("handle", [1], "x is [1]; the handle of a set or of a kernel is needed"),
]


@pytest.mark.parametrize(("kind", "value"), LEGAL, ids=str)
def test_scalars_of_a_kind_pass(kind: Kind, value: object) -> None:
    check_scalars(kind, x=value)
    check_scalars(kind, optional=True, x=value, y=None)


@pytest.mark.parametrize(("kind", "value", "message"), WRONG, ids=str)
def test_those_of_another_kind_are_refused(kind: Kind, value: object, message: str) -> None:
    with pytest.raises(ArgumentTypeError, match=re.escape(message)):
        check_scalars(kind, x=value)


def test_whole_numbers_that_no_op_holds_are_refused() -> None:
    with pytest.raises(ArgumentError, match=f"x is {2**70}; a number of 64 bits is needed"):
        check_scalars("count", x=2**70)
    with pytest.raises(ArgumentError, match=r"x is 1000.*0: a finite number within float32's"):
        check_scalars("number", x=10**400)


def attend(**how: Any) -> object:
    return gemmsmith.attention(ONES, ONES, ONES, causal=True, **how)


def attend_packed(**how: Any) -> object:
    packed = (ONES[0],) * 3
    return gemmsmith.attention_varlen(*packed, ENDS, ENDS, 8, 8, causal=True, **how)


def append(**how: Any) -> object:
    new, cache, other = ONES[:, :1], ONES.clone(), ONES.clone()
    given = (new, new.clone(), new.clone(), cache, other, LENGTHS, TURNED)
    return gemmsmith.attention_with_kvcache(*given, **how)


def turn(**how: Any) -> object:
    rope: Any = gemmsmith.rope
    return rope(ONES.clone(), ONES.clone(), torch.arange(8), TURNED, **how)


def turn_to_cache(**how: Any) -> object:
    rope_to_cache: Any = gemmsmith.rope_to_cache
    return rope_to_cache(*(ONES.clone() for _ in range(5)), torch.arange(8), TURNED, **how)


ATTENTION = (attend, attend_packed, append)
ROPE = (append, turn, turn_to_cache)


@pytest.mark.parametrize("call", ATTENTION)
@pytest.mark.parametrize("kernels", [None, True, 0, [1]], ids=str)
def test_kernels_are_named_by_a_handle(call: Callable[..., object], kernels: object) -> None:
    with pytest.raises(ArgumentTypeError, match=r"^kernels is .*; the handle of a set or of a"):
        call(kernels=kernels)


@pytest.mark.parametrize("call", ATTENTION)
def test_numbers_of_attention_are_finite_and_no_truth(call: Callable[..., object]) -> None:
    for name in ("window", "softcap", "scale"):
        with pytest.raises(ArgumentTypeError, match=f"^{name} is True; a .*number is needed"):
            call(**{name: True})
    with pytest.raises(ArgumentError, match=f"^window is {2**70}; a number of 64 bits"):
        call(window=2**70)
    for name in ("softcap", "scale"):
        for value in (1e39, float("inf"), np.float64(1e39)):
            with pytest.raises(ArgumentError, match=f"^{name} is .*float32's range"):
                call(**{name: value})
    with pytest.raises(ArgumentError, match=r"^scale is nan: a finite number"):
        call(scale=float("nan"))


@pytest.mark.parametrize("call", ROPE)
def test_an_attention_factor_is_a_finite_number(call: Callable[..., object]) -> None:
    for value in (float("nan"), float("inf"), -1e39, 10**400):
        with pytest.raises(ArgumentError, match=r"^attention_factor is .*a finite number within"):
            call(attention_factor=value)
    with pytest.raises(ArgumentTypeError, match=r"^attention_factor is True; a number is needed"):
        call(attention_factor=True)
    with pytest.raises(ArgumentTypeError, match=r"^interleaved is -1; True or False is needed"):
        call(interleaved=-1)
