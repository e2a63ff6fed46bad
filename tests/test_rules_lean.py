"""Each rule of lean kernels is hit once, with its numbers; what is legal fits."""

from __future__ import annotations

from typing import Any

import pytest

from gemmsmith.dtypes import FP16, INT8, INT32
from gemmsmith.spec import Alignment, Cluster, KernelSpec, Tile
from rule_data import LEAN, objections

INT8_SUMS: dict[str, Any] = {
    "a": INT8,
    "b": INT8,
    "acc": INT32,
    "alignment": Alignment(16, 16, 8),
}


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
            {"gate": "silu", "tile": Tile(64, 72, 64)},
            ("tile: tile.n=72 is not a multiple of 16, the blocks of gate and up; tile.n=64 is"),
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
