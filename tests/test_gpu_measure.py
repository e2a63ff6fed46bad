from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

import gemmsmith
from gemmsmith import nvml
from gemmsmith.bench import gemm as bench
from gemmsmith.bench.graphs import GraphTimer
from gemmsmith.bench.measure import compare, copy_bandwidth, matmul_peak, normal, self_test
from gemmsmith.bench.report_text import row_line
from gemmsmith.bench.rounds import Policy
from gemmsmith.dtypes import BF16
from gemmsmith.errors import MeasureError

pytestmark = pytest.mark.gpu


def test_harness_sees_equal_as_equal_and_five_percent_as_five_percent() -> None:
    result = self_test()
    assert result.passed, str(result)


def test_graph_times_what_events_time() -> None:
    """One long call, timed the plain way, takes what the harness says."""
    a = normal(8192, 8192, dtype=torch.bfloat16)
    out = torch.empty_like(a)
    found = compare({"mm": [lambda: torch.mm(a, a, out=out)]})
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    start.record()
    for _ in range(50):
        torch.mm(a, a, out=out)
    end.record()
    torch.cuda.synchronize()
    assert found.median("mm") == pytest.approx(1000 * start.elapsed_time(end) / 50, rel=0.05)


def test_short_calls_fill_a_replay_and_every_set_is_used() -> None:
    xs = [torch.zeros(1024, device="cuda") for _ in range(4)]
    timer = GraphTimer({"add": [lambda x=x: x.add_(1) for x in xs]})  # type: ignore[misc]
    assert timer.calls("add") % 4 == 0
    before = [x[0].item() for x in xs]
    (per_call,) = timer.replay(["add"])
    added = [x[0].item() - start for x, start in zip(xs, before, strict=True)]
    assert added == [2 * timer.calls("add") / 4] * 4  # a lead-in replay and the timed one
    assert 0.5 < per_call < 20
    assert timer.calls("add") * per_call > 500


def test_what_cannot_be_captured_is_refused() -> None:
    x = torch.ones(8, device="cuda")
    with pytest.raises(MeasureError, match="'syncs' cannot be captured"):
        compare({"syncs": [lambda: x.sum().item()]})
    torch.cuda.synchronize()
    assert compare({"fine": [lambda: x.add_(1)]}).median("fine") > 0


def test_an_arm_that_does_nothing_is_refused() -> None:
    with pytest.raises(MeasureError, match="'idle' cannot be captured"):
        compare({"idle": [lambda: None]})
    with pytest.raises(MeasureError, match="no input set"):
        compare({"none": []})


def test_ceilings_are_those_of_a_gpu() -> None:
    name = nvml.devices()[0].name
    copy, peak = copy_bandwidth(), matmul_peak()
    print(f"{name}: copy {copy:.0f} GB/s, matmul {peak:.0f} TFLOP/s")
    assert copy > 100
    assert peak > 10
    if "H200" in name:
        assert 3500 < copy < 4900
        assert 600 < peak < 989


class TorchKernels:
    """A set of kernels that are torch's own matmul, one of them leaving out the last columns."""

    names = ("right", "wrong")

    def __init__(self, columns: int | None = None) -> None:
        self.columns = columns

    def __getitem__(self, name: str) -> TorchKernels:
        return TorchKernels(-8 if name == "wrong" else None)

    @property
    def gemm(self) -> TorchKernels:
        return self

    def misfit(self, a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor | None = None) -> str:
        return ""

    def __call__(
        self, a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        if out is None:
            return torch.mm(a, b)
        if self.columns is None:
            return torch.mm(a, b, out=out)
        out[:, : self.columns] = torch.mm(a, b)[:, : self.columns]
        return out


@pytest.mark.parametrize("m", [1, 300, 4096])
def test_bench_finds_torch_as_fast_as_torch(m: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gemmsmith, "last_kernel", lambda: SimpleNamespace(name="mm", reason=""))
    case = bench.BenchCase(model="test", op="square", m=m, n=4096, k=4096, dtype=BF16)
    kernels = TorchKernels()
    (row,) = bench.bench_gemm([case], kernels=kernels, alone=kernels)
    print(row_line(row), row.comparison.converged, row.comparison.seconds)
    assert row.wrong == {"wrong": f"{8 * m} of {4096 * m} elements are NaN or were not written"}
    assert set(row.comparison.samples) == {"torch", "gemmsmith", "right"}
    assert row.ratio is not None
    assert row.ratio.median == pytest.approx(1.0, abs=0.03)
    assert row.kernel == "mm"


def test_readings_are_stored_beside_the_times() -> None:
    a = normal(4096, 4096, dtype=torch.bfloat16)
    out = torch.empty_like(a)
    found = compare({"mm": [lambda: torch.mm(a, a, out=out)]}, policy=Policy(seconds=0.5))
    assert len(found.readings) >= 3
    assert all(r.sm_clock_mhz is not None and r.sm_clock_mhz > 0 for r in found.readings)
    assert max(r.power_watts or 0 for r in found.readings) > 50


def test_torch_and_the_driver_agree_on_the_device() -> None:
    properties = torch.cuda.get_device_properties(0)
    device = nvml.devices()[0]
    assert device.capability == (properties.major, properties.minor)
    assert device.sm_count == properties.multi_processor_count
    assert device.name == properties.name


def test_the_driver_is_asked_without_starting_cuda() -> None:
    code = (
        "import torch, gemmsmith.nvml as n; n.detect_architecture(); n.reading(n.devices()[0]);"
        "assert not torch.cuda.is_initialized()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
