"""Resident blocks by the hardware's rules, on numbers of NVIDIA's occupancy calculator."""

from __future__ import annotations

import pytest

from gemmsmith.arch import SM_70, SM_75, SM_80, SM_86, SM_89, SM_90A, Architecture
from gemmsmith.occupancy import Occupancy, occupancy, registers_of_block


def _of(arch: Architecture, registers: int, threads: int, shared: int) -> Occupancy:
    return occupancy(arch.multiprocessor, registers=registers, threads=threads, shared_bytes=shared)


@pytest.mark.parametrize(
    ("arch", "registers", "threads", "shared", "blocks", "limited_by"),
    [
        (SM_70, 32, 256, 0, 8, ("registers", "warps")),  # 64 warps by both
        (SM_70, 40, 256, 0, 6, ("registers",)),  # 1,280 a warp: 12 a partition, 48 in all
        (SM_70, 32, 32, 0, 32, ("blocks",)),
        (SM_75, 64, 256, 0, 4, ("registers", "warps")),  # half of Volta's warps
        (SM_75, 32, 32, 0, 16, ("blocks",)),
        (SM_80, 40, 96, 0, 16, ("registers",)),  # 12 warps a partition; 51 fit the whole file
        (SM_80, 128, 256, 0, 2, ("registers",)),
        (SM_80, 255, 256, 0, 1, ("registers",)),
        (SM_86, 32, 256, 0, 6, ("warps",)),
        (SM_89, 32, 32, 0, 24, ("blocks",)),
        (SM_89, 32, 64, 1024, 24, ("warps", "blocks")),
        (SM_90A, 168, 384, 227 * 1024, 1, ("registers", "shared memory")),
        (SM_90A, 168, 384, 1024, 1, ("registers",)),
        (SM_90A, 90, 256, 100_000, 2, ("registers", "shared memory")),
    ],
)
def test_blocks_and_what_limits_them(
    arch: Architecture,
    registers: int,
    threads: int,
    shared: int,
    blocks: int,
    limited_by: tuple[str, ...],
) -> None:
    found = _of(arch, registers, threads, shared)
    assert (found.blocks, found.limited_by) == (blocks, limited_by)
    assert (found.warps, found.warps_available) == (
        blocks * threads // 32,
        arch.multiprocessor.warps,
    )


@pytest.mark.parametrize(
    ("arch", "shared", "blocks"),
    [
        (SM_70, 32_768, 3),  # nothing is reserved: three thirds of 96 KiB
        (SM_70, 32_769, 2),
        (SM_70, 16_128, 6),  # units of 256: 63 each
        (SM_70, 16_129, 6),  # 64 each, still six of 384
        (SM_75, 21_760, 3),  # 85 units of 256
        (SM_75, 21_761, 2),
        (SM_80, 82_944, 2),  # and 1 KiB each for the driver: half of 164 KiB
        (SM_80, 82_945, 1),
        (SM_80, 166_912, 1),
        (SM_80, 166_913, 0),
        (SM_86, 32_896, 3),  # 265 units of 128 of 800; 256 would allow two
        (SM_86, 33_024, 3),
        (SM_86, 33_025, 2),
        (SM_90A, 232_448, 1),
        (SM_90A, 232_449, 0),
    ],
)
def test_shared_memory_goes_by_units_and_the_driver_takes_its_own(
    arch: Architecture, shared: int, blocks: int
) -> None:
    assert _of(arch, 32, 128, shared).blocks == blocks


@pytest.mark.parametrize(
    ("registers", "threads", "whole"),
    [(1, 128, 1024), (33, 128, 5120), (40, 128, 5120), (168, 384, 64_512), (168, 416, 86_016)],
)
def test_registers_are_handed_out_to_warps_of_all_partitions(
    registers: int, threads: int, whole: int
) -> None:
    assert registers_of_block(registers, threads) == whole


def test_a_block_that_cannot_start() -> None:
    assert _of(SM_90A, 168, 416, 0).blocks == 0  # 13 warps count as 16
    assert _of(SM_90A, 168, 384, 0).blocks == 1
    assert _of(SM_80, 255, 512, 0) == Occupancy(
        blocks=0, limited_by=("registers",), warps=0, warps_available=64
    )


def test_as_dict_is_plain() -> None:
    assert _of(SM_80, 128, 256, 0).as_dict() == {
        "blocks": 2,
        "limited_by": ["registers"],
        "warps": 16,
        "warps_available": 64,
    }
