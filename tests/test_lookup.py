"""Kernels that are compiled already: the cache first, then bundles, else why not."""

from __future__ import annotations

import dataclasses
import logging
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bundle_data import edit_manifest, libraries, make_bundle
from fakes import FakeNvcc, ampere, hopper
from gemmsmith import bundles, kernelset
from gemmsmith.arch import SM_80
from gemmsmith.build import build
from gemmsmith.dtypes import BF16
from gemmsmith.errors import BundleError, CompileError, NoKernelError, ToolchainError
from gemmsmith.kernelset import KernelSet
from gemmsmith.launcher import launcher
from gemmsmith.lookup import build_command, find_built, find_cached
from gemmsmith.problem import GemmProblem
from gemmsmith.resources import configs_dir
from gemmsmith.selection import Plan
from gemmsmith.toolchain import Toolchain
from gpus import SOME_AMPERE

CALL = GemmProblem(m=128, n=128, k=64, a=BF16, b=BF16, d=BF16)


@pytest.fixture(scope="module")
def nvcc(tmp_path_factory: pytest.TempPathFactory) -> FakeNvcc:
    return FakeNvcc(tmp_path_factory.mktemp("toolkit"))


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory, nvcc: FakeNvcc) -> Path:
    folder = tmp_path_factory.mktemp("the maker")
    return make_bundle(folder / "bundle", [ampere(64), ampere(128)], nvcc)


