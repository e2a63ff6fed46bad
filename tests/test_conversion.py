from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from gemmsmith import conversion_fit, nn
from gemmsmith.arch import ARCHITECTURES, SM_90A, Architecture
from gemmsmith.conversion import convert
from gemmsmith.dtypes import BF16
from gemmsmith.errors import ArgumentTypeError, NoDeviceError
from gemmsmith.kernelset import KernelSet, default_kernels, load


class Block(torch.nn.Module):
    """An embedding with a tied head, two layers that fit and some that do not."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(32, 16)
        self.up = torch.nn.Linear(16, 64)
        self.down = torch.nn.Linear(64, 16, bias=False)
        self.head = torch.nn.Linear(16, 32, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.down(self.up(self.embed(ids))))
        return logits


def block() -> Block:
    torch.manual_seed(3)
    model = Block().to(torch.bfloat16).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randint(-1, 2, parameter.shape))
    return model


def test_swaps_in_place_with_the_same_values() -> None:
    model, ids = block(), torch.arange(32)
    up = model.up
    with torch.no_grad():
        x = model.embed(ids).double()
        x = (x @ up.weight.double().t() + up.bias.double()).bfloat16().double()
        x = (x @ model.down.weight.double().t()).bfloat16().double()
        want = (x @ model.head.weight.double().t()).bfloat16()
        convert(model)
        assert torch.equal(model(ids), want)
    assert model.up is up
    assert all(type(layer) is nn.Linear for layer in (model.up, model.down, model.head))


def test_report_counts_flops_and_names_the_tie() -> None:
    report = convert(block())
    assert [(layer.name, layer.n, layer.k) for layer in report.swapped] == [
        ("up", 64, 16),
        ("down", 16, 64),
        ("head", 32, 16),
    ]
    assert [layer.flops_per_token for layer in report.swapped] == [2048, 2048, 1024]
    assert [layer.tied_to for layer in report.swapped] == ["", "", "embed.weight"]
    assert report.left == ()
    assert report.converted_flops_share == 1
    text = str(report)
    assert "3 linear layers swapped, 0 left: 100.0% of the linear FLOPs" in text
    assert "head (tied to embed.weight)" in text


def test_the_tie_and_the_state_survive() -> None:
    model = block()
    keys = list(model.state_dict())
    convert(model)
    assert model.head.weight is model.embed.weight
    assert list(model.state_dict()) == keys
    model.to(torch.float16)
    assert model.head.weight is model.embed.weight


def test_float32_is_left_with_what_to_do() -> None:
    report = convert(block().float())
    assert report.swapped == ()
    assert report.converted_flops_share == 0
    assert {layer.reason for layer in report.left} == {
        "dtype torch.float32 has no kernel; model.to(torch.bfloat16) first"
    }


def odd_sizes() -> torch.nn.Sequential:
    return torch.nn.Sequential(
        torch.nn.Linear(20, 16),
        torch.nn.Linear(16, 12),
        torch.nn.Linear(16, 16),
        torch.nn.Linear(16, 5, bias=False),
        torch.nn.Linear(7, 16, bias=False),
    ).half()


def test_the_given_kernels_decide_what_is_left(tmp_path: Path) -> None:
    """An odd N needs a kernel that stores any width, an odd K one without TMA."""
    aligned = tmp_path / "aligned.yaml"
    aligned.write_text(
        "families:\n"
        "  - {name: own, arch: sm_90a, dtype: fp16, schedule: pingpong, tile: [64, 64, 64]}\n"
    )
    k_words = "a: K={} is not a multiple of 8, which the kernel's 16 B accesses need"
    n_words = "d: N={} is not a multiple of 8, which the kernel's 16 B accesses need"
    report = convert(odd_sizes(), load(aligned, arch="sm_90a"))
    assert [layer.name for layer in report.swapped] == ["2"]
    assert {layer.name: layer.reason for layer in report.left} == {
        "0": k_words.format(20),
        "1": n_words.format(12),
        "3": n_words.format(5),
        "4": k_words.format(7),
    }
    assert report.converted_flops_share == pytest.approx(256 / (256 + 320 + 192 + 80 + 112))
    assert "left 0: a: K=20" in str(report)

    report = convert(odd_sizes(), default_kernels("sm_90a"))
    assert [layer.name for layer in report.swapped] == ["1", "2", "3"]
    assert {layer.name: layer.reason for layer in report.left} == {
        "0": k_words.format(20),
        "4": k_words.format(7),
    }
    assert convert(odd_sizes(), default_kernels("sm_80")).left == ()


@pytest.mark.parametrize(
    ("capability", "left"), [((8, 0), []), ((9, 0), ["0", "4"]), ((7, 5), []), (None, [])]
)
def test_without_given_kernels_those_of_this_machine_decide(
    capability: tuple[int, int] | None, left: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a model that is on no GPU yet; any architecture's where this machine has no known GPU."""
    here = () if capability is None else (SimpleNamespace(capability=capability),)
    monkeypatch.setattr(conversion_fit, "devices", lambda: here)
    assert [layer.name for layer in convert(odd_sizes()).left] == left


