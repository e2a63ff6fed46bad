"""What importing and describing costs: no torch, no folder, no process, no GPU."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import gemmsmith

WATCH = """
import sys, time
done = []
def watch(event, arguments):
    starts = ("subprocess.Popen", "os.system", "os.fork", "os.posix_spawn", "os.exec", "pty.spawn")
    if event in ("os.mkdir", *starts):
        done.append(event)
    if event == "open" and isinstance(arguments[1], str) and set(arguments[1]) & set("wax+"):
        done.append(f"write {arguments[0]}")
    if event == "ctypes.dlopen" and arguments[0] and "cuda" in str(arguments[0]):
        done.append(f"load {arguments[0]}")
sys.addaudithook(watch)
"""
"""Notes in ``done`` what a program writes, makes and starts."""
FILE = Path(__file__).parent.parent / "examples" / "own_kernel.yaml"


def fresh(code: str, home: Path, *, without: tuple[str, ...] = ()) -> str:
    """Return what a new Python prints that runs ``code`` where some modules are not installed."""
    blocked = "".join(f"sys.modules[{name!r}] = None\n" for name in without)
    environment = {
        "PATH": str(home),
        "HOME": str(home),
        "PYTHONPATH": str(Path(gemmsmith.__file__).parent.parent),
        "PYTHONDONTWRITEBYTECODE": "1",
        "TMPDIR": str(home),
    }
    result = subprocess.run(
        [sys.executable, "-c", f"import sys\n{blocked}{code}"],
        env=environment,
        cwd=home,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_import_does_nothing_and_is_quick(tmp_path: Path) -> None:
    code = f"""{WATCH}
before = set(sys.modules)
started = time.process_time()
import gemmsmith
seconds = time.process_time() - started
heavy = {{"torch", "numpy", "jinja2", "pydantic", "yaml", "cutlass_library", "subprocess"}}
print(seconds < 0.1, sorted(heavy & (set(sys.modules) - before)), done)
"""
    assert fresh(code, tmp_path) == "True [] []\n"
    assert list(tmp_path.iterdir()) == []


def test_loading_explaining_and_rendering_need_no_torch_and_leave_no_trace(tmp_path: Path) -> None:
    code = f"""{WATCH}
import gemmsmith
from gemmsmith.explain import explain_spec
from gemmsmith.render import render
from gemmsmith.resources import configs_dir
for arch in ("sm_80", "hopper"):
    kernels = gemmsmith.load(configs_dir() / "kernels", arch=arch)
    for spec in kernels.specs:
        assert explain_spec(spec).name == spec.name
        assert spec.name in render([spec]).text
    print(len(kernels.names) > 10)
print(gemmsmith.load({str(FILE)!r}, arch="hopper").names, done)
"""
    printed = fresh(code, tmp_path, without=("torch", "numpy"))
    assert printed == "True\nTrue\n('gemm_bf16_rcr_64x128x64_c1x1_pp_sm90a',) []\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("verb", ["list", "explain", "render", "doctor"])
def test_verbs_of_the_command_line_work_without_torch(verb: str, tmp_path: Path) -> None:
    arguments = ["gemmsmith", verb, *([] if verb == "doctor" else [str(FILE)])]
    code = f"""
import runpy
sys.argv = {arguments!r}
try:
    runpy.run_module("gemmsmith", run_name="__main__")
except SystemExit as end:
    print("ended with", end.code)
"""
    printed = fresh(code, tmp_path, without=("torch", "numpy"))
    if verb == "doctor":  # it says that there is no GPU and no compiler on this PATH
        assert "ended with 1" in printed
        assert "torch" in printed
    else:
        assert "gemm_bf16_rcr_64x128x64_c1x1_pp_sm90a" in printed
        assert "ended with 0" in printed


@pytest.mark.parametrize("name", ["gemm", "last_kernel", "convert", "nn"])
def test_what_needs_torch_says_that_it_is_missing(name: str, tmp_path: Path) -> None:
    code = f"""
import gemmsmith
for use in ("gemmsmith.{name}", "from gemmsmith import {name}"):
    try:
        exec(use)
    except ImportError as error:
        print(isinstance(error, gemmsmith.errors.GemmsmithError), error.name, error)
"""
    told = f"True torch gemmsmith.{name} needs torch: pip install torch\n"
    assert fresh(code, tmp_path, without=("torch",)) == 2 * told


def test_the_demo_asks_for_torch_before_it_builds(tmp_path: Path) -> None:
    code = f"""{WATCH}
from gemmsmith import demo, errors
try:
    demo.main()
except errors.MissingPackageError as error:
    print(error, done)
"""
    told = "gemmsmith demo needs torch: pip install torch []\n"
    assert fresh(code, tmp_path, without=("torch",)) == told


def test_every_public_name_is_there_and_no_other() -> None:
    pytest.importorskip("torch")
    for name in gemmsmith.__all__:
        assert getattr(gemmsmith, name) is not None
    assert not hasattr(gemmsmith, "Gemm")
    with pytest.raises(AttributeError, match="'gemmsmith' has no attribute 'gem'"):
        gemmsmith.gem  # noqa: B018


def test_tab_completion_offers_every_public_name_without_torch(tmp_path: Path) -> None:
    code = """
import gemmsmith
listed = dir(gemmsmith)
print(sorted(set(gemmsmith.__all__) - set(listed)), "__version__" in listed, "torch" in sys.modules)
"""
    assert fresh(code, tmp_path) == "[] True False\n"


def test_l04_a_child_can_use_the_gpu_after_load_lookup_and_a_call(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    code = f"""
import os, torch, gemmsmith
from gemmsmith.lookup import find_built
kernels = gemmsmith.load({str(FILE)!r}, arch="hopper")
assert find_built(kernels.specs) == {{}}
a = torch.ones(8, 8, dtype=torch.bfloat16)
kernels.gemm(a, a.t())
print(torch.cuda.is_initialized(), flush=True)
if os.fork() == 0:
    torch.cuda.device_count()
    print((kernels.gemm(a, a.t()) == 8).all().item(), torch.cuda.is_initialized(), flush=True)
    os._exit(0)
print(os.wait()[1])
"""
    assert fresh(code, tmp_path) == "False\nTrue False\n0\n"


def test_the_watch_sees_what_it_is_there_for(tmp_path: Path) -> None:
    code = f"""{WATCH}
import ctypes, os, subprocess
os.mkdir("folder")
open("file", "w").close()
subprocess.run([sys.executable, "-c", "0"])
try:
    ctypes.CDLL("libcuda.so.1")
except OSError:
    pass
print(done)
"""
    seen = fresh(code, tmp_path)
    for what in ("os.mkdir", "write file", "subprocess.Popen", "load libcuda.so.1"):
        assert what in seen
