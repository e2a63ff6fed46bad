"""Facts read back from binaries, and the kernels that they disqualify."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from fakes import FakeNvcc, ampere, hopper, mma_source
from gemmsmith.arch import SM_70, SM_75, SM_80, SM_86, SM_89, Architecture, portable
from gemmsmith.card import Card, can_inspect, device_functions, make_card, objection
from gemmsmith.compile import compile_library
from gemmsmith.dependency import GridDependency, dependency_fault
from gemmsmith.dtypes import BF16, FP16, INT8, INT32, DType
from gemmsmith.errors import CompileError
from gemmsmith.spec import KernelSpec, Tile, widest_alignment
from gemmsmith.toolchain import Toolchain, find_toolchain

WIDE, NARROW = hopper(256), hopper(64)


def _symbol(spec: KernelSpec) -> str:
    return (
        f"_ZN7cutlass13device_kernelIN9gemmsmith6v_0123{len(spec.name)}{spec.name}EEEvNT_6ParamsE"
    )


def _log(spec: KernelSpec, registers: int, spilled: int, shared: int) -> str:
    smem = f", {shared} bytes smem" if shared else ""
    return (
        f"ptxas info    : Compiling entry function '{_symbol(spec)}' for 'sm_90a'\n"
        f"ptxas info    : Function properties for {_symbol(spec)}\n"
        f"    {spilled} bytes stack frame, {spilled} bytes spill stores, "
        f"{2 * spilled} bytes spill loads\n"
        f"ptxas info    : Used {registers} registers, used 2 barriers{smem}\n"
    )


LOG = (
    "nvcc -o a.so a.cu\nptxas info    : 11 bytes gmem, 88 bytes cmem[4]\n"
    + _log(WIDE, 168, 0, 0)
    + _log(NARROW, 90, 40, 512)
)
USAGE = f"""
Resource usage:
 Common:
  GLOBAL:11 CONSTANT[4]:88
 Function {_symbol(WIDE)}:
  REG:168 STACK:0 SHARED:1024 LOCAL:0 CONSTANT[0]:2432 TEXTURE:0 SURFACE:0 SAMPLER:0
 Function {_symbol(NARROW)}:
  REG:90 STACK:40 SHARED:1536 LOCAL:0 CONSTANT[0]:2432 TEXTURE:0 SURFACE:0 SAMPLER:0
"""
_LINE = "        /*15f0*/                   {} R24, gdesc[UR12], R24 ;   /* 0x01e00000 */\n"
_WORD = "                                                                /* 0x000fe200 */\n"


def _sass(spec: KernelSpec, *instructions: str) -> str:
    head = f'\t\tFunction : {_symbol(spec)}\n\t.headerflags\t@"EF_CUDA_SM90"\n'
    return head + "".join(_LINE.format(word) + _WORD for word in instructions)


SASS = (
    "\n\tcode for sm_90a\n"
    + _sass(WIDE, *["HGMMA.64x256x16.F32.BF16"] * 3, "@!P0 HGMMA.64x256x16.F32.BF16", "FFMA")
    + _sass(NARROW, "HGMMA.64x64x16.F32.BF16", "MOV", "@P2 BRA")
)


class _Entry(NamedTuple):
    """A row of a library's table."""

    name: str
    threads: int
    shared_bytes: int
    stages: int
    dependent_launch: bool = False


def _toolchain(folder: Path, sass: str) -> Toolchain:
    """A toolchain whose cuobjdump says what a real one said."""
    (folder / "usage").write_text(USAGE)
    (folder / "sass").write_text(sass)
    tool = folder / "cuobjdump"
    tool.write_text(f'#!/bin/sh\ncat "{folder}/$(echo "$1" | sed "s/-res-usage/usage/;s/^-//")"\n')
    tool.chmod(0o755)
    return dataclasses.replace(FakeNvcc(folder).toolchain, cuobjdump=tool, nvdisasm=tool)


