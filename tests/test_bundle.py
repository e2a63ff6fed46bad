"""Loading bundles: what serves, and a sentence for all that cannot."""

from __future__ import annotations

import ctypes
import hashlib
import json
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bundle_data import edit_manifest, libraries, make_bundle
from fake_tools import bare_machine
from fakes import FakeNvcc, ampere, hopper
from gemmsmith import kernelset
from gemmsmith.arch import SM_90A
from gemmsmith.bundle import read_bundle
from gemmsmith.dtypes import BF16
from gemmsmith.errors import BundleError, GemmsmithError, LaunchError
from gemmsmith.kernelset import load
from gemmsmith.launcher import launcher
from gemmsmith.launcher.abi import abi_version
from gemmsmith.problem import GemmProblem
from gemmsmith.selection import Plan
from gpus import SOME_AMPERE, SOME_HOPPER

CALL = GemmProblem(m=128, n=128, k=64, a=BF16, b=BF16, d=BF16)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("the maker")
    nvcc = FakeNvcc(folder / "toolkit")
    return make_bundle(folder / "bundle", [ampere(64), ampere(128), hopper()], nvcc)


@pytest.fixture
def bundle(exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of a bundle, on a machine without compiler, cache and YAML file."""
    bare_machine(monkeypatch, tmp_path)
    monkeypatch.setenv("GEMMSMITH_CACHE_DIR", str(tmp_path / "empty cache"))
    monkeypatch.setenv("GEMMSMITH_NEVER_COMPILE", "1")
    launcher.cache_clear()
    yield Path(shutil.copytree(exported, tmp_path / "my bundle"))
    launcher.cache_clear()


def test_a_bundle_needs_no_compiler_and_no_yaml(bundle: Path) -> None:
    kernels = load(bundle, arch="sm_80")
    assert kernels.specs == (ampere(64), ampere(128))
    assert load(str(bundle), arch="hopper").specs == (hopper(),)
    report = kernels.build()
    assert [kernel.cached for kernel in report.built] == [True, True]
    assert report.built[0].card.registers == 77
    for spec in kernels.specs:
        plan = kernels[spec.name].plan(CALL, SOME_AMPERE)
        assert isinstance(plan, Plan)
        assert (plan.kernel.name, plan.kernel.threads, plan.kernel.stages) == (spec.name, 128, 3)
    assert isinstance(kernels.plan(CALL, SOME_AMPERE), Plan)


def test_the_manifest_tells_what_each_file_and_kernel_is(bundle: Path) -> None:
    values = json.loads((bundle / "manifest.json").read_text())
    files = {str(file.relative_to(bundle)) for file in bundle.rglob("*") if file.is_file()}
    assert set(values["files"]) == files - {"manifest.json"}
    for name, recorded in values["files"].items():
        data = (bundle / name).read_bytes()
        assert recorded == {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
    assert (values["format"], values["abi"], values["host"]) == (1, abi_version(), _machine())
    assert [kernel["name"] for kernel in values["kernels"]] == [
        ampere(64).name,
        ampere(128).name,
        hopper().name,
    ]
    for kernel in values["kernels"]:
        parts = kernel["built_with"]
        assert (parts["nvcc"], parts["host_compiler"]) == ("13.0.88", "12.2.0")
        assert parts["arch"] == kernel["arch"] == kernel["card"]["arch"]
        assert {"source", "flags", "cutlass", "gemmsmith"} < set(parts)


def _machine() -> str:
    return subprocess.run(["/bin/uname", "-m"], capture_output=True, text=True).stdout.strip()


def test_l03_a_gpu_that_the_bundle_has_no_kernels_for(
    exported: Path, tmp_path: Path, bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    edit_manifest(bundle, lambda values: values["kernels"].pop())
    monkeypatch.setattr(kernelset, "detect_architecture", lambda: SM_90A)
    words = r"has kernels for sm_80, none for sm_90a: export it with --arch sm_90a too"
    with pytest.raises(BundleError, match=words):
        load(bundle)
    kernels = load(bundle, arch="sm_80")
    for which in (kernels, kernels[ampere(64).name]):
        with pytest.raises(LaunchError, match=r"built for sm_80, a Hopper GPU has compute .* 9\.0"):
            which.plan(CALL, SOME_HOPPER)
        assert isinstance(which.plan(CALL, SOME_AMPERE), Plan)


def test_a_kind_that_was_left_out_says_why(bundle: Path) -> None:
    def change(values: dict[str, Any]) -> None:
        values["kernels"] = values["kernels"][2:]
        values["left_out"] = {"sm_80": "it is Monday"}

    edit_manifest(bundle, change)
    with pytest.raises(BundleError, match="has kernels for sm_90a, none for sm_80: it is Monday"):
        load(bundle, arch="sm_80")


@pytest.fixture
def traps(tmp_path: Path) -> Callable[[Path], Path]:
    """Replace a library by one of the same size that leaves a mark when it is loaded."""

    def set_trap(library: Path) -> Path:
        mark = tmp_path / "mark"
        source = tmp_path / "trap.c"
        source.write_text(
            "#include <fcntl.h>\n__attribute__((constructor)) static void go(void) "
            f'{{ open("{mark}", O_CREAT | O_WRONLY, 0644); }}\n'
        )
        trap = tmp_path / "trap.so"
        compiler = "/usr/bin/gcc"
        subprocess.run(
            [compiler, "-shared", "-fPIC", "-B/usr/bin", "-o", str(trap), str(source)], check=True
        )
        size = library.stat().st_size
        data = trap.read_bytes()
        library.write_bytes(data[:size].ljust(size, b"\0"))
        return mark

    return set_trap


def test_a_library_with_another_checksum_is_never_loaded(
    bundle: Path, traps: Callable[[Path], Path]
) -> None:
    victims = [bundle / _library(bundle, ampere(64).name)]
    mark = traps(victims[0])
    kernels = load(bundle, arch="sm_80")
    words = r"libraries/\w+\.so does not match its checksum, so it is not loaded: copy or export"
    for use in (
        lambda: kernels.plan(CALL, SOME_AMPERE),
        lambda: kernels[ampere(64).name].plan(CALL, SOME_AMPERE),
        kernels.build,
    ):
        with pytest.raises(BundleError, match=words):
            use()
    assert not mark.exists()
    assert isinstance(load(bundle, arch="sm_90a").plan(CALL, SOME_HOPPER), Plan)
    ctypes.CDLL(str(victims[0]))
    assert mark.exists()  # the trap works


def _library(bundle: Path, name: str) -> str:
    values = json.loads((bundle / "manifest.json").read_text())
    (library,) = [each["library"] for each in values["kernels"] if each["name"] == name]
    return str(library)


def _cut(bundle: Path) -> None:
    for library in libraries(bundle):
        library.write_bytes(library.read_bytes()[:5000])


def _lose(bundle: Path) -> None:
    shutil.rmtree(bundle / "libraries")


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (_cut, r"\.so has 5,000 bytes, its manifest says [\d,]+: copy or export the bundle again"),
        (_lose, r"\.so cannot be read \(No such file or directory\): copy or export the bundle"),
    ],
)
def test_files_that_are_cut_or_missing(
    bundle: Path, spoil: Callable[[Path], None], words: str
) -> None:
    spoil(bundle)
    kernels = load(bundle, arch="sm_80")  # a manifest can still be read
    with pytest.raises(BundleError, match=words):
        kernels.plan(CALL, SOME_AMPERE)
    with pytest.raises(BundleError, match=words):
        kernels[ampere(64).name].plan(CALL, SOME_AMPERE)


def _set(**changes: Any) -> Callable[[dict[str, Any]], None]:
    return lambda values: values.update(changes)


def _outside(values: dict[str, Any]) -> None:
    values["files"]["../x.so"] = {"sha256": "0", "bytes": 1}


def _spec(**changes: Any) -> Callable[[dict[str, Any]], None]:
    return lambda values: values["kernels"][0]["spec"].update(changes)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_set(host="aarch64"), "its libraries load on aarch64 machines, this is x86_64: export it"),
        (
            _set(abi=7, gemmsmith="9.9"),
            f"speak version 7 of the C interface, gemmsmith .* speaks {abi_version()}",
        ),
        (_set(needs={"GLIBC": "99.1"}), r"it needs glibc 99\.1, here is 2\.\d+: export it on a"),
        (
            _set(format=2, gemmsmith="9.9"),
            r"format 2, written by gemmsmith 9\.9; this one .* 1",
        ),
        (_set(format="two"), "it describes no kernels of gemmsmith"),
        (_set(files={}), r"it has no checksum of libraries/\w+\.so"),
        (_outside, r"it names \.\./x\.so, which is not inside the bundle"),
        (_set(kernels=[{}]), "it is damaged"),
        (_set(needs=3), "it is damaged"),
        (lambda values: values.pop("abi"), "it is damaged .*'abi'"),
        (_spec(colour="red"), f"{ampere(64).name} of the bundle .* not understood .*colour"),
        (_spec(a="fp4"), "is not understood by .*fp4"),
        (_spec(stages=99), "is not understood by .*stages"),
        (_spec(stages=4), rf"is not understood by .*: it is called {ampere(64).name[:30]}"),
    ],
)
def test_bundles_that_do_not_serve_here_say_why(
    bundle: Path, monkeypatch: pytest.MonkeyPatch, change: Any, words: str
) -> None:
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    edit_manifest(bundle, lambda values: values.update(host="x86_64"))
    load(bundle, arch="sm_80")
    edit_manifest(bundle, change)
    with pytest.raises(BundleError, match=words):
        load(bundle, arch="sm_80")


def test_facts_that_only_a_later_version_records_do_no_harm(bundle: Path) -> None:
    def change(values: dict[str, Any]) -> None:
        values["weather"] = "fine"
        for kernel in values["kernels"]:
            kernel["card"]["mood"] = "good"

    edit_manifest(bundle, change)
    assert load(bundle, arch="sm_80").build().built[0].card.stages == 3


@pytest.mark.parametrize("text", ["", "{", "[1]", "{}", "\x00"])
def test_a_manifest_that_is_none(bundle: Path, text: str) -> None:
    (bundle / "manifest.json").write_text(text)
    with pytest.raises(BundleError, match=r"manifest\.json cannot be used: it (is|describes) no"):
        load(bundle, arch="sm_80")


def _nodes(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Give the way to every value inside ``value``."""
    if path:
        yield path
    if isinstance(value, (dict, list)):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield from _nodes(value[key], (*path, key))


def test_no_wrong_value_anywhere_in_a_manifest_gets_past_the_errors(bundle: Path) -> None:
    file = bundle / "manifest.json"
    text = file.read_text()
    outcomes: Counter[bool] = Counter()
    for path in _nodes(json.loads(text)):
        for wrong in (None, -1, 2.5, "no", "", [], {}, [[1]], {"a": 1}, True):
            values = json.loads(text)
            holder = values
            for key in path[:-1]:
                holder = holder[key]
            holder[path[-1]] = wrong
            file.write_text(json.dumps(values))
            try:
                kernels = load(bundle, arch="sm_80")
                kernels.build()
                kernels.plan(CALL, SOME_AMPERE)
                outcomes[True] += 1
            except GemmsmithError:  # anything else fails the test
                outcomes[False] += 1
    assert outcomes[False] > 500
    assert outcomes[True] > 500  # facts that nothing here depends on


def test_folders_that_are_no_bundles(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"has no manifest\.json: name a folder that gemmsmith"):
        read_bundle(tmp_path)
    with pytest.raises(BundleError, match="is no folder"):
        read_bundle(tmp_path / "gone")
