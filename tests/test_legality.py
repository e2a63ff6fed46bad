"""Each rule is hit once, with its numbers; what is legal fits."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from gemmsmith.arch import (
    SM_70,
    SM_75,
    SM_80,
    SM_86,
    SM_87,
    SM_89,
    SM_90A,
    Architecture,
    portable,
)
from gemmsmith.dtypes import BF16, FP16, FP32, INT8, INT32
from gemmsmith.errors import IllegalKernelError, Objection
from gemmsmith.fit import misfit, misfits
from gemmsmith.footprint import (
    MAX_STAGES,
    accumulator_registers,
    epilogue_bytes,
    lean_blocks,
    shared_memory,
    stage_bytes,
    stages_that_fit,
)
from gemmsmith.problem import GemmProblem
from gemmsmith.spec import Alignment, Cluster, KernelSpec, Tile

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
INT8_SUMS: dict[str, Any] = {
    "a": INT8,
    "b": INT8,
    "acc": INT32,
    "alignment": Alignment(16, 16, 8),
}
VOLTA: dict[str, Any] = {**AMPERE, "arch": SM_70, "stages": 2, "a": FP16, "b": FP16, "d": FP16}


def objections(base: dict[str, Any], **fields: Any) -> tuple[Objection, ...]:
    with pytest.raises(IllegalKernelError) as caught:
        KernelSpec(**{**base, **fields})
    return caught.value.objections


@pytest.mark.parametrize(
    ("base", "fields", "words"),
    [
        (
            HOPPER,
            {"a": FP32, "b": FP32},
            "dtype: sm_90a tensor cores take fp16, bf16, int8, not fp32; none here does",
        ),
        (
            HOPPER,
            {"b": FP16},
            "dtype: a is bf16 and b is fp16: the instruction takes one type for both; set b: bf16",
        ),
        (
            HOPPER,
            {"acc": FP16},
            "dtype: bf16 products accumulate in fp32, not fp16; set acc: fp32",
        ),
        (
            AMPERE,
            {"schedule": "pingpong"},
            (
                "schedule: sm_80 has multistage, not pingpong, which needs sm_90a;"
                " set schedule: multistage"
            ),
        ),
        (AMPERE, {"store": "tma"}, "store: sm_80 has smem, not tma; set store: smem"),
        (
            HOPPER,
            {"store": "smem"},
            (
                "store: store smem, schedule cooperative: smem is the store of lean kernels;"
                " set store: tma"
            ),
        ),
        (
            AMPERE,
            {"cluster": Cluster(2, 1)},
            "cluster: cluster [2, 1] needs sm_90a; sm_80 has no clusters; set cluster: [1, 1]",
        ),
        (
            AMPERE,
            {"swap": True},
            (
                "swap: 2.x kernels store row-major in either operand order: swap changes nothing;"
                " set swap: false"
            ),
        ),
        (
            AMPERE,
            {"scheduler": "stream_k"},
            "scheduler: stream_k needs sm_90a; set scheduler: static",
        ),
        (
            AMPERE,
            {"warp": None},
            "warp: 2.x kernels need a warp tile; for example warp: [64, 64, 32]",
        ),
        (
            AMPERE,
            {"gate": "silu"},
            (
                "epilogue: gate silu needs sm_90a: a 2.x epilogue writes as many columns as it"
                " sums, half as many would need one of its own; set epilogue: {gate: none}"
            ),
        ),
        (AMPERE, {"stages": None}, "stages: 2.x kernels need a number of stages; set stages: 3"),
        (
            HOPPER,
            {"warp": Tile(64, 64, 64)},
            "warp: 3.x kernels divide a tile by warpgroups, not by warps; remove warp",
        ),
        (
            PINGPONG,
            {"scheduler": "stream_k"},
            (
                "scheduler: stream_k needs schedule cooperative, not pingpong;"
                " set schedule: cooperative"
            ),
        ),
        (
            HOPPER,
            {"scheduler": "stream_k", "store": "direct"},
            "scheduler: stream_k is built with store tma only; set store: tma",
        ),
        (
            HOPPER,
            {"tile": Tile(0, 256, 64)},
            "tile: [0, 256, 64] holds a number below 1; write numbers from 1 up",
        ),
        (
            HOPPER,
            {"cluster": Cluster(0, 1)},
            "cluster: [0, 1] holds a number below 1; set cluster: [1, 1]",
        ),
        (
            AMPERE,
            {"warp": Tile(64, -64, 32)},
            "warp: [64, -64, 32] holds a number below 1; write numbers from 1 up",
        ),
        (
            HOPPER,
            {"alignment": Alignment(8, 8, 0)},
            "alignment: [8, 8, 0] holds a number below 1; write numbers from 1 up",
        ),
        (
            AMPERE,
            {"stages": 1},
            (
                "stages: 1 is outside 2 to 16: loads overlap with math from 2 buffers on;"
                " set stages: 2"
            ),
        ),
        (
            AMPERE,
            {"tile": Tile(128, 100, 32)},
            "tile: tile.n=100 is not a multiple of warp.n=64; tile.n=128 is",
        ),
        (
            AMPERE,
            {"tile": Tile(256, 128, 32), "warp": Tile(128, 64, 32)},
            "warp: warp.m=128 is not proven; warp tiles are 32 or 64 wide; set warp.m=64",
        ),
        (
            AMPERE,
            {"tile": Tile(256, 128, 32), "warp": Tile(128, 64, 32)},
            (
                "warp: warp 128x64 keeps 256 accumulator registers a thread, 128 fit;"
                " set warp: [64, 64, 32]"
            ),
        ),
        (
            AMPERE,
            {"tile": Tile(128, 128, 64)},
            "warp: warp.k=32 differs from tile.k=64: there is no sliced-K template; set warp.k=64",
        ),
        (
            AMPERE,
            {"tile": Tile(128, 128, 16), "warp": Tile(64, 64, 16)},
            (
                "tile: tile.k=16 of bf16: 32 or 64 has a conflict-free layout in shared memory"
                " on sm_80; set tile.k=32"
            ),
        ),
        (
            AMPERE,
            {"tile": Tile(64, 64, 32)},
            (
                "warp: 1 warps in a block; 2 to 8 have registers; up to 16 with 32 accumulators a"
                " thread and 3 stages; set warp: [64, 32, 32]"
            ),
        ),
        (
            AMPERE,
            {"tile": Tile(256, 128, 32), "warp": Tile(32, 32, 32)},
            "warp: 32 warps in a block; 2 to 16 have registers; set warp: [64, 64, 32]",
        ),
        (
            AMPERE,
            {"tile": Tile(32, 32, 32), "warp": Tile(32, 32, 32)},
            "warp: 1 warps in a block; 2 to 16 have registers; choose a larger tile",
        ),
        (
            AMPERE,
            {"tile": Tile(512, 512, 32), "stages": 2},
            (
                "warp: 64 warps in a block; 2 to 8 have registers; up to 16 with 32 accumulators a"
                " thread and 3 stages; choose a tile with sides of 64, 128 or 256"
            ),
        ),
        (
            AMPERE,
            {"tile": Tile(256, 256, 32)},
            (
                "warp: 16 warps in a block; 2 to 8 have registers; up to 16 with 32 accumulators a"
                " thread and 3 stages; choose a tile with sides of 64, 128 or 256"
            ),
        ),
        (
            AMPERE,
            {"tile": Tile(96, 128, 32), "warp": Tile(32, 64, 32)},
            (
                "warp: 6 warps cannot load b's tile of 128x32 in equal parts of 32 times 16 B;"
                " choose a tile with sides of 64, 128 or 256"
            ),
        ),
        (
            AMPERE,
            {"tile": Tile(32, 256, 32), "warp": Tile(32, 32, 32)},
            (
                "warp: 8 warps cannot load a's tile of 32x32 in equal parts of 32 times 16 B;"
                " set warp: [32, 64, 32]"
            ),
        ),
        (
            AMPERE,
            {
                "tile": Tile(32, 128, 64),
                "warp": Tile(32, 64, 64),
                "stages": 2,
                "alignment": Alignment(8, 1, 8),
            },
            (
                "alignment: b: 2 warps load a tile of 128x64 by 1 elements with over 64 loads a"
                " thread; set b: 2, or more warps"
            ),
        ),
        (
            AMPERE,
            {"tile": Tile(96, 64, 32), "warp": Tile(32, 64, 32), "layout": "crr"},
            (
                "tile: tile.m=96 is not a multiple of 64, which loads of a with contiguous m"
                " take at a time; tile.m=128 is"
            ),
        ),
        (
            VOLTA,
            {"tile": Tile(64, 32, 32), "warp": Tile(32, 32, 32), "layout": "rrr"},
            (
                "tile: tile.n=32 is not a multiple of 64, which loads of b with contiguous n"
                " take at a time; tile.n=64 is"
            ),
        ),
        (
            HOPPER,
            {"tile": Tile(192, 128, 64)},
            "tile: tile.m=192 is not a multiple of 128, which cooperative needs; tile.m=256 is",
        ),
        (
            PINGPONG,
            {"tile": Tile(96, 64, 64)},
            "tile: tile.m=96 is not a multiple of 64, which pingpong needs; tile.m=128 is",
        ),
        (
            HOPPER,
            {"tile": Tile(128, 64, 64), "swap": True},
            (
                "tile: tile.n=64 (wgmma's M side, because swap is on) is not a multiple of 128,"
                " which cooperative needs; tile.n=128 is"
            ),
        ),
        (
            HOPPER,
            {"tile": Tile(128, 200, 64)},
            "tile: tile.n=200 is not a multiple of 16 up to 256 (wgmma's width); tile.n=192 is",
        ),
        (
            HOPPER,
            {"tile": Tile(128, 512, 32)},
            "tile: tile.n=512 is not a multiple of 16 up to 256 (wgmma's width); tile.n=256 is",
        ),
        (
            HOPPER,
            {"tile": Tile(128, 256, 40)},
            "tile: tile.k=40 is not a multiple of the instruction's 16; tile.k=32 is",
        ),
        (
            PINGPONG,
            {"tile": Tile(128, 256, 64)},
            (
                "tile: 128x256x64 keeps 256 accumulator registers a thread with pingpong;"
                " 208 fit beside the rest; halve tile.m or tile.n, or set schedule: cooperative"
            ),
        ),
        (
            PINGPONG,
            {"tile": Tile(256, 256, 64)},
            (
                "tile: 256x256x64 keeps 512 accumulator registers a thread with pingpong;"
                " 208 fit beside the rest; halve tile.m or tile.n"
            ),
        ),
        (
            HOPPER,
            {"cluster": Cluster(3, 1)},
            (
                "cluster: cluster.m=3; 1, 2, 4 and 8 have kernels"
                " (a multicast splits the tile evenly); set cluster.m=2"
            ),
        ),
        (
            HOPPER,
            {"cluster": Cluster(4, 4)},
            "cluster: [4, 4] is 16 blocks; 8 is the most; set a product of 8 or less",
        ),
        (
            PINGPONG,
            {"tile": Tile(64, 16, 16), "cluster": Cluster(8, 1), "store": "direct"},
            (
                "cluster: 8 blocks share b's tile of 16 rows of 32 B: 64 B each, not a multiple of"
                " TMA's 128; choose a smaller cluster or a deeper tile.k"
            ),
        ),
        (
            HOPPER,
            {"alignment": Alignment(4, 8, 8)},
            (
                "alignment: a: 4 elements of 2 B; a power of two from 8 to 8 is legal"
                " (TMA addresses in steps of 16 B); set a: 8"
            ),
        ),
        (
            HOPPER,
            {"d": FP32},
            (
                "alignment: d: 8 elements of 4 B; a power of two from 4 to 4 is legal"
                " (TMA addresses in steps of 16 B); set d: 4"
            ),
        ),
        (
            AMPERE,
            {"alignment": Alignment(8, 1, 8)},
            (
                "alignment: b: 1 elements of 2 B; a power of two from 2 to 8 is legal"
                " (cp.async copies 4 B or more; stages: 2 goes without it); set b: 8"
            ),
        ),
        (
            AMPERE,
            {"alignment": Alignment(8, 8, 3)},
            "alignment: d: 3 elements of 2 B; a power of two from 1 to 8 is legal; set d: 8",
        ),
        (
            HOPPER,
            {"tile": Tile(128, 256, 256)},
            (
                "stages: 128x256x256 with stages 2 needs 411,392 B of shared memory,"
                " sm_90a has 232,448; only 1 stage fits, 214,784 B; tile k 128 halves it"
            ),
        ),
    ],
)
def test_a_broken_rule_says_so(base: dict[str, Any], fields: dict[str, Any], words: str) -> None:
    found = [str(objection) for objection in objections(base, **fields)]
    assert any(line.endswith(words) for line in found), found


def test_the_output_type_must_be_one_of_the_row() -> None:
    row = dataclasses.replace(SM_90A, outputs={"bf16": (BF16,)})
    found = objections({**HOPPER, "arch": row}, d=FP16)
    assert [str(objection) for objection in found] == [
        "dtype: sm_90a stores bf16 from bf16, not fp16; set d: bf16"
    ]


@pytest.mark.parametrize(
    ("tile", "warp", "words"),
    [
        ((128, 128, 32), (48, 64, 32), "tile.m=128 is not a multiple of warp.m=48"),
        ((128, 100, 32), (64, 64, 32), "tile.n=100 is not a multiple of warp.n=64"),
        ((64, 128, 32), (128, 64, 32), "tile.m=64 is not a multiple of warp.m=128"),
        ((128, 128, 24), (64, 64, 24), "warp.k=24 is not a multiple of the instruction's 16"),
        ((128, 128, 24), (64, 64, 16), "tile.k=24 is not a multiple of warp.k=16"),
    ],
)
def test_c11_failed_divisions(tile: tuple[int, ...], warp: tuple[int, ...], words: str) -> None:
    found = objections(AMPERE, tile=Tile(*tile), warp=Tile(*warp))
    assert words in [objection.reason for objection in found]


def test_c12_four_stages_do_not_fit_on_sm_80() -> None:
    fields: dict[str, Any] = {"tile": Tile(128, 256, 64), "warp": Tile(64, 64, 64)}
    (objection,) = objections(AMPERE, **fields, stages=4)
    assert objection == Objection(
        key="stages",
        reason="128x256x64 with stages 4 needs 196,608 B of shared memory, sm_80 has 166,912",
        fix="at most 3 stages fit: 147,456 B",
    )
    spec = KernelSpec(**{**AMPERE, **fields, "stages": 3})
    assert (stages_that_fit(spec), shared_memory(spec, 3), stage_bytes(spec)) == (
        3,
        147_456,
        49_152,
    )


def test_c12_four_stages_fit_on_sm_90a() -> None:
    spec = KernelSpec(**HOPPER, stages=4)
    assert stage_bytes(spec) * 4 == 196_608
    assert 196_608 < shared_memory(spec, 4) <= 232_448


@pytest.mark.parametrize("cluster", [(3, 1), (0, 1), (4, 4), (16, 1)])
def test_c14_clusters_refused_on_sm_90a(cluster: tuple[int, int]) -> None:
    assert {objection.key for objection in objections(HOPPER, cluster=Cluster(*cluster))} == {
        "cluster"
    }


@pytest.mark.parametrize("cluster", [(1, 1), (2, 1), (1, 2), (2, 2), (4, 2), (8, 1), (1, 8)])
def test_c14_clusters_accepted_on_sm_90a(cluster: tuple[int, int]) -> None:
    assert KernelSpec(**HOPPER, cluster=Cluster(*cluster)).cluster == cluster


def test_c15_row_by_row_is_legal_for_16_bit() -> None:
    assert KernelSpec(**AMPERE, layout="rrr").layout == "rrr"
    assert KernelSpec(**HOPPER, layout="rrr").layout == "rrr"


@pytest.mark.parametrize("arch", [SM_70, SM_75, SM_80, SM_86, SM_87, SM_89, portable(SM_80)])
def test_only_hopper_starts_kernels_before_the_one_ahead_has_ended(arch: Architecture) -> None:
    fields = VOLTA if arch in (SM_70, SM_75) else AMPERE
    (found,) = (
        each
        for each in objections(fields, arch=arch, dependent_launch=True)
        if each.key == "dependent_launch"
    )
    assert str(found) == (
        "dependent_launch: a kernel that starts before the one ahead has ended waits for it with"
        f" griddepcontrol, which needs sm_90a; {arch.name} has none; set dependent_launch: false"
    )
    for schedule in SM_90A.schedules:
        hopper = {**HOPPER, "schedule": schedule, "tile": Tile(128, 128, 64)}
        hopper["store"] = "smem" if schedule == "lean" else "tma"
        assert KernelSpec(**hopper, dependent_launch=True)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        (
            {"tile": Tile(96, 64, 64)},
            (
                "tile: tile.m=96 is not 64, 128, 192 or 256, which one to three warpgroups share;"
                " tile.m=128 is"
            ),
        ),
        (
            {"tile": Tile(16, 320, 64), "swap": True},
            (
                "tile: tile.n=320 is not 64, 128, 192 or 256, which one to three warpgroups share;"
                " tile.n=256 is"
            ),
        ),
        (
            {"tile": Tile(64, 100, 64)},
            "tile: tile.n=100 is not a multiple of 8 up to 256 (wgmma's width); tile.n=96 is",
        ),
        (
            {"tile": Tile(64, 264, 64)},
            "tile: tile.n=264 is not a multiple of 8 up to 256 (wgmma's width); tile.n=256 is",
        ),
        (
            {"tile": Tile(64, 40, 128), **INT8_SUMS},
            "tile: tile.n=40 is not a multiple of 16 up to 256 (wgmma's width); tile.n=32 is",
        ),
        (
            {"tile": Tile(64, 64, 32)},
            "tile: tile.k=32 is not a multiple of 64, a row of 128 B; tile.k=64 is",
        ),
        (
            {"tile": Tile(64, 64, 64), **INT8_SUMS},
            "tile: tile.k=64 is not a multiple of 128, a row of 128 B; tile.k=128 is",
        ),
        (
            {"tile": Tile(192, 208, 64)},
            (
                "tile: 192x208x64 keeps 104 accumulator registers a thread; 100 fit beside the rest"
                " with 3 warpgroups; halve tile.m or tile.n"
            ),
        ),
        (
            {"tile": Tile(256, 144, 64)},
            (
                "tile: 256x144x64 keeps 144 accumulator registers a thread; 136 fit beside the rest"
                " with 2 warpgroups; halve tile.m or tile.n"
            ),
        ),
        (
            {"cluster": Cluster(16, 1)},
            "cluster: cluster.m=16; a cluster has 1 to 8 blocks; set cluster.m=8",
        ),
        ({"split_k": 0}, "split_k: split_k=0; a cluster has 1 to 8 blocks; set split_k=1"),
        ({"split_k": 9}, "split_k: split_k=9; a cluster has 1 to 8 blocks; set split_k=8"),
        (
            {"cluster": Cluster(2, 2), "split_k": 3},
            "split_k: cluster [2, 2] with split_k 3 is 12 blocks; 8 is the most; set split_k: 2",
        ),
        (
            {"cluster": Cluster(4, 4)},
            "cluster: cluster [4, 4] is 16 blocks; 8 is the most; set a product of 8 or less",
        ),
        (
            {"tile": Tile(8, 128, 64), "swap": True, "cluster": Cluster(1, 3)},
            (
                "cluster: 3 blocks share a's tile of 8 rows, which does not divide evenly;"
                " choose a smaller cluster or a larger tile"
            ),
        ),
        (
            {"layout": "rrr"},
            (
                "layout: rrr: lean kernels read both operands along K and write rows;"
                " use rcr, or another schedule"
            ),
        ),
        (
            {"a": FP16, "b": FP16, "d": FP16, "acc": FP16},
            "dtype: acc fp16: lean kernels sum fp16 in fp32; set acc: fp32",
        ),
        (
            {**INT8_SUMS, "d": INT32, "tile": Tile(64, 64, 128)},
            "dtype: d int32: lean kernels finish in fp32; set d: bf16, or another schedule",
        ),
        (
            {"gate": "silu"},
            (
                "epilogue: gate: lean kernels have no such epilogue;"
                " drop gate, or choose another schedule"
            ),
        ),
        (
            {**INT8_SUMS, "zero_point": True, "scaled": True, "tile": Tile(64, 64, 128)},
            (
                "epilogue: zero_point: lean kernels have no such epilogue;"
                " drop zero_point, or choose another schedule"
            ),
        ),
        (
            {"scheduler": "stream_k"},
            "scheduler: stream_k needs schedule cooperative, not lean; set schedule: cooperative",
        ),
        (
            {"store": "tma"},
            "store: store tma, schedule lean: smem is the store of lean kernels; set store: smem",
        ),
        (
            {"schedule": "cooperative", "store": "tma", "split_k": 2},
            (
                "split_k: split_k 2: blocks of a cluster share a K loop with schedule lean alone;"
                " set split_k: 1, or scheduler: stream_k"
            ),
        ),
        (
            {"alignment": Alignment(8, 8, 4)},
            (
                "alignment: d: 4 elements of 2 B; a power of two from 8 to 8 is legal"
                " (TMA addresses in steps of 16 B); set d: 8"
            ),
        ),
        (
            {"tile": Tile(128, 256, 64), "stages": 5},
            (
                "stages: 128x256x64 with stages 5 needs 246,016 B of shared memory,"
                " sm_90a has 232,448; at most 4 stages fit: 196,864 B"
            ),
        ),
        (
            {"tile": Tile(128, 256, 256)},
            (
                "stages: 128x256x256 with stages 2 needs 393,472 B of shared memory,"
                " sm_90a has 232,448; only 1 stage fits, 196,864 B; tile k 128 halves it"
            ),
        ),
    ],
)
def test_a_broken_rule_of_lean_kernels_says_so(fields: dict[str, Any], words: str) -> None:
    found = [str(objection) for objection in objections(LEAN, **fields)]
    assert any(line.endswith(words) for line in found), found


def test_lean_kernels_at_their_limits() -> None:
    for fields in (
        {"tile": Tile(192, 200, 64)},
        {"tile": Tile(256, 136, 64), "cluster": Cluster(2, 1)},
        {"tile": Tile(64, 256, 64), "cluster": Cluster(1, 4), "split_k": 2},
        {"tile": Tile(8, 64, 64), "swap": True, "cluster": Cluster(1, 8)},
        {"tile": Tile(64, 24, 128), **INT8_SUMS},
        {"tile": Tile(192, 64, 64), "cluster": Cluster(1, 3)},
        {"tile": Tile(128, 256, 64), "stages": 4},
    ):
        assert KernelSpec(**{**LEAN, **fields})


@pytest.mark.parametrize(
    ("fields", "bytes_"),
    [
        ({"tile": Tile(128, 256, 64), "stages": 2}, 128 * (256 + 8) * 4),  # 2 stages: 98,304
        ({"tile": Tile(64, 24, 64), "stages": 2}, 2 * (64 + 24) * 128),
        ({"tile": Tile(64, 128, 64), "swap": True, "stages": 2}, 2 * (64 + 128) * 128),
        ({"tile": Tile(128, 64, 64), "swap": True, "stages": 2}, 2 * (64 + 128) * 128),
        ({"tile": Tile(64, 64, 64)}, 14 * (64 + 64) * 128),
        ({"tile": Tile(8, 64, 64), "swap": True}, MAX_STAGES * (64 + 8) * 128),
    ],
)
def test_shared_memory_of_lean_kernels(fields: dict[str, Any], bytes_: int) -> None:
    spec = KernelSpec(**{**LEAN, **fields})
    assert shared_memory(spec, spec.stages or stages_that_fit(spec)) == bytes_ + 256


@pytest.mark.parametrize(
    ("n", "swap", "pitch"), [(8, False, 8), (16, False, 40), (64, False, 72), (64, True, 68)]
)
def test_sums_of_lean_kernels_lie_in_rows_that_spread_over_banks(
    n: int, swap: bool, pitch: int
) -> None:
    spec = KernelSpec(**{**LEAN, "tile": Tile(64, n, 64), "swap": swap})
    assert epilogue_bytes(spec) == 64 * pitch * 4


@pytest.mark.parametrize(
    ("fields", "blocks"), [({}, 1), ({"stages": 6}, 2), ({"stages": 4}, 3), ({"stages": 2}, 6)]
)
def test_blocks_of_a_lean_kernel_that_share_a_multiprocessor(
    fields: dict[str, Any], blocks: int
) -> None:
    assert lean_blocks(KernelSpec(**{**LEAN, "tile": Tile(64, 64, 64), **fields})) == blocks


def test_a_lean_kernel_takes_fewer_matrices_where_it_splits_k() -> None:
    spec = KernelSpec(**LEAN, split_k=4)
    call = GemmProblem(m=8, n=8, k=8, batch=16_383, a=BF16, b=BF16, d=BF16)
    assert misfit(spec, call) == ""
    assert misfit(spec, dataclasses.replace(call, batch=16_384)) == (
        "batch=16384 is over the 16383 that a grid's third axis holds"
    )
    assert misfit(spec, dataclasses.replace(call, layout="rrr")) == (
        "the kernel's layout is rcr, the strides of the call are rrr"
    )
    assert misfit(spec, dataclasses.replace(call, d_align=8)).startswith("d: address")


def test_all_broken_rules_come_at_once() -> None:
    found = objections(AMPERE, swap=True, scheduler="stream_k", warp=None, stages=1)
    assert [objection.key for objection in found] == ["swap", "scheduler", "warp", "stages"]


def test_epilogue_bytes() -> None:
    assert epilogue_bytes(KernelSpec(**AMPERE)) == 0
    assert epilogue_bytes(KernelSpec(**HOPPER, store="direct")) == 0
    bias = (128 + 256) * 2
    staged = 128 * 32 * 2
    assert epilogue_bytes(KernelSpec(**HOPPER)) == 2 * staged + bias
    assert epilogue_bytes(KernelSpec(**HOPPER, bias=False)) == 2 * staged
    assert epilogue_bytes(KernelSpec(**HOPPER, residual=True)) == 4 * staged + bias


def test_shared_memory_of_a_block() -> None:
    loads = 2 * 49_152
    assert shared_memory(KernelSpec(**{**AMPERE, "tile": Tile(128, 128, 32)}), 4) == 4 * 16_384
    assert shared_memory(KernelSpec(**HOPPER), 2) == loads + 2 * 128 * 32 * 2 + 384 * 2 + 1024
    assert shared_memory(KernelSpec(**HOPPER, store="direct"), 2) == loads + 1024
    reused = KernelSpec(arch=SM_90A, tile=Tile(64, 128, 64), schedule="warp_specialized")
    assert shared_memory(reused, 2) == 2 * (64 + 128) * 2 * 64 + 1024


def test_accumulator_registers() -> None:
    assert accumulator_registers(KernelSpec(**AMPERE)) == 128
    assert accumulator_registers(KernelSpec(**HOPPER)) == 128
    assert accumulator_registers(KernelSpec(**PINGPONG)) == 96
    half: dict[str, Any] = {"a": FP16, "b": FP16, "acc": FP16, "d": FP16}
    assert accumulator_registers(KernelSpec(**PINGPONG, **half)) == 48
    assert accumulator_registers(KernelSpec(**AMPERE, **half)) == 64


def sweep() -> list[dict[str, Any]]:
    """Kernels legal but for their number of stages, over both architectures."""
    ampere = [
        {**AMPERE, "tile": Tile(m, n, k), "warp": Tile(wm, wn, k), "d": d}
        for m in (64, 128, 256)
        for n in (64, 128, 256)
        for k in (32, 64)
        for wm in (32, 64)
        for wn in (32, 64)
        for d in (BF16, FP32)
        if 2 <= (m // wm) * (n // wn) <= 8 and min(m, n) * k * 2 >= 512 * (m // wm) * (n // wn)
    ]
    hopper = [
        {
            "arch": SM_90A,
            "tile": Tile(m, n, k),
            "schedule": schedule,
            "store": store,
            "residual": residual,
            "d": d,
        }
        for schedule, m in (("cooperative", 128), ("pingpong", 64), ("warp_specialized", 64))
        for n in (16, 48, 128, 192)
        for k in (16, 32, 64)
        for store in ("tma", "direct")
        for residual in (False, True)
        for d in (BF16, FP32)
    ]
    return ampere + hopper


def test_stages_that_fit_agrees_with_the_objections() -> None:
    """Each number of stages up to the largest that fits is legal, the next one is not."""
    counts = set()
    for fields in sweep():
        alignment = Alignment(8, 8, 16 // fields["d"].bytes)
        smallest = KernelSpec(**{**fields, "alignment": alignment, "stages": 2})
        most = stages_that_fit(smallest)
        counts.add(most)
        arch: Architecture = fields["arch"]
        for stages in range(2, most + 1):
            legal = dataclasses.replace(smallest, stages=stages)
            assert shared_memory(legal, stages) <= arch.smem_per_block
        (objection,) = objections(
            {**fields, "alignment": alignment},
            stages=most + 1,
        )
        assert objection.key == "stages"
        if most < MAX_STAGES:
            assert objection.fix.startswith(f"at most {most} stages fit: ")
            assert f"{shared_memory(smallest, most + 1):,} B" in objection.reason
            assert shared_memory(smallest, most + 1) > arch.smem_per_block
    assert min(counts) >= 2
    assert max(counts) == MAX_STAGES


def call(**fields: Any) -> GemmProblem:
    return GemmProblem(**{"m": 64, "n": 64, "k": 64, "a": BF16, "b": BF16, "d": BF16, **fields})


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, ""),
        (
            {"a": FP16, "b": FP16},
            "the kernel computes bf16 @ bf16 -> bf16, the call is fp16 @ fp16 -> bf16",
        ),
        ({"layout": "rrr"}, "the kernel's layout is rcr, the strides of the call are rrr"),
        (
            {"layout": "rcc", "n": 1},
            "the kernel's layout is rcr, the strides of the call are rcc",
        ),
        ({"residual": True}, "the kernel has no residual (epilogue.residual is false)"),
        (
            {"b_align": 4},
            (
                "b: address, row stride or batch stride divides by 4 B only,"
                " the kernel needs 16 B (8 elements of bf16)"
            ),
        ),
    ],
)
def test_calls_that_a_kernel_cannot_take(fields: dict[str, Any], words: str) -> None:
    assert misfit(KernelSpec(**HOPPER), call(**fields)) == words


def test_a_kernel_without_bias_and_kernels_with_both() -> None:
    plain = KernelSpec(**HOPPER, bias=False)
    assert misfit(plain, call(bias=True)) == "the kernel has no bias (epilogue.bias is false)"
    for fields in (HOPPER, AMPERE):
        both = KernelSpec(**fields, residual=True)
        assert misfit(both, call(bias=True, residual=True)) == ""


def test_2x_kernels_have_every_epilogue_but_gates() -> None:
    rich = KernelSpec(**{**AMPERE, "layout": "rcc"}, activation="any", scaled=True, residual=True)
    asked = call(
        layout="rcc", bias=True, residual=True, activation="gelu", scaled=True, zero_point=False
    )
    assert misfit(rich, asked) == ""
    assert misfit(KernelSpec(**AMPERE), call(gate="silu")) == (
        "gate silu in one kernel needs sm_90a, the kernel is of sm_80"
    )
    narrow = {**INTEGERS, "d": INT8, "alignment": Alignment(16, 16, 16)}
    assert KernelSpec(**narrow, scaled=True, zero_point=True, activation="gelu").name == (
        "gemm_int8_rcr_128x128x64_w64x64_s4_scaled_zp_actgelu_sm80"
    )


def test_reasons_are_those_of_the_kernels_that_come_nearest() -> None:
    specs = [
        KernelSpec(**AMPERE),
        KernelSpec(**{**AMPERE, "layout": "rrr"}),
        KernelSpec(**INTEGERS),
    ]
    assert misfits(specs, call(gate="silu")) == [
        "gate silu in one kernel needs sm_90a, the kernel is of sm_80"
    ]
    assert misfits(specs, call(activation="gelu")) == [
        "the kernel's activation is none, the call's is gelu"
    ]
    assert misfits(specs, call(a=INT8, b=INT8, d=INT32, scaled=True)) == [
        "the kernel takes no scales (epilogue.scaled is false)"
    ]
    assert len(misfits(specs, call(a=FP16, b=FP16, d=FP16, residual=True))) == 2
    assert misfits(specs, call(layout="rrr")) == misfits([], call()) == []


def test_calls_beyond_a_grid_are_refused_by_kernels_without_a_persistent_one() -> None:
    plain = KernelSpec(**{**HOPPER, "schedule": "warp_specialized", "tile": Tile(64, 64, 64)})
    many = GemmProblem(m=8, n=8, k=8, batch=65_536, a=BF16, b=BF16, d=BF16)
    wide = GemmProblem(m=8, n=65_536 * 64, k=8, a=BF16, b=BF16, d=BF16)
    assert misfit(plain, many) == "batch=65536 is over the 65535 that a grid's third axis holds"
    assert misfit(plain, wide) == ("N=4194304 is over 65535 tiles of 64, a grid's second axis")
    pairs = dataclasses.replace(plain, cluster=Cluster(1, 2))  # a grid is of whole clusters
    assert misfit(pairs, dataclasses.replace(wide, n=65_534 * 64)) == ""
    assert misfit(pairs, dataclasses.replace(wide, n=65_535 * 64)) == (
        "N=4194240 is over 65534 tiles of 64, a grid's second axis"
    )
    tall = dataclasses.replace(wide, m=wide.n, n=8)
    assert misfit(dataclasses.replace(plain, swap=True), tall).startswith("M=4194304 is over")
    assert misfit(dataclasses.replace(plain, schedule="pingpong"), many) == ""


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


@pytest.mark.parametrize(
    ("base", "fields", "words"),
    [
        (VOLTA, {"stages": 3}, "stages: sm_70 has no cp.async: a main loop has 2 stages, not 3"),
        (
            VOLTA,
            {"tile": Tile(128, 128, 64), "warp": Tile(64, 64, 64)},
            "tile: tile.k=64 of fp16: 32 has a conflict-free layout in shared memory on sm_70",
        ),
        (VOLTA, {"a": BF16, "b": BF16, "d": BF16}, "not bf16; bf16 needs sm_80 or later"),
        (VOLTA, {"d": BF16}, "dtype: sm_70 stores fp16, fp32 from fp16, not bf16; set d: fp16"),
        (INTEGERS, {"layout": "rrr"}, "use b: col (store the weight as [N, K]): layout: rcr"),
        (INTEGERS, {"layout": "ccc", "bias": False}, "use a: row: layout: rcc"),
        (INTEGERS, {"acc": FP32}, "int8 products accumulate in int32, not fp32; set acc: int32"),
        (INTEGERS, {"d": FP32}, "sm_80 stores int32, fp16, bf16, int8 from int8, not fp32"),
        (INTEGERS, {"tile": Tile(128, 128, 32), "warp": Tile(64, 64, 32)}, "64 or 128 has a"),
        (INTEGERS, {"alignment": Alignment(2, 16, 4)}, "a power of two from 4 to 16 is legal"),
        (
            INTEGERS,
            {"d": INT8, "residual": True, "alignment": Alignment(16, 16, 16)},
            "epilogue: a residual of 8 bits has no scale; set epilogue: {residual: false}",
        ),
        (
            {**INTEGERS, "bias": False, "d": INT8},
            {"alignment": Alignment(16, 16, 2)},
            "d: int32 sums are stored as int8 by 4 or 8 or 16 elements, not 2; set d: 4",
        ),
        (
            {**INTEGERS, "bias": False, "d": INT8},
            {"warp": Tile(64, 32, 64), "alignment": Alignment(16, 16, 16)},
            "stores of 16 elements need warp.n=64 or more, not 32; set d: 8, or warp.n=64",
        ),
        (
            {**HOPPER, "a": INT8, "b": INT8, "acc": INT32, "d": INT32},
            {"tile": Tile(128, 128, 80), "alignment": Alignment(16, 16, 4)},
            "tile.k=80 is not a multiple of the instruction's 32; tile.k=64 is",
        ),
    ],
)
def test_rules_of_older_architectures_and_int8(
    base: dict[str, Any], fields: dict[str, Any], words: str
) -> None:
    found = "\n".join(str(objection) for objection in objections(base, **fields))
    assert words in found


def test_legal_kernels_of_older_architectures_and_int8() -> None:
    assert KernelSpec(**VOLTA).name == "gemm_fp16_rcr_128x128x32_w64x64_s2_sm70"
    assert KernelSpec(**INTEGERS).name == "gemm_int8_outint32_rcr_128x128x64_w64x64_s4_sm80"
    narrow = {**INTEGERS, "d": INT8, "bias": False, "alignment": Alignment(16, 16, 16)}
    assert KernelSpec(**narrow).name == "gemm_int8_rcr_128x128x64_w64x64_s4_nobias_sm80"
    there = KernelSpec(**{**VOLTA, "arch": portable(SM_70)})
    assert there.name == "gemm_fp16_rcr_128x128x32_w64x64_s2_sm70_on_sm90"


def test_int8_sums_that_int32_cannot_hold_are_no_call_for_a_kernel() -> None:
    spec = KernelSpec(**INTEGERS)
    problem = GemmProblem(m=16, n=16, k=131_072, a=INT8, b=INT8, d=INT32, layout="rcr")
    assert misfit(spec, problem).startswith("K=131072: int32 holds 131,071 products of -128")
    assert misfit(spec, dataclasses.replace(problem, k=131_056)) == ""
