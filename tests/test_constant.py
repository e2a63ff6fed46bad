"""Calls that promise a constant B: what they may run, what they are refused, what they write."""

from __future__ import annotations

import pickle
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import gemmsmith
from gemmsmith import nn
from gemmsmith.choose import EARLY_WEIGHTS, GATES_FLATTERED, WAITS, costs, rank
from gemmsmith.constant import HANDLE, handle_of
from gemmsmith.dtypes import BF16
from gemmsmith.errors import ArgumentError, ArgumentTypeError, IllegalKernelError, NoKernelError
from gemmsmith.finish import PLAIN
from gemmsmith.fit import misfit, misfits
from gemmsmith.gemm_op import problem
from gemmsmith.invariant import HANDLE as INVARIANT
from gemmsmith.kernelset import KernelSet, default_kernels
from gemmsmith.problem import GemmProblem, packed_problem
from gemmsmith.selection import Plan, Selection, selection
from gemmsmith.spec import KernelSpec
from gpus import ANCIENT, H200, count_as_loaded
from real_kernels import LEAN_CONSTANT as EARLY

LATE = replace(EARLY, constant_b=False)
CALL = packed_problem(16, 4096, 4096, BF16)
PROMISED = replace(CALL, constant_b=True)


def set_of(monkeypatch: pytest.MonkeyPatch, *specs: KernelSpec, default: bool = False) -> KernelSet:
    kernels = KernelSet(specs, arch=EARLY.arch, source="x.yaml", torch_may_run=default)
    count_as_loaded(monkeypatch, kernels, EARLY, LATE)
    return kernels


def chosen(kernels: Selection, call: GemmProblem) -> KernelSpec:
    found = kernels.plan(call, H200)
    assert isinstance(found, Plan)
    return found.spec


def bf16(*shape: int) -> torch.Tensor:
    return torch.randint(-3, 4, shape).to(torch.bfloat16)


def test_only_lean_kernels_that_start_early_may_read_b_early() -> None:
    assert EARLY.name == LATE.name.replace("_pdl_", "_pdl_constb_")
    with pytest.raises(
        IllegalKernelError, match="must be started then; set dependent_launch: true"
    ):
        replace(EARLY, dependent_launch=False)
    with pytest.raises(IllegalKernelError, match="only lean kernels read B early, not pingpong"):
        replace(EARLY, schedule="pingpong", split_k=1, store="tma")


def test_the_kernel_fits_calls_that_promise_and_no_others() -> None:
    assert misfit(EARLY, PROMISED) == misfit(LATE, PROMISED) == misfit(LATE, CALL) == ""
    words = "pass constant_b=True for weights that stay as they are"
    assert words in misfit(EARLY, CALL)
    assert misfits([EARLY, LATE], CALL) == []
    (alone,) = misfits([EARLY], CALL)
    assert words in alone
    odd = replace(CALL, k=4100, b_align=8)  # of kernels that take the call, not of the promise
    assert not any("constant_b" in reason for reason in misfits([EARLY, LATE], odd))


def test_what_it_hides_is_taken_off_the_estimate() -> None:
    early, late = (costs(spec, PROMISED, 132) for spec in (EARLY, LATE))
    assert late.exposed - early.exposed == pytest.approx(EARLY_WEIGHTS)
    alone = costs(LATE, CALL, 132)
    assert late.exposed == alone.exposed
    assert late.total - alone.total == pytest.approx(WAITS)  # a model has other kernels ahead
    many = [replace(call, m=65) for call in (CALL, PROMISED)]
    assert costs(LATE, many[0], 132) == costs(LATE, many[1], 132)  # those of prompts are long
    gated = replace(LATE, gate="silu", residual=False)
    alone, late = (
        costs(gated, replace(call, gate="silu", residual=False), 132) for call in (CALL, PROMISED)
    )
    assert late.total - alone.total == pytest.approx(WAITS + GATES_FLATTERED)
    assert [choice.spec for choice in rank([LATE, EARLY], PROMISED, 132)] == [EARLY, LATE]
    assert [choice.spec for choice in rank([LATE, EARLY], CALL, 132)] == [LATE]


