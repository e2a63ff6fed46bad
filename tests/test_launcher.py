"""Both launchers call the same libraries with the same outcomes, or say why a file is none."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from echo_data import ABI_VERSION, ECHO, ROPE_ECHO, ROW_ECHO, echo_library
from gemmsmith.errors import LoadError
from gemmsmith.launcher import (
    AttentionCall,
    Call,
    Launcher,
    RopeCall,
    RowCall,
    load_library,
    load_row_library,
)
from gemmsmith.launcher.abi import abi_header, abi_version
from gemmsmith.launcher.with_ctypes import read_table


def call_of_distinct_values() -> Call:
    values = {name: 2**33 + index for index, name in enumerate(Call._fields)}
    small = {name: 11 * index for index, name in enumerate(Call._fields) if index >= 21}
    changed: dict[str, Any] = {
        **values,
        **small,
        "alpha": 0.5,
        "beta": -2.0,
        "out_scale": 0.25,
        "c": 0,
    }
    return Call(**changed)


@pytest.mark.parametrize(
    ("struct", "call"),
    [("gemm", Call), ("rows", RowCall), ("attention", AttentionCall), ("rope", RopeCall)],
)
def test_calls_have_the_fields_of_their_structs_in_order(struct: str, call: Any) -> None:
    whole = rf"typedef struct gemmsmith_{struct} \{{(.*?)\}} gemmsmith_{struct};"
    body = re.search(whole, abi_header(), re.DOTALL)
    assert body is not None
    text = re.sub(r"/\*.*?\*/", "", body[1], flags=re.DOTALL)
    declared = [
        name.strip().split()[-1].lstrip("*")
        for statement in text.split(";")
        if statement.strip()
        for name in statement.split(",")
    ]
    assert declared == list(call._fields)


def test_the_version_is_that_of_the_header() -> None:
    assert f"#define GEMMSMITH_ABI_VERSION {abi_version()}\n" in abi_header()


def test_the_table_of_a_library_without_a_launcher(tmp_path: Path) -> None:
    table = read_table(echo_library(tmp_path / "echo.so"))
    assert {
        name: (row.threads, row.shared_bytes, row.stages, row.dependent_launch)
        for name, row in table.items()
    } == {"first": (128, 1024, 4, False), "second": (256, 2048, 2, True)}
    text = tmp_path / "text.so"
    text.write_text("hello")
    with pytest.raises(LoadError, match=r"cannot load .*text\.so: .*(invalid ELF|too short)"):
        read_table(text)
    newer = echo_library(tmp_path / "newer.so", version=ABI_VERSION + 1)
    with pytest.raises(LoadError, match=rf"version {ABI_VERSION + 1}, this gemmsmith speaks"):
        read_table(newer)


def test_each_field_arrives_where_it_belongs(each_launcher: Launcher, tmp_path: Path) -> None:
    first, second = each_launcher.load(str(echo_library(tmp_path / "echo.so")))
    assert (first.name, first.threads, first.shared_bytes, first.stages) == ("first", 128, 1024, 4)
    assert (second.name, second.threads, second.shared_bytes) == ("second", 256, 2048)
    assert (first.dependent_launch, second.dependent_launch) == (False, True)
    call = call_of_distinct_values()
    assert second.can_run(call) == 7
    assert second.explain(7).split() == [
        f"{value:g}" if isinstance(value, float) else str(value) for value in call
    ]
    assert first.explain(0) == "fine"
    assert first.workspace_bytes(call._replace(m=9)) == (0, 5_000_000_009)
    assert first.launch(call._replace(n=35), 2**40 + 1, 2**41 + 2) == -35
    assert first.explain(-35) == f"{2**40 + 1} {2**41 + 2}"
    assert first.blocks_per_sm() == (0, 3)


def test_each_field_of_a_row_call_arrives_where_it_belongs(
    each_launcher: Launcher, tmp_path: Path
) -> None:
    library = echo_library(tmp_path / "echo.so", text=ROW_ECHO)
    first, second = each_launcher.load_rows(str(library))
    assert (first.name, first.threads, first.shared_bytes, first.stages) == ("first", 1024, 0, 0)
    assert (second.name, second.threads, second.shared_bytes) == ("second", 512, 64)
    assert (first.dependent_launch, second.dependent_launch) == (False, True)
    big = {name: 2**33 + index for index, name in enumerate(RowCall._fields)}
    changed: dict[str, Any] = {**big, "eps": 0.5, "activation": 2, "interleaved": 1, "residual": 0}
    call = RowCall(**changed)
    assert second.launch(call, 2**40 + 1) == 7
    assert second.explain(7).split() == [
        f"{value:g}" if isinstance(value, float) else str(value) for value in (*call, 2**40 + 1)
    ]
    assert first.explain(0) == "fine"


def test_each_field_of_a_rotary_call_arrives_where_it_belongs(
    each_launcher: Launcher, tmp_path: Path
) -> None:
    library = echo_library(tmp_path / "echo.so", text=ROPE_ECHO)
    first, second = each_launcher.load_rows(str(library))
    assert (first.name, first.threads, first.shared_bytes, first.stages) == ("first", 1024, 0, 0)
    assert (second.threads, second.dependent_launch) == (512, True)
    big = {name: 2**33 + index for index, name in enumerate(RopeCall._fields)}
    flags = ("interleaved", "wide_positions", "wide_slots", "wide_frequencies")
    small: dict[str, Any] = {name: 3 + index for index, name in enumerate(flags)}
    call = RopeCall(**{**big, **small, "factor": 0.5, "slots": 0})
    assert second.launch(call, 2**40 + 1) == 7
    assert second.explain(7).split() == [
        f"{value:g}" if isinstance(value, float) else str(value) for value in (*call, 2**40 + 1)
    ]
    assert [row.threads for row in read_table(library).values()] == [1024, 512]


@pytest.mark.parametrize("name", ["pybind11", "ctypes"])
@pytest.mark.usefixtures("forgetful")
def test_the_two_kinds_of_libraries_are_not_taken_for_each_other(
    name: str, module_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GEMMSMITH_CACHE_DIR", str(module_cache))
    monkeypatch.setenv("GEMMSMITH_LAUNCHER", name)
    rows = echo_library(tmp_path / "rows.so", text=ROW_ECHO)
    gemms = echo_library(tmp_path / "gemms.so")
    assert list(load_row_library(rows)) == list(load_library(gemms)) == ["first", "second"]
    assert [row.threads for row in read_table(rows).values()] == [1024, 512]
    with pytest.raises(LoadError, match=r"rows\.so: it is no kernel library: gemmsmith_kernels"):
        load_library(rows)
    with pytest.raises(LoadError, match=r"gemms\.so: .* gemmsmith_row_kernels is missing"):
        load_row_library(gemms)
    old = echo_library(tmp_path / "old.so", text=ROW_ECHO, version=ABI_VERSION - 1)
    with pytest.raises(LoadError, match=rf"version {ABI_VERSION - 1}, this gemmsmith speaks"):
        load_row_library(old)


def test_l01_libraries_with_equal_names_inside_stay_apart(
    each_launcher: Launcher, tmp_path: Path
) -> None:
    old, _ = each_launcher.load(str(echo_library(tmp_path / "old.so")))
    edited = ECHO.replace("*blocks = 3", "*blocks = 5").replace('"first", 128', '"first", 64')
    new, _ = each_launcher.load(str(echo_library(tmp_path / "new.so", text=edited)))
    assert old.name == new.name
    assert (old.threads, old.blocks_per_sm()) == (128, (0, 3))
    assert (new.threads, new.blocks_per_sm()) == (64, (0, 5))


@pytest.mark.parametrize("name", ["pybind11", "ctypes"])
@pytest.mark.usefixtures("forgetful")
def test_what_is_no_kernel_library_is_a_load_error(
    name: str, module_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GEMMSMITH_CACHE_DIR", str(module_cache))
    monkeypatch.setenv("GEMMSMITH_LAUNCHER", name)
    text = tmp_path / "text.so"
    text.write_text("no library at all")
    foreign = echo_library(tmp_path / "foreign.so", text="int answer(void) { return 42; }")
    newer = echo_library(tmp_path / "newer.so", version=ABI_VERSION + 1)
    with pytest.raises(LoadError, match=r"cannot load .*text\.so: .*(invalid ELF|too short)"):
        load_library(text)
    with pytest.raises(LoadError, match=r"cannot load .*gone\.so: .*No such file"):
        load_library(tmp_path / "gone.so")
    with pytest.raises(LoadError, match=r"foreign\.so: it is no kernel library: gemmsmith_kernels"):
        load_library(foreign)
    version = f"interface has version {ABI_VERSION + 1}, this gemmsmith speaks {ABI_VERSION}"
    with pytest.raises(LoadError, match=rf"{version}: build the kernel again"):
        load_library(newer)
    good = load_library(echo_library(tmp_path / "good.so"))
    assert list(good) == ["first", "second"]
