"""Row kernels as specs, sources and compiled libraries."""

from __future__ import annotations

from pathlib import Path

import pytest

from gemmsmith.arch import ARCHITECTURES, SM_70, SM_75, SM_80, SM_90A, Architecture, portable
from gemmsmith.dtypes import BF16, FP16, FP32, INT8
from gemmsmith.errors import IllegalKernelError
from gemmsmith.render import render
from gemmsmith.rowspec import ROW_OPERATIONS, RowSpec, row_dtypes, row_specs
from gemmsmith.spec_dict import spec_from_dict, spec_to_dict
from row_data import matrix_specs


def test_names_tell_all_that_a_kernel_is() -> None:
    spec = RowSpec(arch=SM_90A, operation="rms_norm_quantize", dtype=BF16)
    assert spec.name == "rows_rms_norm_quantize_bf16_sm90a"
    every = [spec.name for arch in ARCHITECTURES for spec in row_specs(arch)]
    assert len(every) == len(set(every)) == 2 * 12 + 5 * 18


def test_an_architecture_without_bf16_has_no_such_kernels() -> None:
    assert row_dtypes(SM_70) == row_dtypes(SM_75) == (FP16, FP32)
    assert row_dtypes(SM_80) == (FP16, BF16, FP32)
    with pytest.raises(IllegalKernelError, match="sm_75 has row kernels for fp16, fp32, none for"):
        RowSpec(arch=SM_75, operation="gate", dtype=BF16)
    with pytest.raises(IllegalKernelError, match="none for int8"):
        RowSpec(arch=SM_80, operation="gate", dtype=INT8)


def test_specs_survive_a_manifest() -> None:
    for spec in (*row_specs(SM_80), *row_specs(portable(SM_75))):
        assert spec_from_dict(spec_to_dict(spec)) == spec
    values = spec_to_dict(row_specs(SM_80)[0])
    with pytest.raises(ValueError, match="unknown operation 'dance'"):
        spec_from_dict({**values, "operation": "dance"})
    with pytest.raises(ValueError, match="unknown tile"):
        spec_from_dict({**values, "tile": [1, 2, 3]})


def test_the_source_names_each_kernel_and_its_steps() -> None:
    text = render(matrix_specs(SM_80)).text
    for spec in matrix_specs(SM_80):
        body = text.split(f"struct {spec.name} {{")[1].split("};")[0]
        element = {"fp16": "__half", "bf16": "__nv_bfloat16", "fp32": "float"}[spec.dtype.name]
        assert f"using Element = {element};" in body
        for step, word in (("kNorm", "norm"), ("kGate", "gate"), ("kQuantize", "quantize")):
            assert f"{step} = {str(word in spec.operation).lower()};" in body
        assert f'rows::entry<{spec.name}>("{spec.name}"),' in text
    assert "cutlass" not in text
    rotary = [spec for spec in row_specs(SM_80) if spec.operation == "rope"]
    text = render(rotary).text
    assert [spec.name in text for spec in rotary] == [True] * 3
    assert "struct rows_rope_bf16_sm80 {\n  using Element = __nv_bfloat16;" in text
    assert "rows.h" not in text


@pytest.mark.nvcc
@pytest.mark.parametrize("arch", [SM_75, SM_80, SM_90A], ids=lambda arch: arch.name)
def test_kernels_compile_without_spills_and_are_found_again(
    arch: Architecture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gemmsmith.build import build
    from gemmsmith.launcher import load_row_library
    from gemmsmith.lookup import find_built

    monkeypatch.setenv("GEMMSMITH_CACHE_DIR", str(tmp_path))
    specs = row_specs(arch)
    report = build(specs, jobs=2)
    report.raise_if_failed()
    for built in report.built:
        card = built.card
        assert card.spill_store_bytes == card.spill_load_bytes == card.stack_bytes == 0, card.name
        norm, rope = "norm" in card.name, "rope" in card.name
        threads = 1024 if not norm else 512 if "fp32" in card.name else 768
        assert (card.threads, card.stages) == (threads, 0)
        assert card.registers * threads <= 65_536
        assert card.shared_bytes <= (2 * 4096 + 16 * 16 if rope else 32 * (8 + 4))
        assert card.tensor_instructions == {}
        early = arch is SM_90A  # each of its functions waits once, before it touches memory
        waits = (card.dependent_launch, card.grid_waits, card.grid_releases)
        assert waits == ((True, 1, 1) if early else (False, 0, 0))
        assert (card.constant_loads == 0) == (early or rope)
        assert built.spec.name in load_row_library(built.library)
    assert find_built(specs) == {built.spec: built.library for built in report.built}
    assert all(built.cached for built in build(specs).built)


@pytest.mark.nvcc
def test_a_bundle_brings_row_kernels_to_machines_without_a_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gemmsmith.bundle import read_bundle
    from gemmsmith.bundle_export import export, exportable
    from gemmsmith.errors import BundleError
    from gemmsmith.lookup import find_built

    monkeypatch.setenv("GEMMSMITH_CACHE_DIR", str(tmp_path / "here"))
    specs = row_specs(SM_80)[:2]
    export(exportable(specs, asked=["sm_80"]), tmp_path / "bundle")
    bundle = read_bundle(tmp_path / "bundle")
    assert bundle.all_specs() == specs
    with pytest.raises(BundleError):  # no GEMM among them
        bundle.specs(SM_80)
    monkeypatch.setenv("GEMMSMITH_CACHE_DIR", str(tmp_path / "there"))
    monkeypatch.setenv("GEMMSMITH_BUNDLES", str(tmp_path / "bundle"))
    assert set(find_built(specs)) == set(specs)
    assert [spec.operation for spec in specs] == list(ROW_OPERATIONS[:2])