def test_default_kernels_run_it_for_who_promises(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = set_of(monkeypatch, LATE, EARLY, default=True)
    monkeypatch.setattr("gemmsmith.constant.default_kernels", lambda arch: kernels)
    assert not kernels.constant_b
    assert chosen(kernels, CALL) == LATE
    promising = selection(HANDLE)
    assert promising.constant_b
    assert chosen(promising, PROMISED) == EARLY
    assert chosen(promising, CALL) == LATE  # as where b had to be copied
    odd = replace(PROMISED, k=4100, b_align=8)
    assert "K=4100 is not a multiple of 8" in str(promising.plan(odd, H200))
    assert "compute capability 1.0" in str(promising.plan(PROMISED, ANCIENT))


def test_naming_own_kernels_is_the_promise(monkeypatch: pytest.MonkeyPatch) -> None:
    own = set_of(monkeypatch, LATE, EARLY)
    assert own.constant_b
    assert not set_of(monkeypatch, LATE).constant_b
    assert chosen(own, PROMISED) == EARLY
    exact = own[EARLY.name]
    assert exact.constant_b
    assert not own[LATE.name].constant_b
    assert chosen(exact, PROMISED) == EARLY
    with pytest.raises(NoKernelError, match="pass constant_b=True for weights"):
        exact.plan(CALL, H200)
    x, w = bf16(5, 64), bf16(48, 64)
    assert exact.misfit(x, w.t()) == ""
    assert torch.equal(exact(x, w.t()), x @ w.t())
    assert torch.equal(own.gemm(x, w.t()), x @ w.t())


def test_the_promise_does_not_hold_for_a_copy_of_b(monkeypatch: pytest.MonkeyPatch) -> None:
    own = set_of(monkeypatch, LATE, EARLY)
    exact = own[EARLY.name]
    x, strided = bf16(5, 64), bf16(96, 128)[::2, ::2].t()
    for handle, promised in [(own.handle, True), (exact.handle, True), (HANDLE, True), ("", False)]:
        out = torch.empty(5, 48, dtype=torch.bfloat16)
        whole = problem(x, strided.contiguous(), None, None, out, PLAIN, handle)
        assert whole.constant_b is promised
        assert not problem(x, strided, None, None, out, PLAIN, handle).constant_b
    with pytest.raises(NoKernelError, match="the strides of the call are rrr"):
        exact(x, strided)
    right = (x.double() @ strided.double()).bfloat16()
    assert torch.equal(gemmsmith.gemm(x, strided, constant_b=True), right)


def test_calls_take_the_promise_whatever_they_hold() -> None:
    x, w, bias, residual = bf16(7, 64), bf16(48, 64), bf16(48), bf16(7, 48)
    plain = gemmsmith.gemm(x, w.t(), bias, residual)
    assert torch.equal(gemmsmith.gemm(x, w.t(), bias, residual, constant_b=True), plain)
    out = torch.full_like(plain, torch.nan)
    gemmsmith.gemm(x, w.t(), bias, residual, out=out, constant_b=True, kernels=HANDLE)
    assert torch.equal(out, plain)
    # what no kernel takes is torch's, as without the promise
    odd, narrow = bf16(7, 33), bf16(5, 33)
    assert torch.equal(gemmsmith.gemm(odd, narrow.t(), constant_b=True), odd @ narrow.t())
    assert torch.equal(
        gemmsmith.gemm(x.float(), w.float().t(), constant_b=True), x.float() @ w.float().t()
    )
    with pytest.raises(ArgumentError, match=r"a is torch\.float64; float16, .* are legal"):
        gemmsmith.gemm(x.double(), w.double().t(), constant_b=True)
    whole, columns = torch.ones(4, 32, dtype=torch.int8), torch.ones(16, 32, dtype=torch.int8)
    assert gemmsmith.gemm(whole, columns.t(), constant_b=True).unique().tolist() == [32]


def test_what_does_not_go_with_it_is_refused() -> None:
    x, w = bf16(7, 64), bf16(48, 64)
    assert handle_of() == handle_of(HANDLE) == HANDLE
    with pytest.raises(ArgumentError, match="constant_b goes without deterministic='batch'"):
        gemmsmith.gemm(x, w.t(), deterministic="batch", constant_b=True)
    with pytest.raises(ArgumentError, match="constant_b chooses among the default kernels"):
        gemmsmith.gemm(x, w.t(), kernels=default_kernels("sm_80").handle, constant_b=True)


def test_a_set_says_what_does_the_same_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    own, x, w = set_of(monkeypatch, LATE, EARLY), bf16(5, 64), bf16(48, 64)
    with pytest.raises(ArgumentError, match=r"of your own, name one \(ks\['name'\]\)"):
        own.gemm(x, w.t(), deterministic="batch")
    with pytest.raises(ArgumentError, match="of your own, those that have constant_b need no prom"):
        own.gemm(x, w.t(), constant_b=True)
    assert torch.equal(own.gemm(x, w.t(), deterministic="", constant_b=False), x @ w.t())


@pytest.mark.parametrize("value", ["yes", None, 1])
def test_a_promise_is_true_or_false(value: Any) -> None:
    x, w = bf16(7, 64), bf16(48, 64)
    legal = f"is {value!r}; True or False is legal"
    with pytest.raises(ArgumentTypeError, match=f"constant_b {legal}"):
        gemmsmith.gemm(x, w.t(), constant_b=value)
    layer = nn.Linear(64, 48, dtype=torch.bfloat16)
    with pytest.raises(ArgumentTypeError, match=f"constant_weight {legal}"):
        layer.constant_weight = value
    assert layer.kernels == ""
    model = torch.nn.Sequential(torch.nn.Linear(64, 48, dtype=torch.bfloat16))
    with pytest.raises(ArgumentTypeError, match=f"constant_weights {legal}"):
        gemmsmith.convert(model, constant_weights=value)
    assert type(model[0]) is torch.nn.Linear


def test_another_misfit_is_told_before_the_promise() -> None:
    odd = replace(CALL, k=100, a_align=8, b_align=8)
    assert misfit(EARLY, odd).startswith("a: K=100 is not a multiple of 8")
    assert misfit(EARLY, odd) == misfit(EARLY, replace(odd, constant_b=True))


def test_it_compiles_into_one_graph() -> None:
    from torch._dynamo.testing import CompileCounterWithBackend

    counter = CompileCounterWithBackend("aot_eager")
    torch._dynamo.reset()
    layer = nn.Linear(64, 48, dtype=torch.bfloat16).requires_grad_(False)
    layer.constant_weight = True
    fast = torch.compile(
        lambda x: gemmsmith.gemm(layer(x), layer.weight, constant_b=True),
        backend=counter,
        fullgraph=True,
        dynamic=True,
    )
    for m in (2, 7, 16):
        x = bf16(m, 64)
        assert torch.equal(fast(x), gemmsmith.gemm(layer(x), layer.weight))
    assert counter.frame_count == 1
    torch._dynamo.reset()


@pytest.mark.parametrize("kind", [nn.Linear, nn.Int8Linear])
def test_layers_keep_the_promise_and_their_state(kind: type[nn.Linear]) -> None:
    layer = kind.from_torch(torch.nn.Linear(64, 48, dtype=torch.bfloat16)).requires_grad_(False)
    x = bf16(7, 64)
    usual, keys = layer(x), list(layer.state_dict())
    assert layer.constant_weight is False
    layer.constant_weight = True
    assert (layer.constant_weight, layer.kernels, layer.deterministic) == (True, HANDLE, "")
    assert torch.equal(layer(x), usual)
    assert list(layer.state_dict()) == keys
    for copied in (deepcopy(layer), pickle.loads(pickle.dumps(layer)), layer.to("cpu")):
        assert copied.constant_weight
        assert torch.equal(copied(x), usual)
    with pytest.raises(ArgumentError, match="constant_weight goes without deterministic='batch'"):
        layer.deterministic = "batch"
    layer.deterministic = ""
    assert layer.constant_weight
    layer.constant_weight = False
    assert layer.kernels == ""
    layer.deterministic = "batch"
    layer.constant_weight = False  # which it was
    assert layer.kernels == INVARIANT
    with pytest.raises(ArgumentError, match="constant_weight goes without deterministic='batch'"):
        layer.constant_weight = True


@pytest.mark.parametrize("kind", [nn.FeedForward, nn.Int8FeedForward])
def test_blocks_promise_for_both_layers(kind: type[nn.FeedForward]) -> None:
    gate, up, down = (
        torch.nn.Linear(k, n, dtype=torch.bfloat16) for k, n in ((32, 48), (32, 48), (48, 32))
    )
    block = kind(gate, up, down).requires_grad_(False)
    x = bf16(5, 32)
    usual = block(x)
    block.constant_weight = True
    assert block.gate_up.kernels == block.down.kernels == HANDLE
    assert torch.equal(block(x), usual)
    assert deepcopy(block).constant_weight
    block.down.constant_weight = False
    assert not block.constant_weight


@pytest.mark.parametrize("dtype", [None, "int8"])
def test_conversion_promises_for_what_it_swaps(dtype: str | None) -> None:
    model = torch.nn.Sequential(
        torch.nn.Linear(64, 48), torch.nn.ReLU(), torch.nn.Linear(48, 32)
    ).bfloat16()
    plain = deepcopy(model)
    gemmsmith.convert(plain, dtype=dtype, skip=("2",))
    found = gemmsmith.convert(model, dtype=dtype, skip=("2",), constant_weights=True)
    assert [layer.name for layer in found.swapped] == ["0"]
    swapped, usual = model[0], plain[0]
    assert isinstance(swapped, nn.Linear)
    assert isinstance(usual, nn.Linear)
    assert (swapped.constant_weight, usual.constant_weight) == (True, False)
    assert type(model[2]) is torch.nn.Linear
    x = bf16(3, 64)
    with torch.no_grad():
        assert torch.equal(model(x), plain(x))
    with pytest.raises(ArgumentError, match="constant_weights goes with the default kernels"):
        gemmsmith.convert(model, default_kernels("sm_80"), constant_weights=True)


def test_own_kernels_that_all_read_early_may_serve_a_model(tmp_path: Path) -> None:
    file = tmp_path / "own.yaml"
    file.write_text(
        "families:\n  - {name: own, arch: sm_90a, dtype: bf16, schedule: lean, swap: true,"
        " tile: [16, 64, 64], dependent_launch: true, constant_b: true}\n"
    )
    own = gemmsmith.load(file, arch="sm_90a")
    assert [spec.constant_b for spec in own.specs] == [True]
    model = torch.nn.Linear(64, 48, dtype=torch.bfloat16)
    assert [layer.name for layer in gemmsmith.convert(model, own).swapped] == [""]
