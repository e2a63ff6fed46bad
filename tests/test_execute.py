"""What reaches a kernel: the same call from a first launch and from a settled one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from gemmsmith import execute, launch
from gemmsmith.arch import SM_90A
from gemmsmith.choose import Tuning
from gemmsmith.errors import LaunchError
from gemmsmith.finish import PLAIN
from gemmsmith.kernelset import DeviceFacts, KernelSet, Plan
from gemmsmith.launcher import Call
from gemmsmith.spec import KernelSpec, Tile

H200 = DeviceFacts(name="a Hopper GPU", capability=(9, 0), sm_count=132)
SPEC = KernelSpec(arch=SM_90A, tile=Tile(128, 128, 64), schedule="pingpong", residual=True)


class RecordingKernel:
    """A kernel that notes what it is asked, in place of one that needs a GPU."""

    name = SPEC.name
    threads, shared_bytes, stages, dependent_launch = 384, 0, 4, False

    def __init__(self) -> None:
        self.checked = 0
        self.launched: list[Call] = []
        self.status = 0

    def can_run(self, call: Call) -> int:
        self.checked += 1
        return 0

    def workspace_bytes(self, call: Call) -> tuple[int, int]:
        raise AssertionError("a static kernel has no workspace")

    def launch(self, call: Call, workspace: int, stream: int) -> int:
        assert (workspace, stream) == (0, 77)
        self.launched.append(call)
        return self.status

    def blocks_per_sm(self) -> tuple[int, int]:
        return 0, 1

    def explain(self, status: int) -> str:
        return f"status {status}"


class OneKernel(KernelSet):
    """A set whose plan is always the recording kernel."""

    def __init__(self, kernel: RecordingKernel) -> None:
        super().__init__([SPEC], arch=SM_90A, source="a test")
        self.kernel = kernel
        self.plans = 0

    def plan(self, problem: Any, device: DeviceFacts) -> Plan | str:
        self.plans += 1
        return Plan(spec=SPEC, kernel=self.kernel, tuning=Tuning(raster=2, swizzle=4))


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[OneKernel]:
    """Stand in for a GPU: tensors stay on the CPU, which nothing reads."""
    monkeypatch.setattr(execute, "_device", lambda index: H200)
    monkeypatch.setattr(launch, "current_device", lambda: None)
    monkeypatch.setattr(launch, "raw_stream", lambda index: 77)
    yield OneKernel(RecordingKernel())
    execute._settled.clear()


def bf16(*shape: int) -> torch.Tensor:
    return torch.zeros(*shape, dtype=torch.bfloat16)


def run(
    kernels: OneKernel, a: Any, b: Any, out: Any, bias: Any = None, residual: Any = None
) -> Call:
    beta = 0.0 if residual is None else 0.5
    execute.run_on_cuda(a, b, bias, residual, 2.0, beta, PLAIN, kernels.handle, out)
    return kernels.kernel.launched[-1]


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
def test_a_settled_launch_is_the_first_one_again(kernels: OneKernel, case: str) -> None:
    a, b, out, bias, residual = CASES[case]
    first = run(kernels, a, b, out, bias, residual)
    second = run(kernels, a, b, out, bias, residual)
    assert second == first
    assert (kernels.plans, kernels.kernel.checked) == (1, 1)
    pointers = [0 if t is None else t.data_ptr() for t in (a, b, residual, bias, out)]
    assert [first.a, first.b, first.c, first.bias, first.d] == pointers
    record = execute.last_kernel()
    assert record is not None
    assert (record.name, record.tuning, record.copied) == (
        SPEC.name,
        Tuning(raster=2, swizzle=4),
        (),
    )


def test_new_addresses_reach_a_settled_launch(kernels: OneKernel) -> None:
    a, b, out, bias, residual = CASES["residual"]
    first = run(kernels, a, b, out, bias, residual)
    others = [tensor.clone() for tensor in (a, b.t())]
    elsewhere = (others[0], others[1].t(), out.clone(), bias.clone(), residual.clone())
    second = run(kernels, *elsewhere)
    assert kernels.plans == 1
    assert [second.a, second.b, second.d] == [t.data_ptr() for t in elsewhere[:3]]
    assert [second.bias, second.c] == [t.data_ptr() for t in elsewhere[3:]]
    assert second[:4] == first[:4]
    assert second[13:] == first[13:]


@pytest.mark.parametrize(
    "change",
    ["rows", "stride of a", "alignment of b", "stride of out", "bias", "bias stride", "residual"],
)
def test_what_decides_a_launch_is_settled_anew(kernels: OneKernel, change: str) -> None:
    a, b, out, bias, residual = CASES["residual"]
    run(kernels, a, b, out, bias, residual)
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
    run(kernels, *changed)
    assert kernels.plans == 2


def test_a_call_that_copies_is_never_settled(kernels: OneKernel) -> None:
    a = bf16(32, 128)[:, ::2]
    _, b, out, _, _ = CASES["plain"]
    for expected in (1, 2):
        call = run(kernels, a, b, out)
        assert kernels.plans == expected
        assert call.a != a.data_ptr()
        assert call.lda == 64
    record = execute.last_kernel()
    assert record is not None
    assert record.copied == ("a",)
    strided = bf16(32)[::2]
    call = run(kernels, CASES["plain"][0], b, out, strided)
    assert call.bias != strided.data_ptr()
    run(kernels, CASES["plain"][0], b, out, strided)
    assert kernels.plans == 4


def test_factors_are_those_of_the_call_and_a_beta_of_zero_drops_c(kernels: OneKernel) -> None:
    a, b, out, _, residual = CASES["residual"]
    assert run(kernels, a, b, out, None, residual)[21:23] == (2.0, 0.5)
    for beta in (0.0, -0.0):
        execute.run_on_cuda(a, b, None, residual, 1.0, beta, PLAIN, kernels.handle, out)
        call = kernels.kernel.launched[-1]
        assert (call.c, call.ldc, call.alpha, call.beta) == (0, 0, 1.0, 0.0)


def test_a_refused_launch_is_told_with_kernel_sizes_and_strides(kernels: OneKernel) -> None:
    kernels.kernel.status = 7
    with pytest.raises(
        LaunchError, match=rf"{SPEC.name}: status 7 \(M=32 N=16 K=64 batch=1; .* a 64"
    ):
        run(kernels, *CASES["plain"][:3])
    kernels.kernel.status = 0
    run(kernels, *CASES["plain"][:3])


def test_the_settled_launches_are_bounded(
    kernels: OneKernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execute, "_MOST_SETTLED", 3)
    b = CASES["plain"][1]
    for m in range(1, 9):
        run(kernels, bf16(m, 64), b, bf16(m, 16))
        assert len(execute._settled) <= 3


def test_autograd_learns_that_the_output_was_written(kernels: OneKernel) -> None:
    a, b, out, _, _ = CASES["plain"]
    before = out._version
    run(kernels, a, b, out)
    run(kernels, a, b, out)
    assert out._version == before + 2
    with torch.inference_mode():
        run(kernels, a, b, torch.zeros(32, 16, dtype=torch.bfloat16))


def test_one_row_or_column_is_written_in_the_layout_of_the_kernels(kernels: OneKernel) -> None:
    columns = replace(SPEC, layout="rcc")
    column_set = OneKernel(RecordingKernel())
    column_set.specs = (columns,)
    a, b = bf16(1, 64), bf16(16, 64).t()
    out = bf16(4, 16).t()[:, :1].t()  # one row, whose elements lie 1 apart
    assert run(kernels, a, b, out).ldd == 16
    assert run(column_set, a, b, out).ldd == 1
    spread = bf16(16, 4)[:, :1].t()  # one row, whose elements lie 4 apart
    assert run(column_set, a, b, spread).ldd == 4


def test_what_torch_took_is_settled_too(
    kernels: OneKernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned = []

    def refuse(problem: Any, device: DeviceFacts) -> str:
        planned.append(problem)
        return "a reason"

    monkeypatch.setattr(kernels, "plan", refuse)
    a, b = torch.ones(4, 64, dtype=torch.bfloat16), torch.ones(64, 8, dtype=torch.bfloat16)
    out = bf16(4, 8)
    for _ in range(2):
        execute.run_on_cuda(a, b, None, None, 1.0, 0.0, PLAIN, kernels.handle, out.zero_())
        assert (out == 64).all()
        record = execute.last_kernel()
        assert record is not None
        assert (record.name, record.reason) == ("torch", "a reason")
    assert len(planned) == 1
