"""One run of nvcc: its arguments, its result and its failures."""

from __future__ import annotations

import json
import os
import resource
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fakes import FakeNvcc, ampere, mma_source
from gemmsmith.compile import command, compile_library
from gemmsmith.errors import CompileError
from gemmsmith.identity import flags
from gemmsmith.launcher.with_ctypes import read_table
from gemmsmith.render import render
from gemmsmith.resources import cutlass_include_dirs, templates_dir
from gemmsmith.toolchain import find_toolchain


def test_command_holds_flags_folders_and_files(tmp_path: Path) -> None:
    toolchain = FakeNvcc(tmp_path).toolchain
    source, library = tmp_path / "my work" / "a.cu", tmp_path / "my work" / "a.so"
    arguments = command(source, library, toolchain, ampere().arch)
    assert arguments[: len(toolchain.command)] == toolchain.command
    assert arguments[:3] == (str(toolchain.nvcc), "-ccbin", "/usr/bin/g++")
    assert set(flags(ampere().arch)) <= set(arguments)
    for folder in (templates_dir() / "include", *cutlass_include_dirs()):
        assert f"-I{folder}" in arguments
    assert arguments[-3:] == ("-o", str(library), str(source))
    assert not any(argument.startswith("-lcuda") for argument in arguments)


def test_result_is_measured_and_logged(tmp_path: Path) -> None:
    nvcc = FakeNvcc(tmp_path / "toolkit")
    out = tmp_path / "out"
    out.mkdir()
    source = render([ampere()])
    compiled = compile_library(source, nvcc.toolchain, out, jobs=1, failures=tmp_path / "failed")
    assert compiled.source.read_text() == source.text
    assert list(read_table(compiled.path)) == [ampere().name]
    assert 0 < compiled.seconds < 60
    # Between fork and exec a program counts as large as this process, which other tests may swell.
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    assert 1_000_000 < compiled.peak_bytes < max(2_000_000_000, 1.1 * own)
    assert shlex.split(compiled.log.read_text().splitlines()[0])[0] == str(nvcc.path)
    assert not (tmp_path / "failed").exists()
    assert not (out / "tmp").exists()


def test_missing_compiler_is_a_compile_error(tmp_path: Path) -> None:
    nvcc = FakeNvcc(tmp_path / "toolkit")
    nvcc.path.unlink()
    with pytest.raises(CompileError, match=r"cannot start .*nvcc: No such file"):
        compile_library(
            render([ampere()]), nvcc.toolchain, tmp_path, jobs=1, failures=tmp_path / "failed"
        )


_IN_MY_WORK_DIR = """
import json
import sys
from fake_calls import call_of
from gemmsmith.build import build
from gemmsmith.launcher import load_library
from gemmsmith.resources import cutlass_include_dirs, templates_dir
from gemmsmith.settings import settings
from real_kernels import AMPERE
(kernel,) = build([AMPERE]).built
loaded = load_library(kernel.library)[AMPERE.name]
print(json.dumps({
    "folders": [str(f) for f in (settings().cache_dir, templates_dir(), cutlass_include_dirs()[0])],
    "library": str(kernel.library),
    "can_run": [loaded.can_run(call_of(AMPERE, k=k)) for k in (72, 71)],
}))
"""


@pytest.mark.nvcc
def test_k08_cache_project_and_cutlass_in_folders_with_spaces(tmp_path: Path) -> None:
    """Built, loaded and called as far as that goes without a GPU, in a process of its own."""
    work = tmp_path / "my work dir"
    root = templates_dir().parent
    for part in ("generator", "templates", "configs", "tests"):
        shutil.copytree(
            root / part, work / "my project" / part, ignore=shutil.ignore_patterns("__pycache__")
        )
    (work / "my project" / "build").mkdir()
    shutil.copy(root / "build" / "matrix.yaml", work / "my project" / "build")
    source = cutlass_include_dirs()[0].parent
    for part in ("include", "tools/util/include"):
        shutil.copytree(source / part, work / "my cutlass" / "cutlass_library" / "source" / part)
    for init in source.parent.glob("*.py"):
        shutil.copy(init, work / "my cutlass" / "cutlass_library")
    places = [work / "my project" / "generator", work / "my project" / "tests", work / "my cutlass"]
    done = subprocess.run(
        [sys.executable, "-c", _IN_MY_WORK_DIR],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(map(str, places)),
            "GEMMSMITH_CACHE_DIR": str(work / "my cache"),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert len(said["folders"]) == 3
    assert all(folder.startswith(f"{work}/my ") for folder in [*said["folders"], said["library"]])
    assert said["can_run"][0] == 0
    assert said["can_run"][1] != 0  # alignment 8


@pytest.mark.nvcc
def test_folders_with_spaces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spaced = tmp_path / "my templates"
    spaced.symlink_to(templates_dir())
    monkeypatch.setattr("gemmsmith.compile.include_dirs", lambda: (spaced / "include",))
    headers = tmp_path / "my cutlass"
    headers.mkdir()
    monkeypatch.setattr("gemmsmith.compile.cutlass_include_dirs", lambda: (headers,))
    out = tmp_path / "my work dir"
    out.mkdir()
    compiled = compile_library(
        mma_source([ampere()]), find_toolchain(), out, jobs=1, failures=tmp_path / "my failures"
    )
    (entry,) = read_table(compiled.path).values()
    assert (entry.name, entry.threads, entry.stages) == (ampere().name, 32, 2)
    dynamic = subprocess.run(
        ["readelf", "--dynamic", str(compiled.path)], capture_output=True, text=True, check=True
    ).stdout
    assert "(NEEDED)" in dynamic
    assert "libcuda" not in dynamic  # neither the driver's nor the shared runtime
