"""Each rule is hit once, with its numbers, and all that are broken come at once."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from gemmsmith.arch import SM_90A
from gemmsmith.dtypes import BF16, FP16, FP32
from gemmsmith.spec import Alignment, Cluster, KernelSpec, Tile
from rule_data import AMPERE, HOPPER, PINGPONG, VOLTA, objections


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


def test_all_broken_rules_come_at_once() -> None:
    found = objections(AMPERE, swap=True, scheduler="stream_k", warp=None, stages=1)
    assert [objection.key for objection in found] == ["swap", "scheduler", "warp", "stages"]


def test_the_output_type_must_be_one_of_the_row() -> None:
    row = dataclasses.replace(SM_90A, outputs={"bf16": (BF16,)})
    found = objections({**HOPPER, "arch": row}, d=FP16)
    assert [str(objection) for objection in found] == [
        "dtype: sm_90a stores bf16 from bf16, not fp16; set d: bf16"
    ]


def test_c15_row_by_row_is_legal_for_16_bit() -> None:
    assert KernelSpec(**AMPERE, layout="rrr").layout == "rrr"
    assert KernelSpec(**HOPPER, layout="rrr").layout == "rrr"
