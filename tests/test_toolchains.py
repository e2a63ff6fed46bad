"""Which toolchain compiles for which architecture, and what is said where none can."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path

import pytest
from typer.testing import CliRunner

import gemmsmith.nvcc
from fake_calls import call_of
from fake_tools import bare_machine, fake_gxx, fake_nvcc, lay_toolkit
from fakes import FakeNvcc, ampere, hopper, volta
from gemmsmith.arch import ARCHITECTURES, SM_70, SM_80, SM_90A
from gemmsmith.build import build
from gemmsmith.cli.app import app
from gemmsmith.errors import ToolchainError
from gemmsmith.identity import identity
from gemmsmith.launcher import load_library
from gemmsmith.lookup import find_built
from gemmsmith.render import render
from gemmsmith.resources import build_dir
from gemmsmith.toolchain import find_toolchain, toolchain_at
from gemmsmith.toolchains import Toolchains, find_toolchains, further_toolkits

SCRIPT = build_dir() / "toolchains" / "cuda-11.8.sh"
PAIR = """\
families:
  - name: old
    arch: sm_80
    dtype: bf16
    kernels: [{tile: [64, 64, 32], warp: [32, 32, 32], stages: 3}]
  - {name: new, arch: sm_90a, dtype: bf16, schedule: pingpong, kernels: [{tile: [128, 128, 64]}]}
"""


@pytest.fixture
def tools(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The one folder on PATH of a machine that has nothing."""
    folder = bare_machine(monkeypatch, tmp_path)
    monkeypatch.setenv("GEMMSMITH_CACHE_DIR", str(tmp_path / "cache"))
    return folder


