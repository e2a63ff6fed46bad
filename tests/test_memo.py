"""Facts that are computed again only when a file changes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gemmsmith.memo import remember


def test_computed_once_until_a_file_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