def _card(folder: Path, spec: KernelSpec, *, shared: int = 1024, sass: str | None = SASS) -> Card:
    toolchain = FakeNvcc(folder).toolchain if sass is None else _toolchain(folder, sass)
    return make_card(
        spec,
        _Entry(name=spec.name, threads=384, shared_bytes=shared, stages=4),
        device_functions(folder / "a.so", LOG, toolchain),
        toolchain=toolchain,
        seconds=12.5,
        compiled_with=2,
        peak_bytes=3_000_000_000,
        library_bytes=1_000_000,
    )


def test_each_kernel_of_a_group_has_its_own_facts(tmp_path: Path) -> None:
    wide, narrow = _card(tmp_path, WIDE), _card(tmp_path, NARROW)
    assert dict(wide.tensor_instructions) == {"HGMMA.64x256x16.F32.BF16": 4}
    assert dict(narrow.tensor_instructions) == {"HGMMA.64x64x16.F32.BF16": 1}
    assert (wide.registers, wide.stack_bytes, wide.spill_store_bytes) == (168, 0, 0)
    assert (narrow.registers, narrow.stack_bytes) == (90, 40)
    assert (narrow.spill_store_bytes, narrow.spill_load_bytes) == (40, 80)
    assert (wide.static_shared_bytes, narrow.static_shared_bytes) == (0, 512)
    assert narrow.shared_bytes == 1536
    assert objection(WIDE, wide) is None
    assert objection(NARROW, narrow) is None  # spills cost speed, not results


def test_card_survives_json(tmp_path: Path) -> None:
    card = _card(tmp_path, WIDE)
    assert Card.from_dict(json.loads(json.dumps(card.as_dict()))) == card
    with pytest.raises(TypeError):
        Card.from_dict({**card.as_dict(), "more": 1})


def test_without_cuobjdump_the_card_says_so(tmp_path: Path) -> None:
    card = _card(tmp_path, NARROW, sass=None)
    assert (card.registers, card.spill_store_bytes, card.stack_bytes) == (90, 40, 40)
    assert not card.sass_inspected
    assert card.tensor_instructions == {}
    assert objection(NARROW, card) is None


def test_width_that_fell_back_is_refused(tmp_path: Path) -> None:
    sass = _sass(WIDE, *["HGMMA.64x16x16.F32.BF16"] * 16)
    reason = objection(WIDE, _card(tmp_path, WIDE, sass=sass))
    assert reason is not None
    assert "256 wide, the machine code has HGMMA.64x16x16.F32.BF16" in reason


def test_width_of_a_swapped_kernel_is_that_of_the_device(tmp_path: Path) -> None:
    spec = hopper(64, swap=True)
    assert (spec.tile.n, spec.device_tile.n) == (128, 64)
    card = dataclasses.replace(
        _card(tmp_path, WIDE), tensor_instructions={"HGMMA.64x64x16.F32.BF16": 8}
    )
    assert objection(spec, card) is None
    card = dataclasses.replace(card, tensor_instructions={"HGMMA.64x128x16.F32.BF16": 8})
    assert objection(spec, card) is not None


EARLY = dataclasses.replace(WIDE, dependent_launch=True)
LOADS_EARLY = GridDependency(waits=1, releases=1, early_access="LDG.E")
DEPENDENT = {"dependent_launch": True, "grid_waits": 1, "grid_releases": 1}


@pytest.mark.parametrize(
    ("spec", "facts", "reason"),
    [
        (EARLY, DEPENDENT, None),
        (WIDE, {}, None),
        (WIDE, DEPENDENT, "it is launched to start before the kernel ahead has ended, unasked"),
        (
            EARLY,
            {**DEPENDENT, "dependent_launch": False},
            "dependent_launch is on, and it is launched without the attribute",
        ),
        (
            EARLY,
            {**DEPENDENT, "grid_waits": 0},
            f"dependent_launch is on, and {dependency_fault(GridDependency(waits=0))}",
        ),
        (
            EARLY,
            {**DEPENDENT, "early_access": "LDG.E"},
            f"dependent_launch is on, and {dependency_fault(LOADS_EARLY)}",
        ),
        (EARLY, {**DEPENDENT, "grid_waits": 0, "sass_inspected": False}, None),
    ],
)
def test_dependent_launch_is_on_as_promised_or_refused(
    tmp_path: Path, spec: KernelSpec, facts: dict[str, Any], reason: str | None
) -> None:
    card = _with(spec, tmp_path, "HGMMA.64x256x16.F32.BF16", **facts)
    assert objection(spec, card) == reason


