"""YAML files become kernel specs: defaults, crossed lists, several files."""

from __future__ import annotations

from pathlib import Path

import pytest

from config_files import AMPERE, HOPPER, load, problem, write
from gemmsmith.arch import ARCHITECTURES, SM_80, SM_90A, Architecture
from gemmsmith.config import load_specs
from gemmsmith.dtypes import BF16, FP16, FP32
from gemmsmith.errors import ConfigError, UnknownArchitectureError
from gemmsmith.spec import Alignment, Cluster, KernelSpec, Tile


def test_a_3x_family_gets_its_defaults(tmp_path: Path) -> None:
    (spec,) = load(tmp_path, HOPPER)
    assert spec == KernelSpec(
        arch=SM_90A,
        tile=Tile(128, 256, 64),
        schedule="cooperative",
        a=BF16,
        b=BF16,
        acc=FP32,
        d=BF16,
        layout="rcr",
        warp=None,
        stages=None,
        cluster=Cluster(1, 1),
        store="tma",
        scheduler="static",
        swap=False,
        bias=True,
        residual=False,
        alignment=Alignment(8, 8, 8),
    )
    assert spec.name == "gemm_bf16_rcr_128x256x64_c1x1_coop_sm90a"


def test_a_2x_family_gets_its_defaults(tmp_path: Path) -> None:
    (spec,) = load(tmp_path, AMPERE)
    assert (spec.arch, spec.schedule, spec.store, spec.stages) == (SM_80, "multistage", "smem", 4)
    assert spec.name == "gemm_fp16_rcr_128x128x32_w64x64_s4_sm80"


def test_every_key_reaches_the_spec(tmp_path: Path) -> None:
    (spec,) = load(
        tmp_path,
        """\
        families:
          - name: all
            arch: hopper
            dtype: {a: half, b: f16, acc: fp16, d: fp32}
            layout: rrr
            tile: [256, 128, 64]
            schedule: cooperative
            store: tma
            scheduler: stream_k
            stages: 3
            cluster: [2, 1]
            swap: true
            epilogue: {bias: false, residual: true}
            alignment: {a: 8, b: 8, d: 4}
        """,
    )
    assert (spec.a, spec.b, spec.acc, spec.d) == (FP16, FP16, FP16, FP32)
    assert (spec.layout, spec.tile, spec.cluster) == ("rrr", (256, 128, 64), (2, 1))
    assert (spec.scheduler, spec.stages, spec.swap) == ("stream_k", 3, True)
    assert (spec.bias, spec.residual, spec.alignment) == (False, True, (8, 8, 4))


def test_kernels_replace_keys_of_their_family(tmp_path: Path) -> None:
    first, second = load(
        tmp_path,
        """\
        families:
          - name: f
            arch: sm_90a
            dtype: bf16
            schedule: pingpong
            cluster: [2, 1]
            epilogue: {residual: true}
            kernels:
              - {tile: [128, 192, 64]}
              - {tile: [64, 256, 64], cluster: [1, 1], epilogue: {bias: false}, dtype: fp16}
        """,
    )
    assert (first.tile, first.cluster, first.residual, first.bias) == (
        (128, 192, 64),
        (2, 1),
        True,
        True,
    )
    assert (second.cluster, second.residual, second.bias) == ((1, 1), False, False)
    assert second.a is FP16


def test_lists_are_crossed(tmp_path: Path) -> None:
    specs = load(
        tmp_path,
        HOPPER.replace("bf16", "[bf16, {a: fp16, d: fp32}]") + "    layout: [rcr, rrr]\n",
    )
    assert [(spec.a.name, spec.d.name, spec.layout) for spec in specs] == [
        ("bf16", "bf16", "rcr"),
        ("bf16", "bf16", "rrr"),
        ("fp16", "fp32", "rcr"),
        ("fp16", "fp32", "rrr"),
    ]
    assert specs[2].alignment == (8, 8, 4)  # 16 bytes of fp32


