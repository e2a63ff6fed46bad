"""What verbs that measure say of files beforehand: kernels to read, results to write."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from gemmsmith.cli.app import app
from gemmsmith.cli.options import check_output


def test_a_file_that_can_be_written_is_taken(tmp_path: Path) -> None:
    (tmp_path / "old").write_text("old")
    for path in (tmp_path / "old", tmp_path / "new"):
        check_output("-o", path)
    check_output("-o", tmp_path / "a" / "b" / "new", makes_folders=True)
    assert [each.name for each in tmp_path.iterdir()] == ["old"]


def test_a_file_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "old").write_text("old")
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o500)
    cases = [
        (tmp_path, False, "is a folder; name a file in it"),
        (tmp_path / "gone" / "x", False, f"there is no folder {tmp_path / 'gone'}; name a file"),
        (tmp_path / "old" / "x", True, f"{tmp_path / 'old'} is a file; name a file in a folder"),
    ]
    if os.geteuid():  # root writes everywhere
        cases += [(closed / "a" / "x", True, f"{closed} cannot be written; name another file")]
    for path, makes_folders, why in cases:
        with pytest.raises(typer.BadParameter) as caught:
            check_output("-o", path, makes_folders=makes_folders)
        assert f"-o {path}: {why}" in str(caught.value)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["nope.yaml"], "nope.yaml: cannot be read: No such file"),
        (["nope.yaml", "--dtype", "int8"], "nope.yaml: cannot be read: No such file"),
        (["-o", "taken/x.json"], "-o taken/x.json: taken is a file"),
        (["--grid", "llm", "-o", "."], "-o .: is a folder"),
    ],
)
def test_bench_tells_of_its_files_where_there_is_no_gpu_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], told: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    (tmp_path / "taken").write_text("mine")
    result = CliRunner().invoke(app, ["bench", *words], env={"COLUMNS": "200"})
    assert (result.exit_code, told in result.output) == (2, True), result.output
