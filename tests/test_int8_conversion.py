"""``convert(model, dtype="int8")``: what is swapped, what is proven, what stays and why."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from gemmsmith import nn, proof
from gemmsmith.bench.model_shapes import load_model
from gemmsmith.conversion import convert
from gemmsmith.errors import ArgumentError, ArgumentTypeError
from gemmsmith.proof import Timing


class Block(torch.nn.Module):
    """An embedding with a tied head, a layer whose input has one huge column, an unused layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(64, 48)
        self.up = torch.nn.Linear(48, 100)
        self.down = torch.nn.Linear(100, 48, bias=False)
        self.spoilt = torch.nn.Linear(48, 48)
        self.unused = torch.nn.Linear(48, 48)
        self.lm_head = torch.nn.Linear(48, 64, bias=False)
        self.lm_head.weight = self.embed.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.down(torch.relu(self.up(self.embed(ids))))
        huge = x.clone()
        huge[..., 5] = 100 * x.abs().amax()
        logits: Tensor = self.lm_head(input=x) + self.spoilt(huge).mean()
        return logits


def block() -> Block:
    torch.manual_seed(3)
    model = Block().bfloat16().eval()
    model.spoilt.weight.data[:, 5] = 0  # what the others bring drowns in the huge column's steps
    return model


IDS = torch.arange(64)[None]


def test_layers_are_swapped_with_a_proof_and_those_that_lose_stay() -> None:
    model = block()
    weights = {name: value.clone() for name, value in model.named_parameters()}
    up, embed = model.up, model.embed.weight
    seen: list[str] = []
    model.down.register_forward_hook(lambda *_: seen.append("down"))
    report = convert(model, dtype="int8", samples=IDS)
    assert [layer.name for layer in report.swapped] == ["up", "down", "lm_head"]
    assert {layer.name for layer in report.left} == {"spoilt", "unused"}
    reasons = {layer.name: layer.reason for layer in report.left}
    assert "no sample input reaches it" in reasons["unused"]
    assert reasons["spoilt"].startswith("int8 is off by ")
    assert "max_error" in reasons["spoilt"]
    assert type(model.spoilt) is type(model.unused) is torch.nn.Linear
    assert torch.equal(model.spoilt.weight, weights["spoilt.weight"])
    assert model.up is up
    assert type(model.up) is type(model.lm_head) is nn.Int8Linear
    assert model.embed.weight is embed
    assert torch.equal(embed, weights["embed.weight"])
    assert report.swapped[2].tied_to == "embed.weight"
    for layer in report.swapped:
        found = layer.proof
        assert found is not None
        assert found.rows == 64
        assert not found.random
        assert found.kernel == "cpu"
        assert found.speedup is None
        assert 1e-3 < found.relative_error < 0.04
        assert 0 < found.largest_error < 0.1 * found.largest_output
    assert report.swapped[0].preparation == "padded from 100x48 to 112x48"
    text = str(report)
    assert "3 linear layers swapped, 2 left: 73.3%" in text
    assert "padded from 100x48 to 112x48" in text
    assert "on samples" in text
    table = report.proofs()
    assert "| spoilt" in table
    assert "cpu (left)" in table
    seen.clear()
    with torch.no_grad():
        right, found = block()(IDS).double(), model(IDS).double()
    assert (found - right).norm() / right.norm() < 0.05
    assert seen == ["down"]


def test_the_proof_is_the_difference_to_the_exact_product() -> None:
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(64, 32)).bfloat16()
    before = torch.nn.Linear(64, 32).bfloat16()
    before.load_state_dict(model[0].state_dict())
    x = torch.randn(300, 64).bfloat16()
    report = convert(model, dtype=torch.int8, samples={"0": x})
    found = report.swapped[0].proof
    assert found is not None
    assert found.rows == 256  # evenly spread
    kept = x[torch.linspace(0, 299, 256).long()]
    with torch.no_grad():
        exact = kept.double() @ before.weight.double().t() + before.bias.double()
        off = model(kept).double() - exact
    assert found.largest_error == pytest.approx(float(off.abs().max()))
    assert found.largest_output == pytest.approx(float(exact.abs().max()))
    assert found.relative_error == pytest.approx(float(off.norm() / exact.norm()))


