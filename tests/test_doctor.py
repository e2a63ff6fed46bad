"""One report that names each fault and its fix, on machines that lack things."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fake_tools import bare_machine, fake_gxx, fake_nvcc, lay_wheels
from gemmsmith.doctor import Finding, Report, devices, examine, render_text, storage
from gemmsmith.errors import NoDeviceError
from gemmsmith.nvml import Device
from gemmsmith.resources import cutlass_include_dirs
from gemmsmith.tables import forget_tables, own_tables
from tuned_data import entry, table

NAMES = [
    "Python",
    "nvcc",
    "more toolkits",
    "host compiler",
    "disassembler",
    "CUTLASS",
    "cache",
    "jobs",
    "launcher",
    "torch",
    "GPU",
    "tuned tables",
]
TARGETS = "sm_75, sm_80, sm_86, sm_87, sm_89, sm_90a"
H200 = Device(
    index=0,
    name="NVIDIA H200",
    uuid="GPU-1",
    capability=(9, 0),
    memory_bytes=150_000_000_000,
    sm_count=132,
    driver="580.95.05",
    cuda=(13, 0),
)


@pytest.fixture
def tools(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """The one folder on PATH of a machine that has nothing, no GPU either."""
    cutlass_include_dirs.cache_clear()
    folder = bare_machine(monkeypatch, tmp_path)
    monkeypatch.setenv("GEMMSMITH_CACHE_DIR", str(tmp_path / "cache"))
    show(monkeypatch)
    yield folder
    cutlass_include_dirs.cache_clear()


def show(monkeypatch: pytest.MonkeyPatch, *found: Device) -> None:
    """Let the driver show these GPUs."""

    def detect() -> None:
        raise NoDeviceError("no GPU to detect; set arch (no driver)")

    monkeypatch.setattr(devices, "devices", lambda: found)
    monkeypatch.setattr(devices, "detect_architecture", detect)


def install(site: Path, name: str, version: str) -> None:
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


def install_cutlass(site: Path) -> Path:
    install(site, "nvidia-cutlass", "4.2.0.0")
    source = site / "cutlass_library" / "source"
    for folder in ("include", "tools/util/include"):
        (source / folder).mkdir(parents=True)
    (source.parent / "__init__.py").touch()
    return source


def install_torch(site: Path, version: str, cuda: str | None) -> None:
    install(site, "torch", version)
    (site / "torch").mkdir()
    (site / "torch" / "__init__.py").write_text("raise RuntimeError('must not be imported')")
    (site / "torch" / "version.py").write_text(
        f"from typing import Optional\n__version__ = {version!r}\ncuda: Optional[str] = {cuda!r}\n"
    )


def found(name: str) -> Finding:
    (finding,) = [finding for finding in examine().findings if finding.name == name]
    return finding


def test_a_machine_with_nothing_gets_every_finding_and_its_fix(tools: Path) -> None:
    report = examine()
    assert [finding.name for finding in report.findings] == NAMES
    assert not report.can_build
    status = {finding.name: finding.status for finding in report.findings}
    assert status["nvcc"] == status["host compiler"] == status["CUTLASS"] == "error"
    assert status["torch"] == status["GPU"] == status["launcher"] == "warning"
    assert status["disassembler"] == "warning"
    assert all(finding.fix for finding in report.findings if finding.status != "ok")
    assert not any(finding.fix for finding in report.findings if finding.status == "ok")


def test_a_machine_with_all_is_ready(
    tools: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_gxx(tools / "g++")
    root = lay_wheels(tmp_path / "site")
    source = install_cutlass(tmp_path / "site")
    install(tmp_path / "site", "pybind11", "3.0.1")
    install_torch(tmp_path / "site", "2.9.0", "13.0")
    (tmp_path / "include").mkdir()
    (tmp_path / "include" / "Python.h").touch()
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path / name))
    monkeypatch.setattr(storage, "free_memory", lambda: 64_000_000_000)
    monkeypatch.setenv("MAX_JOBS", "4")
    show(monkeypatch, H200)
    report = examine()
    assert [(finding.name, finding.status) for finding in report.findings] == [
        (name, "ok") for name in NAMES
    ]
    assert report.can_build
    texts = {finding.name: finding.found for finding in report.findings}
    assert texts["nvcc"] == f"13.0.88 at {root}/bin/nvcc (PyPI wheels), for {TARGETS}"
    assert texts["more toolkits"].startswith("none beside nvcc; for sm_70 run bash ")
    assert texts["host compiler"] == f"gcc 12.2.0 at {tools}/g++ (CUDA 13.0 accepts up to 15)"
    assert texts["CUTLASS"] == f"4.2.0.0 at {source}/include"
    assert texts["jobs"] == "4 at once (MAX_JOBS, 64.0 GB of memory free)"
    assert texts["torch"] == "2.9.0, for CUDA 13.0"
    assert texts["GPU"] == "NVIDIA H200 (sm_90); driver 580.95.05, up to CUDA 13.0"
    assert not (tmp_path / "cache").exists()


def test_too_new_a_gcc_fails_a_build(tools: Path) -> None:
    fake_nvcc(tools / "nvcc", "11.8.89")
    fake_gxx(tools / "g++", "12.2.0")
    compiler = found("host compiler")
    assert compiler.status == "error"
    assert "CUDA 11.8 accepts gcc up to 11; found 12.2.0" in compiler.found
    assert compiler.fix == "install g++ 11 or older, or set GEMMSMITH_CXX to one"
    assert found("nvcc").status == "ok"


def test_without_a_toolkit_a_new_gcc_is_no_fault(tools: Path) -> None:
    fake_gxx(tools / "g++", "15.1.0")
    assert found("nvcc").status == "error"
    assert found("host compiler").status == "ok"
    assert found("host compiler").found == f"gcc 15.1.0 at {tools}/g++"


def test_too_old_a_toolkit_fails_a_build(tools: Path) -> None:
    fake_nvcc(tools / "nvcc", "10.2.89")
    assert found("nvcc").status == "error"
    assert "10.2.89" in found("nvcc").found
    assert "sm_70 needs CUDA 11.4 or newer" in found("nvcc").found


def test_cuda_home_without_a_compiler_is_told(tools: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_nvcc(tools / "nvcc")
    monkeypatch.setenv("CUDA_HOME", "/usr/local/no-such-cuda")
    nvcc = found("nvcc")
    assert nvcc.status == "warning"
    assert "/usr/local/no-such-cuda, which has no bin/nvcc" in nvcc.found


@pytest.mark.parametrize(
    ("release", "cuda", "status"),
    [
        ("13.0.88", "12.6", "warning"),
        ("11.8.89", "12.6", "warning"),
        ("12.9.86", "12.6", "ok"),
        ("13.0.88", None, "warning"),
    ],
)
def test_k07_torch_must_have_the_major_version_of_nvcc(
    release: str, cuda: str | None, status: str, tools: Path, tmp_path: Path
) -> None:
    fake_gxx(tools / "g++", "11.4.0")
    fake_nvcc(tools / "nvcc", release)
    install_torch(tmp_path / "site", "2.9.0", cuda)
    torch = found("torch")
    assert torch.status == status
    assert "2.9.0" in torch.found
    assert (cuda or "without CUDA") in torch.found
    assert (release in torch.found) == (status == "warning" and cuda is not None)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"cuda": (12, 4), "driver": "550.54.15"}, "driver is too old for kernels of CUDA 13.0"),
        ({"capability": (6, 1), "name": "GTX 1080"}, "no kernels for compute capability 6.1"),
    ],
)
def test_a_gpu_that_would_not_run_the_kernels(
    change: dict[str, object], words: str, tools: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_gxx(tools / "g++")
    fake_nvcc(tools / "nvcc")
    show(monkeypatch, Device(**{**vars(H200), **change}))
    gpu = found("GPU")
    assert gpu.status == "warning"
    assert words in gpu.found


def test_a_cache_that_cannot_be_written(
    tools: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("GEMMSMITH_CACHE_DIR", str(tmp_path / "file" / "cache"))
    assert found("cache").status == "error"
    assert "GEMMSMITH_CACHE_DIR" in found("cache").fix
    monkeypatch.setenv("GEMMSMITH_CACHE_DIR", str(tmp_path))
    assert found("cache").status == "ok"
    true_access: Callable[..., bool] = os.access

    def read_only(path: Path, mode: int) -> bool:
        return not mode & os.W_OK and true_access(path, mode)

    monkeypatch.setattr(os, "access", read_only)  # root may write where modes forbid it
    assert found("cache").status == "error"
    monkeypatch.setenv("GEMMSMITH_NEVER_COMPILE", "1")
    assert found("cache").status == "ok"
    assert found("jobs").status == "warning"


def test_more_jobs_than_memory_holds(tools: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "free_memory", lambda: 18_000_000_000)
    monkeypatch.setenv("MAX_JOBS", "2")
    assert found("jobs").status == "ok"
    monkeypatch.setenv("MAX_JOBS", "8")
    assert found("jobs").status == "warning"
    assert "18.0 GB" in found("jobs").found
    assert found("jobs").fix == "lower MAX_JOBS"


def test_launcher_follows_the_setting(tools: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert found("launcher").found.startswith("ctypes, which is slower: no ")
    assert "pip install pybind11" in found("launcher").fix
    monkeypatch.setenv("GEMMSMITH_LAUNCHER", "pybind11")
    assert "GEMMSMITH_LAUNCHER=pybind11 cannot be met" in found("launcher").found
    monkeypatch.setenv("GEMMSMITH_LAUNCHER", "ctypes")
    assert found("launcher").status == "ok"


def test_a_bad_setting_is_a_finding(tools: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAX_JOBS", "many")
    report = examine()
    assert not report.can_build
    assert report.findings[0].name == "settings"
    assert "MAX_JOBS='many'" in report.findings[0].found


def test_report_as_text_and_values() -> None:
    report = Report(
        findings=(
            Finding(name="nvcc", status="error", found="none", fix="set CUDA_HOME"),
            Finding(name="torch", status="ok", found="2.9.0"),
        )
    )
    assert render_text(report).splitlines()[1:] == [
        "error    nvcc           none",
        "                        fix: set CUDA_HOME",
        "ok       torch          2.9.0",
        "a build would fail: nvcc",
    ]
    values = json.loads(json.dumps(report.as_dict()))
    assert values["can_build"] is False
    assert values["findings"][0] == {
        "name": "nvcc",
        "status": "error",
        "found": "none",
        "fix": "set CUDA_HOME",
    }


def test_nothing_of_the_environment_leaks(tools: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_API_TOKEN", "hunter2")
    text = json.dumps(examine().as_dict()) + render_text(examine())
    assert "hunter2" not in text
    assert "MY_API_TOKEN" not in text


def test_in_a_fresh_process_without_home_it_imports_no_torch(tmp_path: Path) -> None:
    code = (
        "import sys; from gemmsmith.doctor import examine, render_text\n"
        "print(render_text(examine())); sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PATH": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "cache" in done.stdout


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="no /proc here")
def test_a_cache_where_modes_allow_what_the_system_refuses(
    tools: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda *_: True)  # as root is told
    monkeypatch.setenv("GEMMSMITH_CACHE_DIR", "/proc/cache")
    assert found("cache").status == "error"
    assert "/proc/cache cannot be written: /proc: " in found("cache").found


def test_the_cache_folder_is_left_as_it_was(
    tools: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "kernels").mkdir()
    monkeypatch.setenv("GEMMSMITH_CACHE_DIR", str(tmp_path / "kernels"))
    assert "writable" in found("cache").found
    assert list((tmp_path / "kernels").iterdir()) == []


def test_tuned_tables_are_told_with_what_differs(
    tools: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    show(monkeypatch, H200)
    monkeypatch.setattr("gemmsmith.software.devices", lambda: (H200,))
    forget_tables()
    own = table(own_tables() / "mine.yaml", entry(), entry(m=128), driver="550.1")
    assert f"{own}: 2 entries (with " in found("tuned tables").found
    assert f"driver 550.1, here {H200.driver}" in found("tuned tables").found
    own.write_text("made: 3")
    forget_tables()
    assert found("tuned tables").status == "warning"
    assert f"{own}:1: made: " in found("tuned tables").found
    forget_tables()
