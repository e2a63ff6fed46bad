"""Tuned tables: what they hold, how they are written, read, found and obeyed."""

from __future__ import annotations

import dataclasses
import logging
import os
from pathlib import Path

import pytest

import gemmsmith.tables
from fakes import hopper
from gemmsmith.choose import Choice, Tuning, choose
from gemmsmith.config import load_specs
from gemmsmith.dtypes import BF16, FP16, FP32, INT8, INT32
from gemmsmith.errors import ConfigError
from gemmsmith.kernelset import KernelSet
from gemmsmith.problem import GemmProblem, packed_problem
from gemmsmith.resources import configs_dir
from gemmsmith.selection import DeviceFacts, Plan
from gemmsmith.settings import settings
from gemmsmith.spec import Alignment, KernelSpec
from gemmsmith.tables import Tables, forget_tables, own_tables, tables_for
from gemmsmith.tuned import (
    FAIR,
    TORCH,
    content,
    epilogue_of,
    identified,
    key_of,
    left_to_torch,
    torch_can,
)
from gemmsmith.tuned_file import add_entry, entry_line, read_table
from tuned_data import entry, table, timing

H200 = DeviceFacts(name="NVIDIA H200", capability=(9, 0), sm_count=132)
FAST, SLOW = hopper(128), hopper(256)
CALL = GemmProblem(m=64, n=4096, k=4096, a=BF16, b=BF16, d=BF16)


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEMMSMITH_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("GEMMSMITH_TUNED", raising=False)
    monkeypatch.setattr(gemmsmith.tables, "shipped_tables", lambda: tmp_path / "shipped")
    forget_tables()


def here() -> Tables:
    forget_tables()
    return tables_for(H200.name, H200.sm_count, H200.capability)


def told(call: GemmProblem, *specs: KernelSpec, torch: bool = True) -> list[str]:
    named = {spec.name: spec for spec in specs}
    return [
        TORCH if isinstance(each, str) else each.spec.name
        for each in here().choices(call, named, torch=torch)
    ]


def test_a_kernels_content_changes_with_every_field_and_not_with_new_ones() -> None:
    edited = [
        dataclasses.replace(FAST, stages=3),
        dataclasses.replace(FAST, residual=True),
        dataclasses.replace(FAST, layout="rrr"),
        SLOW,
    ]
    digests = {content(FAST), *map(content, edited)}
    assert len(digests) == 5
    assert content(hopper(128)) == content(FAST)

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Later(KernelSpec):
        novelty: bool = False

    values = {field.name: getattr(FAST, field.name) for field in dataclasses.fields(FAST)}
    assert content(Later(**values)) == content(FAST)
    assert content(Later(**values, novelty=True)) != content(FAST)


def test_every_default_kernel_has_a_content_of_its_own() -> None:
    specs = load_specs(configs_dir() / "kernels")
    assert len({content(spec) for spec in specs}) == len(specs)


def test_what_an_entry_is_found_by() -> None:
    assert str(key_of(dataclasses.replace(CALL, m=70))) == "64x4096x4096 bf16 rcr plain"
    whole = dataclasses.replace(CALL, a=INT8, b=INT8, d=INT32)
    assert str(key_of(whole)) == "64x4096x4096 int8 -> int32 rcr plain"
    assert epilogue_of(dataclasses.replace(CALL, bias=True)) == "plain"
    assert epilogue_of(dataclasses.replace(CALL, gate="silu")) == "gate"
    rich = dataclasses.replace(CALL, scaled=True, residual=True, activation="gelu")
    assert epilogue_of(rich) == "scaled+activation+residual"
    assert torch_can(CALL)
    assert not torch_can(dataclasses.replace(CALL, bias=True))
    assert not torch_can(dataclasses.replace(CALL, batch=2))


