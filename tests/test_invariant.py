"""The batch-invariant mode: one kernel whatever M is, or a refusal."""

from __future__ import annotations

import dataclasses
from copy import deepcopy
from typing import Any

import pytest
import torch

import gemmsmith
from gemmsmith.arch import SM_80, SM_90A
from gemmsmith.dtypes import BF16, INT8
from gemmsmith.errors import ArgumentError, NoKernelError
from gemmsmith.fit import misfit
from gemmsmith.invariant import HANDLE, handle_of, one_for_all, sums_alike, without_rows
from gemmsmith.kernelset import KernelSet, default_kernels
from gemmsmith.nn import Linear
from gemmsmith.problem import GemmProblem, packed_problem
from gemmsmith.selection import DeviceFacts, Plan, selection
from gemmsmith.spec import KernelSpec
from gpus import A100, ANCIENT, H200

M = (1, 2, 3, 7, 16, 64, 65, 127, 128, 513, 1024, 4097, 8192, 20_000)


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every kernel counts as built."""
    monkeypatch.setattr(KernelSet, "loaded", lambda self, spec: f"loaded {spec.name}")
    monkeypatch.setenv("GEMMSMITH_NEVER_COMPILE", "1")


def planned(problem: GemmProblem, device: DeviceFacts = H200) -> KernelSpec:
    found = selection(HANDLE).plan(problem, device)
    assert isinstance(found, Plan)
    assert found.tuning.splits == 0
    return found.spec


@pytest.mark.usefixtures("loaded")
@pytest.mark.parametrize(
    "more", [{}, {"residual": True}, {"activation": "silu"}, {"gate": "silu"}, {"layout": "rrr"}]
)
def test_one_kernel_for_every_m_that_is_not_stream_k(more: dict[str, Any]) -> None:
    for n, k in [(6144, 4096), (3584, 18944), (512, 256), (64, 64)]:
        found = {planned(packed_problem(m, n, k, BF16, **more)) for m in M}
        (spec,) = found
        assert spec.arch is SM_90A
        assert sums_alike(spec)
        assert spec.scheduler == "static"


@pytest.mark.usefixtures("loaded")
def test_each_gpu_has_its_own() -> None:
    call = packed_problem(8, 512, 256, BF16)
    assert planned(call, A100).arch is SM_80
    with pytest.raises(NoKernelError, match=r"compute capability 1\.0"):
        selection(HANDLE).plan(call, ANCIENT)


@pytest.mark.usefixtures("loaded")
def test_what_does_not_suit_the_one_kernel_is_refused() -> None:
    call = packed_problem(8, 512, 256, BF16)
    name = planned(call).name
    with pytest.raises(NoKernelError, match=rf"'batch': {name}, the one for .*: a: address"):
        selection(HANDLE).plan(dataclasses.replace(call, a_align=2), H200)
    with pytest.raises(NoKernelError, match=r"deterministic='batch': .*: K=33"):
        selection(HANDLE).plan(packed_problem(8, 512, 33, BF16), H200)
    whole = packed_problem(8, 512, 256, INT8, d=BF16, layout="rrr", scaled=True)
    with pytest.raises(NoKernelError, match="the kernel's layout is rcr"):
        selection(HANDLE).plan(whole, H200)


def test_stream_k_whose_split_depends_on_m_is_left_out() -> None:
    specs = default_kernels("sm_90a").specs
    split = [spec for spec in specs if spec.scheduler == "stream_k"]
    assert split
    assert not any(map(sums_alike, split))
    call = without_rows(packed_problem(1, 28672, 4096, BF16))
    assert one_for_all(tuple(split), call, 132) is None
    chosen = one_for_all(specs, call, 132)
    assert chosen is not None
    assert not misfit(chosen, call)


def test_the_word_and_nothing_else_names_it() -> None:
    assert handle_of("batch") == handle_of("batch", HANDLE) == HANDLE
    with pytest.raises(ArgumentError, match="deterministic is 'run'; 'batch' or nothing is legal"):
        handle_of("run")
    with pytest.raises(ArgumentError, match="chooses among the default kernels"):
        handle_of("batch", "set@1234")


def test_calls_and_layers_take_the_mode() -> None:
    x, w = torch.randn(7, 64).bfloat16(), torch.randn(48, 64).bfloat16()
    bias, residual = torch.randn(48).bfloat16(), torch.randn(7, 48).bfloat16()
    plain = gemmsmith.gemm(x, w.t(), bias, residual)
    assert torch.equal(gemmsmith.gemm(x, w.t(), bias, residual, deterministic="batch"), plain)
    out = torch.full_like(plain, torch.nan)
    gemmsmith.gemm(x, w.t(), bias, residual, out=out, deterministic="batch")
    assert torch.equal(out, plain)
    with pytest.raises(ArgumentError, match=r"a is torch\.float32; the named kernels take"):
        gemmsmith.gemm(x.float(), w.float().t(), deterministic="batch")  # torch promises nothing
    layer = Linear.from_torch(torch.nn.Linear(64, 48, dtype=torch.bfloat16)).requires_grad_(False)
    usual = layer(x)
    assert layer.deterministic == ""
    layer.deterministic = "batch"
    assert (layer.deterministic, layer.kernels) == ("batch", HANDLE)
    assert torch.equal(layer(x), usual)
    assert deepcopy(layer).deterministic == "batch"
    layer.deterministic = ""
    assert layer.kernels == ""
    with pytest.raises(ArgumentError, match="'batch' or nothing is legal"):
        layer.deterministic = "yes"


def test_the_mode_compiles_into_one_graph() -> None:
    from torch._dynamo.testing import CompileCounterWithBackend

    counter = CompileCounterWithBackend("aot_eager")
    torch._dynamo.reset()
    fast = torch.compile(
        lambda x, w: gemmsmith.gemm(x, w.t(), deterministic="batch"),
        backend=counter,
        fullgraph=True,
        dynamic=True,
    )
    w = torch.randn(48, 64).bfloat16()
    for m in (2, 7, 16):
        x = torch.randn(m, 64).bfloat16()
        assert torch.equal(fast(x, w), gemmsmith.gemm(x, w.t()))
    assert counter.frame_count == 1
    torch._dynamo.reset()