def test_a_driver_that_does_not_answer_is_no_hindrance(monkeypatch: pytest.MonkeyPatch) -> None:
    def silent() -> None:
        raise NoDeviceError("the NVIDIA driver does not answer")

    monkeypatch.setattr(conversion_fit, "devices", silent)
    assert convert(odd_sizes()).left == ()


@pytest.mark.parametrize("arch", ARCHITECTURES, ids=lambda arch: str(arch.name))
def test_what_is_swapped_has_a_kernel_for_it(arch: Architecture) -> None:
    """``left`` says what misfit says of the kernels, for every remainder of N and K."""
    kernels = default_kernels(arch.name)
    dtype = torch.bfloat16 if BF16 in arch.inputs else torch.float16
    unaligned = any(spec.alignment.a == 1 for spec in kernels.specs)
    narrow = any(spec.alignment.d == 1 for spec in kernels.specs)
    for n, k in [(64 + n, 64 + k) for n in range(8) for k in range(8)]:
        report = convert(torch.nn.Linear(k, n, device="meta", dtype=dtype), kernels)
        fits = unaligned or (k % 8 == 0 and (narrow or n % 8 == 0))
        assert bool(report.swapped) == fits, (n, k, str(report))


def test_a_set_of_another_kind_is_named(tmp_path: Path) -> None:
    file = tmp_path / "own.yaml"
    family = "  - {{name: {}, arch: sm_90a, schedule: pingpong, tile: [64, 64, 64], {}}}\n"
    wide = family.format("wide", "dtype: {a: bf16, d: fp32}")
    plain = family.format("plain", "dtype: bf16, epilogue: {bias: false}")
    file.write_text("families:\n" + wide)
    (layer,) = convert(torch.nn.Linear(64, 64).bfloat16(), load(file, arch="sm_90a")).left
    assert layer.reason == (
        "the kernel computes bf16 @ bf16 -> fp32, the call is bf16 @ bf16 -> bf16"
    )
    file.write_text("families:\n" + wide + plain)
    (layer,) = convert(torch.nn.Linear(64, 64).bfloat16(), load(file, arch="sm_90a")).left
    assert layer.reason == "the kernel has no bias (epilogue.bias is false)"
    file.write_text(
        "families:\n"
        + family.format("columns", "dtype: bf16, layout: rcc, epilogue: {bias: false}")
    )
    columns = load(file, arch="sm_90a")
    (layer,) = convert(torch.nn.Linear(64, 64, bias=False).bfloat16(), columns).left
    assert layer.reason.startswith(
        "d: M=1 is not a multiple of 8"
    )  # one token, and it writes columns
    empty = KernelSet([], arch=SM_90A, source="nothing")
    assert convert(torch.nn.Linear(64, 64).bfloat16(), empty).left[0].reason == (
        "the set has no kernels"
    )


def test_subclasses_keep_their_own_forward() -> None:
    class Lora(torch.nn.Linear):
        pass

    model = torch.nn.Sequential(Lora(16, 16), torch.nn.Linear(16, 16)).bfloat16()
    report = convert(model)
    assert type(model[0]) is Lora
    assert [layer.name for layer in report.swapped] == ["1"]
    assert "Lora, not exactly a torch.nn.Linear" in report.left[0].reason


