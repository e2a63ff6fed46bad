"""Writing bundles: as folders and as wheels, and what is refused."""

from __future__ import annotations

import base64
import csv
import dataclasses
import hashlib
import io
import json
import os
import platform
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from fakes import FakeNvcc, ampere, hopper
from gemmsmith.arch import SM_70, SM_80, SM_87, portable
from gemmsmith.bundle import read_bundle
from gemmsmith.bundle_export import Exportable, export, exportable
from gemmsmith.bundle_wheel import distribution_name, export_wheel, platform_tag
from gemmsmith.cli.app import app
from gemmsmith.dtypes import FP16
from gemmsmith.elf import LibraryNeeds, read_needs
from gemmsmith.errors import BundleError, CompileError
from gemmsmith.kernelset import load
from gemmsmith.spec import Alignment

FILE = """\
families:
  - name: small
    arch: [sm_80]
    dtype: bf16
    kernels:
      - {tile: [128, 64, 32], warp: [64, 32, 32], stages: 3}
      - {tile: [128, 128, 32], warp: [64, 64, 32], stages: 3}
"""
ROOT = Path(__file__).resolve().parent.parent
BOTH = Exportable(specs=(ampere(64), hopper()), left_out={})


@pytest.fixture(autouse=True)
def nvcc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeNvcc:
    """A quick compiler, and an empty cache."""
    made = FakeNvcc(tmp_path / "toolkit")
    monkeypatch.setenv("GEMMSMITH_CACHE_DIR", str(tmp_path / "cache"))
    for name in ("GEMMSMITH_BUNDLES", "GEMMSMITH_NEVER_COMPILE", "MAX_JOBS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("gemmsmith.toolchains.find_toolchain", lambda: made.toolchain)
    return made


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["export", *(str(argument) for argument in arguments)])