def test_a_table_comes_back_from_its_file_one_line_an_entry(tmp_path: Path) -> None:
    rows = [
        timing(FAST, 1.25, raster=1, swizzle=8, low=1.24, high=1.26),
        timing(SLOW, 0.9, splits=3),
    ]
    won = entry(rows)
    path = table(tmp_path / "t.yaml", won, entry(m=128))
    read = read_table(path)
    assert read.entries == (won, entry(m=128))
    assert read.made.gpu == "NVIDIA H200"
    assert entry_line(won) in path.read_text()
    assert entry_line(won).count("\n") == 1
    later = entry(rows[1:], m=128)
    add_entry(path, later)
    assert read_table(path).entries == (won, later)


def test_a_table_without_entries_is_a_table(tmp_path: Path) -> None:
    path = table(tmp_path / "t.yaml")
    assert read_table(path).entries == ()
    add_entry(path, entry())
    assert read_table(path).entries == (entry(),)


def test_what_is_wrong_with_a_file_is_told_with_its_line(tmp_path: Path) -> None:
    path = table(tmp_path / "t.yaml", entry())
    good = path.read_text()
    for old, new, words in [
        ("format: 1", "format: 7", "is of format 7, this gemmsmith reads 1"),
        ("n: 4096", "n: many", r"t\.yaml:14: n: 'many' is not a whole number"),
        ("winner: torch", "victor: torch", r"t\.yaml:14: key 'winner' is missing"),
        ("winner: torch", "victor: torch", r"t\.yaml:14: unknown key 'victor'.* Legal keys: n, k,"),
        ("driver:", "drive:", r"t\.yaml:10: made: unknown key 'drive'; did you mean driver\?"),
        ("entries:", "entry:", r"t\.yaml:13: unknown key 'entry'; did you mean entries\?"),
        ("made:", "made: [", "is not valid YAML"),
        (
            "sm_count: 132",
            "sm_count: 132\n  sm_count: x",
            r"t\.yaml:7: key 'sm_count' is given twice",
        ),
    ]:
        assert old in good
        path.write_text(good.replace(old, new))
        with pytest.raises(ConfigError, match=words):
            read_table(path)
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        read_table(tmp_path / "gone.yaml")


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (
            "winner: gemm",
            "winner: other",
            r"winner: 'other_.* is neither torch nor a kernel of the",
        ),
        ("torch: 20.0", "torch: 0", r"torch: 0(\.0)? is not above 0"),
        ("us: 16.0", "us: -1.5", r"us: -1\.5 is not above 0"),
        ("ratio: 1.25", "ratio: 0.0", r"ratio: 0\.0 is not above 0"),
        ("ratio: 1.25", "ratio: .inf", r"ratio: .* does not fit here: .*finite"),
        ("m: 64", "m: 65", r"m: 65 is no bucket of M; use 1, 2, 4, .*, 8192"),
        ("n: 4096", "n: 4096, bias: true", r"unknown key 'bias'\. Legal keys: n, k, m,"),
        ("us: 16.0", "ms: 16.0", r"unknown key 'ms'.* Legal keys: kernel, raster,"),
    ],
)
def test_values_that_no_tuning_gives_are_refused(
    tmp_path: Path, old: str, new: str, words: str
) -> None:
    path = table(tmp_path / "t.yaml", entry([timing(FAST, 1.25)]))
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    with pytest.raises(ConfigError, match=rf"t\.yaml:14: {words}") as caught:
        read_table(path)
    assert "pydantic" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty: one has the keys made and entries"),
        ("# nothing\n", "is empty: one has the keys made and entries"),
        ("some words\n", "is no tuned table: one has the keys made and entries"),
        ("- 1\n", "is no tuned table: one has the keys made and entries"),
        ("made:\nentries:\n", "made: no value; give one or remove the key"),
        ("{}\n", "key 'made' is missing"),
    ],
)
def test_a_file_that_is_no_table_is_told_so(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "t.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_table(path)
    assert str(caught.value).startswith(f"{path}:1: {words}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("NONE", "there is no such folder; did you mean none?"),
        ("gone", "there is no such folder; name a .yaml file or a folder"),
        ("t.yml", "is no .yaml file; name a .yaml file or a folder"),
        ("gone.yaml", "cannot be read: No such file or directory"),
    ],
)
def test_a_named_place_without_tables_is_told(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    word: str,
    told: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.yml").touch()
    monkeypatch.setenv("GEMMSMITH_TUNED", word)
    with caplog.at_level(logging.WARNING):
        tables = here()
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert f"{tmp_path / word}: {told}" in caplog.text
    assert len(tables.unread) == 1
    caplog.clear()
    monkeypatch.setenv("GEMMSMITH_TUNED", str(tmp_path))
    assert here().unread == ()
    assert not caplog.records


def test_the_fastest_kernel_that_is_there_fits_and_is_unedited(tmp_path: Path) -> None:
    wide = hopper(64)
    rows = [timing(FAST, 1.2), timing(wide, 1.1), timing(SLOW, 0.9)]
    table(own_tables() / "t.yaml", entry(rows))
    assert told(CALL, FAST, wide, SLOW) == [FAST.name, wide.name, TORCH, SLOW.name]
    assert told(CALL, FAST, wide, SLOW, torch=False) == [FAST.name, wide.name, SLOW.name]
    assert told(CALL, wide, SLOW) == [wide.name, TORCH, SLOW.name]
    assert told(CALL, SLOW) == [TORCH, SLOW.name]
    edited = dataclasses.replace(FAST, acc=FAST.acc, bias=False)
    assert told(CALL, edited) == []
    same_name = dataclasses.replace(SLOW, residual=True)
    assert told(CALL, same_name, torch=False) == []
    short = dataclasses.replace(CALL, a_align=2)
    assert told(short, FAST, wide, SLOW, torch=False) == []


def test_torch_is_taken_only_where_the_whole_call_is_its_own(tmp_path: Path) -> None:
    table(own_tables() / "t.yaml", entry([timing(FAST, 0.9)], winner=TORCH))
    assert told(CALL, FAST) == [TORCH, FAST.name]
    assert told(dataclasses.replace(CALL, bias=True), FAST) == [FAST.name]
    assert told(CALL, FAST, torch=False) == [FAST.name]
    assert 0.99 < FAIR < 1


def test_bf16_timings_stand_for_fp16_until_it_has_its_own() -> None:
    twin, other = (dataclasses.replace(each, a=FP16, b=FP16, d=FP16) for each in (FAST, SLOW))
    call = dataclasses.replace(CALL, a=FP16, b=FP16, d=FP16)
    path = table(own_tables() / "t.yaml", entry([timing(FAST, 1.2), timing(SLOW, 1.1)]))
    assert told(call, FAST, SLOW, twin, other) == [twin.name, other.name]
    assert told(CALL, FAST, twin) == [FAST.name]
    half = dataclasses.replace(twin, acc=FP16)
    assert told(call, half) == []
    add_entry(path, entry([timing(other, 1.3)], a="fp16", d="fp16"))
    assert told(call, FAST, SLOW, twin, other) == [other.name]
    assert told(dataclasses.replace(call, d=FP32), twin) == []


def test_a_promise_has_entries_of_its_own_or_those_of_calls_without(tmp_path: Path) -> None:
    promised = dataclasses.replace(CALL, constant_b=True)
    assert epilogue_of(promised) == "constant"
    assert epilogue_of(dataclasses.replace(promised, residual=True)) == "residual+constant"
    assert torch_can(promised)
    path = table(own_tables() / "t.yaml", entry([timing(FAST, 1.2)]))
    assert told(promised, FAST, SLOW) == [FAST.name]
    half = dataclasses.replace(promised, a=FP16, b=FP16, d=FP16)
    twin, other = (dataclasses.replace(each, a=FP16, b=FP16, d=FP16) for each in (FAST, SLOW))
    assert told(half, twin, other) == [twin.name]
    add_entry(path, entry([timing(SLOW, 1.3)], epilogue="constant"))
    assert told(promised, FAST, SLOW) == [SLOW.name]
    assert told(half, twin, other) == [other.name]
    assert told(CALL, FAST, SLOW) == [FAST.name]
    table(own_tables() / "t.yaml", entry([timing(SLOW, 0.9)], winner=TORCH, epilogue="constant"))
    assert told(promised, FAST, SLOW) == [TORCH, SLOW.name]
    assert told(CALL, FAST, SLOW) == []


def test_neighbours_in_m_share_an_entry_and_neighbours_in_n_do_not(tmp_path: Path) -> None:
    table(own_tables() / "t.yaml", entry([timing(FAST, 1.2)]))
    assert told(dataclasses.replace(CALL, m=75), FAST) == [FAST.name]
    assert told(dataclasses.replace(CALL, m=80), FAST) == []
    assert told(dataclasses.replace(CALL, n=4104), FAST) == []
    assert told(dataclasses.replace(CALL, batch=2), FAST) == []
    assert told(dataclasses.replace(CALL, residual=True), FAST) == []


@pytest.mark.parametrize(
    "other",
    [{"gpu": "NVIDIA H100"}, {"sm_count": 114}, {"arch": "sm_80"}, {"arch": "sm_1"}, {"format": 2}],
)
def test_a_table_of_another_gpu_or_format_is_not_used(
    other: dict[str, object], caplog: pytest.LogCaptureFixture
) -> None:
    path = table(own_tables() / "t.yaml", entry([timing(FAST, 1.2)]), **other)
    with caplog.at_level(logging.WARNING):
        tables = here()
    assert tables.find(CALL) is None
    (told,) = tables.unread if "format" in other else tables.refused
    assert told.startswith(str(path))
    assert bool(caplog.records) == ("format" in other)


def test_other_software_leaves_a_table_in_use_and_is_told() -> None:
    table(own_tables() / "t.yaml", entry([timing(FAST, 1.2)]), driver="550.1", nvcc="12.4.1")
    tables = here()
    found = tables.find(CALL)
    assert found is not None
    now = found.made.model_copy(update={"driver": "580.95.05", "nvcc": "", "torch": "2.12.0"})
    assert found.made.differences(now) == {
        "driver": ("550.1", "580.95.05"),
        "torch": ("2.11.0+cu130", "2.12.0"),
    }


def test_named_tables_go_before_own_ones_and_those_before_shipped_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    third = hopper(64)
    table(tmp_path / "shipped" / "h200.yaml", entry([timing(third, 1.2)]))
    assert told(CALL, FAST, SLOW, third) == [third.name]
    old = table(own_tables() / "b.yaml", entry([timing(SLOW, 1.2)]))
    os.utime(old, (1, 1))
    assert told(CALL, FAST, SLOW, third) == [SLOW.name]
    table(own_tables() / "a.yaml", entry([timing(FAST, 1.2)]))
    assert told(CALL, FAST, SLOW, third) == [FAST.name]
    named = table(tmp_path / "named.yaml", entry([timing(third, 1.1)]))
    monkeypatch.setenv("GEMMSMITH_TUNED", f"{named}{os.pathsep}{tmp_path / 'nowhere'}")
    assert told(CALL, FAST, SLOW, third) == [third.name]
    monkeypatch.setenv("GEMMSMITH_TUNED", "none")
    assert settings().tuned is None
    assert told(CALL, FAST, SLOW, third) == []


class _Shelf:
    """Kernels that count as loaded."""

    def __init__(self, *specs: KernelSpec) -> None:
        self._specs = specs

    def kernels(self) -> dict[KernelSpec, str]:
        return {spec: f"loaded {spec.name}" for spec in self._specs}


def planned(
    monkeypatch: pytest.MonkeyPatch,
    *built: KernelSpec,
    torch: bool = True,
    call: GemmProblem = CALL,
) -> tuple[str, Tuning] | str:
    forget_tables()
    kernels = KernelSet([FAST, SLOW], arch=FAST.arch, source="x.yaml", torch_may_run=torch)
    monkeypatch.setattr(kernels, "_shelves", dict.fromkeys(kernels._shelves, _Shelf(*built)))
    found = kernels.plan(call, H200)
    return (found.spec.name, found.tuning) if isinstance(found, Plan) else found


def test_a_set_obeys_the_table_then_the_estimate(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = choose([FAST, SLOW], CALL, 132)
    assert isinstance(chosen, Choice)
    usual, other = (FAST, SLOW) if chosen.spec == FAST else (SLOW, FAST)
    assert planned(monkeypatch, FAST, SLOW) == (usual.name, chosen.tuning)
    knobs = {"raster": 2, "swizzle": 4}
    path = table(own_tables() / "t.yaml", entry([timing(other, 1.2, **knobs)]))
    assert planned(monkeypatch, FAST, SLOW) == (other.name, Tuning(**knobs))
    assert planned(monkeypatch, usual) == (usual.name, chosen.tuning)  # the winner is not built
    table(path, entry([timing(other, 0.9, **knobs)], winner=TORCH))
    assert planned(monkeypatch, FAST, SLOW) == (
        "torch is faster here, as the tuned table t.yaml says"
    )
    assert planned(monkeypatch, FAST, SLOW, torch=False) == (other.name, Tuning(**knobs))


def test_default_kernels_leave_untimed_calls_that_do_not_suit_them_to_torch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where torch can do the whole call: a bias or a residual would cost it more than it gains."""
    call = packed_problem(300, 7168, 5120, BF16)
    told = planned(monkeypatch, FAST, SLOW, call=call)
    assert isinstance(told, str)
    assert told.startswith("by estimate no kernel here suits 300x7168x5120")
    for kept, torch in ((dataclasses.replace(call, bias=True), True), (call, False)):
        found = planned(monkeypatch, FAST, SLOW, call=kept, torch=torch)
        assert found[0] in (FAST.name, SLOW.name)


def test_an_entry_holds_where_its_tiles_are_as_full(monkeypatch: pytest.MonkeyPatch) -> None:
    """At 300 rows two tiles of 128 have become three; torch's lead at 256 is none there."""
    at = dataclasses.replace(CALL, m=256)
    chosen = choose([FAST, SLOW], at, 132)
    assert chosen is not None
    usual, other = (FAST, SLOW) if chosen.spec == FAST else (SLOW, FAST)
    made = entry([timing(other, 1.2)], m=256)
    table(own_tables() / "t.yaml", made)
    assert planned(monkeypatch, FAST, SLOW, call=at)[0] == other.name
    for m, name in ((250, other.name), (300, usual.name)):
        call = dataclasses.replace(CALL, m=m)
        assert planned(monkeypatch, FAST, SLOW, call=call, torch=False)[0] == name, m
    table(own_tables() / "t.yaml", entry([timing(other, 0.9)], winner=TORCH, m=256))
    told = "torch is faster here, as the tuned table t.yaml says"
    assert planned(monkeypatch, FAST, SLOW, call=dataclasses.replace(CALL, m=260)) == told
    assert planned(monkeypatch, FAST, SLOW, call=dataclasses.replace(CALL, m=300)) != told


def test_widths_that_only_direct_stores_take_stay_with_our_kernels() -> None:
    odd = packed_problem(8, 50257, 768, BF16)
    direct = dataclasses.replace(
        FAST, store="direct", schedule="warp_specialized", alignment=Alignment(8, 8, 1)
    )
    choice = choose([FAST, direct], odd, 132)
    assert choice is not None
    assert choice.spec == direct
    assert left_to_torch(choice, odd, 132) == ""
    assert left_to_torch(dataclasses.replace(choice, spec=FAST), odd, 132)


def test_timings_carry_the_kernel_by_content() -> None:
    row = timing(FAST, 1.2)
    assert row.kernel == f"{FAST.name}@{content(FAST)}" == identified(FAST)
    assert row.name == FAST.name