def test_a_replaced_forward_is_not_undone() -> None:
    linear = torch.nn.Linear(16, 16).bfloat16()
    vars(linear)["forward"] = torch.nn.Identity()
    report = convert(torch.nn.Sequential(linear))
    assert type(linear) is torch.nn.Linear
    assert "forward is replaced on the object" in report.left[0].reason


def test_bias_of_another_dtype_is_left() -> None:
    linear = torch.nn.Linear(16, 16).bfloat16()
    linear.bias = torch.nn.Parameter(linear.bias.float())
    reason = convert(torch.nn.Sequential(linear)).left[0].reason
    assert reason == "bias is torch.float32, weight is torch.bfloat16; give both one dtype"


def test_a_shared_layer_is_swapped_for_both_holders() -> None:
    shared = torch.nn.Linear(16, 16).bfloat16()
    first = torch.nn.Sequential(shared)
    model = torch.nn.ModuleDict({"a": first, "b": shared})
    report = convert(model)
    assert len(report.swapped) == 1
    assert type(first[0]) is nn.Linear
    assert model["b"] is first[0]


def test_hooks_stay() -> None:
    model, seen = block(), []
    model.up.register_forward_hook(lambda *_: seen.append("up"))
    convert(model)
    with torch.no_grad():
        model(torch.arange(4))
    assert seen == ["up"]


def test_a_second_conversion_finds_all_done() -> None:
    model = block()
    convert(model)
    report = convert(model)
    assert report.swapped == report.left == ()
    assert [layer.name for layer in report.already] == ["up", "down", "head"]
    assert report.converted_flops_share == 1
    assert "3 ran on gemmsmith before" in str(report)


def test_the_model_may_be_one_layer() -> None:
    model = torch.nn.Linear(16, 8).bfloat16()
    report = convert(model)
    assert type(model) is nn.Linear
    assert report.swapped[0].name == ""
    assert "(the model)" in str(report)
    assert str(report).startswith("1 linear layer swapped, 0 left")


def test_a_model_without_layers() -> None:
    report = convert(torch.nn.ReLU())
    assert report.converted_flops_share == 0
    assert str(report).startswith("0 linear layers swapped, 0 left")


def test_layers_may_be_tied_to_kernels(tmp_path: Path) -> None:
    file = tmp_path / "own.yaml"
    file.write_text(
        "families:\n"
        "  - {name: own, arch: sm_90a, dtype: bf16, schedule: pingpong, tile: [64, 64, 64]}\n"
    )
    kernels, model, plain = load(file, arch="sm_90a"), block(), block()
    convert(model, kernels)
    convert(plain)
    assert model.up.kernels == model.head.kernels == kernels.handle != ""
    assert plain.up.kernels == ""
    with torch.no_grad():
        assert torch.equal(model(torch.arange(32)), plain(torch.arange(32)))


def test_a_converted_model_compiles_to_one_graph() -> None:
    model, ids = block(), torch.arange(32)
    convert(model)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    with torch.inference_mode():
        assert torch.equal(compiled(ids), model(ids))
        assert torch.equal(compiled(ids[:7]), model(ids[:7]))


def test_a_model_compiled_before_its_conversion_notices() -> None:
    model, ids = block(), torch.arange(32)
    graphs: list[str] = []

    def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> torch.fx.GraphModule:
        graphs.append(str(graph.graph))
        return graph

    compiled = torch.compile(model, fullgraph=True, backend=backend)
    with torch.no_grad():
        compiled(ids)
        convert(model)
        compiled(ids)
    assert ["gemmsmith" in graph for graph in graphs] == [False, True]


@pytest.mark.parametrize("value", [None, 5, torch.nn.Linear])
def test_what_is_no_module_is_refused(value: object) -> None:
    with pytest.raises(ArgumentTypeError, match=r"^model is a \w+, not a torch\.nn\.Module$"):
        convert(value)  # type: ignore[arg-type]