def test_what_is_missing_is_compiled_once_and_exported(nvcc: FakeNvcc, tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "my bundle"
    manifest = export(BOTH, folder, jobs=2)
    assert manifest.archs == ("sm_80", "sm_90a")
    assert read_bundle(folder).manifest == manifest
    assert read_bundle(folder).specs(SM_80) == (ampere(64),)
    assert manifest.host == platform.machine()
    runs = len(nvcc.runs())
    assert sorted(name for run in nvcc.runs() for name in run) == sorted(
        spec.name for spec in BOTH.specs
    )
    export(Exportable(specs=(ampere(64),), left_out={"sm_87": "it is Monday"}), folder)
    assert len(nvcc.runs()) == runs
    assert read_bundle(folder).manifest.archs == ("sm_80",)  # the old one was replaced
    assert read_bundle(folder).manifest.left_out == {"sm_87": "it is Monday"}
    assert sorted(path.name for path in folder.parent.iterdir()) == ["my bundle"]
    assert len(list((folder / "libraries").iterdir())) == 1


def test_never_compile_names_the_command(
    nvcc: FakeNvcc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GEMMSMITH_NEVER_COMPILE", "1")
    with pytest.raises(CompileError, match=r"build beforehand with gemmsmith build a\.yaml --arch"):
        export(BOTH, tmp_path / "bundle", source="a.yaml")
    assert not (tmp_path / "bundle").exists()
    assert nvcc.runs() == []


def test_a_kernel_that_fails_leaves_no_bundle(nvcc: FakeNvcc, tmp_path: Path) -> None:
    nvcc.fault("broken", ampere(64))
    with pytest.raises(CompileError, match="did not compile"):
        export(BOTH, tmp_path / "bundle")
    assert not (tmp_path / "bundle").exists()


def test_only_bundles_are_replaced(nvcc: FakeNvcc, tmp_path: Path) -> None:
    precious = tmp_path / "thesis"
    precious.mkdir()
    (precious / "text").write_text("years of work")
    for target in (precious, precious / "text"):
        with pytest.raises(BundleError, match=r"exists and is no bundle: name a new folder with"):
            export(BOTH, target)
    assert (precious / "text").read_text() == "years of work"
    with pytest.raises(BundleError, match="cannot be written"):
        export(BOTH, precious / "text" / "below a file")
    with pytest.raises(BundleError, match="is a file: name a folder for the wheel"):
        export_wheel(BOTH, precious / "text")
    assert nvcc.runs() == []


def test_gpus_of_other_machines_are_refused_by_name_and_else_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    jetson = dataclasses.replace(ampere(), arch=SM_87)
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    words = (
        "sm_87 GPUs sit in aarch64 machines, and a library made here loads on x86_64 machines "
        "only: run gemmsmith export --arch sm_87 on such a machine"
    )
    kept = exportable([*BOTH.specs, jetson], asked=[])
    assert kept.specs == BOTH.specs
    assert kept.left_out == {"sm_87": words}
    for specs, asked in (([*BOTH.specs, jetson], ["sm_80", "sm_87"]), ([jetson], [])):
        with pytest.raises(BundleError, match=words):
            exportable(specs, asked=asked)
    ported = dataclasses.replace(ampere(), arch=portable(SM_87))  # Hopper GPUs sit in any
    assert exportable([ported], asked=["sm_87"]).specs == (ported,)
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    assert exportable([jetson], asked=["sm_87"]).specs == (jetson,)


def test_what_no_toolkit_here_targets_is_left_out_unless_asked_for(
    tmp_path: Path, nvcc: FakeNvcc, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gemmsmith.toolchains.made_toolkits", lambda: ())
    volta = dataclasses.replace(
        ampere(), arch=SM_70, a=FP16, b=FP16, d=FP16, stages=2, alignment=Alignment(8, 8, 8)
    )
    manifest = export(exportable([*BOTH.specs, volta], asked=[]), tmp_path / "bundle")
    assert manifest.archs == ("sm_80", "sm_90a")
    assert list(manifest.left_out) == ["sm_70"]
    assert "13.0" in manifest.left_out["sm_70"]
    with pytest.raises(BundleError, match=r"none for sm_70: .*sm_70.*13\.0"):
        read_bundle(tmp_path / "bundle").specs(SM_70)
    for specs, asked in (([*BOTH.specs, volta], ["sm_70"]), ([volta], [])):
        with pytest.raises(CompileError, match=r"sm_70.*13\.0"):
            export(exportable(specs, asked=asked), tmp_path / "other")
    nvcc.fault("broken", ampere(128))  # no toolkit is to blame
    with pytest.raises(CompileError, match="did not compile"):
        export(exportable([ampere(128), volta], asked=[]), tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_inspect_takes_a_bundle_and_other_verbs_say_so(tmp_path: Path) -> None:
    export(BOTH, tmp_path / "bundle")
    result = CliRunner().invoke(app, ["inspect", str(tmp_path / "bundle"), "--json"])
    assert result.exit_code == 0, result.output
    assert [card["name"] for card in json.loads(result.stdout)["cards"]] == [
        spec.name for spec in BOTH.specs
    ]
    result = CliRunner().invoke(app, ["inspect", str(tmp_path / "bundle"), "--arch", "hopper"])
    assert hopper().name in result.output
    assert ampere(64).name not in result.output
    for verb in ("list", "build", "export"):
        result = CliRunner().invoke(app, [verb, str(tmp_path / "bundle")])
        assert result.exit_code == 1
        assert "is a bundle of compiled kernels without their YAML file" in result.output


def test_kernels_compiled_for_another_gpu_are_told_apart(tmp_path: Path) -> None:
    ported = dataclasses.replace(ampere(), arch=portable(SM_80))
    manifest = export(Exportable(specs=(ported,), left_out={}), tmp_path / "bundle")
    assert manifest.archs == ("sm_80_on_sm_90",)
    bundle = read_bundle(tmp_path / "bundle")
    assert bundle.specs(portable(SM_80)) == (ported,)
    assert load(tmp_path / "bundle", arch="sm_80", run_on="sm_90").specs == (ported,)
    with pytest.raises(BundleError, match="has kernels for sm_80_on_sm_90, none for sm_80: export"):
        bundle.specs(SM_80)


def test_the_verb_writes_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "my file.yaml"
    file.write_text(FILE)
    monkeypatch.chdir(tmp_path)
    result = run(file, "--arch", "8.0", "--json")
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert told["kernels"] == [ampere(64).name, ampere(128).name]
    assert (told["path"], told["archs"], told["host"]) == (
        "gemmsmith-kernels",
        ["sm_80"],
        platform.machine(),
    )
    assert read_bundle(Path("gemmsmith-kernels")).specs(SM_80) == (ampere(64), ampere(128))
    result = run(file, "--kernel", ampere(64).name, "-o", tmp_path / "one")
    assert f"{tmp_path / 'one'}: 1 kernel for sm_80, 0.0 MiB, for " in result.output
    result = run(file, "-o", tmp_path)
    assert result.exit_code == 1
    assert "exists and is no bundle" in result.output
    assert run(file, "--arch", "sm_99").exit_code == 2


def test_help_says_how_it_goes_on_at_the_other_machine() -> None:
    result = run("--help")
    for word in ("--wheel", "pip install gemmsmith_kernels", 'gemmsmith.load("kernels")'):
        assert word in result.output


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    made, manifest = export_wheel(BOTH, tmp_path / "dist", file=Path("My file.yaml"))
    assert manifest.archs == ("sm_80", "sm_90a")
    return made


def test_the_wheel_is_a_wheel(wheel: Path, tmp_path: Path) -> None:
    name, version, python, abi, host = wheel.stem.split("-")
    assert name == "gemmsmith_kernels_my_file_sm80_sm90a"
    assert (python, abi) == ("py3", "none")
    assert host.endswith(platform.machine())
    with zipfile.ZipFile(wheel) as archive:
        assert archive.testzip() is None
        rows = list(
            csv.reader(io.TextIOWrapper(archive.open(f"{name}-{version}.dist-info/RECORD")))
        )
        assert sorted(row[0] for row in rows) == sorted(archive.namelist())
        for path, digest, size in rows[:-1]:
            data = archive.read(path)
            encoded = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            assert (digest, int(size)) == (f"sha256={encoded}", len(data))
        assert rows[-1][0].endswith("/RECORD")
        metadata = archive.read(f"{name}-{version}.dist-info/METADATA").decode()
        assert f"Version: {version}\n" in metadata
        assert "Requires-Dist: gemmsmith\n" in metadata
    again, _ = export_wheel(BOTH, tmp_path / "again", file=Path("My file.yaml"))
    assert again.name == wheel.name
    assert again.read_bytes() == wheel.read_bytes()
    other, _ = export_wheel(
        Exportable(specs=(ampere(128), hopper()), left_out={}),
        tmp_path / "again",
        file=Path("My file.yaml"),
    )
    assert other.name.split("-")[0] == name
    assert other.name != wheel.name


def install(wheel: Path, target: Path) -> None:
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*command, "--target", str(target), str(wheel)], check=True)


def elsewhere(code: str, tmp_path: Path, *places: Path) -> str:
    """Return what ``code`` prints in a process without compilers and with an empty cache."""
    (tmp_path / "no tools").mkdir(exist_ok=True)
    environment = {
        "PATH": str(tmp_path / "no tools"),
        "HOME": str(tmp_path),
        "GEMMSMITH_CACHE_DIR": str(tmp_path / "empty cache"),
        "GEMMSMITH_NEVER_COMPILE": "1",
        "PYTHONPATH": os.pathsep.join(map(str, [ROOT / "generator", ROOT / "tests", *places])),
    }
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


_USE = """
from pathlib import Path
from gemmsmith.build import build
from gemmsmith.config import load_specs
from gemmsmith.kernelset import KernelSet, load
from gemmsmith.launcher import load_library
specs = load_specs({file!r}, arch=["sm_80"])
report = build(specs)
for failure in report.failed:
    print(failure.error)
for built in report.built:
    print(built.library.parent.parent.name, load_library(built.library)[built.spec.name].stages)
print(len(load(report.built[0].library.parent.parent, arch="sm_80").names))
"""


def test_an_installed_wheel_is_found_by_itself(wheel: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    install(wheel, site)
    file = tmp_path / "a.yaml"
    file.write_text(FILE)
    told = elsewhere(_USE.format(file=str(file)), tmp_path, site).splitlines()
    assert told[0].startswith(f"{ampere(128).name} was not compiled before, and GEMMSMITH_NEVER")
    assert told[1:] == ["gemmsmith_kernels_my_file_sm80_sm90a 3", "1"]


@pytest.mark.parametrize(
    ("libraries", "versions", "tag"),
    [
        (("libc.so.6",), {}, "manylinux_2_17_x86_64"),
        (("libc.so.6", "ld-linux-x86-64.so.2"), {"GLIBC": (2, 34)}, "manylinux_2_34_x86_64"),
        (("libstdc++.so.6",), {"GLIBCXX": (3, 4, 30)}, "manylinux_2_35_x86_64"),
        (("libstdc++.so.6",), {"GLIBC": (2, 17), "CXXABI": (1, 3, 8)}, "manylinux_2_28_x86_64"),
        (("libc.so.6",), {"GLIBC": (2, 99)}, "linux_x86_64"),
        (("libcudart.so.13",), {}, "linux_x86_64"),
    ],
)
def test_the_platform_is_the_oldest_that_has_all(
    libraries: tuple[str, ...], versions: dict[str, Any], tag: str
) -> None:
    plain = LibraryNeeds(machine="x86_64", libraries=("libm.so.6",), versions={"GLIBC": (2, 5)})
    needs = LibraryNeeds(machine="x86_64", libraries=libraries, versions=versions)
    assert platform_tag([plain, needs]) == tag
    arm = LibraryNeeds(machine="aarch64", libraries=(), versions={})
    assert platform_tag([arm]) == "manylinux_2_17_aarch64"


def test_names_tell_file_and_architectures() -> None:
    assert distribution_name(None, ["sm_80", "sm_90a"]) == "gemmsmith-kernels-sm80-sm90a"
    assert distribution_name(Path("x/My_File 2.yaml"), ["sm_70"]) == (
        "gemmsmith-kernels-my-file-2-sm70"
    )


_REAL = """
import json, sys
from gemmsmith.build import build
from gemmsmith.bundles import known_bundles
from gemmsmith.config import load_specs
from gemmsmith.kernelset import load
from gemmsmith.launcher import Call, load_library
(spec,) = load_specs({file!r})
(built,) = build([spec]).built
((bundle,), refusals) = known_bundles()
kernels = load(bundle.folder, arch="sm_80")
kernel = kernels.loaded(spec)
sizes = dict.fromkeys(Call._fields, 0) | dict(m=128, n=128, k=64, batch=1, a=256, b=256, d=256)
sizes |= dict(lda=64, ldb=64, ldd=128, alpha=1.0, sm_count=108)
right = kernel.can_run(Call(**sizes))
wrong = kernel.can_run(Call(**sizes | dict(k=63, lda=63, ldb=63)))
print(json.dumps({{
    "name": kernel.name, "threads": kernel.threads, "stages": kernel.stages,
    "shared": kernel.shared_bytes, "right": right, "wrong": kernel.explain(wrong),
    "workspace": kernel.workspace_bytes(Call(**sizes)), "library": str(built.library),
    "needs": dict(bundle.manifest.needs), "launcher": type(kernel).__name__,
    "torch": "torch" in sys.modules,
}}))
"""


@pytest.mark.nvcc
def test_a_real_kernel_goes_to_a_machine_without_compilers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()  # the real compiler
    monkeypatch.setenv("GEMMSMITH_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("GEMMSMITH_NEVER_COMPILE", raising=False)
    file = tmp_path / "mine.yaml"
    file.write_text(
        "families:\n  - {name: mine, arch: sm_80, dtype: bf16,\n"
        "     kernels: [{tile: [64, 64, 32], warp: [32, 32, 32], stages: 3}]}\n"
    )
    result = run(file, "--arch", "sm_80", "--wheel", "-o", tmp_path / "dist", "--json")
    assert result.exit_code == 0, result.output
    wheel = Path(json.loads(result.stdout)["path"])
    assert wheel.name.startswith("gemmsmith_kernels_mine_sm80-")
    install(wheel, tmp_path / "site")
    told = json.loads(elsewhere(_REAL.format(file=str(file)), tmp_path, tmp_path / "site"))
    assert told["library"].startswith(str(tmp_path / "site"))
    assert (told["name"], told["threads"], told["stages"]) == (
        "gemm_bf16_rcr_64x64x32_w32x32_s3_sm80",
        128,
        3,
    )
    assert told["shared"] == 3 * (64 + 64) * 32 * 2
    assert (told["right"], told["workspace"]) == (0, [0, 0])
    assert "align" in told["wrong"].lower()
    assert "GLIBC" in told["needs"]
    assert (told["launcher"], told["torch"]) == ("CtypesKernel", False)
    with zipfile.ZipFile(wheel) as archive:
        (library,) = [name for name in archive.namelist() if name.endswith(".so")]
        made = Path(archive.extract(library, tmp_path / "loose"))
    linked = read_needs(made).libraries
    assert not [name for name in linked if re.match("libcuda|libtorch|libpython", name)]
