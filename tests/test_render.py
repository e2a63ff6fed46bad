"""Rendering: exact text, a pure function of specs and templates, strict about missing values."""

from __future__ import annotations

import difflib
import hashlib
import re
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from fake_calls import call_of
from gemmsmith.arch import SM_70, SM_80, SM_89, SM_90A
from gemmsmith.attn.spec import AttentionSpec, AttentionTile, AttentionWarps
from gemmsmith.dtypes import BF16, FP16, INT8, INT32
from gemmsmith.errors import RenderError
from gemmsmith.launcher.with_ctypes import CtypesLauncher
from gemmsmith.render import (
    include_dirs,
    render,
    render_template,
    template_name,
    template_values,
)
from gemmsmith.resources import templates_dir
from gemmsmith.rowspec import AnySpec
from gemmsmith.spec import Alignment, Cluster, KernelSpec, Tile
from real_kernels import (
    AMPERE,
    HOPPER,
    HOPPER_DEPENDENT,
    HOPPER_FP16,
    HOPPER_INT8,
    LEAN,
    LEAN_CONSTANT,
    LEAN_DEPENDENT,
    LEANS,
)

GOLDEN = Path(__file__).with_name("golden")
COLLECTIVE = {"2.x": "MmaSyncGemm", "3.x": "Sm90Gemm"}
COOPERATIVE = KernelSpec(
    arch=SM_90A, tile=Tile(128, 256, 64), cluster=Cluster(2, 1), schedule="cooperative"
)
MULTISTAGE = KernelSpec(
    arch=SM_80,
    tile=Tile(128, 128, 32),
    warp=Tile(64, 64, 32),
    stages=4,
    schedule="multistage",
    store="smem",
)
FEATURES: dict[str, tuple[AnySpec, ...]] = {
    "multistage": (MULTISTAGE,),
    "cooperative": (COOPERATIVE,),
    "pingpong": (
        replace(COOPERATIVE, tile=Tile(64, 128, 64), schedule="pingpong", a=FP16, b=FP16),
    ),
    "swap_direct": (HOPPER,),
    "dependent_launch": (HOPPER_DEPENDENT,),
    "stream_k": (replace(COOPERATIVE, tile=Tile(128, 128, 64), scheduler="stream_k"),),
    "residual": (replace(COOPERATIVE, tile=Tile(128, 128, 64), residual=True, bias=False),),
    "group_of_two": (AMPERE, replace(MULTISTAGE, residual=True, alignment=Alignment(2, 2, 2))),
    "lean": (LEAN,),
    "constant_b": (LEAN_CONSTANT,),
    "int8_lean": (
        replace(
            LEAN_DEPENDENT,
            a=INT8,
            b=INT8,
            acc=INT32,
            d=INT8,
            tile=Tile(64, 32, 128),
            scaled=True,
            activation="any",
            alignment=Alignment(16, 16, 16),
        ),
    ),
    "volta": (
        replace(
            MULTISTAGE,
            arch=SM_70,
            a=FP16,
            b=FP16,
            d=FP16,
            tile=Tile(128, 128, 32),
            warp=Tile(64, 64, 32),
            stages=2,
        ),
    ),
    "int8_multistage": (
        replace(
            MULTISTAGE,
            arch=SM_89,
            a=INT8,
            b=INT8,
            acc=INT32,
            d=INT32,
            layout="rcr",
            tile=Tile(128, 128, 64),
            warp=Tile(64, 64, 64),
            alignment=Alignment(16, 16, 4),
        ),
    ),
    "attention": tuple(
        AttentionSpec(
            arch=SM_90A,
            dtype=dtype,
            head_dim=80,
            tile=AttentionTile(128, 48),
            schedule="pingpong" if dtype == BF16 else "cooperative",
            stages=3,
        )
        for dtype in (BF16, FP16)
    ),
    "attention_decode": (
        AttentionSpec(
            arch=SM_90A,
            dtype=BF16,
            head_dim=128,
            tile=AttentionTile(8, 128),
            schedule="split_kv",
            stages=1,
            warps=AttentionWarps(1, 8),
        ),
    ),
    "attention_constant_cache": (
        AttentionSpec(
            arch=SM_90A,
            dtype=FP16,
            head_dim=64,
            tile=AttentionTile(8, 256),
            schedule="split_kv",
            stages=2,
            warps=AttentionWarps(1, 8),
            constant_cache=True,
        ),
    ),
    "attention_mma_sync": (
        AttentionSpec(
            arch=SM_80,
            dtype=FP16,
            head_dim=64,
            tile=AttentionTile(64, 64),
            schedule="multistage",
            stages=4,
        ),
        AttentionSpec(
            arch=SM_80,
            dtype=BF16,
            head_dim=256,
            tile=AttentionTile(64, 128),
            schedule="multistage",
            stages=4,
        ),
    ),
    "int8_cooperative": (
        replace(
            COOPERATIVE,
            a=INT8,
            b=INT8,
            acc=INT32,
            tile=Tile(128, 128, 128),
            alignment=Alignment(16, 16, 8),
        ),
    ),
}


