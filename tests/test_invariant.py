"""The batch-invariant mode: one order of summing whatever M is, or a refusal."""

from __future__ import annotations

import dataclasses
from copy import deepcopy
from functools import partial
from typing import Any

import pytest
import torch

import gemmsmith
from gemmsmith.arch import SM_80, SM_90A
from gemmsmith.dtypes import BF16, FP32, INT8, INT32
from gemmsmith.errors import ArgumentError, NoKernelError
from gemmsmith.fit import misfit
from gemmsmith.invariant import (
    HANDLE,
    ONE_HANDLE,
    handle_of,
    one_for_all,
    sums_alike,
    without_rows,
)
from gemmsmith.kernelset import KernelSet, default_kernels
from gemmsmith.kinds import kind_of
from gemmsmith.nn import Linear
from gemmsmith.problem import GemmProblem, packed_problem
from gemmsmith.selection import DeviceFacts, Plan, selection
from gemmsmith.shelf import Shelf
from gemmsmith.spec import KernelSpec
from gpus import A100, ANCIENT, H200, SOME_HOPPER

M = (1, 2, 3, 7, 16, 64, 65, 127, 128, 513, 1024, 4097, 8192, 20_000)


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every kernel counts as built."""
    monkeypatch.setattr(KernelSet, "loaded", lambda self, spec: f"loaded {spec.name}")
    monkeypatch.setattr(
        Shelf, "kernels", lambda self: {spec: f"loaded {spec.name}" for spec in self.specs}
    )


def planned(
    problem: GemmProblem, device: DeviceFacts = H200, *, handle: str = HANDLE
) -> KernelSpec:
    found = selection(handle).plan(problem, device)
    assert isinstance(found, Plan)
    assert found.tuning.splits == 0
    return found.spec


WEIGHTS = ((6144, 4096), (3584, 18944), (512, 256), (64, 64))


@pytest.mark.usefixtures("loaded")
@pytest.mark.parametrize(
    "more", [{}, {"residual": True}, {"activation": "silu"}, {"gate": "silu"}, {"layout": "rrr"}]
)
@pytest.mark.parametrize("device", [H200, SOME_HOPPER], ids=["tuned", "not tuned"])
def test_kernels_of_one_kind_that_sum_in_sequence_share_the_numbers_of_rows(
    more: dict[str, Any], device: DeviceFacts
) -> None:
    for n, k in WEIGHTS:
        found = {planned(packed_problem(m, n, k, BF16, **more), device) for m in M}
        assert len({kind_of(spec) for spec in found}) == 1
        for spec in found:
            assert spec.arch is SM_90A
            assert (spec.scheduler, spec.split_k, spec.acc) == ("static", 1, FP32)
            assert spec.store != "direct"
            assert not spec.constant_b
    few, many = (planned(packed_problem(m, 6144, 4096, BF16), device) for m in (1, 8192))
    assert few != many


@pytest.mark.usefixtures("loaded")
def test_any_order_suits_integers() -> None:
    call = partial(packed_problem, n=4096, k=4096, dtype=INT8, d=BF16, scaled=True)
    found = {planned(call(m=m)) for m in M}
    assert {spec.acc for spec in found} == {INT32}
    assert any(spec.split_k > 1 for spec in found)


@pytest.mark.usefixtures("loaded")
def test_a_residual_with_factors_has_one_kernel() -> None:
    for n, k in WEIGHTS:
        calls = [packed_problem(m, n, k, BF16, residual=True) for m in M]
        (spec,) = {planned(call, handle=ONE_HANDLE) for call in calls}
        assert sums_alike(spec)


@pytest.mark.usefixtures("loaded")
def test_each_gpu_has_its_own() -> None:
    (spec,) = {planned(packed_problem(m, 512, 256, BF16), A100) for m in M}
    assert spec.arch is SM_80
    with pytest.raises(NoKernelError, match=r"compute capability 1\.0"):
        selection(HANDLE).plan(packed_problem(8, 512, 256, BF16), ANCIENT)


@pytest.mark.usefixtures("loaded")
def test_what_suits_no_such_kernel_is_refused() -> None:
    call = packed_problem(8, 512, 256, BF16)
    with pytest.raises(NoKernelError, match=r"'batch': no kernel of .* fits: a: address"):
        selection(HANDLE).plan(dataclasses.replace(call, a_align=2), H200)
    name = planned(call, handle=ONE_HANDLE).name
    with pytest.raises(NoKernelError, match=rf"'batch': {name}, the one for .*: a: address"):
        selection(ONE_HANDLE).plan(dataclasses.replace(call, a_align=2), H200)
    with pytest.raises(NoKernelError, match=r"deterministic='batch': .*: K=33"):
        selection(HANDLE).plan(packed_problem(8, 512, 33, BF16), H200)
    whole = packed_problem(8, 512, 256, INT8, d=BF16, layout="rrr", scaled=True)
    with pytest.raises(NoKernelError, match="the kernel's layout is rcr"):
        selection(HANDLE).plan(whole, H200)


@pytest.mark.parametrize(
    ("factors", "handle"),
    [
        ({}, HANDLE),
        ({"beta": 1}, HANDLE),
        ({"alpha": 2.0}, ONE_HANDLE),
        ({"beta": 0.5}, ONE_HANDLE),
        ({"alpha": 2.0, "residual": None}, HANDLE),
    ],
)
def test_factors_beside_a_residual_name_the_one_kernel(
    factors: dict[str, Any], handle: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    named: list[str] = []
    monkeypatch.setattr("gemmsmith.ops.direct.launch", lambda *given: named.append(given[6]))
    x, w, residual = torch.ones(2, 16), torch.ones(8, 16), torch.ones(2, 8)
    data = [each.bfloat16() for each in (x, w, residual)]
    call = {"residual": data[2], **factors}
    gemmsmith.gemm(data[0], data[1].t(), **call, deterministic="batch")
    assert named == [handle]


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
