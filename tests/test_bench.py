from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import gemmsmith
from gemmsmith.bench import gemm as bench
from gemmsmith.bench import peers
from gemmsmith.bench.model_shapes import load_model
from gemmsmith.bench.report import BenchReport, BenchRow, Environment, geomean, summaries
from gemmsmith.bench.report_text import compact_report, full_report, power_line, row_line, table
from gemmsmith.bench.rounds import Comparison
from gemmsmith.dtypes import BF16, FP16
from gemmsmith.errors import LaunchError, MeasureError, NoDeviceError, NoKernelError
from gemmsmith.nvml import Reading

COLD = Reading(sm_clock_mhz=1980, memory_clock_mhz=3201, power_watts=120.4, temperature_c=35)
HOT = Reading(sm_clock_mhz=1710, memory_clock_mhz=3201, power_watts=698.6, temperature_c=None)
ENVIRONMENT = Environment(
    gpu="NVIDIA H200",
    sm_count=132,
    driver="580.95",
    torch="2.11.0",
    cuda="13.0",
    cutlass="4.2.0.0",
    gemmsmith="0.1.0",
    commit="abc123+",
    copy_gbs=4250.0,
    matmul_tflops=790.0,
)


def row(
    m: int,
    times: Mapping[str, float | Sequence[float]],
    *,
    op: str = "qkv",
    wrong: Mapping[str, str] | None = None,
    missing: str = "",
) -> BenchRow:
    samples = {
        arm: tuple(us) if isinstance(us, Sequence) else (float(us),) * 6
        for arm, us in times.items()
    }
    return BenchRow(
        model="tiny",
        op=op,
        m=m,
        n=1000,
        k=500,
        dtype="bf16",
        element_bytes=2,
        comparison=Comparison(
            samples=samples, baseline="torch", converged=True, seconds=1.0, readings=(COLD, HOT)
        ),
        kernel="k1" if "gemmsmith" in times else "",
        wrong=wrong or {},
        missing=missing,
    )


ROWS = (
    row(1, {"torch": 12.0, "gemmsmith": 10.0, "k1": 10.0, "k2": 8.0}),
    row(64, {"torch": 9.0, "gemmsmith": 10.0, "k1": 10.0, "k2": 12.0}),
    row(512, {"torch": 30.0, "gemmsmith": 40.0, "k1": 40.0, "k2": 30.0}),
    row(2048, {"torch": 110.0, "gemmsmith": 100.0, "k1": 100.0, "k2": 200.0}),
)
REPORT = BenchReport(environment=ENVIRONMENT, rows=ROWS)


def test_row_arithmetic() -> None:
    first = ROWS[0]
    assert (first.torch_us, first.ours_us) == (12.0, 10.0)
    assert first.ratio is not None
    assert first.ratio.median == pytest.approx(1.2)
    assert first.best is not None
    assert (first.best[0], first.best[1].median) == ("k2", 1.5)
    assert first.flops == 2 * 1 * 1000 * 500
    assert first.bytes == 2 * (500 + 500_000 + 1000)
    assert not first.loses
    assert ROWS[1].loses


def test_a_loss_is_one_whose_interval_lies_below_one() -> None:
    doubtful = row(1, {"torch": [9.0, 11, 9, 9, 9, 9], "gemmsmith": 10.0})
    sure = row(1, {"torch": [9.0, 9.9, 9, 9, 9, 9], "gemmsmith": 10.0})
    assert not doubtful.loses
    assert sure.loses
    assert row(1, {"torch": 9.0}, wrong={"gemmsmith": "NaN"}).loses


def test_groups() -> None:
    found = {group.name: group for group in summaries(ROWS)}
    assert list(found) == ["M <= 64", "M 65..2047", "M >= 2048", "all"]
    assert found["M <= 64"].geomean == pytest.approx(math.sqrt(1.2 * 0.9))
    assert found["M <= 64"].best_geomean == pytest.approx(math.sqrt(1.5 * 0.9))
    assert found["M 65..2047"].geomean == pytest.approx(0.75)
    assert found["M >= 2048"].geomean == pytest.approx(1.1)
    assert found["all"].geomean == pytest.approx((1.2 * 0.9 * 0.75 * 1.1) ** 0.25)
    assert found["all"].worst is ROWS[2]
    assert (found["all"].count, found["all"].without) == (4, 0)
    assert geomean([2.0, 8.0]) == pytest.approx(4.0)


