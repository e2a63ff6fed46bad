"""Which products are timed, by which arms, and that no wrong one is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import gemmsmith
from fakes import hopper
from gemmsmith.bench import gemm as bench
from gemmsmith.bench import peers
from gemmsmith.bench.model_shapes import load_model
from gemmsmith.dtypes import BF16, FP16, INT8, INT32
from gemmsmith.errors import LaunchError, MeasureError, NoDeviceError, NoKernelError
from gemmsmith.spec import Alignment
from product_data import M, N, inputs_fixture  # noqa: F401  fixture


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


def test_a_files_kernels_are_measured_in_what_they_take() -> None:
    half, brain = (replace(hopper(128), a=d, b=d, d=d) for d in (FP16, BF16))
    byte = replace(brain, a=INT8, b=INT8, acc=INT32, alignment=Alignment(16, 16, 8))
    assert bench.dtype_of([half, brain], None, "x.yaml") is None
    assert bench.dtype_of([half, brain], FP16, "x.yaml") == FP16
    assert bench.dtype_of([half, byte], None, "x.yaml") == FP16
    assert bench.dtype_of([brain], None, "x.yaml") == BF16
    with pytest.raises(MeasureError, match=r"^x.yaml has no GEMM that takes fp16$"):
        bench.dtype_of([brain], FP16, "x.yaml")
    with pytest.raises(MeasureError, match=r"no GEMM that takes bf16 or fp16: give --dtype int8"):
        bench.dtype_of([byte], None, "x.yaml")


@pytest.mark.skipif(torch.cuda.is_available(), reason="is about machines without a GPU")
def test_no_gpu_is_told(tmp_path: Path) -> None:
    with pytest.raises(NoDeviceError, match="a benchmark needs a GPU"):
        bench.run_bench("smollm2-135m", json_path=tmp_path / "new" / "out.json")
    assert not (tmp_path / "new").exists()


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
