"""Several layers that read one input as one product."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch

from gemmsmith import nn
from gemmsmith.errors import ArgumentError
from layer_data import exact, linear, numbers, on_each, relative

SIZES = {"q": 30, "k": 10, "v": 9}


def layers(device: str = "cpu", bias: bool = True) -> dict[str, torch.nn.Linear]:
    return {name: linear(40, n, bias, device) for name, n in SIZES.items()}


@on_each
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("int8", "bound"), [(False, 0.01), (True, 0.02)])
def test_one_product_makes_the_outputs_of_all(
    int8: bool, bound: float, bias: bool, device: str
) -> None:
    parts, x = layers(device, bias), numbers(2, 3, 40, device=device)
    layer = nn.PreparedLinear.joined(parts)
    ours = nn.Int8Linear.of_prepared(layer) if int8 else layer
    found = ours(x).split(list(SIZES.values()), dim=-1)
    for (name, part), y in zip(parts.items(), found, strict=True):
        assert relative(y, exact(part, x)) < bound, name


@pytest.mark.parametrize("int8", [False, True])
def test_a_state_dict_holds_each_under_its_name(int8: bool) -> None:
    def made(shift: float) -> nn.PreparedLinear:
        parts = layers()
        for part in parts.values():
            part.weight.add_(shift)
        layer = nn.PreparedLinear.joined(parts)
        return nn.Int8Linear.of_prepared(layer) if int8 else layer

    ours, other, x = made(0), made(1), numbers(3, 40)
    stored = ours.state_dict()
    kinds = ("weight", "bias", "weight_scale") if int8 else ("weight", "bias")
    assert list(stored) == [f"{name}.{kind}" for kind in kinds for name in SIZES]
    if not int8:
        assert torch.equal(stored["k.weight"], layers()["k"].weight)
    assert not torch.equal(other(x), ours(x))
    other.load_state_dict(stored)
    for again in (other, copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
        assert torch.equal(again(x), ours(x))
        assert list(again.state_dict()) == list(stored)


def test_layers_with_and_without_a_bias_are_not_joined() -> None:
    parts = {"q": linear(40, 16), "k": linear(40, 16, bias=False)}
    with pytest.raises(ArgumentError, match="of q, k some have a bias: give the others zeros"):
        nn.PreparedLinear.joined(parts)