def _variants(specs: Sequence[AnySpec]) -> list[str]:
    return [str(template_values(spec)["variant"]) for spec in specs]


@pytest.mark.parametrize(("width", "rare"), [(48, True), (112, True), (96, False), (256, False)])
def test_rare_widths_alone_pay_for_their_headers(width: int, rare: bool) -> None:
    spec = replace(COOPERATIVE, tile=Tile(128, width, 64))
    first = '#include "gemmsmith/rare_wgmma_widths.h"\n#include "gemmsmith/sm90_gemm.h"'
    assert (first in render([spec]).text) == rare
    assert (first in render([COOPERATIVE, spec]).text) == rare


def test_the_width_of_a_swapped_kernel_is_its_tokens() -> None:
    spec = replace(COOPERATIVE, tile=Tile(48, 128, 64), swap=True)
    assert "rare_wgmma_widths.h" in render([spec]).text


@pytest.mark.parametrize("feature", FEATURES)
def test_golden(feature: str, update_golden: bool) -> None:
    specs = FEATURES[feature]
    text = render(specs).text
    for variant in _variants(specs):  # it changes with every header and has tests of its own
        assert variant in text
        text = text.replace(variant, "0" * len(variant))
    golden = GOLDEN / f"{feature}.cu"
    if update_golden:
        golden.write_text(text)
    kept = golden.read_text()
    difference = difflib.unified_diff(
        kept.splitlines(), text.splitlines(), str(golden), "rendered now", lineterm=""
    )
    assert kept == text, "\n".join((*difference, "if this is meant: make golden"))


def test_no_golden_file_is_without_its_feature() -> None:
    assert sorted(path.stem for path in GOLDEN.iterdir()) == sorted(FEATURES)


def test_the_same_specs_give_the_same_text_and_nothing_of_this_machine() -> None:
    for specs in FEATURES.values():
        source = render(specs)
        again = render([replace(spec) for spec in specs])
        assert (again.text, again.digest) == (source.text, source.digest)
        assert source.digest == hashlib.sha256(source.text.encode()).hexdigest()
        assert source.specs == specs
        for local in (templates_dir(), Path.home(), Path.cwd()):
            assert str(local) not in source.text
        assert not re.search(r"\d\d:\d\d|20\d\d-\d\d", source.text), "a time stamp"
    assert render([MULTISTAGE]).digest != render([AMPERE]).digest


def test_files_are_named_after_a_kernel_or_after_the_group() -> None:
    assert render([MULTISTAGE]).filename == f"{MULTISTAGE.name}.cu"
    group = render([MULTISTAGE, AMPERE])
    assert group.filename == f"group_{group.digest[:12]}.cu"


def test_names_are_identifiers_and_unlike() -> None:
    specs = [spec for group in FEATURES.values() for spec in group]
    for spec in specs:
        assert re.fullmatch(r"(gemm|attention)_[a-z0-9_]+", spec.name)
        if isinstance(spec, KernelSpec):
            base = "LeanGemm" if spec.schedule == "lean" else COLLECTIVE[spec.arch.api]
            assert f"struct {spec.name} : {base}<" in render([spec]).text
        assert f"namespace v_{_variants([spec])[0]} {{" in render([spec]).text
    assert len({spec.name for spec in specs}) == len(specs)
    assert len(set(_variants(specs))) == len(specs)


