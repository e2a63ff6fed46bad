"""Names of kernels, and what a spec promises as a value."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import pickle
from typing import Any

import pytest

from gemmsmith.arch import SM_80, SM_90A
from gemmsmith.dtypes import BF16, FP16
from gemmsmith.errors import IllegalKernelError
from gemmsmith.spec import Alignment, Cluster, KernelSpec, Tile

HOPPER: dict[str, Any] = {"arch": SM_90A, "tile": Tile(128, 256, 64), "schedule": "cooperative"}
LEAN: dict[str, Any] = {"schedule": "lean", "store": "smem"}
AMPERE: dict[str, Any] = {
    "arch": SM_80,
    "tile": Tile(128, 256, 64),
    "warp": Tile(64, 64, 64),
    "stages": 3,
    "schedule": "multistage",
    "store": "smem",
}


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({}, "gemm_bf16_rcr_128x256x64_c1x1_coop_sm90a"),
        ({"cluster": Cluster(2, 1)}, "gemm_bf16_rcr_128x256x64_c2x1_coop_sm90a"),
        ({"a": FP16, "b": FP16, "d": FP16}, "gemm_fp16_rcr_128x256x64_c1x1_coop_sm90a"),
        (
            {"a": FP16, "b": FP16, "acc": FP16, "d": FP16},
            "gemm_fp16_accfp16_rcr_128x256x64_c1x1_coop_sm90a",
        ),
        ({"d": FP16}, "gemm_bf16_outfp16_rcr_128x256x64_c1x1_coop_sm90a"),
        ({"layout": "rrr"}, "gemm_bf16_rrr_128x256x64_c1x1_coop_sm90a"),
        ({"stages": 3}, "gemm_bf16_rcr_128x256x64_s3_c1x1_coop_sm90a"),
        (
            {"tile": Tile(64, 192, 64), "schedule": "pingpong"},
            "gemm_bf16_rcr_64x192x64_c1x1_pp_sm90a",
        ),
        (
            {"tile": Tile(64, 192, 64), "schedule": "warp_specialized"},
            "gemm_bf16_rcr_64x192x64_c1x1_ws_sm90a",
        ),
        ({"scheduler": "stream_k"}, "gemm_bf16_rcr_128x256x64_c1x1_coop_streamk_sm90a"),
        ({"swap": True, "tile": Tile(64, 128, 64)}, "gemm_bf16_rcr_64x128x64_c1x1_coop_swap_sm90a"),
        (
            {"store": "direct", "alignment": Alignment(8, 8, 1)},
            "gemm_bf16_rcr_128x256x64_c1x1_coop_direct_sm90a",
        ),
        ({"dependent_launch": True}, "gemm_bf16_rcr_128x256x64_c1x1_coop_pdl_sm90a"),
        (
            {**LEAN, "cluster": Cluster(1, 2), "split_k": 4, "residual": True},
            "gemm_bf16_rcr_128x256x64_c1x2_lean_splitk4_res_sm90a",
        ),
        (
            {**LEAN, "tile": Tile(16, 64, 128), "swap": True, "dependent_launch": True},
            "gemm_bf16_rcr_16x64x128_c1x1_lean_swap_pdl_sm90a",
        ),
        (
            {**LEAN, "dependent_launch": True, "constant_b": True},
            "gemm_bf16_rcr_128x256x64_c1x1_lean_pdl_constb_sm90a",
        ),
        ({"bias": False}, "gemm_bf16_rcr_128x256x64_c1x1_coop_nobias_sm90a"),
        ({"residual": True}, "gemm_bf16_rcr_128x256x64_c1x1_coop_res_sm90a"),
        (
            {"store": "direct", "alignment": Alignment(8, 8, 2)},
            "gemm_bf16_rcr_128x256x64_c1x1_coop_direct_align8x8x2_sm90a",
        ),
    ],
)
def test_names_on_hopper(fields: dict[str, Any], name: str) -> None:
    assert KernelSpec(**{**HOPPER, **fields}).name == name


def test_names_on_ampere() -> None:
    assert KernelSpec(**AMPERE).name == "gemm_bf16_rcr_128x256x64_w64x64_s3_sm80"
    align2 = KernelSpec(**AMPERE, alignment=Alignment(2, 2, 1))
    assert align2.name == "gemm_bf16_rcr_128x256x64_w64x64_s3_align2x2x1_sm80"


def test_different_kernels_have_different_names() -> None:
    choices: dict[str, tuple[Any, ...]] = {
        "tile": (Tile(128, 128, 64), Tile(128, 64, 32)),
        "d": (BF16, FP16),
        "layout": ("rcr", "rrr"),
        "stages": (None, 2, 3),
        "cluster": (Cluster(1, 1), Cluster(2, 1), Cluster(1, 2)),
        "split_k": (1, 2),
        "schedule": ("warp_specialized", "pingpong", "cooperative", "lean"),
        "store": ("tma", "direct", "smem"),
        "scheduler": ("static", "stream_k"),
        "swap": (False, True),
        "bias": (False, True),
        "residual": (False, True),
        "alignment": (Alignment(), Alignment(d=4)),
    }
    named: dict[str, KernelSpec] = {}
    for values in itertools.product(*choices.values()):
        try:
            spec = KernelSpec(arch=SM_90A, **dict(zip(choices, values, strict=True)))
        except IllegalKernelError:
            continue
        assert named.setdefault(spec.name, spec) == spec
    assert len(named) > 2000


def test_a_spec_is_a_frozen_value() -> None:
    spec, twin = KernelSpec(**HOPPER), KernelSpec(**HOPPER)
    assert spec == twin
    assert len({spec, twin, KernelSpec(**HOPPER, residual=True)}) == 2
    with pytest.raises(dataclasses.FrozenInstanceError):
        spec.swap = True  # type: ignore[misc]
    with pytest.raises(IllegalKernelError):
        dataclasses.replace(spec, tile=Tile(100, 256, 64))


@pytest.mark.parametrize("fields", [HOPPER, AMPERE])
def test_copies_and_pickles_keep_the_name(fields: dict[str, Any]) -> None:
    spec = KernelSpec(**fields)
    for twin in (copy.deepcopy(spec), pickle.loads(pickle.dumps(spec))):
        assert (twin, twin.name, hash(twin)) == (spec, spec.name, hash(spec))
        assert dataclasses.replace(twin, residual=True).residual


def test_the_device_sees_m_and_n_exchanged_by_swap() -> None:
    fields = {**HOPPER, "tile": Tile(64, 128, 32), "cluster": Cluster(1, 2)}
    swapped = KernelSpec(**fields, swap=True)
    assert (swapped.device_tile, swapped.device_cluster) == ((128, 64, 32), (2, 1))
    plain = KernelSpec(**{**fields, "tile": Tile(128, 64, 32)})
    assert (plain.device_tile, plain.device_cluster) == ((128, 64, 32), (1, 2))
    assert plain.cluster.size == 2