def test_samples_choose_column_scales_and_the_proofs_tell_them() -> None:
    torch.manual_seed(1)
    x = torch.randn(300, 64).bfloat16()
    x[:, 5] *= 60
    x[:, 9] *= 30
    model = torch.nn.Sequential(torch.nn.Linear(64, 80), torch.nn.Linear(80, 16)).bfloat16()
    twin, first = copy.deepcopy(model), torch.nn.Linear(64, 80).bfloat16()
    first.load_state_dict(model[0].state_dict())
    plain = proof.prove(first, nn.Int8Linear.from_torch(first), x, random=False)
    report = convert(model, dtype="int8", samples=x)
    assert report.left == ()
    layer = model[0]
    assert isinstance(layer, nn.Int8Linear)
    assert layer.column_scale is not None
    assert layer.column_scale[5] < layer.column_scale[9] < layer.column_scale.median()
    found = report.swapped[0].proof
    assert found is not None
    assert found.smoothing in (0.3, 0.4, 0.5, 0.6, 0.7, 0.8)
    assert found.relative_error < 0.6 * plain.relative_error
    head, _, row, *_ = report.proofs().splitlines()
    column = [word.strip() for word in head.split("|")].index("smoothed")
    assert row.split("|")[column].strip() == f"{found.smoothing:g}"
    fresh = nn.Int8Linear(64, 80, dtype=torch.bfloat16)
    fresh.load_state_dict(layer.state_dict())
    with torch.no_grad():
        assert torch.equal(fresh(x), layer(x))

    unsampled = convert(twin, dtype="int8", max_error=1)
    assert len(unsampled.swapped) == 2
    assert all(each.proof and each.proof.smoothing is None for each in unsampled.swapped)
    assert not any("column_scale" in name for name in twin.state_dict())


def test_maxima_are_of_all_calls_and_all_rows() -> None:
    class Twice(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(16, 16).bfloat16()

        def forward(self, x: Tensor) -> Tensor:
            both: Tensor = self.layer(x) + self.layer(-3 * x)
            return both

    model, x = Twice(), torch.randn(700, 16).bfloat16()
    x[333, 4], x[5, 6] = 99, torch.inf
    found = proof.sample_inputs(model, {"layer": model.layer}, x)["layer"]
    assert len(found.rows) == 256
    right = 3 * x
    right[5, 6] = 0
    assert found.largest is not None
    assert torch.equal(found.largest, right.abs().amax(0))
    assert found.largest[4] == 297
    finite = proof.Sample(rows=right[:100], largest=found.largest)
    assert finite.smoothing(model.layer) is not None
    bad = proof.Sample(rows=x[:100], largest=found.largest)  # of these nothing is proven
    assert bad.smoothing(model.layer) is None


def test_without_samples_random_inputs_prove_and_the_report_says_so() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(64, 32)).bfloat16()
    report = convert(model, dtype="int8")
    found = report.swapped[0].proof
    assert found is not None
    assert found.random
    assert "on random inputs" in str(report)


def test_the_threshold_decides() -> None:
    assert convert(block(), dtype="int8", samples=IDS, max_error=1e-4).swapped == ()
    loose = convert(block(), dtype="int8", samples=IDS, max_error=10)
    assert [layer.name for layer in loose.left] == ["unused"]


def test_nan_is_no_proof() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(64, 32)).bfloat16()
    x = torch.full((4, 64), torch.nan).bfloat16()
    (layer,) = convert(model, dtype="int8", samples={"0": x}).left
    assert layer.reason.startswith("no row of finite numbers of the sample input reaches it")


