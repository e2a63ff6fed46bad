"""Building what is missing: once, in parallel, with a reason for each kernel that fails."""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest

import fakes
import gemmsmith.build
from fake_tools import fake_nvcc
from fakes import FakeNvcc, ampere, hopper
from gemmsmith.build import build
from gemmsmith.card import can_inspect
from gemmsmith.compile import terminable
from gemmsmith.config import load_specs
from gemmsmith.errors import ArgumentError, CacheError, CompileError, ToolchainError
from gemmsmith.launcher.with_ctypes import read_table
from gemmsmith.lookup import find_built
from gemmsmith.spec import KernelSpec
from gemmsmith.toolchain import Toolchain, find_toolchain

_PATH = os.pathsep.join(
    [str(Path(gemmsmith.__file__).parent.parent), str(Path(fakes.__file__).parent)]
)
_CHILD = """
import signal
import sys
from pathlib import Path
from fakes import FakeNvcc, ampere
from gemmsmith.build import build
from gemmsmith.card import can_inspect
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job inherits "ignore"
nvcc = object.__new__(FakeNvcc)
nvcc.path = Path(sys.argv[1])
toolchain = nvcc.toolchain
report = build([ampere(int(n)) for n in sys.argv[2:]], toolchain=toolchain, jobs=2)
report.raise_if_failed()
print(*(kernel.cached for kernel in report.built))
"""


@pytest.fixture
def cache_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "my cache"
    monkeypatch.setenv("GEMMSMITH_CACHE_DIR", str(folder))
    for name in ("MAX_JOBS", "GEMMSMITH_NEVER_COMPILE"):
        monkeypatch.delenv(name, raising=False)
    return folder


@pytest.fixture
def nvcc(tmp_path: Path) -> FakeNvcc:
    return FakeNvcc(tmp_path / "fake toolkit")


def _leftovers(cache: Path) -> list[Path]:
    return [*(cache / "v1" / "scratch").iterdir(), *(cache / "v1" / "locks").iterdir()]