def test_a_group_holds_its_kernels_in_order_and_one_table() -> None:
    first, second = FEATURES["group_of_two"]
    text = render([first, second]).text
    entries = re.findall(r'::entry\("([^"]+)"\)', text)
    assert entries == [first.name, second.name]
    assert text.count("kKernels[]") == text.count('#include "gemmsmith/exports.h"') == 1
    assert re.findall(r'::entry\("([^"]+)"\)', render([second, first]).text) == entries[::-1]


def test_swap_is_exchanged_before_the_template() -> None:
    text = render([HOPPER]).text  # tile 16 x 64 in the caller's frame
    assert "Shape<cute::Int<64>, cute::Int<16>, cute::Int<64>>" in text
    assert "kAlignmentD = 1;" in text
    assert "kSwap = true;" in text


@pytest.mark.parametrize("spec", [MULTISTAGE, COOPERATIVE, LEAN], ids=lambda spec: spec.schedule)
def test_r01_a_value_that_is_not_given_is_named_with_its_template(spec: KernelSpec) -> None:
    template = template_name(spec)
    values = template_values(spec)
    asked = {"stages", "name", "element_a"} | ({"split_k"} if spec is LEAN else {"alignment"})
    for missing in values.keys() & asked:
        kernel = {key: value for key, value in values.items() if key != missing}
        with pytest.raises(RenderError, match=rf"{re.escape(template)}.*'{missing}'"):
            render_template(template, {"banner": "x", "rare_widths": False, "kernels": [kernel]})
    with pytest.raises(RenderError, match=rf"{re.escape(template)}.*'banner'"):
        render_template(template, {"rare_widths": False, "kernels": [values]})


@pytest.mark.parametrize("spec", [MULTISTAGE, COOPERATIVE, LEAN], ids=lambda spec: spec.schedule)
def test_r01_every_value_given_is_used_by_a_template_and_reaches_it_untouched(
    spec: KernelSpec,
) -> None:
    raw = 'cutlass::Array<float, 4> && "it\'s"'
    values = {**template_values(spec), "element_accumulator": raw}
    text = render_template(
        template_name(spec), {"banner": raw, "rare_widths": False, "kernels": [values]}
    )
    assert f"using ElementAccumulator = {raw};" in text
    assert text.startswith(f"// {raw}\n")
    assert not re.search(r"&(lt|gt|amp|quot|#\d+);", text)


def test_an_unknown_template_is_a_render_error() -> None:
    with pytest.raises(RenderError, match=r"nothing\.cu\.j2"):
        render_template("nothing.cu.j2", {})


