"""Kernel sets: read, named, asked for a plan, called on the CPU, reloaded."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import gemmsmith
from gemmsmith.arch import SM_80, SM_90A
from gemmsmith.choose import Tuning
from gemmsmith.dtypes import FP16, FP32
from gemmsmith.errors import (
    ArgumentTypeError,
    ConfigError,
    LaunchError,
    NoDeviceError,
    NoKernelError,
    UnknownArchitectureError,
)
from gemmsmith.kernelset import KernelSet, default_kernels, load
from gemmsmith.launcher import launcher
from gemmsmith.problem import GemmProblem
from gemmsmith.selection import DeviceFacts, Plan, selection
from gemmsmith.spec import KernelSpec
from gpus import A100, H200, T4
from real_kernels import AMPERE, HOPPER

MIXED = """
families:
  - name: hopper
    arch: sm_90a
    dtype: [bf16, fp16]
    schedule: cooperative
    tile: {tile}
    cluster: [1, 1]
  - name: ampere
    arch: sm_80
    dtype: {{a: fp16, d: fp32}}
    layout: rcc
    epilogue: {{bias: false}}
    tile: [64, 64, 32]
    warp: [32, 32, 32]
    stages: 3
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "my kernels.yaml"
    path.write_text(MIXED.format(tile="[128, 128, 64]"))
    return path


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEMMSMITH_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture
def real_set(
    real_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., KernelSet]]:
    """Make a set of kernels that are built."""
    monkeypatch.setenv("GEMMSMITH_CACHE_DIR", str(real_cache))
    monkeypatch.setenv("GEMMSMITH_NEVER_COMPILE", "1")
    monkeypatch.setenv("GEMMSMITH_LAUNCHER", "ctypes")
    launcher.cache_clear()

    def make(*specs: KernelSpec, **options: Any) -> KernelSet:
        return KernelSet(specs, arch=specs[0].arch, source="real.yaml", **options)

    yield make
    launcher.cache_clear()


def problem_for(spec: KernelSpec, **changes: Any) -> GemmProblem:
    basic = GemmProblem(m=64, n=128, k=72, a=spec.a, b=spec.b, d=spec.d, layout=spec.layout)
    return dataclasses.replace(basic, **changes)


def integers(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.randint(-3, 4, shape).to(dtype)


def test_names_are_those_of_the_architecture_asked_for(file: Path) -> None:
    hopper = load(file, arch="hopper")
    assert hopper.arch is SM_90A
    assert hopper.names == (
        "gemm_bf16_rcr_128x128x64_c1x1_coop_sm90a",
        "gemm_fp16_rcr_128x128x64_c1x1_coop_sm90a",
    )
    ampere = gemmsmith.load(str(file), arch="8.0")
    assert ampere.names == ("gemm_fp16_outfp32_rcc_64x64x32_w32x32_s3_nobias_sm80",)
    assert [spec.d for spec in ampere.specs] == [FP32]
    assert repr(ampere) == f"<KernelSet {file}: 1 kernels for sm_80>"
    assert ampere[ampere.names[0]] is ampere[ampere.names[0]]


def test_older_kernels_can_be_compiled_for_hopper(file: Path) -> None:
    kernels = load(file, arch="sm_80", run_on="sm_90")
    assert kernels.names == ("gemm_fp16_outfp32_rcc_64x64x32_w32x32_s3_nobias_sm80_on_sm90",)
    assert (kernels.arch.capability, kernels.arch.proves) == ((9, 0), "correctness only")
    assert {spec.arch for spec in kernels.specs} == {kernels.arch}
    with pytest.raises(UnknownArchitectureError, match="run_on is 'sm_89'; sm_90 alone"):
        load(file, arch="sm_80", run_on="sm_89")
    with pytest.raises(UnknownArchitectureError, match="sm_90a kernels run on sm_90a alone"):
        load(file, arch="sm_90a", run_on="sm_90")


def test_faults_of_file_and_architecture_have_their_own_errors(file: Path, tmp_path: Path) -> None:
    with pytest.raises(UnknownArchitectureError, match="'sm_60' is not known"):
        load(file, arch="sm_60")
    with pytest.raises(ConfigError, match=r"own_kernel\.yaml: has kernels for sm_90a, none for"):
        load(Path(__file__).parent.parent / "examples" / "own_kernel.yaml", arch="sm_80")
    with pytest.raises(ConfigError, match=r"gone\.yaml"):
        load(tmp_path / "gone.yaml", arch="hopper")


@pytest.mark.parametrize(("capability", "name"), [((8, 0), "sm_80"), ((9, 0), "sm_90a")])
def test_k13_auto_takes_the_kernels_of_the_device_from_a_file_for_both(
    file: Path, monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], name: str
) -> None:
    device = SimpleNamespace(capability=capability)
    monkeypatch.setattr("gemmsmith.nvml.devices", lambda: (device,))
    kernels = load(file)
    assert {spec.arch.name for spec in kernels.specs} == {kernels.arch.name} == {name}