def _child(nvcc: Path, cache: Path, *sizes: int) -> subprocess.Popen[str]:
    environment = {**os.environ, "GEMMSMITH_CACHE_DIR": str(cache), "PYTHONPATH": _PATH}
    environment["PYTHONDONTWRITEBYTECODE"] = "1"
    return subprocess.Popen(
        [sys.executable, "-c", _CHILD, str(nvcc), *map(str, sizes)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_first_build_compiles_and_second_does_not(cache_dir: Path, nvcc: FakeNvcc) -> None:
    specs = [ampere(64), ampere(128), hopper(128)]
    first = build(specs, toolchain=nvcc.toolchain, jobs=2)
    first.raise_if_failed()
    assert [kernel.spec for kernel in first.built] == specs
    assert not any(kernel.cached for kernel in first.built)
    assert sorted(name for run in nvcc.runs() for name in run) == sorted(s.name for s in specs)
    for kernel in first.built:
        assert kernel.spec.name in read_table(kernel.library)
        assert (kernel.card.threads, kernel.card.stages) == (128, 3)
        assert (kernel.card.registers, kernel.card.spill_store_bytes) == (77, 16)
        assert kernel.card.shared_bytes == 1024 + 512
        assert kernel.peak_bytes > 1_000_000
        assert not kernel.card.sass_inspected
    assert repr(first).startswith("<BuildReport: 3 built (0 of them cached), 0 failed, ")
    assert "spill" not in repr(first.built[0])
    runs = len(nvcc.runs())
    second = build(specs, toolchain=nvcc.toolchain)
    assert all(kernel.cached for kernel in second.built)
    assert [kernel.card for kernel in second.built] == [kernel.card for kernel in first.built]
    assert len(nvcc.runs()) == runs
    assert _leftovers(cache_dir) == []


def test_a_new_kernel_compiles_alone_and_its_kin_stay(cache_dir: Path, nvcc: FakeNvcc) -> None:
    build([ampere(64), ampere(128)], toolchain=nvcc.toolchain, jobs=1).raise_if_failed()
    assert len(nvcc.runs()) == 1  # one group
    report = build([ampere(64), ampere(256), ampere(128)], toolchain=nvcc.toolchain, jobs=1)
    assert [kernel.cached for kernel in report.built] == [True, False, True]
    assert nvcc.runs()[1:] == [[ampere(256).name]]


def test_warm_cache_needs_no_toolchain(
    cache_dir: Path, nvcc: FakeNvcc, monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent() -> Toolchain:
        raise ToolchainError("no nvcc found; looked nowhere")

    older = dataclasses.replace(nvcc.toolchain, release="12.9.41")
    build([ampere()], toolchain=older).raise_if_failed()
    time.sleep(0.02)
    newer = build([ampere()], toolchain=nvcc.toolchain).built[0]
    manifests = list((cache_dir / "v1" / "kernels" / ampere().name).iterdir())
    assert len(manifests) == 2  # each toolchain has its own
    monkeypatch.setattr("gemmsmith.toolchains.find_toolchain", absent)
    monkeypatch.setattr("gemmsmith.toolchains.made_toolkits", lambda: ())
    report = build([ampere()])
    assert report.built[0].cached
    assert report.built[0].card == newer.card
    with pytest.raises(ToolchainError, match="looked nowhere"):
        build([ampere(), ampere(64)])


@pytest.mark.parametrize(
    ("variable", "words"),
    [
        ("GEMMSMITH_NVCC", "GEMMSMITH_NVCC names {}, which cannot be used: nvcc is given as"),
        ("CXX", "GEMMSMITH_CXX or CXX names {}, which cannot be used: GEMMSMITH_CXX or CXX asks"),
    ],
)
def test_refused_compiler_is_told_once_where_the_cache_serves(
    cache_dir: Path,
    nvcc: FakeNvcc,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    variable: str,
    words: str,
) -> None:
    build([ampere()], toolchain=nvcc.toolchain).raise_if_failed()
    for name in ("CUDA_HOME", "CUDA_PATH", "CXX", "GEMMSMITH_CXX", "GEMMSMITH_NVCC"):
        monkeypatch.delenv(name, raising=False)
    tools = tmp_path / "tools"
    monkeypatch.setenv("PATH", f"{tools}:/usr/bin:/bin")
    monkeypatch.setattr("gemmsmith.nvcc.wheel_roots", lambda: ())
    monkeypatch.setattr("gemmsmith.toolchains.made_toolkits", lambda: ())
    caplog.clear()
    assert list(find_built([ampere()])) == [ampere()]
    assert caplog.messages == []  # no compiler, and none asked for
    fake_nvcc(tools / "nvcc", "13.0.88")
    nowhere = tmp_path / "nope"
    monkeypatch.setenv(variable, str(nowhere))
    assert find_built([ampere(64)]) == {}
    assert caplog.messages == []  # nothing is served
    for _ in range(2):
        assert build([ampere()]).built[0].cached
        assert list(find_built([ampere()])) == [ampere()]
    (message,) = caplog.messages
    assert message.startswith(words.format(nowhere))
    assert message.endswith("; serving kernels compiled before")


@pytest.mark.parametrize("jobs", [0, -1, "x", 1.5, True])
def test_illegal_jobs_are_refused_with_a_warm_cache_too(
    cache_dir: Path, nvcc: FakeNvcc, jobs: int
) -> None:
    for _ in range(2):
        with pytest.raises(ArgumentError, match=rf"jobs is {jobs!r}: give a whole number"):
            build([ampere()], toolchain=nvcc.toolchain, jobs=jobs)
        build([ampere()], toolchain=nvcc.toolchain).raise_if_failed()


def _release(barrier: Barrier, nvcc: FakeNvcc, results: multiprocessing.Queue[list[str]]) -> None:
    barrier.wait()
    report = build([ampere(64), ampere(128)], toolchain=nvcc.toolchain, jobs=1)
    report.raise_if_failed()
    names = read_table(report.built[0].library)
    results.put([str(kernel.library) for kernel in report.built if kernel.spec.name in names])


def test_sixteen_processes_compile_once(cache_dir: Path, nvcc: FakeNvcc) -> None:
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(16)
    results: multiprocessing.Queue[list[str]] = context.Queue()
    workers = [context.Process(target=_release, args=(barrier, nvcc, results)) for _ in range(16)]
    for worker in workers:
        worker.start()
    found = [results.get(timeout=60) for _ in workers]
    for worker in workers:
        worker.join(60)
    assert [worker.exitcode for worker in workers] == [0] * 16
    assert nvcc.runs() == [sorted([ampere(64).name, ampere(128).name])]
    assert all(libraries == found[0] and len(libraries) == 2 for libraries in found)
    assert _leftovers(cache_dir) == []


def _until(condition: Callable[[], bool]) -> None:
    last = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < last, "it never happened"
        time.sleep(0.02)


def _running(nvcc: FakeNvcc) -> int:
    """Return the process number of the compiler, once it runs."""
    file = nvcc.folder / "pid"
    _until(lambda: file.exists() and file.read_text() != "")
    return int(file.read_text())


def _alive(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"  # whoever adopted it may not reap it


def test_build_after_kill_in_mid_compile(cache_dir: Path, nvcc: FakeNvcc) -> None:
    nvcc.fault("hang", ampere(64))
    builder = _child(nvcc.path, cache_dir, 64)
    compiler = _running(nvcc)
    builder.kill()
    builder.communicate()
    _until(lambda: not _alive(compiler))
    (nvcc.folder / "hang").unlink()
    started = time.monotonic()
    report = build([ampere(64)], toolchain=nvcc.toolchain)
    report.raise_if_failed()
    assert time.monotonic() - started < 5
    assert len(nvcc.runs()) == 2
    assert _leftovers(cache_dir) == []


@pytest.mark.parametrize("word", [signal.SIGINT, signal.SIGTERM])
def test_interrupt_ends_compilers_and_waiting_at_once(
    cache_dir: Path, nvcc: FakeNvcc, word: signal.Signals
) -> None:
    nvcc.fault("hang", ampere(64))
    builder = _child(nvcc.path, cache_dir, 64)
    compiler = _running(nvcc)
    waiter = _child(nvcc.path, cache_dir, 64)
    locks = cache_dir / "v1" / "locks"
    scratch = cache_dir / "v1" / "scratch"
    _until(lambda: len(list(scratch.glob("*.lock"))) == 2)
    time.sleep(0.5)  # from its scratch folder to waiting for the lock
    for child in (waiter, builder):
        child.send_signal(word)  # to it alone, as a notebook or docker stop does
        _, err = child.communicate(timeout=60)
        if word == signal.SIGINT:
            assert "KeyboardInterrupt" in err
        else:
            assert child.returncode == 128 + signal.SIGTERM
            assert "Traceback" not in err
    _until(lambda: not _alive(compiler))
    assert list(locks.iterdir()) == []
    assert _leftovers(cache_dir) == []


def test_handlers_of_sigterm_are_left_as_they_were(cache_dir: Path, nvcc: FakeNvcc) -> None:
    def own(number: int, frame: object) -> None:
        raise AssertionError("not called")

    before = signal.getsignal(signal.SIGTERM)
    try:
        for handler, during in ((signal.SIG_DFL, False), (own, True), (signal.SIG_IGN, True)):
            signal.signal(signal.SIGTERM, handler)
            with terminable():
                assert (signal.getsignal(signal.SIGTERM) == handler) == during
            assert signal.getsignal(signal.SIGTERM) == handler
        with ThreadPoolExecutor(1) as pool:  # where no handler can be set
            report = pool.submit(build, [ampere(64)], toolchain=nvcc.toolchain).result()
        report.raise_if_failed()
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.fixture
def shared_folder() -> Iterator[Path]:
    """A folder that users other than this one can reach, unlike tmp_path."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


def _as_nobody(nvcc: FakeNvcc, sizes: Sequence[int], results: multiprocessing.Queue[str]) -> None:
    if os.geteuid() == 0:  # whom no permission stops
        os.setgid(65534)
        os.setuid(65534)
    try:
        report = build([ampere(size) for size in sizes], toolchain=nvcc.toolchain)
        results.put(str([kernel.cached for kernel in report.built]))
    except CacheError as error:
        results.put(str(error))


def test_read_only_cache_serves_what_it_has(
    shared_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = shared_folder / "cache"
    monkeypatch.setenv("GEMMSMITH_CACHE_DIR", str(cache))
    nvcc = FakeNvcc(shared_folder / "toolkit")
    build([ampere(64)], toolchain=nvcc.toolchain).raise_if_failed()
    for path in [cache, *cache.rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    before = sorted(cache.rglob("*"))
    context = multiprocessing.get_context("fork")
    results: multiprocessing.Queue[str] = context.Queue()
    answers = []
    for sizes in ([64], [64, 128]):
        reader = context.Process(target=_as_nobody, args=(nvcc, sizes, results))
        reader.start()
        answers.append(results.get(timeout=60))
        reader.join(60)
    assert sorted(cache.rglob("*")) == before
    for path in [cache, *cache.rglob("*")]:
        path.chmod(0o755)
    assert answers[0] == "[True]"
    assert "cannot be written (Permission denied)" in answers[1]
    assert answers[1].endswith("set GEMMSMITH_CACHE_DIR to a folder that can")


def test_unusable_cache_folder_is_told(
    tmp_path: Path, nvcc: FakeNvcc, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("GEMMSMITH_CACHE_DIR", str(tmp_path / "file"))
    with pytest.raises(CacheError, match=r"Not a directory.*GEMMSMITH_CACHE_DIR"):
        build([ampere()], toolchain=nvcc.toolchain)


def test_k11_one_broken_kernel_of_five(cache_dir: Path, nvcc: FakeNvcc) -> None:
    specs = [ampere(64), ampere(128), ampere(256), ampere(64, 64), ampere(128, 64)]
    bad = specs[2]
    nvcc.fault("broken", bad)
    report = build(specs, toolchain=nvcc.toolchain, jobs=2)
    assert [kernel.spec for kernel in report.built] == [s for s in specs if s is not bad]
    (failure,) = report.failed
    assert failure.spec == bad
    text = str(failure.error)
    assert text.splitlines()[0].endswith('.cu(7): error: identifier "oops" is undefined')
    assert text.startswith(bad.name)
    kept = [
        line.split(": ")[1] for line in text.splitlines() if "source:" in line or "log:" in line
    ]
    assert bad.name in Path(kept[0]).read_text()
    assert "oops" in Path(kept[1]).read_text()
    command = shlex.split(text.splitlines()[-1].partition("command: ")[2])
    assert (command[0], command[-1]) == (str(nvcc.path), kept[0])
    again = subprocess.run(command, capture_output=True, text=True, check=False)
    assert again.returncode != 0
    assert 'identifier "oops" is undefined' in again.stdout
    with pytest.raises(CompileError, match="oops"):
        report.raise_if_failed()
    assert _leftovers(cache_dir) == []


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("silent", "exit code 1 without a word"),
        ("nothing", "reported success but wrote no library"),
    ],
)
def test_k11_a_compiler_that_says_nothing(
    cache_dir: Path, nvcc: FakeNvcc, fault: str, words: str
) -> None:
    _fails(nvcc, fault, words)


def test_k10_a_killed_compiler_is_told_as_such(cache_dir: Path, nvcc: FakeNvcc) -> None:
    _fails(nvcc, "killed", r"killed, likely out of memory: lower MAX_JOBS \(now 3\)")


def test_more_shared_memory_than_there_is(cache_dir: Path, nvcc: FakeNvcc) -> None:
    _fails(nvcc, "fat", r"takes 1,000,511 B of shared memory a block, sm_80 has 166,912")


def _fails(nvcc: FakeNvcc, fault: str, words: str) -> None:
    """A kernel with that fault fails with those words, and the other one is built."""
    nvcc.fault(fault, ampere(64))
    report = build([ampere(64), hopper()], toolchain=nvcc.toolchain, jobs=3)
    assert [kernel.spec for kernel in report.built] == [hopper()]
    with pytest.raises(CompileError, match=words):
        report.raise_if_failed()
    again = build([ampere(64)], toolchain=nvcc.toolchain)
    assert len(again.failed) == 1  # a failure is never served from the cache


@pytest.mark.parametrize(
    ("release", "torch", "warned"),
    [("13.0.88", "12.6", True), ("11.8.89", "12.6", True), ("12.9.41", "12.6", False)],
)
def test_k07_torch_for_another_major_cuda_is_told_before_building(
    cache_dir: Path,
    nvcc: FakeNvcc,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    release: str,
    torch: str,
    warned: bool,
) -> None:
    monkeypatch.setattr("gemmsmith.torch_cuda.torch_cuda", lambda: torch)
    major, minor, _ = map(int, release.split("."))
    tools = dataclasses.replace(nvcc.toolchain, version=(major, minor), release=release)
    nvcc.fault("broken", ampere(64))
    report = build([ampere(64), ampere(128)], toolchain=tools)
    assert [kernel.spec for kernel in report.built] == [ampere(128)]
    words = f"torch is built for CUDA {torch}, nvcc is {release} at {nvcc.path}: its kernels"
    told = [message for message in caplog.messages if message.startswith(words)]
    assert len(told) == warned
    if warned:
        assert caplog.messages[0] == told[0]  # before anything is compiled
    caplog.clear()
    build([ampere(64)], toolchain=tools)
    assert not [message for message in caplog.messages if message.startswith("torch is built")]


@pytest.mark.parametrize("value", [None, "", "8.0;9.0a+PTX"])
def test_k14_an_explicit_arch_builds_without_a_gpu_whatever_torch_is_told(
    cache_dir: Path, nvcc: FakeNvcc, monkeypatch: pytest.MonkeyPatch, value: str | None
) -> None:
    monkeypatch.setattr("gemmsmith.nvml.devices", lambda: ())
    monkeypatch.delenv("TORCH_CUDA_ARCH_LIST", raising=False)
    if value is not None:
        monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", value)
    (kernel,) = build([ampere()], toolchain=nvcc.toolchain).built
    command = shlex.split(kernel.library.with_suffix(".log").read_text().splitlines()[0])
    targets = [word for word in command if word.startswith(("-gencode", "-arch", "-code"))]
    assert targets == ["-gencode=arch=compute_80,code=sm_80"]


def test_never_compile(cache_dir: Path, nvcc: FakeNvcc, monkeypatch: pytest.MonkeyPatch) -> None:
    build([ampere(64)], toolchain=nvcc.toolchain).raise_if_failed()
    monkeypatch.setenv("GEMMSMITH_NEVER_COMPILE", "1")
    report = build([ampere(64), ampere(128)], toolchain=nvcc.toolchain)
    assert [kernel.spec for kernel in report.built] == [ampere(64)]
    with pytest.raises(CompileError, match="gemmsmith build --arch sm_80"):
        report.raise_if_failed()
    report = build([ampere(128)], toolchain=nvcc.toolchain, source="my kernels.yaml")
    with pytest.raises(CompileError, match=r"build 'my kernels\.yaml' --arch sm_80"):
        report.raise_if_failed()
    assert len(nvcc.runs()) == 1


def test_toolkit_too_old_fails_only_its_kernels(cache_dir: Path, nvcc: FakeNvcc) -> None:
    old = dataclasses.replace(nvcc.toolchain, version=(11, 8), release="11.8.89")
    report = build([ampere(64), hopper()], toolchain=old)
    assert [kernel.spec for kernel in report.built] == [ampere(64)]
    assert "needs CUDA 12.0 or newer; found 11.8" in str(report.failed[0].error)


@pytest.mark.nvcc
def test_real_compiler_real_machine_code(cache_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toolchain = find_toolchain()
    monkeypatch.setattr(gemmsmith.build, "render", fakes.mma_source)
    report = build([ampere(64), ampere(128)], toolchain=toolchain, jobs=1)
    report.raise_if_failed()
    assert report.built[0].library == report.built[1].library
    for kernel in report.built:
        card = kernel.card
        assert (card.dynamic_shared_bytes, card.static_shared_bytes) == (1024, 256)
        assert 8 <= card.registers <= 64
        assert card.spill_store_bytes == 0
        assert card.compiled_with == 2
        assert card.sass_inspected == can_inspect(toolchain)
        if card.sass_inspected:
            assert card.tensor_instructions == {"HMMA.16816.F32.BF16": 1}
    assert build([ampere(128)], toolchain=toolchain).built[0].cached


@pytest.mark.nvcc
def test_real_templates_share_a_run(cache_dir: Path) -> None:
    specs = [ampere(128), ampere(64)]
    toolchain = find_toolchain()
    report = build(specs, toolchain=toolchain, jobs=1)
    report.raise_if_failed()
    assert report.built[0].library == report.built[1].library
    for kernel in report.built:
        spec = kernel.spec
        assert isinstance(spec, KernelSpec)
        tile = spec.tile
        card = kernel.card
        assert card.dynamic_shared_bytes == 3 * (tile.m + tile.n) * tile.k * 2
        assert card.threads == 128
        assert card.spill_store_bytes == 0
        if card.sass_inspected:  # each step of k 16 and of n 8 once for each 16 rows of a warp
            assert spec.warp is not None
            warp = spec.warp
            steps = (warp.m // 16) * (warp.n // 8) * (warp.k // 16)
            assert card.tensor_instructions == {"HMMA.16816.F32.BF16": steps}


@pytest.mark.nvcc
def test_real_compiler_error_is_the_first_one(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(specs: list[object]) -> object:
        source = fakes.mma_source([ampere(64)])
        return dataclasses.replace(source, text=source.text.replace("float c[4]", "flaot c[4]"))

    monkeypatch.setattr(gemmsmith.build, "render", broken)
    report = build([ampere(64)], toolchain=find_toolchain())
    first = str(report.failed[0].error).splitlines()[0]
    assert 'error: identifier "flaot" is undefined' in first


@pytest.mark.nvcc
def test_r06_kernels_of_every_kind_compile_and_keep_their_promises(cache_dir: Path) -> None:
    """Mixed outputs, fp16 sums, scales, gates, int8 on every architecture that nvcc here targets.

    Those of sm_70 need a toolkit of their own; test_matrix compiles one.
    """
    every = load_specs(Path(__file__).with_name("unusual.yaml"))
    specs = [spec for spec in every if spec.arch.name != "sm_70"]
    report = build(specs)
    report.raise_if_failed()
    cards = {kernel.spec.name: kernel.card for kernel in report.built}
    assert len(cards) == len(specs) == 77
    assert all(card.sass_inspected for card in cards.values()) == can_inspect(find_toolchain())
    assert {s.arch.name for s in specs if s.scaled and s.bias} >= {"sm_80", "sm_90a"}
    spilling = {name: card.spill_store_bytes for name, card in cards.items()}
    gated = {
        spec.name for spec in specs if spec.gate != "none"
    }  # two registers short, some of them
    assert all(spilling[name] <= (16 if name in gated else 0) for name in cards), spilling
    fixed = cards["gemm_bf16_rcc_64x64x64_s3_c1x1_pp_sm90a"]
    assert fixed.stages == 3
    if fixed.sass_inspected:
        half = cards["gemm_fp16_accfp16_rcr_64x64x64_c1x1_pp_nobias_sm90a"]
        assert set(half.tensor_instructions) == {"HGMMA.64x64x16.F16"}
