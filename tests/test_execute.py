"""What reaches a kernel: the same call from a first launch and from a settled one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import gemmsmith
from fake_gpu import (  # noqa: F401  fixtures
    REFUSED_ALPHA,
    SPEC,
    STREAM,
    FakeGpu,
    gpu_fixture,
    kernel_fixture,
)
from gemmsmith import direct, execute
from gemmsmith.choose import Tuning
from gemmsmith.errors import LaunchError
from gemmsmith.launcher import Call


def by_gemm(*given: Any) -> None:
    a, b, out, bias, residual, alpha, beta = given
    gemmsmith.gemm(a, b, bias, residual, alpha, beta, out)


def by_op(*given: Any) -> None:
    a, b, out, bias, residual, alpha, beta = given
    torch.ops.gemmsmith.gemm_out.default(a, b, bias, residual, alpha, beta, out=out)


@pytest.fixture(params=[by_gemm, by_op])
def call(request: pytest.FixtureRequest, gpu: FakeGpu) -> Callable[..., Call]:
    """Call past the dispatcher, where that is allowed, or through it."""

    def run(a: Any, b: Any, out: Any, bias: Any = None, residual: Any = None) -> Call:
        launched, op = gpu.launched, gpu.through_op
        request.param(a, b, out, bias, residual, 2.0, 0.0 if residual is None else 0.5)
        assert gpu.launched == launched + 1
        assert request.param is by_gemm or gpu.through_op == op + 1
        return gpu.last()

    return run


def bf16(*shape: int) -> torch.Tensor:
    return torch.zeros(*shape, dtype=torch.bfloat16)


BIG = bf16(512, 512)
CASES: dict[str, Any] = {
    "plain": (bf16(32, 64), bf16(16, 64).t(), bf16(32, 16), None, None),
    "row of one": (bf16(1, 64), bf16(16, 64).t(), bf16(1, 16), None, None),
    "views": (BIG[:32, 64:128], BIG[32:48, :64].t(), bf16(64, 32)[::2, :16], None, None),
    "transposed a": (bf16(64, 32).t(), bf16(64, 16), bf16(32, 16), None, None),
    "three dimensions": (bf16(2, 7, 64), bf16(16, 64).t(), bf16(2, 7, 16), None, None),
    "batch": (bf16(3, 8, 64), bf16(3, 16, 64).mT, bf16(3, 8, 16), None, None),
    "column-major out": (bf16(32, 64), bf16(16, 64).t(), bf16(16, 32).t(), None, None),
    "bias": (bf16(32, 64), bf16(16, 64).t(), bf16(32, 16), bf16(16), None),
    "bias as a row": (bf16(32, 64), bf16(16, 64).t(), bf16(32, 16), bf16(1, 16), None),
    "residual": (bf16(32, 64), bf16(16, 64).t(), bf16(32, 16), bf16(16), bf16(32, 16)),
    "residual view": (bf16(32, 64), bf16(16, 64).t(), bf16(32, 16), None, bf16(64, 32)[:32, 8:24]),
}


@pytest.mark.parametrize("case", CASES)
def test_a_settled_launch_is_the_first_one_again(
    gpu: FakeGpu, call: Callable[..., Call], case: str
) -> None:
    a, b, out, bias, residual = CASES[case]
    first = call(a, b, out, bias, residual)
    second = call(a, b, out, bias, residual)
    assert second == first
    assert gpu.notes()[1:] == (0, STREAM)
    assert (gpu.plans, gpu.checked) == (1, 1)
    pointers = [0 if t is None else t.data_ptr() for t in (a, b, residual, bias, out)]
    assert [first.a, first.b, first.c, first.bias, first.d] == pointers
    record = execute.last_kernel()
    assert record is not None
    assert (record.name, record.tuning, record.copied) == (
        SPEC.name,
        Tuning(raster=2, swizzle=4),
        (),
    )


def test_new_addresses_reach_a_settled_launch(gpu: FakeGpu, call: Callable[..., Call]) -> None:
    a, b, out, bias, residual = CASES["residual"]
    first = call(a, b, out, bias, residual)
    others = [tensor.clone() for tensor in (a, b.t())]
    elsewhere = (others[0], others[1].t(), out.clone(), bias.clone(), residual.clone())
    second = call(*elsewhere)
    assert gpu.plans == 1
    assert [second.a, second.b, second.d] == [t.data_ptr() for t in elsewhere[:3]]
    assert [second.bias, second.c] == [t.data_ptr() for t in elsewhere[3:]]
    assert second[:4] == first[:4]
    assert second[13:] == first[13:]


@pytest.mark.parametrize(
    "change",
    ["rows", "stride of a", "alignment of b", "stride of out", "bias", "bias stride", "residual"],
)
def test_what_decides_a_launch_is_settled_anew(
    gpu: FakeGpu, call: Callable[..., Call], change: str
) -> None:
    a, b, out, bias, residual = CASES["residual"]
    call(a, b, out, bias, residual)
    store = bf16(16 * 64 + 1)
    changed = {
        "rows": (bf16(33, 64), b, bf16(33, 16), bias, bf16(33, 16)),
        "stride of a": (bf16(32, 128)[:, :64], b, out, bias, residual),
        "alignment of b": (a, store[1:].view(16, 64).t(), out, bias, residual),
        "stride of out": (a, b, bf16(32, 24)[:, :16], bias, residual),
        "bias": (a, b, out, None, residual),
        "bias stride": (a, b, out, bf16(32)[::2], residual),
        "residual": (a, b, out, bias, bf16(32, 24)[:, :16]),
    }[change]
    call(*changed)
    assert gpu.plans == 2


def test_a_call_that_copies_is_never_settled(gpu: FakeGpu, call: Callable[..., Call]) -> None:
    a = bf16(32, 128)[:, ::2]
    _, b, out, _, _ = CASES["plain"]
    for expected in (1, 2):
        seen = call(a, b, out)
        assert gpu.plans == expected
        assert seen.a != a.data_ptr()
        assert seen.lda == 64
    record = execute.last_kernel()
    assert record is not None
    assert record.copied == ("a",)
    strided = bf16(32)[::2]
    seen = call(CASES["plain"][0], b, out, strided)
    assert seen.bias != strided.data_ptr()
    call(CASES["plain"][0], b, out, strided)
    assert gpu.plans == 4


def test_factors_are_those_of_the_call_and_a_beta_of_zero_drops_c(
    gpu: FakeGpu, call: Callable[..., Call]
) -> None:
    a, b, out, _, residual = CASES["residual"]
    assert call(a, b, out, None, residual)[21:23] == (2.0, 0.5)
    for beta in (0.0, -0.0, 0.0):
        gemmsmith.gemm(a, b, None, residual, 1.0, beta, out)
        seen = gpu.last()
        assert (seen.c, seen.ldc, seen.alpha, seen.beta) == (0, 0, 1.0, 0.0)
    assert gpu.plans == 2
    gemmsmith.gemm(a, b, residual=residual, out=out)
    assert gpu.last()[20:24] == (0, 1.0, 1.0, 1.0)


@pytest.mark.parametrize("way", [by_gemm, by_op])
@pytest.mark.parametrize("settled", [False, True])
def test_a_refused_launch_is_told_with_kernel_sizes_and_strides(
    gpu: FakeGpu, way: Callable[..., None], settled: bool
) -> None:
    a, b, out, _, _ = CASES["plain"]
    if settled:
        way(a, b, out, None, None, 1.0, 0.0)
    words = r"notes: status 7 \(M=32 N=16 K=64 batch=1; .* a 64"
    for _ in range(2):
        with pytest.raises(LaunchError, match=words):
            way(a, b, out, None, None, REFUSED_ALPHA, 0.0)
    way(a, b, out, None, None, 1.0, 0.0)
    assert gpu.last().alpha == 1.0


def test_the_settled_launches_are_bounded(
    call: Callable[..., Call], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execute, "_MOST_SETTLED", 3)
    b = CASES["plain"][1]
    for m in range(1, 9):
        call(bf16(m, 64), b, bf16(m, 16))
        assert 1 <= len(direct.table()) <= 3


def test_autograd_learns_that_the_output_was_written(call: Callable[..., Call]) -> None:
    a, b, out, _, _ = CASES["plain"]
    before = out._version
    call(a, b, out)
    call(a, b, out)
    assert out._version == before + 2
    with torch.inference_mode():
        inside = torch.zeros(32, 16, dtype=torch.bfloat16)
        call(a, b, inside)
        call(a, b, inside)


def test_a_result_is_made_in_the_layout_of_the_kernel(gpu: FakeGpu) -> None:
    a, b = bf16(4, 2, 64), bf16(16, 64).t()
    for op in (1, 1, 1):
        made = gemmsmith.gemm(a, b)
        assert (made.shape, made.stride(), made.dtype) == ((4, 2, 16), (32, 16, 1), a.dtype)
        assert gpu.last().d == made.data_ptr()
        assert (gpu.plans, gpu.through_op) == (1, op)
        assert made._version == 0
    with torch.inference_mode():
        assert gemmsmith.gemm(a, b).is_inference()
    half = gemmsmith.gemm(a, b, out_dtype=torch.float16)
    assert (half.dtype, gpu.plans, gpu.through_op) == (torch.float16, 2, 2)
    assert gemmsmith.gemm(a, b, out_dtype=torch.float16).dtype == torch.float16
    assert (gpu.plans, gpu.through_op) == (2, 2)


def test_a_workspace_lives_as_long_as_the_launch_needs_it(
    gpu: FakeGpu, call: Callable[..., Call]
) -> None:
    gpu.use(schedule="cooperative", scheduler="stream_k")
    for _ in range(3):
        call(*CASES["plain"])
        _, workspace, stream = gpu.notes()
        assert workspace != 0
        assert stream == STREAM
    assert gpu.plans == 1


def test_one_row_or_column_is_written_in_the_layout_of_the_kernels(
    gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = bf16(1, 64), bf16(16, 64).t()
    out = bf16(4, 16).t()[:, :1].t()  # one row, whose elements lie 1 apart
    spread = bf16(16, 4)[:, :1].t()  # one row, whose elements lie 4 apart
    ldd = {}
    for letter in "rc":
        monkeypatch.setattr(execute, "output_letter", lambda *args, letter=letter: letter)
        for name, each in (("out", out), ("spread", spread)):
            direct.table().clear()
            if (letter, name) != ("r", "spread"):
                gemmsmith.gemm(a, b, out=each)
                ldd[letter, name] = gpu.last().ldd
    assert ldd == {("r", "out"): 16, ("c", "out"): 1, ("c", "spread"): 4}


@pytest.mark.parametrize("way", [by_gemm, by_op])
def test_what_torch_took_is_settled_too(gpu: FakeGpu, way: Callable[..., None]) -> None:
    gpu.reason = "a reason"
    a, b = torch.ones(4, 64, dtype=torch.bfloat16), torch.ones(64, 8, dtype=torch.bfloat16)
    bias, residual = torch.ones(8, dtype=a.dtype), torch.full((4, 8), 3.0, dtype=a.dtype)
    out = bf16(4, 8)
    for extra, right in (((None, None, 1.0, 0.0), 64), ((bias, residual, 2.0, 0.5), 130.5)):
        planned = gpu.plans
        for _ in range(3):
            way(a, b, out.zero_(), *extra)
            assert (out == torch.tensor(right, dtype=a.dtype)).all()
            record = execute.last_kernel()
            assert record is not None
            assert (record.name, record.reason) == ("torch", "a reason")
        assert gpu.plans == planned + 1
    assert gpu.launched == 0


def test_torch_takes_a_settled_call_without_an_output_too(gpu: FakeGpu) -> None:
    gpu.reason = "a reason"
    a, w = torch.ones(4, 64, dtype=torch.bfloat16), torch.ones(8, 64, dtype=torch.bfloat16)
    for _ in range(2):
        made = gemmsmith.gemm(a, w.t(), activation="relu", alpha=-1.0)
        assert torch.equal(made, bf16(4, 8))
        assert torch.equal(direct.linear(a, w, None, ""), torch.full((4, 8), 64, dtype=a.dtype))
    assert (gpu.plans, gpu.through_op, gpu.launched) == (2, 2, 0)
