"""Tuned tables where they are looked for: which are found, and what they say of a call."""

from __future__ import annotations

import dataclasses
import logging
import os
from pathlib import Path

import pytest

from fakes import hopper
from gemmsmith.dtypes import FP16, FP32
from gemmsmith.problem import GemmProblem
from gemmsmith.settings import settings
from gemmsmith.spec import KernelSpec
from gemmsmith.tables import Tables, forget_tables, own_tables, tables_for
from gemmsmith.tuned import FAIR, TORCH, epilogue_of, torch_can
from gemmsmith.tuned_file import add_entry
from gpus import H200
from tuned_data import CALL, FAST, SLOW, entry, table, timing

pytestmark = pytest.mark.usefixtures("no_tables")


def here() -> Tables:
    forget_tables()
    return tables_for(H200.name, H200.sm_count, H200.capability)


def told(call: GemmProblem, *specs: KernelSpec, torch: bool = True) -> list[str]:
    named = {spec.name: spec for spec in specs}
    return [
        TORCH if isinstance(each, str) else each.spec.name
        for each in here().choices(call, named, torch=torch)
    ]


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("NONE", "there is no such folder; did you mean none?"),
        ("gone", "there is no such folder; name a .yaml file or a folder"),
        ("t.json", "is no .yaml file; name a .yaml file or a folder"),
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
    (tmp_path / "t.json").touch()
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


def test_tables_end_in_yaml_or_in_yml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table(own_tables() / "a.yml", entry([timing(FAST, 1.2)]))
    assert told(CALL, FAST, SLOW) == [FAST.name]
    named = table(tmp_path / "named.yml", entry([timing(SLOW, 1.1)]))
    monkeypatch.setenv("GEMMSMITH_TUNED", str(named))
    assert told(CALL, FAST, SLOW) == [SLOW.name]


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
    for m, used in ((50, True), (69, True), (75, False), (80, False)):
        assert told(dataclasses.replace(CALL, m=m), FAST) == [FAST.name] * used, m
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