def test_named_layers_are_skipped() -> None:
    model = block()
    report = convert(model, dtype="int8", samples=IDS, skip=("lm_head", "up"))
    assert [layer.name for layer in report.swapped] == ["down"]
    assert {layer.name for layer in report.left if layer.reason == "it is in skip"} == {
        "lm_head",
        "up",
    }
    assert model.lm_head.weight is model.embed.weight
    with pytest.raises(ArgumentError, match=r"skip has 'lmhead', .* nearest is lm_head"):
        convert(model, skip=("lmhead",))
    with pytest.raises(ArgumentTypeError, match=r"pass \('up',\)"):
        convert(model, skip="up")


def test_a_second_conversion_finds_the_first_ones_layers() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.Linear(32, 16)).bfloat16()
    convert(model)
    report = convert(model, dtype="int8")  # of layers that ran on gemmsmith in bf16
    assert [layer.name for layer in report.swapped] == ["0", "1"]
    for again in (convert(model, dtype="int8"), convert(model)):
        assert [layer.name for layer in again.already] == ["0", "1"]
        assert again.swapped == again.left == ()


def test_a_slower_layer_stays_and_says_its_times(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []

    def times(before: Any, after: Any, tokens: Any) -> tuple[Timing, ...]:
        asked.append((before.out_features, before.in_features))
        slow = before.in_features == 32
        return tuple(Timing(tokens=m, before_us=4.0, after_us=8.0 if slow else 2.0) for m in tokens)

    monkeypatch.setattr("gemmsmith.conversion_int8.measure_times", times)

    def model() -> torch.nn.Module:
        sizes = ((64, 32), (32, 16), (16, 64), (64, 32))
        return torch.nn.Sequential(*(torch.nn.Linear(k, n) for k, n in sizes)).bfloat16()

    report = convert(model(), dtype="int8", tokens=(8, 512))
    assert asked == [(32, 64), (16, 32), (64, 16)]  # each kind once
    (left,) = report.left
    assert left.reason == (
        "int8 is no faster: 8.0 µs against 4.0 at 8 tokens,"
        " 8.0 µs against 4.0 at 512 tokens (min_speedup 1)"
    )
    assert report.swapped[0].proof is not None
    assert report.swapped[0].proof.speedup == pytest.approx(2.0)
    assert "2.00 times as fast" in str(report)
    assert "M 512" in report.proofs()
    assert convert(model(), dtype="int8", min_speedup=0).left == ()


def test_a_layer_that_torch_would_compute_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    from gemmsmith.choose import Tuning
    from gemmsmith.ops import LaunchRecord

    record = LaunchRecord(name="torch", reason="nothing is built", tuning=Tuning(), copied=())
    monkeypatch.setattr(proof, "last_kernel", lambda: record)
    model = torch.nn.Sequential(torch.nn.Linear(64, 32)).bfloat16()
    (layer,) = convert(model, dtype="int8").left
    assert layer.reason == "no kernel takes it: nothing is built"
    assert type(model[0]) is torch.nn.Linear


def test_what_cannot_be_converted_says_why() -> None:
    (layer,) = convert(torch.nn.Linear(64, 32), dtype="int8").left
    assert "torch.float32 has no kernel" in layer.reason
    with pytest.raises(ArgumentError, match="dtype is 'int4'; 'int8' or None"):
        convert(block(), dtype="int4")
    with pytest.raises(ArgumentError, match='pass dtype="int8" too'):
        convert(block(), samples=IDS)
    with pytest.raises(ArgumentError, match="samples has 'embed', which is no linear layer"):
        convert(block(), dtype="int8", samples={"embed": IDS})
    with pytest.raises(ArgumentError, match=r"samples\['up'\] must be \(..., 48\)"):
        convert(block(), dtype="int8", samples={"up": torch.ones(3, 47)})
    with pytest.raises(ArgumentTypeError, match="samples is a list"):
        convert(block(), dtype="int8", samples=[1, 2])  # type: ignore[arg-type]


def test_arguments_that_no_layer_can_be_measured_by_are_refused_first() -> None:
    model = block()
    refused: tuple[tuple[str, Any, type[Exception], str], ...] = (
        ("max_error", "x", ArgumentTypeError, "max_error is 'x'; a number"),
        ("max_error", -1, ArgumentError, "max_error is -1; 0 or more"),
        ("max_error", float("nan"), ArgumentError, "max_error is nan; 0 or more"),
        ("min_speedup", "x", ArgumentTypeError, "min_speedup is 'x'; a number"),
        ("min_speedup", -0.5, ArgumentError, r"min_speedup is -0\.5; 0 or more"),
        ("tokens", (), ArgumentError, "tokens is empty"),
        ("tokens", 16, ArgumentTypeError, "tokens is 16; a tuple"),
        ("tokens", "16", ArgumentTypeError, "tokens is '16'; a tuple"),
        ("tokens", (16, 0.5), ArgumentTypeError, r"tokens holds 0\.5; whole"),
        ("tokens", (16, 0), ArgumentError, "tokens holds 0; 1 or more"),
        ("blocks", "x", ArgumentTypeError, "blocks is 'x'; True or False"),
    )
    for name, value, error, words in refused:
        for dtype in (None, "int8"):
            with pytest.raises(error, match=words):
                convert(model, dtype=dtype, **{name: value})
    of_int8: dict[str, Any] = {"max_error": 0.5, "min_speedup": 0, "tokens": [8]}
    for name, value in of_int8.items():
        with pytest.raises(ArgumentError, match=rf'{name} is .*; pass dtype="int8" too'):
            convert(model, **{name: value})
    assert type(model.up) is torch.nn.Linear


def test_numbers_for_a_model_of_ids_are_told_from_ids() -> None:
    model = block()
    with pytest.raises(ArgumentTypeError, match=r"samples is torch\.float32, which .* 'embed'"):
        convert(model, dtype="int8", samples=torch.rand(1, 8))
    assert not model.embed._forward_pre_hooks


def llama3_8b(layers: int) -> torch.nn.Module:
    """Linear layers of Llama-3 8B's shapes on ``meta``: as its blocks have them, and the head."""
    shapes = load_model("llama3-8b").shapes
    blocks = [
        torch.nn.ModuleDict(
            {shape.op: torch.nn.Linear(shape.k, shape.n, bias=False) for shape in shapes}
        )
        for _ in range(layers)
    ]
    model = torch.nn.ModuleDict(
        {"layers": torch.nn.ModuleList(blocks), "lm_head": torch.nn.Linear(4096, 128256, False)}
    )
    return model.bfloat16()


def test_nearly_all_of_llama3_8b_is_converted() -> None:
    with torch.device("meta"):
        model = llama3_8b(32)
    report = convert(model, dtype="int8")
    print(f"\n{report}")
    assert len(report.swapped) == 4 * 32 + 1
    assert report.converted_flops_share >= 0.9
    assert all(layer.proof is None for layer in report.swapped)  # meta has no numbers
    held = sum(each.numel() * each.element_size() for each in model.parameters())
    elements = sum(layer.n * layer.k for layer in report.swapped)
    assert elements <= held <= 1.002 * elements  # a byte a weight, and the scales


@pytest.mark.gpu
def test_a_llama3_8b_block_is_proven_and_faster() -> None:
    """One block with weights on the GPU: each layer by one of our kernels, faster than torch."""
    with torch.device("cuda"):
        torch.manual_seed(2)
        model = llama3_8b(1)
    report = convert(model, dtype="int8")
    print(f"\n{report}\n{report.proofs()}")
    assert report.converted_flops_share >= 0.9
    for layer in report.swapped:
        assert layer.proof is not None
        assert layer.proof.kernel.startswith("gemm_int8")
        assert layer.proof.speedup is not None
        assert layer.proof.speedup > 1