@pytest.mark.parametrize(
    ("changed", "ampere_changes", "hopper_changes", "lean_changes"),
    [
        ("include/gemmsmith/mma_sync_gemm.h", True, False, False),
        ("include/gemmsmith/sm90_gemm.h", False, True, False),
        ("include/gemmsmith/lean_gemm.h", False, False, True),
        ("include/gemmsmith/lean_shape.h", False, False, True),
        ("include/gemmsmith/lean_epilogue.h", False, False, True),
        ("include/gemmsmith/direct_epilogue.h", False, True, False),
        ("include/gemmsmith/dependent_launch.h", False, True, True),
        ("include/gemmsmith/cluster_launch.h", False, True, True),
        ("include/gemmsmith/host.h", True, True, True),
        ("include/gemmsmith/abi.h", True, True, True),
        ("gemm_mma_sync.cu.j2", True, False, False),
        ("gemm_sm90.cu.j2", False, True, False),
        ("gemm_lean.cu.j2", False, False, True),
    ],
)
def test_a_changed_file_changes_exactly_the_kernels_that_are_made_of_it(
    changed: str,
    ampere_changes: bool,
    hopper_changes: bool,
    lean_changes: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    copy = tmp_path / "templates"
    shutil.copytree(templates_dir(), copy)
    before = [render([spec]).digest for spec in (AMPERE, HOPPER, LEAN)]
    monkeypatch.setattr("gemmsmith.render.templates_dir", lambda: copy)
    assert include_dirs() == (copy / "include",)
    assert [
        render([spec]).digest for spec in (AMPERE, HOPPER, LEAN)
    ] == before  # only contents count

    edited = tmp_path / "edited"
    shutil.copytree(copy, edited)
    with (edited / changed).open("a") as file:
        file.write("// one more line\n")
    monkeypatch.setattr("gemmsmith.render.templates_dir", lambda: edited)
    after = [render([spec]).digest for spec in (AMPERE, HOPPER, LEAN)]
    changes = [new != old for new, old in zip(after, before, strict=True)]
    assert changes == [ampere_changes, hopper_changes, lean_changes]


@pytest.mark.parametrize("spec", LEANS, ids=["split", "dependent", "constant_b"])
def test_a_lean_instruction_has_the_width_of_the_device_tile(spec: KernelSpec) -> None:
    text = render([spec]).text
    width = spec.device_tile.n
    assert f"wgmma.mma_async.sync.aligned.m64n{width}k16.f32.bf16.bf16" in text
    assert text.count('"+f"(sums[') == width // 2
    assert f"%{width // 2}, %{width // 2 + 1}, p, 1, 1, 0, 0;" in text
    assert "sm90_gemm.h" not in text
    assert "rare_wgmma_widths.h" not in text


def _readelf(*arguments: str) -> str:
    if shutil.which("readelf") is None:
        pytest.skip("no readelf (binutils)")
    result = subprocess.run(["readelf", "-W", *arguments], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.nvcc
@pytest.mark.parametrize("spec", [HOPPER_FP16, HOPPER, HOPPER_INT8], ids=lambda spec: spec.a.name)
def test_r03_each_element_type_compiles_for_sm_90a_and_loads_without_a_gpu(
    spec: KernelSpec, real_libraries: dict[KernelSpec, Path]
) -> None:
    library = real_libraries[spec]
    command = shlex.split(library.with_suffix(".log").read_text().splitlines()[0])
    targets = [word for word in command if word.startswith(("-gencode", "-arch", "-code"))]
    assert targets == ["-gencode=arch=compute_90a,code=sm_90a"]
    (own,) = [each for each in CtypesLauncher().load(str(library)) if each.name == spec.name]
    assert (own.threads, own.stages) == (256, 4)
    assert own.can_run(call_of(spec, k=80, lda=80, ldb=80)) == 0
    assert own.can_run(call_of(spec, k=36, lda=36, ldb=36)) != 0  # TMA wants rows of 16 B


@pytest.mark.nvcc
def test_r03_libraries_ask_for_no_cuda_library_and_no_driver_symbol(
    real_libraries: dict[KernelSpec, Path],
) -> None:
    for library in real_libraries.values():
        needed = re.findall(r"\(NEEDED\).*\[(.+?)\]", _readelf("--dynamic", str(library)))
        assert needed
        assert not any(name.startswith(("libcu", "libtorch", "libpython")) for name in needed)
        symbols = [line.split() for line in _readelf("--dyn-syms", str(library)).splitlines()]
        undefined = {row[7] for row in symbols if len(row) > 7 and row[6] == "UND"}
        assert any(name.startswith("dlopen") for name in undefined)  # the table was read
        assert not {name for name in undefined if re.match(r"cu[A-Z]|cuda[A-Z]", name)}
        exported = {row[7] for row in symbols if len(row) > 7 and row[6] not in ("UND", "Ndx")}
        assert {"gemmsmith_abi_version", "gemmsmith_kernels"} <= exported


@pytest.mark.nvcc
def test_r03_libraries_hold_machine_code_of_their_architecture_alone(
    real_libraries: dict[KernelSpec, Path],
) -> None:
    from gemmsmith.toolchain import find_toolchain

    cuobjdump = find_toolchain().cuobjdump
    if cuobjdump is None:
        pytest.skip("no cuobjdump")
    for spec, library in real_libraries.items():
        listing = subprocess.run(
            [cuobjdump, "--list-elf", library], capture_output=True, text=True, check=True
        ).stdout
        assert set(re.findall(r"\.(sm_\w+)\.cubin", listing)) == {spec.arch.name}
