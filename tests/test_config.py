"""YAML files become kernel specs, and mistakes become sentences with file and line."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

import pytest

from gemmsmith.arch import SM_80, SM_90A
from gemmsmith.config import inspect_file, load_specs, schema
from gemmsmith.dtypes import BF16, FP16, FP32
from gemmsmith.errors import ConfigError, Problem, UnknownArchitectureError
from gemmsmith.spec import Alignment, Cluster, KernelSpec, Tile
from gemmsmith.yaml_lines import MAX_VALUES, read_yaml

HOPPER = """\
families:
  - name: prefill
    arch: sm_90a
    dtype: bf16
    schedule: cooperative
    tile: [128, 256, 64]
"""
AMPERE = """\
families:
  - name: small
    arch: sm_80
    dtype: fp16
    tile: [128, 128, 32]
    warp: [64, 64, 32]
    stages: 4
"""


def write(folder: Path, text: str, name: str = "k.yaml") -> Path:
    path = folder / name
    path.write_text(textwrap.dedent(text), encoding="utf-8")
    return path


def load(folder: Path, text: str) -> tuple[KernelSpec, ...]:
    return load_specs(write(folder, text))


def problems(folder: Path, text: str) -> tuple[Problem, ...]:
    with pytest.raises(ConfigError) as caught:
        load(folder, text)
    return caught.value.problems


def problem(folder: Path, text: str) -> tuple[int, str]:
    """The only problem of ``text``, as line and message."""
    (found,) = problems(folder, text)
    assert found.file == str(folder / "k.yaml")
    return found.line, found.message


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


@pytest.mark.parametrize("word", ["sm_90a", "sm90a", "90a", "90", "9.0", "'9.0a'", "hopper"])
def test_spellings_of_an_architecture(tmp_path: Path, word: str) -> None:
    (spec,) = load(tmp_path, HOPPER.replace("sm_90a", word))
    assert spec.arch is SM_90A


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


def test_k13_keys_of_one_api_for_both_say_what_to_do(tmp_path: Path) -> None:
    text = AMPERE.replace("sm_80", "[sm_80, sm_90a]") + "    schedule: multistage\n"
    found = [(p.line, p.message) for p in problems(tmp_path, text)]
    assert [line for line, _ in found] == [6, 8]  # warp, schedule
    assert "sm_90a has warp_specialized, pingpong, cooperative, not multistage" in found[1][1]
    for _, message in found:
        assert "sm_80, sm_90a share few keys: give each its own entry under kernels" in message


def test_arch_filter_that_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has kernels for sm_80, none for sm_90a"):
        load_specs(write(tmp_path, AMPERE), arch="sm_90a")
    with pytest.raises(ConfigError, match="none for an empty list of architectures"):
        load_specs(write(tmp_path, AMPERE), arch=[])
    with pytest.raises(UnknownArchitectureError, match="sm_70"):
        load_specs(write(tmp_path, AMPERE), arch=["sm_70"])


@pytest.mark.parametrize(
    ("word", "value"),
    [("no", False), ("off", False), ("yes", True), ("on", True), ("Yes", True), ("false", False)],
)
def test_c01_flags_are_booleans(tmp_path: Path, word: str, value: bool) -> None:
    (spec,) = load(tmp_path, HOPPER + f"    epilogue: {{bias: {word}}}\n    swap: {word}\n")
    assert (spec.bias, spec.swap) == (value, value)


def test_c01_words_that_yaml_takes_as_booleans_are_refused(tmp_path: Path) -> None:
    text = HOPPER.replace("name: prefill", "name: no").replace("dtype:", "on: 1\n    dtype:")
    found = [(p.line, p.message) for p in problems(tmp_path, text)]
    assert found == [
        (2, "name: found the boolean false, not text; put it in quotes, for example 'no'"),
        (4, "key on is a boolean in YAML; put it in quotes: 'on'"),
    ]


def test_c01_stream_k_is_a_word_of_scheduler(tmp_path: Path) -> None:
    line, message = problem(tmp_path, HOPPER + "    stream_k: off\n")
    assert line == 7
    assert "unknown key 'stream_k'; did you mean scheduler? (it takes static, stream_k)" in message


def test_c01_quoted_words_are_text(tmp_path: Path) -> None:
    (entry,) = inspect_file(write(tmp_path, HOPPER.replace("name: prefill", "name: 'no'")))
    assert entry.family == "no"


def test_c04_a_key_given_twice_names_both_lines(tmp_path: Path) -> None:
    line, message = problem(tmp_path, AMPERE + "    swap: false\n    stages: 5\n")
    assert line == 9
    assert message == "key 'stages' is given twice, on line 7 and on line 9; remove one"


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


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1E3", "stages: found 1000.0, not a whole number; write 1000"),
        ("1e1", "stages: found 10.0, not a whole number; write 10"),
        ("3.0", "stages: found 3.0, not a whole number; write 3"),
        ("1e-5", "stages: 1e-05 is not a whole number or auto"),
        ("010", "stages: found the text '010'; write 10"),
        ("'3'", "stages: found the text '3'; write 3"),
        ("1_0", "stages: found the text '1_0'; write 10"),
        ("1:30", "stages: '1:30' is not a whole number or auto"),
        ("yes", "stages: true is not a whole number or auto"),
    ],
)
def test_c06_numbers(tmp_path: Path, text: str, message: str) -> None:
    assert problem(tmp_path, HOPPER + f"    stages: {text}\n") == (7, message)


@pytest.mark.parametrize(
    ("text", "value"), [("1e-5", 0.00001), ("1E3", 1000.0), ("1.0e-5", 0.00001), (".5", 0.5)]
)
def test_c06_exponents_are_numbers_not_text(tmp_path: Path, text: str, value: float) -> None:
    assert read_yaml(write(tmp_path, f"alpha: {text}\n")).data == {"alpha": value}


def test_c06_alpha_and_beta_belong_to_the_call(tmp_path: Path) -> None:
    found = problems(tmp_path, HOPPER + "    epilogue: {alpha: 1e-5, beta: 1E3}\n")
    assert [(p.line, p.message) for p in found] == [
        (7, f"epilogue: unknown key '{key}': alpha and beta are arguments of each call; remove it")
        for key in ("alpha", "beta")
    ]


def test_c08_typos_are_told_at_once_with_the_nearest_key(tmp_path: Path) -> None:
    found = problems(
        tmp_path,
        """\
        families:
          - name: f
            arch: sm_80
            stage: 4
            aligment: 8
            tile_shape: [128, 128, 32]
            dtypes: {A: fp16}
            dtype: {a: f17}
            schedule: multstage
            layout: [rcr, rcx]
        """,
    )
    assert [p.line for p in found] == [4, 5, 6, 7, 8, 9, 10]
    words = [p.message for p in found]
    for message, near in zip(words[:4], ("stages", "alignment", "tile", "dtype"), strict=True):
        assert f"did you mean {near}?" in message
        assert "Legal keys: arch, dtype, layout, tile" in message
    assert "(it takes fp16, f16, float16, half, bf16" in words[3]
    assert words[4].startswith("dtype.a: 'f17' is not an element type")
    assert "did you mean f16? Legal: fp16, f16, float16, half, bf16, bfloat16" in words[4]
    assert words[5] == (
        "schedule: 'multstage' is no schedule; did you mean multistage?"
        " Legal: multistage, warp_specialized, pingpong, cooperative"
    )
    assert words[6].startswith("layout[2]: 'rcx' is no layout; did you mean r")
    assert "Legal: rcr, rrr" in words[6]


def test_c08_aliases_of_an_element_type(tmp_path: Path) -> None:
    (spec,) = load(tmp_path, AMPERE.replace("fp16", "{a: f16}"))
    assert (spec.a, spec.d) == (FP16, FP16)


def test_c08_keys_inside_mappings(tmp_path: Path) -> None:
    found = problems(
        tmp_path,
        HOPPER.replace("bf16", "{a: bf16, c: fp32}")
        + "    alignment: {x: 8}\n    epilogue: {activation: relu}\n",
    )
    assert [p.message for p in found] == [
        "dtype: unknown key 'c'; did you mean d? Legal keys: a, b, acc, d",
        "alignment: unknown key 'x'. Legal keys: a, b, d",
        "epilogue: unknown key 'activation'. Legal keys: bias, residual",
    ]


@pytest.mark.parametrize("word", ["sm_70", "sm_75", "sm_89", "7.0", "volta"])
def test_c09_architectures_without_kernels(tmp_path: Path, word: str) -> None:
    line, message = problem(tmp_path, AMPERE.replace("sm_80", word))
    assert (line, message) == (3, f"arch: arch '{word}' is not known (known: sm_80, sm_90a)")


@pytest.mark.parametrize("word", ["int8", "{a: int8, b: int8, acc: int32, d: int32}"])
def test_c09_element_types_without_kernels(tmp_path: Path, word: str) -> None:
    found = problems(tmp_path, AMPERE.replace("fp16", word))
    assert {p.line for p in found} == {4}
    assert "'int8' is not an element type that gemmsmith has kernels for" in found[0].message
    assert "(sm_80 takes fp16, bf16; sm_90a takes fp16, bf16)" in found[0].message


def test_c09_bf16_accumulates_in_fp32_alone(tmp_path: Path) -> None:
    line, message = problem(tmp_path, HOPPER.replace("bf16", "{a: bf16, acc: fp16}"))
    assert line == 4
    assert message.endswith("dtype: bf16 products accumulate in fp32, not fp16; set acc: fp32")


@pytest.mark.parametrize(
    ("tile", "warp", "key", "message"),
    [
        ("[128, 128, 32]", "[48, 64, 32]", 5, "tile.m=128 is not a multiple of warp.m=48"),
        ("[128, 100, 32]", "[64, 64, 32]", 5, "tile.n=100 is not a multiple of warp.n=64"),
        ("[64, 64, 32]", "[128, 64, 32]", 5, "tile.m=64 is not a multiple of warp.m=128"),
        (
            "[128, 128, 24]",
            "[64, 64, 24]",
            6,
            "warp.k=24 is not a multiple of the instruction's 16",
        ),
    ],
)
def test_c11_divisions_of_the_tile(
    tmp_path: Path, tile: str, warp: str, key: int, message: str
) -> None:
    text = AMPERE.replace("[64, 64, 32]", warp).replace("[128, 128, 32]", tile)
    assert any(p.line == key and message in p.message for p in problems(tmp_path, text))


def test_c11_offers_a_legal_size(tmp_path: Path) -> None:
    line, message = problem(tmp_path, AMPERE.replace("[128, 128, 32]", "[128, 100, 32]"))
    assert line == 5
    assert message == (
        "family 'small', kernel on line 2 (sm_80 fp16 rcr 128x100x32): tile: tile.n=100 is not a"
        " multiple of warp.n=64; tile.n=128 is"
    )
    (spec,) = load(tmp_path, AMPERE.replace("[128, 128, 32]", "[128, 128, 32]"))
    assert spec.tile.n == 128


def test_c12_shared_memory_at_load(tmp_path: Path) -> None:
    text = AMPERE.replace("[128, 128, 32]", "[128, 256, 64]").replace(", 32]", ", 64]")
    line, message = problem(tmp_path, text)
    assert line == 7
    assert message.endswith(
        "stages: 128x256x64 with stages 4 needs 196,608 B of shared memory, sm_80 has 166,912;"
        " at most 3 stages fit: 147,456 B"
    )
    (spec,) = load(tmp_path, HOPPER.replace("bf16", "fp16") + "    stages: 4\n")
    assert spec.stages == 4


@pytest.mark.parametrize("cluster", ["[2, 1, 1]", "[2, 1]"])
def test_c14_clusters_on_ampere(tmp_path: Path, cluster: str) -> None:
    line, message = problem(tmp_path, AMPERE + f"    cluster: {cluster}\n")
    assert line == 8
    assert "cluster [2, 1] needs sm_90a; sm_80 has no clusters" in message


def test_c14_schedules_of_hopper_on_ampere(tmp_path: Path) -> None:
    line, message = problem(tmp_path, AMPERE + "    schedule: pingpong\n")
    assert line == 8
    assert "sm_80 has multistage, not pingpong; set schedule: multistage" in message


@pytest.mark.parametrize(
    ("cluster", "message"),
    [
        ("[3, 1, 1]", "cluster.m=3; 1, 2, 4 and 8 have kernels"),
        ("[4, 4, 1]", "[4, 4] is 16 blocks; 8 is the most"),
        ("[4, 4, 2]", "has 2 along its third axis; D has rows and columns only: write [m, n]"),
        ("[0, 1, 1]", "[0, 1] holds a number below 1"),
        ("[2]", "[2] has 1 entries; write cluster: [2, 1]"),
    ],
)
def test_c14_clusters_on_hopper(tmp_path: Path, cluster: str, message: str) -> None:
    found = problems(tmp_path, HOPPER + f"    cluster: {cluster}\n")
    assert all(p.line == 7 for p in found)
    assert message in found[0].message


def test_c15_row_by_row_is_a_layout_of_16_bit_kernels(tmp_path: Path) -> None:
    (spec,) = load(tmp_path, AMPERE + "    layout: rrr\n")
    assert spec.layout == "rrr"


def test_c15_a_layout_in_other_words(tmp_path: Path) -> None:
    line, message = problem(tmp_path, AMPERE + "    layout: {a: row, b: row}\n")
    assert line == 8
    assert "one of rcr, rrr, ccr, crr, rcc, rrc, ccc, crc does" in message


def test_all_files_of_a_folder_are_judged(tmp_path: Path) -> None:
    write(tmp_path, AMPERE.replace("stages: 4", "stages: 40"), "a.yaml")
    write(tmp_path, HOPPER.replace("bf16", "bf17"), "b.yaml")
    write(tmp_path, "families: [", "c.yaml")
    with pytest.raises(ConfigError) as caught:
        load_specs(tmp_path)
    places = [(Path(p.file).name, p.line) for p in caught.value.problems]
    assert places[:2] == [("a.yaml", 7), ("b.yaml", 4)]
    assert places[2][0] == "c.yaml"
    assert str(caught.value).startswith(f"{tmp_path / 'a.yaml'}:7: family 'small'")


def test_sound_kernels_are_judged_beside_broken_ones(tmp_path: Path) -> None:
    found = problems(
        tmp_path,
        """\
        families:
          - name: f
            arch: sm_90a
            dtype: bf16
            kernels:
              - {tile: [128, 192], schedule: pingpong}
              - {tile: [128, 200, 64], schedule: pingpong}
              - {tile: [128, 128, 64]}
              - {schedule: pingpong}
              - {tile: [128, 128, 64], schedule: pingpong}
        """,
    )
    assert [p.line for p in found] == [6, 7, 8, 9]
    schema_error, illegal, no_schedule, no_tile = [p.message for p in found]
    assert schema_error == "tile: [128, 192] has 2 entries; write tile: [128, 128, 64]"
    assert illegal.startswith("family 'f', kernel on line 7 (sm_90a bf16 rcr 128x200x64): tile: ")
    assert no_schedule == (
        "family 'f', kernel on line 8 (sm_90a bf16 rcr 128x128x64):"
        " key 'schedule' is missing; sm_90a has warp_specialized, pingpong, cooperative"
    )
    assert no_tile == (
        "family 'f': key 'tile' is missing, here and in the family;"
        " for example tile: [128, 128, 64]"
    )


def test_an_objection_stands_at_the_key_of_the_kernel_or_family(tmp_path: Path) -> None:
    found = problems(
        tmp_path,
        """\
        families:
          - name: f
            arch: sm_90a
            dtype: bf16
            schedule: pingpong
            cluster: [3, 1]
            kernels:
              - tile: [128, 96, 64]
              - tile: [128, 96, 64]
                cluster: [5, 1]
        """,
    )
    assert {p.line for p in found} == {6, 10}


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("", 1, "is empty; a file needs the key families: with a list of kernel families"),
        ("# nothing\n", 1, "is empty; a file needs the key families:"),
        ("- a\n", 1, "is not a mapping; a file needs the key families:"),
        ("{}\n", 1, "key 'families' is missing; for example families: followed by entries"),
        ("families:\n", 1, "families: no value; give one or remove the key"),
        ("families: []\n", 1, "families: [] has 0 entries; write families: followed by entries"),
        ("families: 3\n", 1, "families: 3 does not fit; write families: followed by entries"),
        ("families:\n  - 3\n", 2, "3 does not fit; write families: followed by entries"),
        (
            "families:\n  - {name: f, kernels: bf16}\n",
            2,
            "kernels: 'bf16' does not fit; write kernels:",
        ),
        (
            "families:\n  - {name: f, kernels: [3]}\n",
            2,
            "3 does not fit; write kernels:",
        ),
        ("families: [}\n", 1, "is not valid YAML: while parsing a flow"),
        ("families:\n\t- a\n", 2, "is not valid YAML: while scanning for the next token"),
        ("a: 1\n---\nb: 2\n", 2, "is not valid YAML: expected a single document"),
        ("a: *b\n", 1, "is not valid YAML: found undefined alias 'b'"),
        ("families: !!python/object:os.system x\n", 1, "is not taken; write plain text or numbers"),
        ("? [1, 2]\n: 3\n", 1, "a key must be plain text"),
        ("9: 3\n", 1, "key 9 is a number in YAML; put it in quotes: '9'"),
        ("families: &a [*a]\n", 1, "holds more than 100,000 values or 16 levels"),
        ("a: \x07\n", 1, "character 0x7 is not allowed in YAML"),
        ("[" * 5000, 1, "is nested deeper than 16 levels"),
    ],
)
def test_files_that_are_no_families(tmp_path: Path, text: str, line: int, message: str) -> None:
    found = problems(tmp_path, text)
    assert found[0].line == line
    assert message in found[0].message


def test_aliases_may_not_blow_up(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{at}: &a{at} [{', '.join([f'*a{at - 1}'] * 10)}]" for at in range(1, 9)]
    document = read_yaml(write(tmp_path, "\n".join(lines)))
    assert "holds more than 100,000 values" in document.problems[0].message
    assert len(document.lines) < MAX_VALUES + 100


def test_merge_keys_are_defaults(tmp_path: Path) -> None:
    text = AMPERE.replace("- name", "- &base\n    name") + "  - {<<: *base, name: two, stages: 3}\n"
    assert [spec.stages for spec in load(tmp_path, text)] == [4, 3]


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    missing = tmp_path / "missing.yaml"
    with pytest.raises(ConfigError) as caught:
        load_specs(missing)
    assert str(caught.value) == f"{missing}: cannot be read: No such file or directory"
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(ConfigError) as caught:
        load_specs(empty)
    assert str(caught.value) == f"{empty}: the folder holds no .yaml file"
    latin = tmp_path / "latin.yaml"
    latin.write_bytes("families:\n  - name: gr\xfcn\n".encode("latin-1"))
    with pytest.raises(ConfigError) as caught:
        load_specs(str(latin))
    assert str(caught.value) == f"{latin}:2: byte 0xfc is not UTF-8; save the file as UTF-8"


def test_a_byte_order_mark_and_crlf_are_fine(tmp_path: Path) -> None:
    path = tmp_path / "windows.yaml"
    path.write_bytes(b"\xef\xbb\xbf" + AMPERE.replace("\n", "\r\n").encode())
    assert len(load_specs(path)) == 1


def test_inspect_keeps_illegal_kernels(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        """\
        families:
          - name: f
            arch: sm_90a
            dtype: bf16
            schedule: pingpong
            kernels:
              - {tile: [128, 192, 64]}
              - {tile: [256, 256, 64]}
        """,
    )
    legal, illegal = inspect_file(path)
    assert legal.spec is not None
    assert (legal.line, legal.family, legal.objections) == (7, "f", ())
    assert illegal.spec is None
    assert (illegal.line, illegal.title) == (8, "sm_90a bf16 rcr 256x256x64")
    (objection,) = illegal.objections
    assert (objection.key, illegal.lines) == ("tile", (8,))
    assert "keeps 512 accumulator registers a thread" in objection.reason
    with pytest.raises(ConfigError, match="unknown key 'x'"):
        inspect_file(write(tmp_path, HOPPER + "    x: 1\n"))


def test_the_committed_schema_is_current() -> None:
    committed = Path(__file__).parent.parent / "configs" / "schema.json"
    assert json.loads(committed.read_text(encoding="utf-8")) == schema(), (
        "write configs/schema.json again: json.dumps(gemmsmith.config.schema(), indent=2)"
    )


def test_the_schema_knows_the_keys_and_words() -> None:
    made = schema()
    family = made["$defs"]["FamilyKeys"]
    assert family["required"] == ["name"]
    assert family["additionalProperties"] is False
    assert family["properties"]["schedule"]["enum"] == [
        "multistage",
        "warp_specialized",
        "pingpong",
        "cooperative",
    ]
    assert '"null"' not in json.dumps(made)


def test_a_name_without_a_value_is_told_once(tmp_path: Path) -> None:
    line, message = problem(tmp_path, HOPPER.replace("name: prefill", "name: ~"))
    assert (line, message) == (2, "name: no value; give one or remove the key")


def test_auto_is_chosen_outside_the_file(tmp_path: Path) -> None:
    line, message = problem(tmp_path, HOPPER.replace("sm_90a", "auto"))
    assert line == 3
    assert message.startswith("arch: auto is not for a file: name every architecture")
    assert "--arch auto or load(..., arch='auto')" in message


@pytest.mark.parametrize(
    ("key", "told"),
    [
        ("bias: no", "{bias: false}"),
        ("residual: true", "{residual: true}"),
        ("bias: 1", "{bias: true}"),
    ],
)
def test_keys_of_the_epilogue_are_told_their_place(tmp_path: Path, key: str, told: str) -> None:
    line, message = problem(tmp_path, f"{HOPPER}    {key}\n")
    assert line == 7
    assert message == f"unknown key {key.split(':')[0]!r}; write epilogue: {told}"


@pytest.mark.parametrize(
    ("number", "told"),
    [
        ("9" * 23, "is out of range: it has 23 digits"),
        ("'0128'", "found the text '0128'; write 128"),
    ],
)
def test_a_number_that_is_text(tmp_path: Path, number: str, told: str) -> None:
    line, message = problem(tmp_path, HOPPER.replace("128", number))
    assert line == 6
    assert message.startswith("tile[1]: ")
    assert message.endswith(told)