def test_shapes_without_a_result_are_counted_not_hidden() -> None:
    rows = (*ROWS[:1], row(2, {"torch": 9.0}, wrong={"gemmsmith": "k1: 3 of 9 are NaN"}))
    (small, everything) = summaries(rows)
    assert small.name == "M <= 64"
    assert (small.count, small.without) == (1, 1)
    assert everything.geomean == pytest.approx(1.2)
    text = full_report(BenchReport(environment=ENVIRONMENT, rows=rows))
    assert "1 (+1 without)" in text
    assert "WRONG" in text
    assert "- tiny qkv 2x1000x500 bf16: gemmsmith: k1: 3 of 9 are NaN" in text


def test_missing_kernel_is_told() -> None:
    alone = row(1, {"torch": 9.0}, missing="no kernel for K = 7")
    assert row_line(alone) == "tiny qkv 1x1000x500 bf16: torch 9.0 µs, ours: no kernel"
    text = full_report(BenchReport(environment=ENVIRONMENT, rows=(alone,)))
    assert "- tiny qkv 1x1000x500 bf16: no kernel: no kernel for K = 7" in text


def test_losses_worst_first() -> None:
    assert [lost.m for lost in REPORT.losses] == [512, 64]
    assert BenchReport(environment=ENVIRONMENT, rows=ROWS[:1]).losses == ()


def test_full_report() -> None:
    text = full_report(REPORT)
    assert "NVIDIA H200, 132 SMs, driver 580.95; torch 2.11.0, CUDA 13.0" in text
    assert "gemmsmith 0.1.0 (abc123+)" in text
    line = next(line for line in text.splitlines() if line.startswith("| tiny qkv |   64 |"))
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    # 64 MFLOP and 1.192 MB in 10 µs
    assert cells == [
        *["tiny qkv", "64", "1000", "500", "bf16", "9.0", "10.0", "0.900 [0.900, 0.900]"],
        *["6.4", "119", "k1", "k1", "0.900 [0.900, 0.900]"],
    ]
    losses = text.partition("Where we lose:")[2]
    assert 0 < losses.index("tiny qkv 512x1000x500") < losses.index("tiny qkv 64x1000x500")
    assert "tiny qkv 1x1000x500" not in losses


def test_clocks_and_power_are_told() -> None:
    assert power_line(ROWS) == (
        "During the run: SM clock 1710 to 1980 MHz, memory clock 3201 MHz, "
        "power 120 to 699 W, temperature 35 °C"
    )


def test_compact_report_has_a_line_a_weight_and_a_column_an_m() -> None:
    rows = (*ROWS, row(64, {"torch": 11.0, "gemmsmith": 10.0}, op="down"))
    lines = compact_report(BenchReport(environment=ENVIRONMENT, rows=rows)).splitlines()
    assert lines[2:6] == [
        "| torch / ours |    N |   K | dtype |   M=1 |  M=64 | M=512 | M=2048 |",
        "|:-------------|-----:|----:|------:|------:|------:|------:|-------:|",
        "| tiny qkv     | 1000 | 500 |  bf16 | 1.200 | 0.900 | 0.750 |  1.100 |",
        "| tiny down    | 1000 | 500 |  bf16 |       | 1.100 |       |        |",
    ]


def test_table_is_aligned() -> None:
    assert table(["a", "bbb"], [["x", "1"], ["long", "22"]]).splitlines() == [
        "| a    | bbb |",
        "|:-----|----:|",
        "| x    |   1 |",
        "| long |  22 |",
    ]


def test_json_holds_what_a_heuristic_learns_from() -> None:
    data = json.loads(json.dumps(REPORT.as_json()))
    assert data["environment"]["gpu"] == "NVIDIA H200"
    first = data["rows"][0]
    assert (first["op"], first["m"], first["n"], first["k"]) == ("qkv", 1, 1000, 500)
    assert first["kernel"] == "k1"
    assert first["best"]["kernel"] == "k2"
    assert first["ratio"] == {"median": 1.2, "low": 1.2, "high": 1.2, "rounds": 6}
    arms = first["comparison"]["arms"]
    assert {arm: arms[arm]["median_us"] for arm in arms} == {
        "torch": 12.0,
        "gemmsmith": 10.0,
        "k1": 10.0,
        "k2": 8.0,
    }
    assert first["comparison"]["readings"][1]["power_watts"] == 698.6


def test_default_plan_is_bf16_and_four_spots_of_fp16() -> None:
    cases = bench.plan_cases(load_model("llama3-8b"))
    assert len(cases) == 28
    assert [case.m for case in cases[:5]] == [1, 1, 1, 1, 16]
    assert [(c.op, c.m, c.n, c.k) for c in cases if c.dtype is FP16] == [
        ("qkv", 1, 6144, 4096),
        ("attn_out", 64, 4096, 4096),
        ("gate_up", 512, 28672, 4096),
        ("down", 2048, 4096, 14336),
    ]


