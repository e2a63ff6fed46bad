"""Facts that are computed again only when a file changes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gemmsmith.memo import remember, stamp


def test_computed_once_until_a_file_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cache").mkdir()
    monkeypatch.setenv("GEMMSMITH_CACHE_DIR", str(tmp_path / "cache"))
    tool = tmp_path / "tool"
    tool.write_text("one")
    calls = []

    def compute() -> str:
        calls.append(tool.read_text())
        return calls[-1]

    assert [remember("text", [tool], compute) for _ in range(3)] == ["one"] * 3
    assert calls == ["one"]
    assert remember("other", [tool], lambda: "x") == "x"
    tool.write_text("two")
    os.utime(tool, ns=(5, 5))
    assert remember("text", [tool], compute) == "two"
    assert calls == ["one", "two"]


def test_a_replaced_file_with_the_same_size_and_time_is_another(tmp_path: Path) -> None:
    tool, other = tmp_path / "tool", tmp_path / "other"
    for file, text in ((tool, "one"), (other, "two")):
        file.write_text(text)
        os.utime(file, ns=(5, 5))
    before = stamp([tool])
    assert stamp([tool]) == before
    other.replace(tool)
    assert stamp([tool]) != before


def test_contents_changed_in_place_under_a_restored_time_are_seen(tmp_path: Path) -> None:
    tool = tmp_path / "tool"
    tool.write_text("one")
    os.utime(tool, ns=(5, 5))
    status, before = tool.stat(), stamp([tool])
    while tool.stat().st_ctime_ns == status.st_ctime_ns:  # the clock of files is coarse
        tool.write_text("two")
        os.utime(tool, ns=(5, 5))
    assert tool.stat().st_ino == status.st_ino
    assert stamp([tool]) != before


def test_an_empty_entry_counts_as_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cache").mkdir()
    monkeypatch.setenv("GEMMSMITH_CACHE_DIR", str(tmp_path / "cache"))
    tool = tmp_path / "tool"
    tool.write_text("one")
    assert remember("text", [tool], lambda: "fact") == "fact"
    (entry,) = (tmp_path / "cache" / "v1" / "memo").iterdir()
    entry.write_text("")
    assert remember("text", [tool], lambda: "new") == "new"
    assert entry.read_text() == "new"


def test_a_folder_that_cannot_be_written_only_costs_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "tool"
    tool.write_text("one")
    monkeypatch.setenv("GEMMSMITH_CACHE_DIR", str(tool))  # a file is no folder
    calls = []
    for _ in range(2):
        assert remember("text", [tool], lambda: calls.append(1) or "fact") == "fact"  # type: ignore[func-returns-value]
    assert len(calls) == 2


def test_who_only_looks_makes_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEMMSMITH_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "tool").touch()
    assert [remember("text", [tmp_path / "tool"], lambda: "one") for _ in range(2)] == ["one"] * 2
    assert not (tmp_path / "cache").exists()