@pytest.fixture
def bundle(exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A bundle that the settings name, on a machine with an empty cache and no compiler."""

    def absent() -> Toolchain:
        raise ToolchainError("no nvcc found")

    monkeypatch.setattr("gemmsmith.toolchains.find_toolchain", absent)
    for name in ("GEMMSMITH_NEVER_COMPILE", "GEMMSMITH_NVCC", "MAX_JOBS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GEMMSMITH_LAUNCHER", "ctypes")
    monkeypatch.setenv("GEMMSMITH_CACHE_DIR", str(tmp_path / "empty cache"))
    folder = shutil.copytree(exported, tmp_path / "my bundle")
    monkeypatch.setenv("GEMMSMITH_BUNDLES", f":{folder}:")
    launcher.cache_clear()
    bundles.warn_once.cache_clear()
    yield Path(folder)
    launcher.cache_clear()


def test_a_bundle_serves_specs_of_a_file(bundle: Path) -> None:
    found = find_built([ampere(64), ampere(256), ampere(128)])
    assert found == {
        spec: kernel.library for spec, kernel in find_cached([ampere(64), ampere(128)]).items()
    }
    assert list(found) == [ampere(64), ampere(128)]
    assert {path.parent for path in found.values()} == {bundle / "libraries"}
    report = build([ampere(64), ampere(128)])
    assert [(kernel.cached, kernel.built_with["nvcc"]) for kernel in report.built] == [
        (True, "13.0.88"),
        (True, "13.0.88"),
    ]
    kernels = KernelSet([ampere(64), ampere(256)], arch=SM_80, source="my.yaml")
    plan = kernels.plan(CALL, SOME_AMPERE)
    assert isinstance(plan, Plan)
    assert plan.spec == ampere(64)
    assert plan.kernel.name == ampere(64).name


def test_another_nvcc_here_does_not_matter_unless_it_is_named(
    bundle: Path, nvcc: FakeNvcc, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = dataclasses.replace(nvcc.toolchain, release="12.9.41", host_version="11.4.0")
    monkeypatch.setattr("gemmsmith.toolchains.find_toolchain", lambda: other)
    runs = len(nvcc.runs())
    assert list(find_built([ampere(64)])) == [ampere(64)]
    assert build([ampere(64)]).built[0].cached
    assert len(nvcc.runs()) == runs
    (made,) = build([ampere(64)], toolchain=other).built
    assert (made.cached, made.built_with["nvcc"]) == (False, "12.9.41")
    assert len(nvcc.runs()) == runs + 1
    assert find_built([ampere(64)]) == {ampere(64): made.library}  # the cache comes first


def test_the_default_kernels_come_from_a_bundle_too(
    bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GEMMSMITH_NEVER_COMPILE", "1")
    monkeypatch.setattr(
        kernelset, "load_specs", lambda *_, **__: (ampere(64), ampere(128), ampere(256))
    )
    kernelset.default_kernels.cache_clear()
    try:
        plan = kernelset.default_kernels("sm_80").plan(CALL, SOME_AMPERE)
    finally:
        kernelset.default_kernels.cache_clear()
    assert isinstance(plan, Plan)
    assert plan.kernel.name in (ampere(64).name, ampere(128).name)


def test_equal_names_with_another_source_or_interface_say_what_differs(
    bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def change(values: dict[str, Any]) -> None:
        for kernel in values["kernels"]:
            kernel["built_with"].update(source="0ld", abi="0")

    edit_manifest(bundle, change)
    assert find_built([ampere(64)]) == {}
    words = (
        rf"the bundle {re.escape(str(bundle))} has {ampere(64).name}, but "
        r"abi changed from 0 to \d+; source changed from 0ld to \w+"
    )
    kernels = KernelSet([ampere(64)], arch=SM_80, source="my.yaml")
    how = rf"is not built: call \.build\(\) first, or run gemmsmith build my\.yaml .* \({words}\)"
    with pytest.raises(NoKernelError, match=rf"{ampere(64).name} {how}"):
        kernels[ampere(64).name].plan(CALL, SOME_AMPERE)
    with pytest.raises(NoKernelError, match=how.replace("is not built", "is built")):
        kernels.plan(CALL, SOME_AMPERE)
    monkeypatch.setenv("GEMMSMITH_NEVER_COMPILE", "1")
    with pytest.raises(CompileError, match=rf"{words}, and GEMMSMITH_NEVER_COMPILE is set: unset"):
        kernels.build()
    how = r"gemmsmith build my\.yaml --arch sm_80 builds it where GEMMSMITH_NEVER_COMPILE is not"
    with pytest.raises(NoKernelError, match=rf"{ampere(64).name} is not built: {how}"):
        kernels[ampere(64).name].plan(CALL, SOME_AMPERE)
    with pytest.raises(NoKernelError, match=how):
        kernels.plan(CALL, SOME_AMPERE)


def test_a_damaged_library_is_passed_over_with_a_warning(
    bundle: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for library in libraries(bundle):
        data = bytearray(library.read_bytes())
        data[-1] ^= 1
        library.write_bytes(data)
    with caplog.at_level(logging.WARNING):
        assert find_built([ampere(64)]) == {}
        assert find_built([ampere(64)]) == {}
    (warning,) = caplog.messages
    assert "does not match its checksum, so it is not loaded" in warning
    with pytest.raises(ToolchainError, match="no nvcc found"):  # so it would be compiled
        build([ampere(64)])


def test_a_bundle_for_another_machine_is_passed_over_and_named_where_it_is_missed(
    bundle: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    edit_manifest(bundle, lambda values: values.update(host="riscv64"))
    with caplog.at_level(logging.WARNING):
        assert find_built([ampere(64)]) == {}
    words = r"the bundle .* cannot be used here: its libraries load on riscv64 machines"
    assert len(caplog.messages) == 1
    assert re.match(words, caplog.messages[0])
    monkeypatch.setenv("GEMMSMITH_NEVER_COMPILE", "1")
    (failure,) = build([ampere(64)]).failed
    assert re.search(rf"was not compiled before; {words}", str(failure.error))


def test_a_setting_that_names_no_bundle_is_an_error(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder, what in ((tmp_path, r"has no manifest\.json"), (tmp_path / "gone", "is no folder")):
        monkeypatch.setenv("GEMMSMITH_BUNDLES", f"{bundle}:{folder}")
        with pytest.raises(BundleError, match=rf"GEMMSMITH_BUNDLES names .*, which {what}"):
            find_built([ampere(64)])
        with pytest.raises(BundleError, match="GEMMSMITH_BUNDLES"):
            build([ampere(64)])


def test_installed_bundles_are_found_wherever_packages_are(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GEMMSMITH_BUNDLES")
    assert find_built([ampere(64)]) == {}
    places = [tmp_path / "one" / "gemmsmith_bundles", tmp_path / "two" / "gemmsmith_bundles"]
    for place in places:
        (place / "no bundle").mkdir(parents=True)
        monkeypatch.setattr(sys, "path", [*sys.path, str(place.parent)])
    shutil.copytree(bundle, places[1] / "mine")
    (found,) = find_built([ampere(64)]).values()
    assert found.parent == places[1] / "mine" / "libraries"
    assert find_built([hopper()]) == {}


def test_commands_name_the_file_that_is_not_the_default() -> None:
    assert build_command("my file.yaml", "sm_80") == "gemmsmith build 'my file.yaml' --arch sm_80"
    for default in ("", str(configs_dir() / "kernels")):
        assert build_command(default, "sm_80") == "gemmsmith build --arch sm_80"
