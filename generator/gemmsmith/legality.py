"""The one statement of what kernels can exist; what calls they take is in :mod:`gemmsmith.fit`.

Loader, ``explain``, tuner and dispatcher all ask here. A rule is one function that yields
objections; each names its hardware or CUTLASS reason at the end of the clause.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from gemmsmith import rules_2x, rules_3x, rules_lean
from gemmsmith.arch import SM_90A
from gemmsmith.errors import IllegalKernelError, Objection
from gemmsmith.footprint import (
    MAX_STAGES,
    shared_memory,
    stages_that_fit,
)
from gemmsmith.rules_types import element_types

if TYPE_CHECKING:
    from gemmsmith.spec import KernelSpec


def check_spec(spec: KernelSpec) -> None:
    """Raise :class:`IllegalKernelError` with every rule that ``spec`` breaks."""
    found = list(objections(spec))
    if found:
        raise IllegalKernelError(found)


def objections(spec: KernelSpec) -> Iterator[Objection]:
    """Yield what makes ``spec`` impossible; nothing for a legal kernel."""
    basic = [*element_types(spec), *_keys_of_the_api(spec), *_positive(spec)]
    yield from basic
    if basic:
        return  # the rules below divide by these numbers
    if spec.schedule == "lean":
        yield from rules_lean.objections(spec)
    else:
        yield from (rules_2x if spec.arch.api == "2.x" else rules_3x).objections(spec)
    yield from _alignments(spec)
    yield from _stages(spec)
    yield from _shared_memory(spec)


def _keys_of_the_api(spec: KernelSpec) -> Iterator[Objection]:
    arch = spec.arch
    if spec.schedule not in arch.schedules:
        yield Objection(
            key="schedule",
            reason=f"{arch.name} has {', '.join(arch.schedules)}, not {spec.schedule}"
            + (", which needs sm_90a" if spec.schedule in SM_90A.schedules else ""),
            fix=f"set schedule: {arch.schedules[0]}",
        )
    if spec.store not in arch.stores:
        yield Objection(
            key="store",
            reason=f"{arch.name} has {', '.join(arch.stores)}, not {spec.store}",
            fix=f"set store: {arch.stores[0]}",
        )
    if spec.dependent_launch and not arch.dependent_launch:
        yield Objection(
            key="dependent_launch",
            reason=f"a kernel that starts before the one ahead has ended waits for it with"
            f" griddepcontrol, which needs sm_90a; {arch.name} has none",
            fix="set dependent_launch: false",
        )
    if spec.constant_b and spec.schedule != "lean":
        yield Objection(
            key="constant_b",
            reason=f"only lean kernels read B early, not {spec.schedule}",
            fix="set constant_b: false" + (", or schedule: lean" if arch.clusters else ""),
        )
    if spec.split_k != 1 and spec.schedule != "lean":
        yield Objection(
            key="split_k",
            reason=f"split_k {spec.split_k}: blocks of a cluster share a K loop with schedule lean"
            " alone",
            fix="set split_k: 1" + (", or scheduler: stream_k" if arch.clusters else ""),
        )
    if (spec.schedule == "lean") != (spec.store == "smem") and arch.api == "3.x":
        yield Objection(
            key="store",
            reason=f"store {spec.store}, schedule {spec.schedule}: smem is the store of lean"
            " kernels",
            fix="set store: smem" if spec.schedule == "lean" else "set store: tma",
        )
    if arch.api == "2.x":
        if spec.cluster.size != 1:
            yield Objection(
                key="cluster",
                reason=f"cluster {list(spec.cluster)} needs sm_90a; {arch.name} has no clusters",
                fix="set cluster: [1, 1]",
            )
        if spec.swap:
            yield Objection(
                key="swap",
                reason="2.x kernels store row-major in either operand order: swap changes nothing",
                fix="set swap: false",
            )
        if spec.scheduler != "static":
            yield Objection(
                key="scheduler",
                reason=f"{spec.scheduler} needs sm_90a",
                fix="set scheduler: static",
            )
        if spec.gate != "none":
            yield Objection(
                key="epilogue",
                reason=f"gate {spec.gate} needs sm_90a: a 2.x epilogue writes as many columns as"
                " it sums, half as many would need one of its own",
                fix="set epilogue: {gate: none}",
            )
        if spec.warp is None:
            yield Objection(
                key="warp",
                reason="2.x kernels need a warp tile",
                fix="for example warp: [64, 64, 32]",
            )
        if spec.stages is None:
            fix = "set stages: 3" if arch.async_copy else "set stages: 2"
            yield Objection(key="stages", reason="2.x kernels need a number of stages", fix=fix)
        return
    if spec.warp is not None:
        yield Objection(
            key="warp",
            reason="3.x kernels divide a tile by warpgroups, not by warps",
            fix="remove warp",
        )
    if spec.scheduler == "stream_k" and spec.schedule != "cooperative":
        yield Objection(
            key="scheduler",
            reason=f"stream_k needs schedule cooperative, not {spec.schedule}",  # CUTLASS 4.2
            fix="set schedule: cooperative",
        )
    if spec.scheduler == "stream_k" and spec.store == "direct":
        yield Objection(
            key="scheduler", reason="stream_k is built with store tma only", fix="set store: tma"
        )


def _positive(spec: KernelSpec) -> Iterator[Objection]:
    sizes = {"tile": spec.tile, "cluster": spec.cluster, "alignment": spec.alignment}
    if spec.warp is not None:
        sizes["warp"] = spec.warp
    for key, values in sizes.items():
        if min(values) < 1:
            least = [max(1, value) for value in values]
            yield Objection(
                key=key,
                reason=f"{list(values)} holds a number below 1",
                fix=f"set cluster: {least}" if key == "cluster" else "write numbers from 1 up",
            )
    if spec.stages is not None and not 2 <= spec.stages <= MAX_STAGES:
        yield Objection(
            key="stages",
            reason=f"{spec.stages} is outside 2 to {MAX_STAGES}:"
            " loads overlap with math from 2 buffers on",
            fix=f"set stages: {min(max(spec.stages, 2), MAX_STAGES)}",
        )


def _alignments(spec: KernelSpec) -> Iterator[Objection]:
    for operand, elements, dtype in zip(
        "abd", spec.alignment, (spec.a, spec.b, spec.d), strict=True
    ):
        most = 16 // dtype.bytes  # 16 B: widest load, and what TMA demands
        if spec.arch.api == "3.x":
            least = 1 if operand == "d" and spec.store == "direct" else most
            why = "TMA addresses in steps of 16 B"
        elif operand == "d":
            least, why = 1, ""
        else:
            least = 1 if spec.stages == 2 else 4 // dtype.bytes
            why = "cp.async copies 4 B or more; stages: 2 goes without it"
        if elements & (elements - 1) or not least <= elements <= most:
            yield Objection(
                key="alignment",
                reason=f"{operand}: {elements} elements of {dtype.bytes} B;"
                f" a power of two from {least} to {most} is legal" + (f" ({why})" if why else ""),
                fix=f"set {operand}: {most}",
            )


def _stages(spec: KernelSpec) -> Iterator[Objection]:
    if spec.stages != 2 and not spec.arch.async_copy:
        yield Objection(
            key="stages",
            reason=f"{spec.arch.name} has no cp.async: a main loop has 2 stages, not {spec.stages}",
            fix="set stages: 2",
        )


def _shared_memory(spec: KernelSpec) -> Iterator[Objection]:
    limit = spec.arch.smem_per_block
    stages = spec.stages or 2
    needed = shared_memory(spec, stages)
    if needed <= limit:
        return
    fitting = stages_that_fit(spec)
    if fitting >= 2:
        fix = f"at most {fitting} stages fit: {shared_memory(spec, fitting):,} B"
    else:
        halved = f"tile k {spec.tile.k // 2} halves it"
        fix = halved if spec.tile.k >= 32 else "choose a smaller tile"
        fix = f"only 1 stage fits, {shared_memory(spec, 1):,} B; {fix}" if fitting else fix
    yield Objection(
        key="stages",
        reason=f"{spec.tile} with stages {stages} needs {needed:,} B of shared memory,"
        f" {spec.arch.name} has {limit:,}",
        fix=fix,
    )
