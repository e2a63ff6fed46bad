"""The grid: its cells, its two ratios, its bands, and what it says."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch

from gemmsmith.bench import gemm as bench
from gemmsmith.bench import grid
from gemmsmith.bench.grid import GridReport, grid_arms, grid_cases, grid_text, own_ratio, run_grid
from gemmsmith.bench.peers import Inputs, make_inputs
from gemmsmith.bench.report import BenchRow
from gemmsmith.errors import MeasureError, NoDeviceError, NoKernelError
from race_data import ENVIRONMENT, compared


def row(m: int, times: Mapping[str, float], kernel: str = "ours", **more: Any) -> BenchRow:
    values: dict[str, Any] = {
        "model": "tiny",
        "op": "qkv",
        "n": 64,
        "k": 32,
        "dtype": "bf16",
        "element_bytes": 2,
        "wrong": {},
    }
    return BenchRow(m=m, comparison=compared(times), kernel=kernel, **{**values, **more})


ROWS = (
    row(1, {"torch": 12.0, "gemmsmith": 10.0}),
    row(16, {"torch": 10.0, "gemmsmith": 10.0, "mine": 12.5}, kernel="torch"),
    row(512, {"torch": 30.0, "gemmsmith": 25.0}),
    row(2048, {"torch": 110.0, "gemmsmith": 100.0}),
    row(2048, {"torch": 110.0, "gemmsmith": 101.0}, dtype="fp16"),
)
REPORT = GridReport(environment=ENVIRONMENT, rows=ROWS)


def test_the_grid_is_three_models_at_ten_sizes_and_twelve_spots_of_fp16() -> None:
    cases = grid_cases("llm")
    assert len(cases) == 3 * 4 * 10 + 12
    assert {case.m for case in cases} == {1, 4, 16, 64, 128, 256, 512, 1024, 2048, 8192}
    assert len({(case.n, case.k) for case in cases}) == 12
    spots = [case for case in cases if case.dtype.name == "fp16"]
    assert [case.m for case in spots] == [1, 64, 512, 2048] * 3
    assert len(grid_cases("llm", [16])) == 12
    with pytest.raises(MeasureError, match="grid 'all' is not known; use llm"):
        grid_cases("all")


def test_bands_tell_what_users_get_and_what_ours_gives() -> None:
    bands = {band.name: band for band in REPORT.bands}
    assert list(bands) == ["M 1..16", "M 128..1024", "M >= 2048", "all"]
    few = bands["M 1..16"]
    assert (few.cells, few.own_share) == (2, 0.5)
    assert few.geomean == pytest.approx(math.sqrt(1.2))
    assert few.worst == 1.0
    assert few.own_geomean == pytest.approx(math.sqrt(1.2 * 0.8))
    assert (few.own_worst, few.own_worst_cell) == (0.8, "tiny qkv 16x64x32 bf16")
    assert bands["all"].cells == 4  # fp16 apart
    assert bands["all"].own_share == 0.75
    ((twin, ratio),) = REPORT.twins
    assert twin.dtype == "fp16"
    assert ratio == pytest.approx(100 / 101)
    assert own_ratio(row(1, {"torch": 9.0}, kernel="torch")) is None


def test_the_report_as_text_and_json() -> None:
    text = grid_text(REPORT)
    assert "| M 1..16 (2)     |   1.095 | 1.000 |" in text
    assert "1.000 (0.800)" in text
    assert "fp16's ratio over bf16's:\ntiny qkv 2048x64x32 fp16: 0.990" in text
    assert "1.000 (0.800)" not in grid_text(REPORT, compact=True)
    promised = replace(REPORT, constant_b=True)
    assert "| torch / ours, constant b |" in grid_text(promised)
    assert promised.as_json()["constant_b"] is True
    facts = json.loads(json.dumps(REPORT.as_json()))
    assert facts["constant_b"] is False
    assert facts["bands"][-1]["own_share"] == 0.75
    assert facts["rows"][1]["best"]["kernel"] == "mine"
    lost = row(4, {"torch": 9.0}, kernel="", wrong={"gemmsmith": "k: NaN"})
    broken = GridReport(environment=ENVIRONMENT, rows=(*ROWS, lost))
    assert [arm for _, arm, _ in broken.wrong] == ["gemmsmith"]
    assert "- tiny qkv 4x64x32 bf16: gemmsmith: k: NaN" in grid_text(broken)
    assert {band.name: band.own_share for band in broken.bands}["all"] == 0.6


class _Gemm:
    """Multiplies, and says that it was ``name``."""

    def __init__(self, said: dict[str, tuple[str, str]], name: str, reason: str = "") -> None:
        self._said = said
        self._words = (name, reason)

    def __call__(
        self, a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        if self._words[0] == "none":
            raise NoKernelError("no kernel fits")
        self._said["last"] = self._words
        product = a.double() @ b.double()
        if self._words[0] == "wrong":
            product[0, 0] = 1e6
        return product.to(a.dtype) if out is None else out.copy_(product)


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> dict[str, tuple[str, str]]:
    last: dict[str, tuple[str, str]] = {}
    for module in (bench, grid):
        monkeypatch.setattr(module, "last_choice", lambda: last["last"])
    return last


@pytest.fixture
def inputs(monkeypatch: pytest.MonkeyPatch) -> Inputs:
    monkeypatch.setattr("gemmsmith.bench.peers.rotating", lambda make, size: (make(), make()))
    return make_inputs(8, 64, 32, torch.bfloat16, device="cpu")


def test_our_own_choice_is_an_arm_where_torch_was_chosen(
    said: dict[str, tuple[str, str]], inputs: Inputs
) -> None:
    found = grid_arms(inputs, _Gemm(said, "k1"), _Gemm(said, "k1"))
    assert (list(found.arms), found.kernel) == (["torch", "gemmsmith"], "k1")
    by_torch = _Gemm(said, "torch", "as the table says")
    found = grid_arms(inputs, by_torch, _Gemm(said, "k2"))
    assert (list(found.arms), found.kernel) == (["torch", "gemmsmith", "k2"], "torch")
    found = grid_arms(inputs, by_torch, _Gemm(said, "none"))
    assert found.missing == "as the table says; no kernel fits"
    found = grid_arms(inputs, by_torch, _Gemm(said, "wrong"))
    assert list(found.wrong) == ["wrong"]
    found = grid_arms(inputs, _Gemm(said, "wrong"), _Gemm(said, "k2"))
    assert list(found.wrong) == ["gemmsmith"]
    assert list(found.arms) == ["torch"]


def test_the_grid_needs_a_gpu() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(NoDeviceError, match="a benchmark needs a GPU"):
        run_grid("llm")
