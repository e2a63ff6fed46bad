"""Which attention kernels can exist, and what they take of a multiprocessor."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from gemmsmith.attn import rules_multistage, rules_split_kv
from gemmsmith.dtypes import BF16, FP16
from gemmsmith.errors import Objection
from gemmsmith.footprint import nearest_multiple

if TYPE_CHECKING:
    from gemmsmith.attn.spec import AttentionSpec

WARPGROUP_ROWS = 64
"""Queries of one warpgroup: the rows of wgmma."""
_REGISTERS = {1: 240, 2: 240, 3: 160}
"""By warpgroups that multiply: registers of their threads, with a fourth that loads."""
_OTHER_REGISTERS = 32
"""What a thread needs beside sums, scores and probabilities."""
_BARRIER_BYTES = 1024
"""Barriers, and what aligning the buffers may cost."""


def padded_head(head_dim: int) -> int:
    """Return the columns of a head in shared memory: rows of 128 bytes, the widest swizzle."""
    return -(-head_dim // 64) * 64


def shared_bytes(spec: AttentionSpec, stages: int | None = None) -> int:
    """Return the shared memory of a block, with another number of stages where one is given."""
    stages = spec.stages if stages is None else stages
    if spec.schedule == "split_kv":
        return rules_split_kv.shared_bytes(spec, stages)
    if spec.schedule == "multistage":
        return rules_multistage.shared_bytes(spec)
    return _bytes(spec, stages, spec.tile.key)


def _bytes(spec: AttentionSpec, stages: int, keys: int) -> int:
    rows = spec.tile.query + 2 * stages * keys
    return rows * padded_head(spec.head_dim) * spec.dtype.bytes + _BARRIER_BYTES


def threads(spec: AttentionSpec) -> int:
    """Return the threads of a block."""
    if spec.schedule == "split_kv":
        return rules_split_kv.threads(spec)
    if spec.schedule == "multistage":
        return rules_multistage.threads(spec)
    return 2 * spec.tile.query + 128


def launch_registers(spec: AttentionSpec) -> int:
    """Return about how many registers a thread has at launch."""
    if spec.schedule == "split_kv":
        return rules_split_kv.registers(spec)
    if spec.schedule == "multistage":
        return rules_multistage.registers(spec)
    return 168


class RegisterUse(NamedTuple):
    """What a thread that multiplies keeps in registers."""

    taken: int
    limit: int
    """What it may have."""
    words: str


def register_use(spec: AttentionSpec) -> RegisterUse:
    """Return what a thread that multiplies keeps in registers."""
    if spec.schedule == "split_kv":
        return RegisterUse(
            taken=rules_split_kv.registers(spec),
            limit=rules_split_kv.register_limit(spec),
            words=f"queries, sums, scores, {rules_split_kv.OTHER_REGISTERS} beside them",
        )
    if spec.schedule == "multistage":
        return RegisterUse(
            taken=rules_multistage.registers(spec),
            limit=255,
            words="sums, scores, operands: what CUTLASS's launch bounds leave",
        )
    sums, scores, probabilities = spec.head_dim // 2, spec.tile.key // 2, spec.tile.key // 4
    return RegisterUse(
        taken=sums + scores + probabilities + _OTHER_REGISTERS,
        limit=_REGISTERS[spec.tile.query // WARPGROUP_ROWS],
        words=f"{sums} sums, {scores} scores, {probabilities} of probabilities,"
        f" {_OTHER_REGISTERS} beside them",
    )


def objections(spec: AttentionSpec) -> Iterator[Objection]:
    """Yield what makes ``spec`` impossible."""
    from gemmsmith.attn.spec import HEAD_DIMS

    if spec.dtype not in (BF16, FP16):
        yield Objection(
            key="dtype", reason=f"attention kernels take bf16 and fp16, none takes {spec.dtype}"
        )
    if spec.head_dim not in HEAD_DIMS:
        words = ", ".join(map(str, HEAD_DIMS))
        fitting = [size for size in HEAD_DIMS if size >= spec.head_dim]
        yield Objection(
            key="head_dim",
            reason=f"head_dim {spec.head_dim} has no kernel; {words} have",
            fix=f"{fitting[0]} takes it, padded" if fitting else "",
        )
        return
    rules = _RULES.get(spec.schedule)
    if rules is None:
        words = ", ".join(_RULES)
        yield Objection(
            key="schedule", reason=f"{spec.schedule!r} is no schedule of attention; {words} are"
        )
        return
    if spec.schedule != "split_kv":
        yield from _no_split(spec)
    yield from rules(spec)


def _no_split(spec: AttentionSpec) -> Iterator[Objection]:
    for key, default in (("warps", None), ("cluster", 1), ("constant_cache", False)):
        if getattr(spec, key) != default:
            yield Objection(
                key=key, reason=f"{key} goes with schedule split_kv", fix="leave it out"
            )


def _hopper(spec: AttentionSpec) -> Iterator[Objection]:
    """What the kernels on wgmma and TMA ask."""
    if spec.arch.name != "sm_90a":
        yield Objection(
            key="schedule",
            reason=f"{spec.schedule} attention needs wgmma and TMA, which {spec.arch.name} lacks",
            fix="multistage is for many queries there, split_kv for few"
            if spec.arch.async_copy
            else "multistage is its schedule",
        )
        return
    if spec.stages < 2:
        yield Objection(key="stages", reason=f"stages {spec.stages} is below 2", fix="2 is legal")
    near_keys = min(256, nearest_multiple(spec.tile.key, 16))
    groups, rest = divmod(spec.tile.query, WARPGROUP_ROWS)
    if rest or groups not in _REGISTERS:
        yield Objection(
            key="tile",
            reason=f"tile {spec.tile} has {spec.tile.query} queries; 64, 128 and 192 are one to"
            " three warpgroups",
            fix=f"tile [{min(192, nearest_multiple(spec.tile.query, 64))}, {near_keys}] is",
        )
        return
    if spec.tile.key % 16 or not 16 <= spec.tile.key <= 256:
        yield Objection(
            key="tile",
            reason=f"tile {spec.tile} has {spec.tile.key} keys, no multiple of 16 up to 256",
            fix=f"{near_keys} is",
        )
        return
    use = register_use(spec)
    if use.taken > use.limit:
        most = (use.limit - _OTHER_REGISTERS - spec.head_dim // 2) * 4 // 3 // 16 * 16
        yield Objection(
            key="tile",
            reason=f"tile {spec.tile} of head_dim {spec.head_dim} takes {use.taken} registers a"
            f" thread, with {groups} warpgroup{'s' * (groups > 1)} there are {use.limit}",
            fix=f"{_keys(spec, most)} fits" if most >= 16 else "lower the queries of the tile",
        )
    size, limit = shared_bytes(spec), spec.arch.smem_per_block
    if size > limit:
        yield Objection(
            key="stages",
            reason=f"tile {spec.tile} of head_dim {spec.head_dim} with {spec.stages} stages needs"
            f" {size:,} B of shared memory, {spec.arch.name} has {limit:,}",
            fix=_smaller(spec, limit),
        )


def _smaller(spec: AttentionSpec, limit: int) -> str:
    """Return the nearest edit with which the buffers fit: fewer stages, else fewer keys."""
    for stages in range(spec.stages - 1, 1, -1):
        if shared_bytes(spec, stages) <= limit:
            return f"stages {stages} fits"
    for keys in range(spec.tile.key - 16, 15, -16):
        if _bytes(spec, spec.stages, keys) <= limit:
            return f"{_keys(spec, keys)} fits"
    return "lower the queries of the tile"


def _keys(spec: AttentionSpec, keys: int) -> str:
    return f"tile [{spec.tile.query}, {keys}]"


_RULES: dict[str, Callable[[AttentionSpec], Iterator[Objection]]] = {
    "pingpong": _hopper,
    "cooperative": _hopper,
    "split_kv": rules_split_kv.split_kv,
    "multistage": rules_multistage.multistage,
}
"""By schedule: the rules of its kernels. A schedule is a template, too."""