def test_the_usual_toolchain_serves_what_it_can_target(
    tools: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_gxx(tools / "g++")
    fake_nvcc(tools / "nvcc", "13.0.88")
    monkeypatch.setenv("GEMMSMITH_TOOLKITS", str(lay_toolkit(tmp_path / "my toolkits" / "11.8")))
    found = find_toolchains()
    assert found.refusal is None
    served = {arch.name: found.of(arch).release for arch in ARCHITECTURES}
    assert served == {
        "sm_70": "11.8.89",
        "sm_75": "13.0.88",
        "sm_80": "13.0.88",
        "sm_86": "13.0.88",
        "sm_87": "13.0.88",
        "sm_89": "13.0.88",
        "sm_90a": "13.0.88",
    }
    assert found.of(SM_70).origin == "further toolkits"


def test_toolkits_come_from_the_variable_or_else_from_the_scripts(
    tools: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = lay_toolkit(tmp_path / "build" / "toolchains" / "cuda-11.8")
    (tmp_path / "build" / "toolchains" / "cuda-12.0.sh").touch()
    monkeypatch.undo()
    monkeypatch.delenv("GEMMSMITH_TOOLKITS", raising=False)
    monkeypatch.setattr("gemmsmith.toolchains.build_dir", lambda: tmp_path / "build")
    assert further_toolkits() == (made,)
    monkeypatch.setenv("GEMMSMITH_TOOLKITS", f"/opt/a{os.pathsep}/opt/b c{os.pathsep}")
    assert further_toolkits() == (Path("/opt/a"), Path("/opt/b c"))


def test_a_toolkit_alone_serves_what_it_can_target(
    tools: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GEMMSMITH_TOOLKITS", str(lay_toolkit(tmp_path / "11.8")))
    found = find_toolchains()
    assert found.usual is None
    assert found.of(SM_80).release == "11.8.89"
    with pytest.raises(ToolchainError, match=r"no nvcc found.*GEMMSMITH_TOOLKITS"):
        found.of(SM_90A)
    assert found.find(SM_80) is None  # kernels of the usual one, compiled before, will do


def test_no_toolkit_stands_in_for_one_that_was_named(
    tools: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GEMMSMITH_TOOLKITS", str(lay_toolkit(tmp_path / "11.8")))
    monkeypatch.setenv("GEMMSMITH_NVCC", "/no/such/nvcc")
    with pytest.raises(ToolchainError, match=r"nvcc is given as /no/such/nvcc"):
        find_toolchains().of(SM_80)
    fake_gxx(tools / "g++", "16.1.0")
    monkeypatch.setenv("GEMMSMITH_NVCC", str(fake_nvcc(tmp_path / "own" / "nvcc")))
    with pytest.raises(ToolchainError, match=r"CUDA 13\.0 accepts gcc up to 15; found 16\.1\.0"):
        find_toolchains().of(SM_80)
    assert find_toolchains().of(SM_70).release == "11.8.89"  # 13.0 was never meant for it


def test_a_named_folder_without_nvcc_is_told(
    tools: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_gxx(tools / "g++")
    fake_nvcc(tools / "nvcc", "13.0.88")
    monkeypatch.setenv("GEMMSMITH_TOOLKITS", str(tmp_path / "nothing"))
    words = rf"GEMMSMITH_TOOLKITS names {tmp_path}/nothing, which has no bin/nvcc"
    with pytest.raises(ToolchainError, match=words):
        find_toolchains().of(SM_70)


def test_the_disassembler_of_the_toolkit_goes_before_another(tools: Path, tmp_path: Path) -> None:
    root = lay_toolkit(tmp_path / "11.8")
    fake_nvcc(tools / "nvdisasm")
    path = toolchain_at(root).environment["PATH"].split(os.pathsep)
    assert path == [str(root / "bin"), str(tools)]


def test_k01_without_nvcc_all_but_build_works(
    tools: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()  # jinja2 and the like are packages too
    for name in ("CUDA_HOME", "CUDA_PATH", "GEMMSMITH_NVCC", "GEMMSMITH_TOOLKITS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GEMMSMITH_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tools))
    monkeypatch.setattr(gemmsmith.nvcc, "wheel_roots", lambda: ())
    monkeypatch.setattr("gemmsmith.toolchains.made_toolkits", lambda: ())
    file = tmp_path / "pair.yaml"
    file.write_text(PAIR)
    listed = CliRunner().invoke(app, ["list", str(file), "--json"])
    assert listed.exit_code == 0, listed.output
    assert [kernel["built"] for kernel in json.loads(listed.stdout)["kernels"]] == [False, False]
    rendered = CliRunner().invoke(app, ["render", str(file), "-o", str(tmp_path / "sources")])
    assert rendered.exit_code == 0, rendered.output
    assert len(list((tmp_path / "sources").iterdir())) == 2
    done = CliRunner().invoke(app, ["build", str(file)])
    assert done.exit_code == 1
    assert done.stderr.count("error:") == 1
    for words in (
        "no nvcc found; looked at CUDA_HOME and CUDA_PATH (not set), PATH, the PyPI wheels",
        "Set CUDA_HOME to the root of a CUDA toolkit",
        "package nvidia-cuda-nvcc and its companions",
    ):
        assert words in done.stderr


def test_k03_sm_70_is_refused_before_nvcc_starts_and_others_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GEMMSMITH_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr("gemmsmith.toolchains.made_toolkits", lambda: ())
    monkeypatch.setattr("gemmsmith.toolchain.find_binary_tool", lambda *_: None)
    monkeypatch.delenv("GEMMSMITH_TOOLKITS", raising=False)
    nvcc = FakeNvcc(tmp_path / "13.0", release="13.0.88")
    monkeypatch.setenv("GEMMSMITH_NVCC", str(nvcc.path))
    report = build([volta(), ampere(), hopper()])
    assert [kernel.spec for kernel in report.built] == [ampere(), hopper()]
    assert sorted(name for run in nvcc.runs() for name in run) == [ampere().name, hopper().name]
    (failure,) = report.failed
    assert str(failure.error) == (
        f"{volta().name}: sm_70 needs CUDA 12.9 or older; found 13.0 at {nvcc.path}; "
        f"run bash {SCRIPT}, or name the folder of such a toolkit in GEMMSMITH_TOOLKITS"
    )
    assert SCRIPT.is_file()


def test_k03_a_second_toolkit_builds_what_the_first_cannot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GEMMSMITH_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr("gemmsmith.toolchain.find_binary_tool", lambda *_: None)
    new = FakeNvcc(tmp_path / "13.0", release="13.0.88")
    old = FakeNvcc(tmp_path / "11.8" / "bin", release="11.8.89")
    fake_gxx(tmp_path / "11.8" / "bin" / "g++-11", "11.3.0")
    monkeypatch.setenv("GEMMSMITH_NVCC", str(new.path))
    monkeypatch.setenv("GEMMSMITH_TOOLKITS", str(tmp_path / "11.8"))
    build([volta(), ampere()]).raise_if_failed()
    assert (old.runs(), new.runs()) == ([[volta().name]], [[ampere().name]])
    assert set(find_built([volta(), ampere()])) == {volta(), ampere()}
    monkeypatch.setenv("GEMMSMITH_TOOLKITS", str(tmp_path / "gone"))
    assert set(find_built([volta()])) == {volta()}  # it needs no compiler any more


def test_k05_nvcc_11_8_with_gcc_12_2(
    tools: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Known before compiling; g++-11 is used through -ccbin and is part of the key."""
    fake_gxx(tools / "g++", "12.2.0")
    fake_nvcc(tools / "nvcc", "11.8.89")
    words = r"CUDA 11\.8 accepts gcc up to 11; found 12\.2\.0 at .*; install g\+\+-11 or set GEMM"
    with pytest.raises(ToolchainError, match=words):
        find_toolchain()
    fake_gxx(tools / "g++-11", "11.3.0")
    chosen = find_toolchain()
    assert chosen.command[1:3] == ("-ccbin", str(tools / "g++-11"))
    root = lay_toolkit(tmp_path / "11.8", gxx="11.2.0")
    monkeypatch.setenv("GEMMSMITH_CXX", str(tools / "g++"))  # speaks of the usual toolkit
    beside = toolchain_at(root)
    assert beside.command[:3] == (str(root / "bin/nvcc"), "-ccbin", str(root / "bin/g++-11"))
    monkeypatch.undo()
    keys = [identity(render([ampere()]), each).parts for each in (chosen, beside)]
    assert [key["host_compiler"] for key in keys] == ["11.3.0", "11.2.0"]


@pytest.mark.nvcc
@pytest.mark.sm_70
def test_a_real_sm_70_kernel_holds_voltas_instruction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GEMMSMITH_CACHE_DIR", str(tmp_path / "my cache"))
    (kernel,) = build([volta()]).built
    card = kernel.card
    counts = Counter[str]()
    for name, count in card.tensor_instructions.items():
        counts[name.partition(".STEP")[0]] += count
    assert counts == {"HMMA.884.F32.F32": 512}  # (64/16)·(64/16)·(32/4) of 4 steps each
    assert (card.spill_store_bytes, card.stages, card.threads) == (0, 2, 128)
    assert 200 <= card.registers <= 255
    assert card.dynamic_shared_bytes == 2 * (128 + 128) * 32 * 2
    assert kernel.built_with["nvcc"].startswith(("11.", "12."))
    loaded = load_library(kernel.library)[volta().name]  # in this process, without a driver
    assert loaded.can_run(call_of(volta())) == 0
    assert loaded.can_run(call_of(volta(), k=71)) != 0


def test_a_toolchain_that_is_given_is_the_only_one(tools: Path, tmp_path: Path) -> None:
    fake_gxx(tools / "g++")
    fake_nvcc(tools / "nvcc", "13.0.88")
    given = toolchain_at(lay_toolkit(tmp_path / "11.8"))
    only = find_toolchains(given)
    assert only == Toolchains(usual=given, alone=True)
    assert only.of(SM_80) is given
    with pytest.raises(ToolchainError, match=r"sm_90a needs CUDA 12\.0 or newer; found 11\.8"):
        only.of(SM_90A)
