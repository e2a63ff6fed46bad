"""Builds by the real compiler."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

import fakes
import gemmsmith.build
from fakes import ampere
from gemmsmith.build import build
from gemmsmith.card import can_inspect
from gemmsmith.config import load_specs
from gemmsmith.spec import KernelSpec
from gemmsmith.toolchain import find_toolchain


@pytest.mark.nvcc
def test_real_compiler_real_machine_code(cache_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toolchain = find_toolchain()
    monkeypatch.setattr(gemmsmith.build, "render", fakes.mma_source)
    report = build([ampere(64), ampere(128)], toolchain=toolchain, jobs=1)
    report.raise_if_failed()
    assert report.built[0].library == report.built[1].library
    for kernel in report.built:
        card = kernel.card
        assert (card.dynamic_shared_bytes, card.static_shared_bytes) == (1024, 256)
        assert 8 <= card.registers <= 64
        assert card.spill_store_bytes == 0
        assert card.compiled_with == 2
        assert card.sass_inspected == can_inspect(toolchain)
        if card.sass_inspected:
            assert card.tensor_instructions == {"HMMA.16816.F32.BF16": 1}
    assert build([ampere(128)], toolchain=toolchain).built[0].cached


@pytest.mark.nvcc
def test_real_templates_share_a_run(cache_dir: Path) -> None:
    specs = [ampere(128), ampere(64)]
    toolchain = find_toolchain()
    report = build(specs, toolchain=toolchain, jobs=1)
    report.raise_if_failed()
    assert report.built[0].library == report.built[1].library
    for kernel in report.built:
        spec = kernel.spec
        assert isinstance(spec, KernelSpec)
        tile = spec.tile
        card = kernel.card
        assert card.dynamic_shared_bytes == 3 * (tile.m + tile.n) * tile.k * 2
        assert card.threads == 128
        assert card.spill_store_bytes == 0
        if card.sass_inspected:  # each step of k 16 and of n 8 once for each 16 rows of a warp
            assert spec.warp is not None
            warp = spec.warp
            steps = (warp.m // 16) * (warp.n // 8) * (warp.k // 16)
            assert card.tensor_instructions == {"HMMA.16816.F32.BF16": steps}


@pytest.mark.nvcc
def test_real_compiler_error_is_the_first_one(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(specs: list[object]) -> object:
        source = fakes.mma_source([ampere(64)])
        return dataclasses.replace(source, text=source.text.replace("float c[4]", "flaot c[4]"))

    monkeypatch.setattr(gemmsmith.build, "render", broken)
    report = build([ampere(64)], toolchain=find_toolchain())
    first = str(report.failed[0].error).splitlines()[0]
    assert 'error: identifier "flaot" is undefined' in first


@pytest.mark.nvcc
def test_r06_kernels_of_every_kind_compile_and_keep_their_promises(cache_dir: Path) -> None:
    """Mixed outputs, fp16 sums, scales, gates, int8 on every architecture that nvcc here targets.

    Those of sm_70 need a toolkit of their own; test_matrix compiles one.
    """
    every = load_specs(Path(__file__).with_name("unusual.yaml"))
    specs = [spec for spec in every if spec.arch.name != "sm_70"]
    report = build(specs)
    report.raise_if_failed()
    cards = {kernel.spec.name: kernel.card for kernel in report.built}
    assert len(cards) == len(specs) == 81
    assert all(card.sass_inspected for card in cards.values()) == can_inspect(find_toolchain())
    assert {s.arch.name for s in specs if s.scaled and s.bias} >= {"sm_80", "sm_90a"}
    spilling = {name: card.spill_store_bytes for name, card in cards.items()}
    gated = {
        spec.name for spec in specs if spec.gate != "none"
    }  # two registers short, some of them
    assert all(spilling[name] <= (16 if name in gated else 0) for name in cards), spilling
    fixed = cards["gemm_bf16_rcc_64x64x64_s3_c1x1_pp_sm90a"]
    assert fixed.stages == 3
    if fixed.sass_inspected:
        half = cards["gemm_fp16_accfp16_rcr_64x64x64_c1x1_pp_nobias_sm90a"]
        assert set(half.tensor_instructions) == {"HGMMA.64x64x16.F16"}
