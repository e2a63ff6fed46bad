"""When a program's answer is kept, and when the program is asked anew."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from gemmsmith import programs
from gemmsmith.errors import ToolchainError
from gemmsmith.programs import output_of

COMPILER = r"""
#include <stdio.h>
int main(int count, char **words) {
  FILE *runs = fopen(RUNS, "a");
  fputs("run\n", runs);
  fclose(runs);
  puts(ANSWER);
  return count > 5;
}
"""


class Machine:
    """Programs that count their runs, seen by one new process after the other."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._runs = folder / "runs"

    def binary(self, name: str, answer: str) -> Path:
        """A compiled program that prints ``answer``."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        source = self.folder / "program.c"
        source.write_text(COMPILER)
        defines = [f'-DRUNS="{self._runs}"', f'-DANSWER="{answer}"']
        subprocess.run(["gcc", *defines, "-o", str(path), str(source)], check=True)
        return path

    def script(self, name: str, body: str, shell: str = "/bin/sh") -> Path:
        path = self.folder / name
        path.write_text(f"#!{shell}\n{body}\n")
        path.chmod(0o755)
        return path

    def ask(self, program: Path) -> tuple[str, int]:
        """What a new process is told, and how many programs ran for it."""
        programs._output.cache_clear()
        programs._kept_output.cache_clear()
        before = self._count()
        return output_of(program, "--version"), self._count() - before

    def _count(self) -> int:
        return len(self._runs.read_text().splitlines()) if self._runs.exists() else 0


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    (tmp_path / "cache").mkdir()
    monkeypatch.setenv("GEMMSMITH_CACHE_DIR", str(tmp_path / "cache"))
    return Machine(tmp_path)


@pytest.mark.parametrize(
    "name", ["g++", "gcc-12", "x86_64-conda-linux-gnu-c++", "nvcc", "cuobjdump"]
)
def test_a_compiler_is_asked_once_until_it_changes(machine: Machine, name: str) -> None:
    tool = machine.binary(name, "one")
    assert [machine.ask(tool) for _ in range(2)] == [("one", 1), ("one", 0)]
    tool.unlink()
    machine.binary(name, "two")
    assert [machine.ask(tool) for _ in range(2)] == [("two", 1), ("two", 0)]


def test_a_link_to_a_compiler_follows_it(machine: Machine) -> None:
    link = machine.folder / "g++"
    link.symlink_to(machine.binary("g++-12", "12.2.0"))
    assert [machine.ask(link) for _ in range(2)] == [("12.2.0", 1), ("12.2.0", 0)]
    link.unlink()
    link.symlink_to(machine.binary("g++-13", "13.1.0"))
    assert machine.ask(link) == ("13.1.0", 1)


@pytest.mark.parametrize("name", ["ccache", "sccache", "icecc", "distcc"])
def test_a_masquerade_is_asked_each_time(machine: Machine, name: str) -> None:
    """Its own file stays as it is when the compiler behind it changes."""
    link = machine.folder / "g++"
    link.symlink_to(machine.binary(name, "12.2.0"))
    assert [machine.ask(link) for _ in range(2)] == [("12.2.0", 1)] * 2


def test_a_plain_wrapper_counts_with_what_it_starts(machine: Machine) -> None:
    real = machine.binary("toolkit/nvcc", "13.0")
    body = f'# a note\nexport LANG=C\nset -e\nexec {real} "$@"'
    wrapper = machine.script("nvcc", body)
    assert [machine.ask(wrapper) for _ in range(2)] == [("13.0", 1), ("13.0", 0)]
    real.unlink()
    machine.binary("toolkit/nvcc", "13.1")
    assert machine.ask(wrapper) == ("13.1", 1)


@pytest.mark.parametrize(
    "body",
    [
        'test -f /etc/passwd; exec nvcc "$@"',
        'SETUP=/etc/passwd\nexec nvcc "$@"',
        'exec env {real} "$@"',
        '/usr/bin/env nvcc "$@"',
        'exec $(command -v nvcc) "$@"',
        '. /etc/profile\nexec {real} "$@"',
        '{real} "$@"; exit 0',
        'exec {real} \\\n "$@"',
        "PATH=/usr/bin:$PATH; nvcc",
        "PATH={folder}:$PATH exec {real}",
    ],
)
def test_a_wrapper_that_is_not_plain_is_asked_each_time(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, body: str
) -> None:
    real = machine.binary("toolkit/nvcc", "13.0")
    monkeypatch.setenv("PATH", str(real.parent), prepend=os.pathsep)
    wrapper = machine.script("nvcc", body.format(real=real, folder=real.parent))
    assert [machine.ask(wrapper) for _ in range(2)] == [("13.0", 1)] * 2


def test_other_scripts_and_wrappers_of_ccache_are_asked_each_time(machine: Machine) -> None:
    hidden = machine.binary("ccache", "12.2.0")
    wrapper = machine.script("g++", f'exec {hidden} /usr/bin/g++ "$@"')
    assert [machine.ask(wrapper) for _ in range(2)] == [("12.2.0", 1)] * 2
    real = machine.binary("toolkit/g++", "12.2.0")
    python = "/usr/bin/env python3"
    text = f"import subprocess\nsubprocess.run(['{real}'])"
    assert [machine.ask(machine.script("g++-12", text, python)) for _ in range(2)] == [
        ("12.2.0", 1)
    ] * 2


def test_a_wrapper_of_itself_is_an_error_and_no_endless_search(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(programs, "_SECONDS", 0.2)
    loop = machine.folder / "g++"
    machine.script("g++", f'exec {loop} "$@"')
    with pytest.raises(ToolchainError, match="no answer within"):
        machine.ask(loop)
    with pytest.raises(ToolchainError, match=r"cannot read .*gone: No such file"):
        machine.ask(machine.folder / "gone")
    with pytest.raises(ToolchainError, match=r"cannot read .*lost: No such file"):
        machine.ask(machine.script("wrapper", f"exec {machine.folder}/lost"))
