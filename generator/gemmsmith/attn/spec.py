"""The description of one attention kernel: frozen, hashable, legal by construction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

from gemmsmith.arch import Architecture
from gemmsmith.attn.rules import objections
from gemmsmith.dtypes import DType
from gemmsmith.errors import IllegalKernelError

AttentionSchedule = Literal["pingpong", "cooperative", "split_kv", "multistage"]
ATTENTION_SCHEDULES: tuple[AttentionSchedule, ...] = get_args(AttentionSchedule)

HEAD_DIMS = (64, 80, 96, 128, 256)
"""Sizes of a head that kernels are made for; smaller ones run in the next larger kernel."""

_WORDS: dict[AttentionSchedule, str] = {
    "pingpong": "pp",
    "cooperative": "coop",
    "split_kv": "split",
    "multistage": "ms",
}


class AttentionTile(NamedTuple):
    """Queries and keys that one block has to do with at a time."""

    query: int
    key: int

    def __str__(self) -> str:
        return f"{self.query}x{self.key}"


class AttentionWarps(NamedTuple):
    """Warps of a block along queries and along keys."""

    query: int
    key: int

    def __str__(self) -> str:
        return f"{self.query}x{self.key}"


@dataclass(frozen=True, kw_only=True)
class AttentionSpec:
    """One attention kernel on one architecture.

    Raises:
        IllegalKernelError: with every rule of the architecture that it breaks.
    """

    arch: Architecture
    """Row of the architecture table."""
    dtype: DType
    """Element type of q, k, v and the result; softmax and sums are f32."""
    head_dim: int
    """Largest size of a head; smaller ones are padded with zeros inside."""
    tile: AttentionTile
    """Queries and keys of a block. Of ``split_kv`` kernels, queries of all heads count that share
    one of k."""
    schedule: AttentionSchedule
    """``pingpong``: one warpgroup's softmax runs while the others multiply, in turns;
    ``cooperative``: they run as they come; ``split_kv``: blocks share the keys of a head, for few
    queries; ``multistage``: warps of mma.sync, for many queries on Volta to Ada."""
    stages: int
    """Buffers for tiles of keys, and as many for values."""
    warps: AttentionWarps | None = None
    """How a ``split_kv`` block's warps divide its tile; others have warpgroups of 64 queries."""
    cluster: int = 1
    """Blocks of a ``split_kv`` kernel that put their results together in shared memory."""
    constant_cache: bool = False
    """Whether a ``split_kv`` kernel reads keys and values that are not new while the kernel ahead
    still runs: right where nothing that is queued writes them."""

    def __post_init__(self) -> None:
        broken = tuple(objections(self))
        if broken:
            raise IllegalKernelError(broken)

    @property
    def name(self) -> str:
        """The kernel's name in reports, files, C++ symbols, logs and tables."""
        warps = "" if self.warps is None else f"_w{self.warps}"
        cluster = "" if self.cluster == 1 else f"_c{self.cluster}"
        schedule = _WORDS[self.schedule] + "_constkv" * self.constant_cache
        return (
            f"attention_{self.dtype.name}_d{self.head_dim}_{self.tile}{warps}_s{self.stages}{cluster}"
            f"_{schedule}_{self.arch.suffix}"
        )

    @property
    def dependent_launch(self) -> bool:
        """Whether it starts before the kernel ahead has ended: always, where that exists."""
        return self.arch.dependent_launch
