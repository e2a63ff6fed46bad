"""Gated blocks on the CPU and, marked ``gpu``, on the kernels: the same tests."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from gemmsmith import nn
from gemmsmith.errors import ArgumentError
from layer_data import BF16, exact, linear, numbers, on_each, outliers, relative


def reference(gate: Any, up: Any, down: Any, x: Tensor, kind: str = "silu") -> Tensor:
    function = functional.silu if kind == "silu" else _gelu_tanh
    inner = function(exact(gate, x)) * exact(up, x)
    return exact(down, inner)


def _gelu_tanh(x: Tensor) -> Tensor:
    return functional.gelu(x, approximate="tanh")


BLOCKS = [(nn.FeedForward, 0.01), (nn.Int8FeedForward, 0.04)]


@on_each
@pytest.mark.parametrize("kind", ["silu", "gelu_tanh"])
@pytest.mark.parametrize(("k", "hidden"), [(64, 96), (40, 50)])
@pytest.mark.parametrize(("block", "bound"), BLOCKS)
def test_y16_a_block_gates_with_its_gate(
    block: type[nn.FeedForward], bound: float, k: int, hidden: int, kind: Any, device: str
) -> None:
    gate, up = linear(k, hidden, device=device), linear(k, hidden, device=device)
    up.weight.mul_(-0.7)
    up.bias.add_(0.5)
    down, x = linear(hidden, 24, device=device), numbers(2, 3, k, device=device)
    ours = block(gate, up, down, kind)
    y = ours(x)
    assert y.shape == (2, 3, 24)
    right = reference(gate, up, down, x, kind)
    assert relative(y, right) < bound
    assert relative(block(up, gate, down, kind)(x), right) > 5 * bound
    for order, halves in (("gate_up", (gate, up)), ("up_gate", (up, gate))):
        fused = linear(k, 2 * hidden, device=device)
        fused.weight.copy_(torch.cat([half.weight for half in halves]))
        fused.bias.copy_(torch.cat([half.bias for half in halves]))
        assert torch.equal(block.from_fused(fused, down, order, kind)(x), y)  # type: ignore[arg-type]


@on_each
@pytest.mark.parametrize("hidden", [96, 50])
def test_samples_scale_the_columns_of_both_layers_of_a_block(hidden: int, device: str) -> None:
    gate, up = linear(64, hidden, device=device), linear(64, hidden, device=device)
    down, x = linear(hidden, 24, device=device), outliers(2, 9, 64, device=device)
    up.weight[5] *= 80  # an outlier between the two products
    gate.bias.add_(1)
    right = reference(gate, up, down, x)
    plain = nn.Int8FeedForward(gate, up, down)
    ours = nn.Int8FeedForward(gate, up, down, "silu", outliers(64, 64, device=device))
    y = ours(x)
    assert relative(y, right) < 0.7 * relative(plain(x), right)
    stored = ours.state_dict()
    assert stored["gate_up.column_scale"].shape == (64,)
    assert stored["down.column_scale"].shape == (hidden,)
    assert stored["down.column_scale"][5] < stored["down.column_scale"].median()
    plain.load_state_dict(stored)
    assert torch.equal(plain(x), y)
    fused = linear(64, 2 * hidden, device=device)
    fused.weight.copy_(torch.cat((gate.weight, up.weight)))
    fused.bias.copy_(torch.cat((gate.bias, up.bias)))
    samples = outliers(64, 64, device=device)
    again = nn.Int8FeedForward.from_fused(fused, down, "gate_up", "silu", samples)
    assert torch.equal(again(x), y)
    ours.apart[BF16] = "a test"
    assert relative(ours(x), y.cpu().double()) < 0.02


@pytest.mark.parametrize("block", [nn.FeedForward, nn.Int8FeedForward])
def test_a_block_keeps_its_state_in_the_form_it_was_given(block: type[nn.FeedForward]) -> None:
    gate, up, down, x = linear(40, 50), linear(40, 50), linear(50, 24), numbers(3, 40)
    up.weight.mul_(-1)
    ours, other = block(gate, up, down), block(up, gate, down)
    stored = ours.state_dict()
    assert stored["gate_up.gate.weight"].shape == (50, 40)
    if block is nn.FeedForward:
        assert torch.equal(stored["gate_up.gate.weight"], gate.weight)
        assert torch.equal(stored["gate_up.up.weight"], up.weight)
        assert torch.equal(stored["gate_up.up.bias"], up.bias)
    assert not torch.equal(other(x), ours(x))
    other.load_state_dict(stored)
    assert torch.equal(other(x), ours(x))
    for made in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
        assert torch.equal(made(x), ours(x))
    compiled = torch.compile(ours, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x), ours(x))


@pytest.mark.parametrize("block", [nn.FeedForward, nn.Int8FeedForward])
def test_without_a_gated_kernel_a_product_and_a_gate_do(block: type[nn.FeedForward]) -> None:
    gate, up, down, x = linear(40, 50), linear(40, 50), linear(50, 24), numbers(3, 40)
    ours = block(gate, up, down)
    assert ours.apart == {}
    in_one = ours(x)
    ours.apart[BF16] = "a test"
    apart = ours(x)
    assert relative(apart, in_one.double()) < 0.03
    assert relative(apart, reference(gate, up, down, x)) < 0.04
    if isinstance(ours, nn.Int8FeedForward):
        down8 = ours.down
        assert isinstance(down8, nn.Int8Linear)
        down8.use_input_scale(0.05)
        assert relative(ours(x), reference(gate, up, down, x)) < 0.06


def test_the_reason_for_two_kernels_names_architecture_and_types(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from gemmsmith.nn import feed_forward

    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    why = feed_forward.why_apart.__wrapped__
    device = torch.device("cuda", 0)
    reason = why(device, BF16, True, 192, 64, False, "silu")
    assert reason.startswith("sm_80: ")
    assert "silu" in reason
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    assert why(device, BF16, True, 192, 64, False, "silu") == ""
    assert why(device, BF16, False, 192, 64, False, "silu") == ""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (6, 0))
    assert why(device, BF16, False, 192, 64, False, "silu") != ""


def test_layers_that_do_not_fit_each_other_are_refused() -> None:
    gate, up, down = linear(40, 48), linear(40, 48), linear(32, 24)
    with pytest.raises(ArgumentError, match="down takes 32 features, gate and up give 48"):
        nn.FeedForward(gate, up, down)
    with pytest.raises(ArgumentError, match="kind is 'relu'; silu, gelu, gelu_tanh are legal"):
        nn.FeedForward(gate, up, linear(48, 24), "relu")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="one has a bias, the other none"):
        nn.Int8FeedForward(gate, linear(40, 48, bias=False), linear(48, 24))
    with pytest.raises(ArgumentError, match="order is ''; gate_up or up_gate"):
        nn.FeedForward.from_fused(linear(40, 96), linear(48, 24), "")