def test_asked_dtype_and_m_are_all_there_is() -> None:
    cases = bench.plan_cases(load_model("smollm2-135m"), dtype=FP16, m=[33, 7, 33])
    assert [case.m for case in cases] == [7] * 4 + [33] * 4
    assert {case.dtype for case in cases} == {FP16}
    spots = bench.plan_cases(load_model("smollm2-135m"), m=[64])
    assert [(c.op, c.dtype) for c in spots[4:]] == [("attn_out", FP16)]
    assert spots[0].dtype is BF16


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": "fp8"}, "dtype 'fp8' cannot be measured; use one of bf16, fp16"),
        ({"dtype": "fp32"}, "dtype 'fp32' cannot be measured"),
        ({"m": [0]}, r"m \[0\] cannot be measured"),
        ({"m": []}, r"m \[\] cannot be measured"),
    ],
)
def test_what_cannot_be_measured_is_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(MeasureError, match=message):
        bench.run_bench("smollm2-135m", **options)  # type: ignore[arg-type]


@pytest.mark.skipif(torch.cuda.is_available(), reason="is about machines without a GPU")
def test_no_gpu_is_told(tmp_path: Path) -> None:
    with pytest.raises(NoDeviceError, match="a benchmark needs a GPU"):
        bench.run_bench("smollm2-135m", json_path=tmp_path / "new" / "out.json")


M, N, K = 300, 264, 512


@pytest.fixture(scope="module")
def inputs() -> peers.Inputs:
    torch.manual_seed(1)
    made = peers.make_inputs(M, N, K, torch.bfloat16, device="cpu")
    return peers.Inputs(x=made.x, weights=made.weights[:2], out=made.out)


@pytest.fixture(scope="module")
def right(inputs: peers.Inputs) -> peers.Reference:
    return peers.reference(inputs.x, inputs.weights[0])


def product(inputs: peers.Inputs) -> torch.Tensor:
    return (inputs.x.double() @ inputs.weights[0].double().t()).bfloat16()


def test_inputs_outgrow_the_caches() -> None:
    made = peers.make_inputs(4, 4096, 1024, torch.float16, device="cpu")
    assert sum(w.numel() * 2 for w in made.weights) >= 120e6
    assert made.x.shape == (4, 1024)
    assert made.weights[0].shape == (4096, 1024)
    assert float(made.x.float().std()) == pytest.approx(1.0, abs=0.1)
    assert bool(made.poisoned().isnan().all())


def test_reference_samples_both_ends(right: peers.Reference) -> None:
    rows = set(right.rows.tolist())
    assert {*range(64), *range(M - 64, M)} <= rows
    assert len(right.rows) == 256
    assert right.values.shape == (256, N)


def test_right_result_is_right(inputs: peers.Inputs, right: peers.Reference) -> None:
    assert peers.fault(product(inputs), right) == ""
    rounded_sums = (inputs.x.float() @ inputs.weights[0].float().t()).half().float() * 1.0005
    assert peers.fault(rounded_sums.bfloat16(), right, half_sums=True) == ""


def leave_unwritten(result: torch.Tensor, inputs: peers.Inputs) -> None:
    result[M - 1, N - 1] = math.nan


def forget_last_k(result: torch.Tensor, inputs: peers.Inputs) -> None:
    x, w = inputs.x.clone(), inputs.weights[0]
    x[:, -1] = 0
    result.copy_(x.double() @ w.double().t())


def swap_rows(result: torch.Tensor, inputs: peers.Inputs) -> None:
    result[[5, 6]] = result[[6, 5]]


def shift_columns(result: torch.Tensor, inputs: peers.Inputs) -> None:
    result[:, 8:16] = result[:, 16:24].clone()


def overflow(result: torch.Tensor, inputs: peers.Inputs) -> None:
    result[0, 0] = math.inf


FAULTS = [leave_unwritten, forget_last_k, swap_rows, shift_columns, overflow]


@pytest.mark.parametrize("spoil", FAULTS, ids=lambda spoil: spoil.__name__)
def test_faults_are_found(
    inputs: peers.Inputs,
    right: peers.Reference,
    spoil: Callable[[torch.Tensor, peers.Inputs], None],
) -> None:
    result = product(inputs)
    spoil(result, inputs)
    assert peers.fault(result, right)


