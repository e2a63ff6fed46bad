"""Which nvcc and g++ are found, and what is said where none fits."""

from __future__ import annotations

import ctypes
import dataclasses
import importlib
import os
import subprocess
from pathlib import Path

import pytest

from fake_tools import bare_machine, fake_gxx, fake_nvcc, lay_wheels, script
from gemmsmith.arch import SM_80, SM_90A
from gemmsmith.errors import ToolchainError
from gemmsmith.host_compiler import newest_gcc
from gemmsmith.resources import cutlass_include_dirs
from gemmsmith.toolchain import find_toolchain

TINY = """\
#include "cutlass/gemm/device/gemm.h"
using Half = cutlass::half_t;
using Row = cutlass::layout::RowMajor;
using Gemm = cutlass::gemm::device::Gemm<Half, Row, Half, cutlass::layout::ColumnMajor, float, Row,
    float, cutlass::arch::OpClassTensorOp, cutlass::arch::Sm80>;
extern "C" int tiny(Half* a, Half* b, float* d) {
  return int(Gemm()({{128, 128, 32}, {a, 32}, {b, 32}, {d, 128}, {d, 128}, {1.f, 0.f}}));
}
"""


@pytest.fixture
def tools(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The one folder on PATH of a machine that has nothing."""
    return bare_machine(monkeypatch, tmp_path)


def test_places_are_tried_in_order(
    tools: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_gxx(tools / "g++")
    lay_wheels(tmp_path / "site")
    assert find_toolchain().origin == "PyPI wheels"
    fake_nvcc(tools / "nvcc", "12.9.86")
    found = find_toolchain()
    assert (found.origin, found.version, found.release) == ("PATH", (12, 9), "12.9.86")
    fake_nvcc(tmp_path / "home" / "bin" / "nvcc", "12.8.61")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "home"))
    found = find_toolchain()
    assert (found.origin, found.release) == ("CUDA_HOME", "12.8.61")
    monkeypatch.setenv("GEMMSMITH_NVCC", str(fake_nvcc(tmp_path / "own" / "nvcc", "12.6.20")))
    found = find_toolchain()
    assert (found.origin, found.release) == ("GEMMSMITH_NVCC", "12.6.20")
    found = find_toolchain(fake_nvcc(tmp_path / "arg" / "nvcc", "12.5.40"))
    assert (found.origin, found.release) == ("argument", "12.5.40")
    assert found.nvcc == tmp_path / "arg" / "nvcc"
    assert (found.host_compiler, found.host_version) == (tools / "g++", "12.2.0")


def test_k01_no_nvcc_says_where_it_looked_and_what_to_do(
    tools: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ToolchainError) as caught:
        find_toolchain()
    for words in (
        "CUDA_HOME and CUDA_PATH (not set), PATH, the PyPI wheels",
        "Set CUDA_HOME",
        "nvidia-cuda-nvcc",
        "pip install 'gemmsmith[toolchain]'",
    ):
        assert words in str(caught.value)
    monkeypatch.setenv("CUDA_HOME", "/no/such toolkit")
    with pytest.raises(ToolchainError, match=r"CUDA_HOME \(/no/such toolkit/bin/nvcc\)"):
        find_toolchain()


def test_a_named_nvcc_is_never_replaced(
    tools: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_gxx(tools / "g++")
    fake_nvcc(tools / "nvcc")
    with pytest.raises(ToolchainError, match=r"/usr/lib \(argument\).*neither an executable file"):
        find_toolchain(Path("/usr/lib"))
    monkeypatch.setenv("GEMMSMITH_NVCC", str(tmp_path / "gone"))
    with pytest.raises(ToolchainError, match=r"gone \(GEMMSMITH_NVCC\)"):
        find_toolchain()


def test_nvcc_without_a_version_is_refused(tools: Path) -> None:
    script(tools / "nvcc", "segmentation fault", code=3)
    with pytest.raises(ToolchainError, match=r"--version failed \(exit 3\): segmentation fault"):
        find_toolchain()
    script(tools / "nvcc", "hello")
    with pytest.raises(ToolchainError, match="names no CUDA release: 'hello'"):
        find_toolchain()


def test_version_is_read_again_when_the_file_changes(tools: Path) -> None:
    fake_gxx(tools / "g++")
    nvcc = fake_nvcc(tools / "nvcc", "12.8.61")
    os.utime(nvcc, ns=(1, 1))
    assert find_toolchain().release == "12.8.61"
    fake_nvcc(tools / "nvcc", "13.0.88")
    os.utime(nvcc, ns=(2, 2))
    assert find_toolchain().release == "13.0.88"


def test_wheels_get_the_library_folder_that_their_nvcc_does_not_know(
    tools: Path, tmp_path: Path
) -> None:
    fake_gxx(tools / "g++")
    root = lay_wheels(tmp_path / "site")
    found = find_toolchain()
    assert found.library_dirs == (root / "lib",)
    assert (found.cuobjdump, found.nvdisasm) == (root / "bin/cuobjdump", root / "bin/nvdisasm")
    assert found.command[:3] == (str(root / "bin/nvcc"), "-ccbin", str(tools / "g++"))
    assert found.command[-2:] == ("-L", str(root / "lib"))


def test_incomplete_wheels_name_the_packages(tools: Path, tmp_path: Path) -> None:
    root = lay_wheels(tmp_path / "site")
    (root / "nvvm/bin/cicc").unlink()
    (root / "lib/libcudart_static.a").unlink()
    with pytest.raises(ToolchainError, match="install nvidia-cuda-runtime, nvidia-nvvm of nvcc's"):
        find_toolchain()


def test_layout_is_what_nvcc_says_and_not_where_it_stands(tools: Path, tmp_path: Path) -> None:
    """A wrapper script on PATH tells the toolkit's true folder."""
    fake_gxx(tools / "g++")
    root = lay_wheels(tmp_path / "toolkit")
    (root / "lib64").mkdir()
    says = (
        "release 13.0, V13.0.88\n"
        f"#$ TOP={root}/bin/..\n"
        f'#$ INCLUDES="-I{root}/bin/..//include"  \n'
        f'#$ LIBRARIES=  "-L{root}/bin/..//lib64/stubs" "-L{root}/bin/..//lib"'
    )
    script(tools / "nvcc", says)
    found = find_toolchain()
    assert found.nvcc == tools / "nvcc"
    assert found.library_dirs == ()
    assert found.include_dirs == (root / "include/cccl",)
    assert found.cuobjdump == root / "bin/cuobjdump"


def test_a_link_to_nvcc_is_followed_to_its_profile(tools: Path, tmp_path: Path) -> None:
    fake_gxx(tools / "g++")
    real = fake_nvcc(tmp_path / "toolkit" / "bin" / "nvcc")
    (tools / "nvcc").symlink_to(real)
    assert find_toolchain().nvcc == tools / "nvcc"
    (real.parent / "nvcc.profile").touch()
    assert find_toolchain().nvcc == real


def test_tools_of_triton_serve_where_there_are_no_others(tools: Path, tmp_path: Path) -> None:
    fake_gxx(tools / "g++")
    fake_nvcc(tools / "nvcc")
    found = find_toolchain()
    assert (found.cuobjdump, found.nvdisasm) == (None, None)
    folder = tmp_path / "site" / "triton"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("raise RuntimeError('must not be imported')")
    script(folder / "backends/nvidia/bin/cuobjdump", "")
    importlib.invalidate_caches()
    found = find_toolchain()
    assert (found.cuobjdump, found.nvdisasm) == (folder / "backends/nvidia/bin/cuobjdump", None)


def test_environment_hides_no_flags_and_finds_the_disassembler(
    tools: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_gxx(tools / "g++")
    root = lay_wheels(tmp_path / "site")
    monkeypatch.setenv("NVCC_APPEND_FLAGS", "-G")
    monkeypatch.setenv("CPATH", "/surprise")
    monkeypatch.setenv("KEPT", "1")
    environment = find_toolchain().environment
    assert "NVCC_APPEND_FLAGS" not in environment
    assert "CPATH" not in environment
    assert environment["KEPT"] == "1"
    assert environment["PATH"] == f"{tools}:{root / 'bin'}"


@pytest.mark.parametrize(
    ("cuda", "gcc"),
    [
        ((11, 8), 11),
        ((12, 0), 12),
        ((12, 3), 12),
        ((12, 4), 13),
        ((12, 7), 13),
        ((12, 8), 14),
        ((12, 9), 14),
        ((13, 0), 15),
        ((13, 4), 15),
    ],
)
def test_newest_gcc_of_each_toolkit(cuda: tuple[int, int], gcc: int) -> None:
    assert newest_gcc(cuda) == gcc


def test_k05_too_new_a_gcc_is_told_before_compiling(tools: Path) -> None:
    fake_nvcc(tools / "nvcc", "11.8.89")
    fake_gxx(tools / "g++", "12.2.0")
    with pytest.raises(ToolchainError) as caught:
        find_toolchain()
    assert str(caught.value) == (
        f"CUDA 11.8 accepts gcc up to 11; found 12.2.0 at {tools}/g++; "
        "install g++-11 or set GEMMSMITH_CXX"
    )


def test_an_older_gxx_beside_it_is_used(tools: Path) -> None:
    fake_nvcc(tools / "nvcc", "11.8.89")
    fake_gxx(tools / "g++", "12.2.0")
    fake_gxx(tools / "g++-10", "10.2.1")
    assert find_toolchain().host_version == "10.2.1"
    fake_gxx(tools / "g++-11", "11.4.0")
    found = find_toolchain()
    assert (found.host_compiler, found.host_version) == (tools / "g++-11", "11.4.0")
    assert found.command[1:3] == ("-ccbin", str(tools / "g++-11"))


def test_a_named_host_compiler_is_never_replaced(
    tools: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_nvcc(tools / "nvcc", "11.8.89")
    fake_gxx(tools / "g++-11", "11.4.0")
    fake_gxx(tools / "g++-12", "12.2.0")
    monkeypatch.setenv("CXX", "g++-12")
    with pytest.raises(ToolchainError, match=r"found 12\.2\.0 at .*/g\+\+-12"):
        find_toolchain()
    monkeypatch.setenv("GEMMSMITH_CXX", "g++-11")
    assert find_toolchain().host_compiler == tools / "g++-11"
    monkeypatch.setenv("GEMMSMITH_CXX", "ccache g++-11")
    with pytest.raises(ToolchainError, match=r"asks for ccache g\+\+-11.*without arguments"):
        find_toolchain()
    script(tools / "clang++", "Debian clang version 14.0.6")
    monkeypatch.setenv("GEMMSMITH_CXX", "clang++")
    with pytest.raises(ToolchainError, match=r"clang version 14.*builds with g\+\+"):
        find_toolchain()


def test_no_host_compiler(tools: Path) -> None:
    fake_nvcc(tools / "nvcc")
    with pytest.raises(ToolchainError, match=r"no g\+\+ on PATH.*install g\+\+ \(up to 15"):
        find_toolchain()


def test_target_needs_a_toolkit_that_knows_it(tools: Path) -> None:
    fake_gxx(tools / "g++", "11.4.0")
    fake_nvcc(tools / "nvcc", "11.8.89")
    old = find_toolchain()
    old.check_target(SM_80)
    with pytest.raises(ToolchainError, match=r"sm_90a needs CUDA 12\.0 or newer; found 11\.8 at /"):
        old.check_target(SM_90A)


def test_target_that_newer_toolkits_dropped(tools: Path) -> None:
    fake_gxx(tools / "g++")
    fake_nvcc(tools / "nvcc")
    volta = dataclasses.replace(SM_80, name="sm_70", last_toolkit=(12, 9))
    with pytest.raises(ToolchainError, match=r"sm_70 needs CUDA 12\.9 or older; found 13\.0 at /"):
        find_toolchain().check_target(volta)


@pytest.mark.nvcc
def test_found_toolchain_compiles_links_and_loads_cutlass(tmp_path: Path) -> None:
    """From a folder with a space; the library loads without a driver."""
    toolchain = find_toolchain()
    folder = tmp_path / "my work dir"
    folder.mkdir()
    source, library = folder / "tiny.cu", folder / "libtiny.so"
    source.write_text(TINY)
    command = [*toolchain.command, "-std=c++17", "-gencode", SM_80.gencode, "-shared"]
    command += ["-Xcompiler", "-fPIC", "-cudart", "static", "--expt-relaxed-constexpr"]
    command += [f"-I{path}" for path in cutlass_include_dirs()]
    done = subprocess.run(
        [*command, "-o", str(library), str(source)],
        env=toolchain.environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert ctypes.CDLL(str(library)).tiny is not None
    if toolchain.cuobjdump is not None:
        listed = subprocess.run(
            [str(toolchain.cuobjdump), "--list-elf", str(library)],
            env=toolchain.environment,
            capture_output=True,
            text=True,
            check=True,
        )
        assert ".sm_80.cubin" in listed.stdout
    if toolchain.cuobjdump is not None and toolchain.nvdisasm is not None:
        code = subprocess.run(
            [str(toolchain.cuobjdump), "-sass", str(library)],
            env=toolchain.environment,
            capture_output=True,
            text=True,
            check=True,
        )
        assert "HMMA.16816.F32" in code.stdout
