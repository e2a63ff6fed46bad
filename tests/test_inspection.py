"""Occupancy from binaries, and estimates of it that say what they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from fakes import ampere, hopper
from gemmsmith.arch import SM_90A
from gemmsmith.build import build
from gemmsmith.card import Card
from gemmsmith.inspection import expected_registers, inspect_kernel
from gemmsmith.spec import KernelSpec, Tile
from real_kernels import LEAN, LEAN_DEPENDENT, LEANS


def _built(spec: KernelSpec, *, registers: int, threads: int, shared: int) -> Card:
    return Card(
        name=spec.name,
        arch=spec.arch.name,
        registers=registers,
        spill_store_bytes=0,
        spill_load_bytes=0,
        stack_bytes=0,
        static_shared_bytes=1024,
        dynamic_shared_bytes=shared - 1024,
        threads=threads,
        stages=3,
        tensor_instructions={},
        sass_inspected=False,
        compile_seconds=1.0,
        compiled_with=1,
        compile_peak_bytes=1,
        library_bytes=1,
    )


def test_a_compiled_kernel_is_judged_by_its_binary() -> None:
    spec = ampere()
    seen = inspect_kernel(spec, _built(spec, registers=90, threads=128, shared=40_000))
    assert (seen.estimated, seen.occupancy.blocks) == (False, 4)
    assert seen.occupancy.limited_by == ("shared memory",)
    assert seen.occupancy_dict() == {
        "blocks": 4,
        "limited_by": ["shared memory"],
        "warps": 16,
        "warps_available": 64,
        "estimated": False,
    }


def test_before_compiling_it_is_an_estimate() -> None:
    multistage, cooperative = inspect_kernel(ampere(), None), inspect_kernel(hopper(), None)
    assert (multistage.estimated, cooperative.estimated) == (True, True)
    assert (multistage.occupancy.blocks, multistage.occupancy.limited_by) == (2, ("registers",))
    assert cooperative.occupancy.blocks == 1
    lean = KernelSpec(arch=SM_90A, tile=Tile(256, 128, 64), schedule="lean", store="smem")
    assert inspect_kernel(lean, None).occupancy.blocks == 1
    assert "shared memory" in cooperative.occupancy.limited_by


@pytest.mark.nvcc
def test_lean_kernels_hold_their_sums_and_no_static_shared_memory(
    real_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Static memory would come first, and tiles no longer at multiples of the swizzle's period."""
    monkeypatch.setenv("GEMMSMITH_CACHE_DIR", str(real_cache))
    cards = {kernel.spec: kernel.card for kernel in build(LEANS).built}
    for card in cards.values():
        assert (card.static_shared_bytes, card.spill_store_bytes, card.stack_bytes) == (0, 0, 0)
    early, plain = cards[LEAN_DEPENDENT], cards[LEAN]
    assert (plain.dependent_launch, early.dependent_launch) == (False, True)
    if early.sass_inspected:
        assert set(plain.tensor_instructions) == {"HGMMA.64x16x16.F32.BF16"}
        assert set(early.tensor_instructions) == {"HGMMA.64x24x16.F32.BF16"}
        assert (plain.grid_waits, plain.grid_releases) == (0, 0)
        assert early.grid_waits == 2  # in the warp that loads and in those that multiply
        assert (early.grid_releases, early.early_access, early.constant_loads) == (1, "", 0)


@pytest.mark.parametrize(
    ("threads", "accumulators", "registers"),
    [
        (128, 128, 176),
        (128, 16, 64),
        (384, 128, 168),
        (384, 8, 56),
        (256, 240, 255),
        (288, 128, 168),
        (416, 96, 128),
    ],
)
def test_expected_registers_leave_room_for_a_block(
    threads: int, accumulators: int, registers: int
) -> None:
    assert expected_registers(threads, accumulators) == registers