def test_the_card_tells_what_the_machine_code_waits_for(tmp_path: Path) -> None:
    sass = _sass(WIDE, "PREEXIT", "LDG.E", "ACQBULK", "HGMMA.64x256x16.F32.BF16", "LDG.E.CONSTANT")
    card = _card(tmp_path, WIDE, sass=sass)
    assert (card.grid_waits, card.grid_releases, card.dependent_launch) == (1, 1, False)
    assert (card.early_access, card.constant_loads) == ("LDG.E", 1)
    assert Card.from_dict(json.loads(json.dumps(card.as_dict()))) == card


def test_missing_tensor_cores_are_refused(tmp_path: Path) -> None:
    reason = objection(WIDE, _card(tmp_path, WIDE, sass=_sass(WIDE, "FFMA", "HMMA.16816.F32")))
    assert reason == "its machine code lacks HGMMA.64x (tensor-core code: HMMA.16816.F32)"


def _with(spec: KernelSpec, folder: Path, *instructions: str, **facts: Any) -> Card:
    """A card of ``spec`` with these instructions and numbers, whatever the binary says."""
    made = _card(folder, WIDE)
    return dataclasses.replace(
        made, name=spec.name, tensor_instructions=dict.fromkeys(instructions, 4), **facts
    )


def _multistage(arch: Architecture, dtype: DType) -> KernelSpec:
    """A 2.x kernel of ``arch`` on ``dtype``, its sums in the usual type."""
    spec = dataclasses.replace(ampere(), stages=3 if arch.async_copy else 2)
    acc = arch.accumulators[dtype.name][0]
    k = 64 if dtype is INT8 else 32
    return dataclasses.replace(
        spec,
        arch=arch,
        a=dtype,
        b=dtype,
        acc=acc,
        d=arch.outputs[dtype.name][0],
        tile=Tile(128, 128, k),
        warp=Tile(64, 64, k),
        alignment=widest_alignment(dtype, dtype, arch.outputs[dtype.name][0], "smem"),
    )


