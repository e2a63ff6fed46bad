from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

import gemmsmith
from gemmsmith import nn
from gemmsmith.bench import epilogues, ffn, rivals
from gemmsmith.bench.model_shapes import LinearShape, ModelShapes, load_model
from gemmsmith.bench.race import GROUPS, RaceReport
from gemmsmith.bench.race_text import race_report
from gemmsmith.errors import MeasureError, NoDeviceError
from race_data import ENVIRONMENT, race_of, without_gpu

H, I = 64, 96  # noqa: E741  hidden and inner features
TINY = ModelShapes(
    model="tiny",
    shapes=(LinearShape(op="gate_up", n=2 * I, k=H), LinearShape(op="down", n=H, k=I)),
)
US = {
    "torch compiled": 20.0,
    "torch eager": 24.0,
    "gemmsmith": 16.0,
    "gemmsmith int8": 10.0,
    "bare": 10.0,
    "with epilogue": 11.0,
}


class FakeInt8FeedForward(torch.nn.Module):
    """A block that quantises nothing."""

    def __init__(self, gate: torch.nn.Linear, up: torch.nn.Linear, down: torch.nn.Linear) -> None:
        super().__init__()
        self.gate, self.up, self.down = gate, up, down

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gemmsmith.gemm(x, self.gate.weight.t())
        hidden: Any = torch.nn.functional.silu(self.gate(x)) * self.up(x)
        result: torch.Tensor = self.down(hidden)
        return result


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    torch.manual_seed(1)
    record = SimpleNamespace(name="chosen", reason="")
    monkeypatch.setattr(gemmsmith, "last_kernel", lambda: record, raising=False)
    monkeypatch.setattr(ffn, "rotating", lambda make, size: (make(), make()))
    monkeypatch.setattr(nn, "Int8FeedForward", FakeInt8FeedForward, raising=False)
    monkeypatch.setattr(ffn, "compiled_arm", lambda task, any_m: rivals.eager_arm(task))
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)
    return without_gpu(monkeypatch, US.__getitem__)


def test_block_races(timed: list[list[str]]) -> None:
    races = tuple(ffn.race_ffn(TINY, (40, 1), seconds=0.1, device="cpu"))
    up, block = ["torch compiled", "torch eager", "gemmsmith"], [*("torch compiled", "gemmsmith")]
    assert timed == [up, [*block, "gemmsmith int8"]] * 2
    assert [race.words for race in races] == [
        "swiglu up tiny 1x192x64",
        "ffn tiny 1x96x64",
        "swiglu up tiny 40x192x64",
        "ffn tiny 40x96x64",
    ]
    assert set(races[1].figures) == {
        "torch compiled error %",
        "gemmsmith error %",
        "gemmsmith int8 error %",
    }
    assert all(0 < error < 1 for error in races[1].figures.values())
    report = RaceReport(environment=ENVIRONMENT, notes="", rivalries=ffn.RIVALRIES, races=races)
    small = {(s.rivalry.section, s.rivalry.over, s.rivalry.under): s for s in report.standings}
    assert {key: round(s.geomean, 3) for key, s in small.items()} == {
        ("swiglu up", "torch eager", "gemmsmith"): 1.5,
        ("swiglu up", "torch compiled", "gemmsmith"): 1.25,
        ("ffn", "torch compiled", "gemmsmith"): 1.25,
        ("ffn", "torch compiled", "gemmsmith int8"): 2.0,
    }
    assert "| gemmsmith int8 error % |" in race_report(report, compact=True)
    assert not report.wrong


@pytest.mark.usefixtures("timed")
def test_without_the_int8_layer_its_arm_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(nn, "Int8FeedForward")
    _, block = ffn.race_ffn(TINY, (3,), seconds=0.1, device="cpu")
    assert list(block.comparison.samples) == ["torch compiled", "gemmsmith"]
    assert block.missing == {"gemmsmith int8": "gemmsmith.nn has no Int8FeedForward"}


@pytest.mark.usefixtures("timed")
def test_a_wrong_block_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    right = ffn.our_block
    monkeypatch.setattr(ffn, "our_block", lambda x, ready, down: right(x, ready.flip(0), down))
    _, block = ffn.race_ffn(TINY, (3,), seconds=0.1, device="cpu")
    assert list(block.comparison.samples) == ["torch compiled", "gemmsmith int8"]
    assert block.wrong["gemmsmith"].startswith("row ")
    assert "gemmsmith error %" not in block.figures


@pytest.mark.parametrize("model", ["llama3-8b", "llama3-70b", "qwen2.5-7b", "smollm2-135m"])
def test_every_model_has_a_block(model: str) -> None:
    hidden, inner = ffn.sizes(load_model(model))
    assert 2 < inner / hidden < 6


def test_a_model_without_a_gate_is_refused() -> None:
    shapes = (LinearShape(op="gate_up", n=I, k=H), LinearShape(op="down", n=H, k=I))
    with pytest.raises(MeasureError, match="no gated feed-forward block"):
        ffn.sizes(ModelShapes(model="gpt2", shapes=shapes))


def test_cost_of_an_epilogue_is_beyond_its_bytes() -> None:
    race = race_of(8192, {"bare": 100.0, "with epilogue": 110.0}, n=4096)
    found = epilogues.costs(race, 4000.0)
    bytes_added = 2 * (8192 * 4096 + 4096)
    assert found["added bytes µs"] == pytest.approx(bytes_added / 4e12 * 1e6)
    assert found["extra %"] == pytest.approx(10 - bytes_added / 4e12 * 1e6)
    alone = race_of(8192, {"bare": 100.0}, n=4096)
    assert set(epilogues.costs(alone, 4000.0)) == {"added bytes µs"}


def test_epilogue_races(timed: list[list[str]]) -> None:
    races = tuple(
        epilogues.race_epilogues(TINY, (512,), copy_gbs=4000.0, seconds=0.1, device="cpu")
    )
    assert timed == [["bare", "with epilogue"]] * 2
    assert [race.words for race in races] == [
        "epilogue tiny gate_up 512x192x64",
        "epilogue tiny down 512x64x96",
    ]
    added = 2 * (512 * 192 + 192) / 4e6
    assert races[0].figures["extra %"] == pytest.approx(10 - 10 * added)


def test_groups_are_known() -> None:
    rivalries = (*ffn.RIVALRIES, *epilogues.RIVALRIES)
    assert {group for rivalry in rivalries for group in rivalry.groups} <= set(GROUPS)


@pytest.mark.skipif(torch.cuda.is_available(), reason="is about machines without a GPU")
def test_no_gpu_is_told() -> None:
    for run in (ffn.run_ffn, epilogues.run_epilogues):
        with pytest.raises(NoDeviceError, match="a benchmark needs a GPU"):
            run("smollm2-135m")