@pytest.mark.parametrize("value", ["", "8.0;9.0a+PTX"])
def test_k14_auto_needs_a_gpu(file: Path, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", value)  # speaks of torch's own extensions
    with pytest.raises(NoDeviceError, match="no GPU to detect; set arch"):
        load(file)


def test_an_unknown_name_is_told_the_nearest(file: Path) -> None:
    kernels = load(file, arch="hopper")
    with pytest.raises(
        NoKernelError,
        match=r"no kernel 'gemm_fp16_rcr_128x128_sm90a' for sm_90a; the nearest is"
        r" gemm_fp16_rcr_128x128x64_c1x1_coop_sm90a",
    ):
        kernels["gemm_fp16_rcr_128x128_sm90a"]


def test_what_is_not_built_names_the_command(file: Path) -> None:
    kernels = load(file, arch="hopper")
    command = re.escape(f"call .build() first, or run gemmsmith build '{file}' --arch sm_90a")
    problem = problem_for(kernels.specs[0])
    with pytest.raises(NoKernelError, match=rf"no kernel of .* is built: {command}"):
        kernels.plan(problem, H200)
    with pytest.raises(NoKernelError, match=command):
        kernels[kernels.names[0]].plan(problem, H200)


@pytest.mark.nvcc
def test_one_kernel_not_built_is_named(real_set: Callable[..., KernelSet]) -> None:
    other = dataclasses.replace(HOPPER, stages=5)
    kernels = real_set(HOPPER, other)
    with pytest.raises(
        NoKernelError, match=rf"{other.name} is not built: gemmsmith build real\.yaml --arch"
    ):
        kernels[other.name].plan(problem_for(other), H200)
    plan = kernels.plan(problem_for(other), H200)  # the set goes on with what is built
    assert isinstance(plan, Plan)
    assert plan.spec == HOPPER


@pytest.mark.nvcc
def test_a_plan_holds_the_loaded_kernel(real_set: Callable[..., KernelSet]) -> None:
    for spec, device in ((HOPPER, H200), (AMPERE, A100)):
        kernels = real_set(spec)
        report = kernels.build()
        assert [kernel.cached for kernel in report.built] == [True]
        for which in (kernels, kernels[spec.name]):
            plan = which.plan(problem_for(spec), device)
            assert isinstance(plan, Plan)
            assert plan.spec == spec
            assert plan.kernel.name == spec.name
            assert plan.kernel.stages == spec.stages
        tuned = kernels[spec.name].with_tuning(Tuning(raster=2, swizzle=4))
        plan = tuned.plan(problem_for(spec), device)
        assert isinstance(plan, Plan)
        assert plan.tuning == Tuning(raster=2, swizzle=4)


@pytest.mark.nvcc
def test_what_does_not_fit_is_refused_or_left_to_torch(real_set: Callable[..., KernelSet]) -> None:
    odd = problem_for(HOPPER, k=107)
    words = "a: K=107 is not a multiple of 8, which the kernel's 16 B accesses need"
    with pytest.raises(NoKernelError, match=rf"{HOPPER.name}: {words}"):
        real_set(HOPPER)[HOPPER.name].plan(odd, H200)
    with pytest.raises(NoKernelError, match=rf"no kernel of real\.yaml fits: {words}"):
        real_set(HOPPER).plan(odd, H200)
    assert real_set(HOPPER, torch_may_run=True).plan(odd, H200) == words


@pytest.mark.parametrize("device", [A100, T4])
def test_l03_a_device_of_another_architecture_is_refused(file: Path, device: DeviceFacts) -> None:
    kernels = load(file, arch="hopper")
    major, minor = device.capability
    words = rf"built for sm_90a, {device.name} has compute capability {major}\.{minor}"
    for which in (kernels, kernels[kernels.names[0]]):
        with pytest.raises(LaunchError, match=words):
            which.plan(problem_for(kernels.specs[0]), device)


def test_cpu_tensors_get_the_values_and_the_type_of_the_kernel(file: Path) -> None:
    kernels = load(file, arch="sm_80")
    a, w = integers(4, 24, dtype=torch.float16), integers(16, 24, dtype=torch.float16)
    right = 2 * (a.double() @ w.double().t())
    for call in (kernels[kernels.names[0]], kernels.gemm):
        result = call(a, w.t(), alpha=2.0)
        assert result.dtype == torch.float32
        assert torch.equal(result.double(), right)
        assert result.stride() == (1, 4)  # the kernel writes column-major
        assert call(integers(2, 4, 24, dtype=torch.float16), w.t()).stride() == (4, 1, 8)
    record = gemmsmith.last_kernel()
    assert record is not None
    assert record.name == "cpu"


def test_a_set_of_several_types_keeps_that_of_the_operands(file: Path) -> None:
    kernels = load(file, arch="hopper")
    for dtype in (torch.bfloat16, torch.float16):
        a, w = integers(5, 24, dtype=dtype), integers(16, 24, dtype=dtype)
        result = kernels.gemm(a, w.t())
        assert result.dtype == dtype
        assert result.stride() == (16, 1)
        assert torch.equal(result.double(), a.double() @ w.double().t())
    with pytest.raises(
        ArgumentTypeError, match=r"a is torch\.float32; the named kernels take bf16, fp16"
    ):
        kernels.gemm(torch.ones(5, 24), torch.ones(24, 16))
    with pytest.raises(
        ArgumentTypeError, match=r"a is torch\.float16; the named kernels take bf16"
    ):
        kernels[kernels.names[0]](a, w.t())


def test_a_set_of_attention_alone_takes_no_gemm(tmp_path: Path) -> None:
    path = tmp_path / "attention.yaml"
    path.write_text(
        "attention:\n  - {name: long, arch: sm_90a, dtype: bf16, head_dim: 128, tile: [128, 176]}\n"
    )
    a, w = integers(5, 24), integers(16, 24)
    with pytest.raises(ArgumentTypeError, match=r"the named kernels take no GEMM"):
        load(path, arch="hopper").gemm(a, w.t())


def test_an_output_of_either_type_that_the_kernels_write_is_taken() -> None:
    narrow = KernelSpec(**{**_fields(AMPERE), "d": FP16})
    kernels = KernelSet([AMPERE, narrow], arch=SM_80, source="both.yaml")
    a, w = integers(5, 24, dtype=torch.float16), integers(16, 24, dtype=torch.float16)
    right = a.double() @ w.double().t()
    assert kernels.gemm(a, w.t()).dtype == torch.float16
    for dtype in (torch.float16, torch.float32):
        out = torch.empty(16, 5, dtype=dtype).t()
        assert kernels.gemm(a, w.t(), out=out) is out
        assert torch.equal(out.double(), right)
    with pytest.raises(ArgumentTypeError, match=r"from torch.float16 the kernels write"):
        kernels.gemm(a, w.t(), out=torch.empty(5, 16, dtype=torch.bfloat16))


def _fields(spec: KernelSpec) -> dict[str, Any]:
    return {field.name: getattr(spec, field.name) for field in dataclasses.fields(spec)}


def test_what_a_gpu_would_refuse_is_refused_on_the_cpu(file: Path) -> None:
    kernels = load(file, arch="sm_80")
    named = kernels[kernels.names[0]]
    a, w = integers(4, 24, dtype=torch.float16), integers(16, 24, dtype=torch.float16)
    bias = integers(16, dtype=torch.float32)
    with pytest.raises(NoKernelError, match=rf"{named.name}: the kernel has no bias"):
        named(a, w.t(), bias)
    with pytest.raises(NoKernelError, match=r"d: M=5 is not a multiple of 4"):
        kernels.gemm(integers(5, 24, dtype=torch.float16), w.t())
    assert torch.equal(named(a, w.t()).double(), a.double() @ w.double().t())


def test_named_kernels_compile_into_one_graph(file: Path) -> None:
    from torch._dynamo.testing import CompileCounterWithBackend

    kernel = load(file, arch="sm_80")["gemm_fp16_outfp32_rcc_64x64x32_w32x32_s3_nobias_sm80"]
    counter = CompileCounterWithBackend("aot_eager")
    torch._dynamo.reset()
    fast = torch.compile(lambda x, w: kernel(x, w.t()), backend=counter, fullgraph=True)
    a, w = integers(4, 24, dtype=torch.float16), integers(16, 24, dtype=torch.float16)
    result = fast(a, w)
    assert (result.dtype, result.stride()) == (torch.float32, (1, 4))
    assert torch.equal(result.double(), a.double() @ w.double().t())
    assert counter.frame_count == 1
    torch._dynamo.reset()


@pytest.mark.parametrize(
    ("m", "n", "k", "words"),
    [
        (1, 105, 107, "a: K=107 is not a multiple of 8, which the kernel's 16 B accesses need"),
        (8, 50257, 768, "d: N=50257 is not a multiple of 8, which the kernel's 16 B accesses need"),
        (64, 64, 36, "a: K=36 is not a multiple of 8, which the kernel's 16 B accesses need"),
        (33, 8, 8, ""),
    ],
)
def test_x01_sizes_that_do_not_fit_are_named(
    file: Path, m: int, n: int, k: int, words: str
) -> None:
    kernels = load(file, arch="hopper")
    a, w = torch.empty(m, k, dtype=torch.float16), torch.empty(n, k, dtype=torch.float16)
    assert kernels["gemm_fp16_rcr_128x128x64_c1x1_coop_sm90a"].misfit(a, w.t()) == words


def test_misfits_of_type_layout_address_and_epilogue_are_named(file: Path) -> None:
    kernels = load(file, arch="hopper")
    kernel = kernels["gemm_bf16_rcr_128x128x64_c1x1_coop_sm90a"]
    a, w = integers(8, 16), integers(24, 16)
    assert kernel.misfit(a, w.t()) == ""
    assert kernel.misfit(a, w.t(), integers(24)) == ""
    assert kernel.misfit(a.half(), w.half().t()) == (
        "the kernel computes bf16 @ bf16 -> bf16, the call is fp16 @ fp16 -> fp16"
    )
    assert kernel.misfit(a, integers(16, 24)) == (
        "the kernel's layout is rcr, the strides of the call are rrr"
    )
    assert "no residual" in kernel.misfit(a, w.t(), None, integers(8, 24))
    shifted = integers(8 * 16 + 1)[1:].view(8, 16)
    assert kernel.misfit(shifted, w.t()) == (
        "a: address, row stride or batch stride divides by 2 B only, the kernel needs 16 B"
        " (8 elements of bf16)"
    )


def test_l01_an_edited_file_gives_new_kernels_and_the_old_ones_stay_valid(file: Path) -> None:
    old = load(file, arch="hopper")
    file.write_text(MIXED.format(tile="[256, 128, 64]"))
    new = load(file, arch="hopper")
    assert new.names[0] == "gemm_bf16_rcr_256x128x64_c1x1_coop_sm90a"
    assert not set(old.names) & set(new.names)
    assert old.handle != new.handle
    assert selection(old.handle) is old
    assert selection(new.handle).specs == new.specs
    a, w = integers(8, 16), integers(24, 16)
    right = a.double() @ w.double().t()
    for kernels in (old, new):
        assert torch.equal(kernels[kernels.names[0]](a, w.t()).double(), right)
    with pytest.raises(NoKernelError, match="no kernel 'gemm_bf16_rcr_128x128x64_c1x1_coop_sm90a'"):
        new[old.names[0]]


@pytest.mark.nvcc
def test_two_sets_share_a_library_of_the_same_content(
    real_set: Callable[..., KernelSet],
) -> None:
    old = real_set(HOPPER)
    first = old.plan(problem_for(HOPPER), H200)
    new = real_set(HOPPER)
    second = new.plan(problem_for(HOPPER), H200)
    assert isinstance(first, Plan)
    assert isinstance(second, Plan)
    assert second.kernel is first.kernel
    assert selection(old.handle) is old
    assert selection(new.handle) is new


@pytest.mark.parametrize("arch", ["sm_90a", "sm_80"])
def test_default_kernels_are_read_once_and_leave_the_rest_to_torch(arch: str) -> None:
    kernels = default_kernels(arch)
    assert default_kernels(arch) is kernels
    assert len(kernels.names) >= 10
    assert {spec.arch.name for spec in kernels.specs} == {arch}
