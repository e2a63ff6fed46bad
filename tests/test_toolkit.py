"""A change of any package of the toolkit is told from a change of place or time."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fake_tools import bare_machine, fake_gxx, lay_wheels
from fakes import FakeNvcc, ampere
from gemmsmith.build import build
from gemmsmith.cache import Cache
from gemmsmith.errors import ToolchainError
from gemmsmith.identity import TOOLCHAIN_PARTS, identity
from gemmsmith.render import render
from gemmsmith.toolchain import find_toolchain
from gemmsmith.toolkit import TOOLKIT_PARTS, toolkit_parts

PACKAGES = {  # file -> the part that it belongs to
    "nvvm/bin/cicc": "cicc",
    "nvvm/libdevice/libdevice.10.bc": "cicc",
    "bin/ptxas": "ptxas",
    "bin/cudafe++": "ptxas",
    "lib/libcudart_static.a": "cudart",
    "include/crt/host_config.h": "cuda_headers",
    "include/cuda_bf16.hpp": "cuda_headers",
    "include/cccl/cuda/std/__cccl/version.h": "cccl",
}


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("GEMMSMITH_CACHE_DIR", str(tmp_path / "cache"))
    toolkit_parts.cache_clear()
    yield
    toolkit_parts.cache_clear()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = lay_wheels(tmp_path / "site")
    for name in PACKAGES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"{name} of 13.0")
    return folder


def _parts(root: Path) -> dict[str, str]:
    """What a new process would find."""
    toolkit_parts.cache_clear()
    return toolkit_parts(root)


@pytest.mark.parametrize("name", PACKAGES)
def test_each_package_changes_its_own_part(root: Path, name: str) -> None:
    before = _parts(root)
    assert set(before) == set(TOOLKIT_PARTS)
    assert len(set(before.values())) == len(TOOLKIT_PARTS)
    (root / name).write_text(f"{name} of 13.1")
    after = _parts(root)
    assert {part for part in before if before[part] != after[part]} == {PACKAGES[name]}


def test_place_and_time_do_not_matter(root: Path, tmp_path: Path) -> None:
    before = _parts(root)
    moved = Path(shutil.copytree(root, tmp_path / "cuda-13.0"))
    (moved / "lib").rename(moved / "lib64")
    (moved / "targets").mkdir()
    (moved / "include").rename(moved / "targets" / "include")
    (moved / "targets" / "x86_64-linux").mkdir()
    (moved / "targets" / "include").rename(moved / "targets" / "x86_64-linux" / "include")
    os.utime(moved / "bin" / "ptxas", ns=(7, 7))
    assert _parts(moved) == before
    (moved / "include").symlink_to(moved / "targets" / "x86_64-linux" / "include")
    assert _parts(moved) == before


def test_what_is_not_there_is_empty(root: Path) -> None:
    assert toolkit_parts(None) == dict.fromkeys(TOOLKIT_PARTS, "")
    (root / "lib" / "libcudart_static.a").unlink()
    assert [part for part, digest in _parts(root).items() if not digest] == ["cudart"]
    (root / "lib" / "libcudart_static.a").mkdir()
    with pytest.raises(ToolchainError, match=r"cannot read .*libcudart_static\.a of the CUDA"):
        _parts(root)


def test_the_toolkit_of_the_nvcc_that_was_found(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_gxx(bare_machine(monkeypatch, tmp_path) / "g++")
    found = find_toolchain()
    assert (found.origin, found.root) == ("PyPI wheels", root)


def test_an_upgrade_of_one_wheel_is_a_miss_that_names_it(root: Path, tmp_path: Path) -> None:
    """nvcc itself, and with it its version, stays as it is."""
    toolchain = dataclasses.replace(FakeNvcc(tmp_path / "fake").toolchain, root=root)
    build([ampere()], toolchain=toolchain).raise_if_failed()
    assert build([ampere()], toolchain=toolchain).built[0].cached
    old = _parts(root)["cicc"]
    (root / "nvvm" / "bin" / "cicc").write_text("newer")
    new = _parts(root)["cicc"]
    now = identity(render([ampere()]), toolchain)
    assert now.complete
    cache = Cache(tmp_path / "cache")
    assert cache.find(now) is None
    assert cache.explain_miss(now) == (
        f"{ampere().name} was compiled before, but cicc changed from {old} to {new}"
    )
    assert cache.find(identity(render([ampere()]), None)) is not None  # no toolchain: any will do


NO_PROCESS = """
import json, sys
from gemmsmith.identity import identity
from gemmsmith.render import render
from gemmsmith.toolchain import find_toolchain
from fakes import ampere
started = []
sys.addaudithook(lambda name, what: started.append(str(what)) if name == "subprocess.Popen" else 0)
parts = dict(identity(render([ampere()]), find_toolchain()).parts)
print(json.dumps([len(started), parts]))
"""


def test_a_warm_start_starts_no_program(root: Path, tmp_path: Path) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    Path(os.environ["GEMMSMITH_CACHE_DIR"]).mkdir(exist_ok=True)  # as a first build leaves it
    says = {root / "bin/nvcc": "release 13.0, V13.0.88", tools / "g++": "g++ 12.2.0"}
    for path, answer in says.items():
        source = tmp_path / "says.c"
        source.write_text(f'#include <stdio.h>\nint main() {{ return puts("{answer}") < 0; }}\n')
        subprocess.run(["gcc", "-o", str(path), str(source)], check=True)
    here = Path(__file__).parent
    environment = {
        **os.environ,
        "PATH": str(tools),
        "PYTHONPATH": f"{here}:{here.parent / 'generator'}",
        "GEMMSMITH_NVCC": str(root / "bin/nvcc"),
        "GEMMSMITH_CXX": str(tools / "g++"),
    }
    cold, warm = (
        json.loads(
            subprocess.run(
                [sys.executable, "-c", NO_PROCESS],
                env=environment,
                capture_output=True,
                text=True,
                check=True,
            ).stdout
        )
        for _ in range(2)
    )
    assert (cold[0], warm[0]) == (3, 0)  # nvcc's version and layout, g++'s version
    assert cold[1] == warm[1]
    assert all(warm[1][part] for part in TOOLCHAIN_PARTS)