@pytest.mark.parametrize(
    ("arch", "dtype", "right", "wrong"),
    [
        (SM_70, FP16, "HMMA.884.F32.F32.STEP0", "HMMA.1688.F32"),
        (SM_75, FP16, "HMMA.1688.F32", "HMMA.884.F32.F32.STEP0"),
        (SM_75, INT8, "IMMA.8816.S8.S8", "IMMA.16832.S8.S8"),
        (SM_80, FP16, "HMMA.16816.F32", "HMMA.1688.F32"),
        (SM_80, BF16, "HMMA.16816.F32.BF16", "HMMA.1688.F32.BF16"),
        (SM_80, INT8, "IMMA.16832.S8.S8", "IMMA.16816.S8.S8"),
        (SM_86, INT8, "IMMA.16832.S8.S8", "HMMA.16816.F32"),
        (SM_89, FP16, "HMMA.16816.F32", "IMMA.16832.S8.S8"),
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_each_architecture_has_its_own_instruction(
    tmp_path: Path, arch: Architecture, dtype: DType, right: str, wrong: str
) -> None:
    spec = _multistage(arch, dtype)
    facts = {"registers": 128, "threads": 128, "dynamic_shared_bytes": 32_768}
    assert objection(spec, _with(spec, tmp_path, right, **facts)) is None
    reason = objection(spec, _with(spec, tmp_path, wrong, **facts))
    wanted = arch.sass[dtype.name]
    assert reason == f"its machine code lacks {wanted} (tensor-core code: {wrong})"


@pytest.mark.parametrize("width", [16, 48, 112, 128, 256])
def test_int8_on_hopper_is_as_wide_as_the_tile(tmp_path: Path, width: int) -> None:
    spec = dataclasses.replace(
        hopper(width),
        a=INT8,
        b=INT8,
        acc=INT32,
        d=INT32,
        tile=Tile(128, width, 128),
        alignment=widest_alignment(INT8, INT8, INT32, "tma"),
    )
    right, narrow = f"IGMMA.64x{width}x32.S8.S8", "IGMMA.64x8x32.S8.S8"
    assert objection(spec, _with(spec, tmp_path, right)) is None
    reason = objection(spec, _with(spec, tmp_path, narrow))
    assert reason is not None
    assert f"{width} wide, the machine code has {narrow}" in reason
    other = f"HGMMA.64x{width}x16.F32"
    assert objection(spec, _with(spec, tmp_path, other)) == (
        f"its machine code lacks IGMMA.64x (tensor-core code: {other})"
    )


@pytest.mark.parametrize("arch", [SM_70, SM_80], ids=lambda arch: arch.name)
def test_kernels_compiled_for_another_architecture_need_not_have_the_instruction(
    tmp_path: Path, arch: Architecture
) -> None:
    own, elsewhere = _multistage(arch, FP16), _multistage(portable(arch), FP16)
    facts = {"registers": 128, "threads": 128, "dynamic_shared_bytes": 32_768}
    assert objection(own, _with(own, tmp_path, **facts)) is not None
    assert objection(elsewhere, _with(elsewhere, tmp_path, **facts)) is None
    fat = objection(
        elsewhere, _with(elsewhere, tmp_path, registers=255, threads=512, dynamic_shared_bytes=0)
    )
    assert fat is not None
    assert "131,072 a block" in fat


def test_registers_are_checked_against_the_register_file(tmp_path: Path) -> None:
    assert objection(WIDE, _card(tmp_path, WIDE)) is None  # 168 x 384 = 64,512
    instruction = "HGMMA.64x256x16.F32.BF16"
    reason = objection(WIDE, _with(WIDE, tmp_path, instruction, registers=176))
    assert reason == (
        "its 384 threads take 176 registers each, 67,584 a block as they are handed out, "
        "sm_90a has 65,536: lower the tile or the number of warps"
    )


def test_spills_are_told_and_allowed(tmp_path: Path) -> None:
    card = _with(WIDE, tmp_path, "HGMMA.64x256x16.F32.BF16", spill_store_bytes=4096)
    assert objection(WIDE, card) is None
    assert card.as_dict()["spill_store_bytes"] == 4096


def test_shared_memory_is_checked_to_the_byte(tmp_path: Path) -> None:
    limit = NARROW.arch.smem_per_block
    assert objection(NARROW, _card(tmp_path, NARROW, shared=limit - 512)) is None
    reason = objection(NARROW, _card(tmp_path, NARROW, shared=limit - 511))
    assert reason is not None
    assert "232,449 B of shared memory a block, sm_90a has 232,448" in reason


def test_kernel_without_function_and_broken_tool(tmp_path: Path) -> None:
    with pytest.raises(CompileError, match="no device function of the library bears its name"):
        _card(tmp_path, hopper(128))
    toolchain = _toolchain(tmp_path, SASS)
    (tmp_path / "sass").unlink()
    with pytest.raises(CompileError, match="-sass cannot read"):
        device_functions(tmp_path / "a.so", LOG, toolchain)


@pytest.mark.nvcc
def test_real_binary_without_tensor_cores(tmp_path: Path) -> None:
    toolchain = find_toolchain()
    spec = ampere()
    compiled = compile_library(
        mma_source([spec], tensor_cores=False),
        toolchain,
        tmp_path,
        jobs=1,
        failures=tmp_path / "failed",
    )
    (function,) = device_functions(compiled.path, compiled.log.read_text(), toolchain)
    assert spec.name in function.name
    assert (function.shared, function.spill_store, function.stack) == (256, 0, 0)
    assert 4 <= function.registers <= 64
    assert function.instructions == {}
    if can_inspect(toolchain):
        card = make_card(
            spec,
            _Entry(name=spec.name, threads=32, shared_bytes=1024, stages=2),
            [function],
            toolchain=toolchain,
            seconds=compiled.seconds,
            compiled_with=1,
            peak_bytes=compiled.peak_bytes,
            library_bytes=compiled.path.stat().st_size,
        )
        reason = objection(spec, card)
        assert reason == "its machine code lacks HMMA.16816 (tensor-core code: none)"