@pytest.mark.parametrize("row", ARCHITECTURES, ids=lambda row: row.name)
def test_a_spelling_is_the_same_row_however_yaml_reads_it(
    tmp_path: Path, row: Architecture
) -> None:
    """80 and 8.0 come as numbers, 90a as text, '8.0' as text: all in each position of a file."""
    major, minor = row.capability
    words = {row.name, row.suffix, row.name.removeprefix("sm_"), *row.aliases}
    words |= {f"{major}{minor}", f"{major}.{minor}", f"{major}.{minor}0", f"sm_{major}.{minor}"}
    text = "families:\n  - {name: f, arch: WORD, dtype: fp16, tile: [128, 128, 32]}\n"
    for word in words:
        for written in (word, f"'{word}'", f'"{word}"', f"[{word}]", word.upper(), f"!!str {word}"):
            (spec,) = load(tmp_path, text.replace("WORD", written))
            assert spec.arch is row, written
        (spec,) = load_specs(write(tmp_path, text.replace("WORD", row.name)), arch=[word])
        assert spec.arch is row, word


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("1e2", "arch: arch '100.0' is not known"),
        ("8", "arch: arch '8' is not known; did you mean sm_80 or sm_86 or"),
        ("0x50", "arch: arch '0x50' is not known"),
        ("080", "arch: arch '080' is not known"),
        ("1:20", "arch: arch '1:20' is not known"),
        (".inf", "arch: arch '.inf' is not known"),
        ("9.0a+PTX", "arch: arch '9.0a+PTX' is not known; kernels are machine code without PTX"),
        ("8.0;9.0", "arch: arch '8.0;9.0' is not known; name one architecture at a time"),
        ("no", "arch: false does not fit; write arch: sm_90a"),
        ("{sm_80: 1}", "arch: {'sm_80': 1} does not fit; write arch: sm_90a"),
        ("[]", "arch: [] has 0 entries; write arch: sm_90a"),
        ("~", "arch: no value; give one or remove the key"),
    ],
)
def test_words_that_are_no_architecture(tmp_path: Path, written: str, message: str) -> None:
    line, told = problem(tmp_path, HOPPER.replace("sm_90a", written))
    assert line == 3
    assert told.startswith(message)


@pytest.mark.parametrize("word", ["sm_90", "90", "9.0"])
def test_k13_sm_90_is_promoted_to_sm_90a(tmp_path: Path, word: str) -> None:
    (spec,) = load(tmp_path, HOPPER.replace("sm_90a", word))
    assert (spec.arch.name, spec.arch.gencode) == ("sm_90a", "arch=compute_90a,code=sm_90a")


def test_k13_one_family_for_two_architectures(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        """\
        families:
          - name: both
            dtype: bf16
            kernels:
              - {arch: sm_80, tile: [128, 128, 32], warp: [64, 64, 32], stages: 4}
              - {arch: sm_90, tile: [128, 128, 64], schedule: pingpong}
        """,
    )
    assert [spec.arch.name for spec in load_specs(path)] == ["sm_80", "sm_90a"]
    assert [spec.arch for spec in load_specs(path, arch=["8.0"])] == [SM_80]
    assert [spec.arch for spec in load_specs(path, arch=["sm_90"])] == [SM_90A]
    assert len(load_specs(path, arch=("ampere", "hopper"))) == 2


def test_arch_filter_that_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has kernels for sm_80, none for sm_90a"):
        load_specs(write(tmp_path, AMPERE), arch="sm_90a")
    with pytest.raises(ConfigError, match="none for an empty list of architectures"):
        load_specs(write(tmp_path, AMPERE), arch=[])
    with pytest.raises(UnknownArchitectureError, match="sm_60"):
        load_specs(write(tmp_path, AMPERE), arch=["sm_60"])


def test_c04_two_families_of_one_name_name_both_lines(tmp_path: Path) -> None:
    second = AMPERE.removeprefix("families:\n").replace("[128, 128, 32]", "[128, 256, 32]")
    line, message = problem(tmp_path, AMPERE + second)
    assert line == 8
    assert message == "two families are named 'small', on line 2 and on line 8; rename one"


def test_c04_identical_kernels_are_merged_with_a_warning(tmp_path: Path) -> None:
    second = AMPERE.removeprefix("families:\n").replace("small", "again")
    with pytest.warns(UserWarning, match=r"k\.yaml:8: gemm_fp16_.*k\.yaml:2; it is built once"):
        (spec,) = load(tmp_path, AMPERE + second)
    assert spec.tile == (128, 128, 32)


def test_c04_identical_kernels_of_two_files_are_merged_too(tmp_path: Path) -> None:
    write(tmp_path, AMPERE, "a.yaml")
    write(tmp_path, AMPERE, "b.yml")
    write(tmp_path, "families: [not, read]", "notes.txt")
    with pytest.warns(UserWarning, match=r"b\.yml:2: .*a\.yaml:2"):
        assert len(load_specs(tmp_path)) == 1


def test_two_kernels_may_not_share_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KernelSpec, "name", "gemm_same")
    text = AMPERE.replace("fp16", "[fp16, bf16]")
    line, message = problem(tmp_path, text)
    assert line == 2
    assert message.startswith("gemm_same names two different kernels: this one and the one at")