def test_fault_in_a_row_that_was_not_sampled_is_found(
    inputs: peers.Inputs, right: peers.Reference
) -> None:
    hidden = next(row for row in range(M) if row not in set(right.rows.tolist()))
    result = product(inputs)
    result[hidden, :128] = -result[hidden, :128].roll(1)
    assert peers.fault(result, right).startswith(f"row {hidden}: its signed sum is off")


class FakeKernel:
    """A kernel that does what ``write`` does to its output."""

    def __init__(self, write: Callable[[torch.Tensor, torch.Tensor], None], why: str = "") -> None:
        self.write = write
        self.why = why

    def misfit(self, a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor | None = None) -> str:
        return self.why

    def __call__(
        self, a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        out = torch.empty(a.shape[0], b.shape[1], dtype=a.dtype) if out is None else out
        self.write(out, a.double() @ b.double())
        return out


def write_all(out: torch.Tensor, value: torch.Tensor) -> None:
    out.copy_(value)


def write_most(out: torch.Tensor, value: torch.Tensor) -> None:
    out[:, :-8] = value[:, :-8].bfloat16()


def refuse(out: torch.Tensor, value: torch.Tensor) -> None:
    raise LaunchError("status 7")


def no_kernel(out: torch.Tensor, value: torch.Tensor) -> None:
    raise NoKernelError("nothing fits K = 7")


class FakeKernels(dict[str, FakeKernel]):
    """A set of fake kernels that chooses its first."""

    @property
    def names(self) -> Sequence[str]:
        return tuple(self)

    @property
    def gemm(self) -> FakeKernel:
        return next(iter(self.values()))


@pytest.fixture
def last_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    record = SimpleNamespace(name="chosen", reason="")
    monkeypatch.setattr(gemmsmith, "last_kernel", lambda: record, raising=False)


@pytest.mark.usefixtures("last_kernel")
def test_only_right_arms_are_timed(inputs: peers.Inputs) -> None:
    kernels = FakeKernels(
        good=FakeKernel(write_all),
        partial=FakeKernel(write_most),
        refused=FakeKernel(refuse),
        unfit=FakeKernel(write_all, why="K = 512 is too long"),
    )
    checked = bench.check_arms(inputs, kernels.gemm, kernels)
    assert list(checked.arms) == ["torch", "gemmsmith", "good"]
    assert checked.wrong == {
        "partial": f"{8 * M} of {M * N} elements are NaN or were not written",
        "refused": "LaunchError: status 7",
    }
    assert (checked.kernel, checked.missing) == ("chosen", "")
    for arm in checked.arms.values():
        assert len(arm) == 2
        second = inputs.x.double() @ inputs.weights[1].double().t()
        torch.testing.assert_close(arm[1](), second.bfloat16(), rtol=0.02, atol=0.1)


@pytest.mark.usefixtures("last_kernel")
def test_wrong_choice_is_reported_and_not_timed(inputs: peers.Inputs) -> None:
    checked = bench.check_arms(inputs, FakeKernel(write_most), None)
    assert list(checked.arms) == ["torch"]
    assert checked.wrong["gemmsmith"].startswith("chosen: 2400 of")


@pytest.mark.usefixtures("last_kernel")
def test_no_choice_is_missing_not_wrong(inputs: peers.Inputs) -> None:
    checked = bench.check_arms(inputs, FakeKernel(no_kernel), None)
    assert (dict(checked.wrong), checked.missing) == ({}, "nothing fits K = 7")
    assert list(checked.arms) == ["torch"]


def test_what_torch_took_is_no_rival_of_torch(
    inputs: peers.Inputs, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = SimpleNamespace(name="torch", reason="k: 7 is not a multiple of 8")
    monkeypatch.setattr(gemmsmith, "last_kernel", lambda: record, raising=False)
    checked = bench.check_arms(inputs, FakeKernel(write_all), None)
    assert list(checked.arms) == ["torch"]
    assert (checked.kernel, checked.missing) == ("", "k: 7 is not a multiple of 8")


def test_the_op_itself_passes_the_check(inputs: peers.Inputs) -> None:
    """On the CPU the op computes with torch and says so; its values must be right."""
    right = peers.reference(inputs.x, inputs.weights[0])
    out = gemmsmith.gemm(inputs.x, inputs.weights[0].t(), out=inputs.poisoned())
    assert peers.fault(out, right) == ""
    checked = bench.check_arms(inputs, gemmsmith.gemm, None)
    assert checked.missing == "the tensors are on the CPU"
