"""Fields of a legal kernel of each kind, to be broken, and the objections to what was."""

from __future__ import annotations

from typing import Any

import pytest

from gemmsmith.arch import SM_70, SM_80, SM_90A
from gemmsmith.dtypes import FP16, INT8, INT32
from gemmsmith.errors import IllegalKernelError, Objection
from gemmsmith.spec import Alignment, KernelSpec, Tile

HOPPER: dict[str, Any] = {"arch": SM_90A, "tile": Tile(128, 256, 64), "schedule": "cooperative"}
PINGPONG: dict[str, Any] = {"arch": SM_90A, "tile": Tile(64, 192, 64), "schedule": "pingpong"}
AMPERE: dict[str, Any] = {
    "arch": SM_80,
    "tile": Tile(128, 128, 32),
    "warp": Tile(64, 64, 32),
    "stages": 4,
    "schedule": "multistage",
    "store": "smem",
}
LEAN: dict[str, Any] = {
    "arch": SM_90A,
    "tile": Tile(128, 128, 64),
    "schedule": "lean",
    "store": "smem",
}
VOLTA: dict[str, Any] = {**AMPERE, "arch": SM_70, "stages": 2, "a": FP16, "b": FP16, "d": FP16}
INTEGERS: dict[str, Any] = {
    **AMPERE,
    "a": INT8,
    "b": INT8,
    "acc": INT32,
    "d": INT32,
    "tile": Tile(128, 128, 64),
    "warp": Tile(64, 64, 64),
    "alignment": Alignment(16, 16, 4),
}


def objections(base: dict[str, Any], **fields: Any) -> tuple[Objection, ...]:
    with pytest.raises(IllegalKernelError) as caught:
        KernelSpec(**{**base, **fields})
    return caught.value.objections
