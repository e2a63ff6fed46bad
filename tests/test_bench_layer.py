from __future__ import annotations

import dataclasses

import pytest
import torch

from gemmsmith.bench import layer, layer_torch
from gemmsmith.bench.layer_parts import kernels_of, parts_of
from gemmsmith.bench.model_shapes import LinearShape, ModelShapes, load_model
from gemmsmith.bench.race import RaceReport
from gemmsmith.bench.race_text import race_report
from gemmsmith.errors import MeasureError, NoDeviceError
from gemmsmith.nn import Rotary
from gemmsmith.rope_math import rope_frequencies
from race_data import ENVIRONMENT, without_gpu

TINY = ModelShapes(
    model="tiny",
    head_dim=16,
    shapes=(
        LinearShape(op="qkv", n=128, k=64),
        LinearShape(op="attn_out", n=64, k=64),
        LinearShape(op="gate_up", n=192, k=64),
        LinearShape(op="down", n=64, k=96),
    ),
)
US = {
    "torch compiled": 20.0,
    "torch max-autotune": 18.0,
    "gemmsmith": 16.0,
    "gemmsmith int8": 12.0,
}


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    torch.manual_seed(1)
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)
    monkeypatch.setattr(layer, "KEYS", 40)
    return without_gpu(monkeypatch, US.__getitem__)


@torch.inference_mode()
def test_layer_races(timed: list[list[str]]) -> None:
    races = tuple(layer.race_layer(TINY, (100, 3), seconds=0.1, device="cpu"))
    assert timed == [list(US)] * 2
    assert [race.words for race in races] == [
        "layer decode tiny 3x96x64",
        "layer prefill tiny 100x96x64",
    ]
    for race in races:
        assert race.wrong == {}
        assert race.kernels["gemmsmith int8 down"] == "torch (the tensors are on the CPU)"
        assert race.figures["best torch / gemmsmith"] == 18 / 16
        assert race.figures["best torch / gemmsmith int8"] == 1.5
        errors = [race.figures[f"{arm} error %"] for arm in US]
        assert all(0 < error < 1 for error in errors[:3])
        assert errors[0] < errors[3] < 5
    report = RaceReport(environment=ENVIRONMENT, notes="", rivalries=layer.RIVALRIES, races=races)
    assert {s.rivalry.section: round(s.geomean, 3) for s in report.standings} == {
        "layer prefill": 1.5,
        "layer decode": 1.5,
    }
    assert "best torch / gemmsmith int8" in race_report(report, compact=True)


@pytest.mark.usefixtures("timed")
@torch.inference_mode()
def test_a_wrong_layer_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    right = layer.our_cache

    def forgetful(setting: layer.Setting) -> object:
        cache = right(setting)
        for memory in cache.layers:
            memory.v.fill_(5)
        return cache

    monkeypatch.setattr(layer, "our_cache", forgetful)
    (race,) = layer.race_layer(TINY, (3,), seconds=0.1, device="cpu")
    assert list(race.comparison.samples) == ["torch compiled", "torch max-autotune"]
    assert race.wrong["gemmsmith"].startswith("row ")
    assert "best torch / gemmsmith" not in race.figures


@torch.inference_mode()
def test_parts_are_what_the_layer_does() -> None:
    sizes = layer_torch.layer_sizes(TINY)
    setting = layer.new_setting(3, sizes, "cpu", keys=40)
    weights = layer_torch.new_weights(sizes, "cpu")
    rotary = Rotary(rope_frequencies(16, layer_torch.BASE))
    for int8 in (False, True):
        ours = layer.our_layer(weights, sizes, rotary, int8=int8)
        assert ours.constant_weight
        assert ours.constant_cache
        called = layer.Ours([ours], setting)
        (whole,) = (call() for call in called.arm())
        memory = called.cache.layer(0)
        parts = parts_of(ours, setting.x, called.positions, memory, called.keys)
        assert torch.equal(parts["down"](), whole)  # type: ignore[arg-type]
        assert list(kernels_of(parts)) == ["qkv", "attention", "o", "gate_up", "down"]
        assert {len(arm) for arm in called.parts().values()} == {4}


@pytest.mark.parametrize(
    ("model", "sizes"),
    [
        ("llama3-8b", (4096, 14336, 32, 8, 128)),
        ("llama3-70b", (8192, 28672, 64, 8, 128)),
        ("qwen2.5-7b", (3584, 18944, 28, 4, 128)),
        ("qwen2.5-14b", (5120, 13824, 40, 8, 128)),
        ("smollm2-135m", (576, 1536, 9, 3, 64)),
    ],
)
def test_every_model_has_a_layer(model: str, sizes: tuple[int, ...]) -> None:
    assert dataclasses.astuple(layer_torch.layer_sizes(load_model(model))) == sizes


def test_a_model_without_a_layer_is_refused() -> None:
    for shapes, head_dim in ((TINY.shapes, 0), (TINY.shapes[:3], 16), (TINY.shapes, 48)):
        with pytest.raises(MeasureError, match="tiny has no decoder layer: its file must hold"):
            layer_torch.layer_sizes(ModelShapes(model="tiny", shapes=shapes, head_dim=head_dim))


@pytest.mark.skipif(torch.cuda.is_available(), reason="is about machines without a GPU")
def test_no_gpu_is_told() -> None:
    with pytest.raises(NoDeviceError, match="a benchmark needs a GPU"):
        layer.run_layer("smollm2-135m")
