"""Models that hold or make NaN and infinity: which layer is told of, and how others are judged."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from gemmsmith import nn
from gemmsmith.conversion import Conversion, convert
from gemmsmith.proof import is_finite

IDS = torch.arange(64)[None]
OVERFLOWS = "its output holds NaN or infinity where its input holds none"


def chain(dtype: torch.dtype = torch.bfloat16) -> torch.nn.Sequential:
    """An embedding and three layers, one behind the other."""
    torch.manual_seed(5)
    layers = (torch.nn.Linear(48, 48) for _ in range(3))
    return torch.nn.Sequential(torch.nn.Embedding(64, 48), *layers).to(dtype)


def reasons(report: Conversion) -> dict[str, str]:
    return {layer.name: layer.reason for layer in report.left}


@pytest.mark.parametrize("samples", [IDS, None])
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("name", ["weight", "bias"])
def test_the_layer_whose_numbers_are_not_finite_is_told_of_alone(
    name: str, value: float, samples: Tensor | None
) -> None:
    model = chain()
    model[1].get_parameter(name).data.view(-1)[7] = value
    report = convert(model, dtype="int8", samples=samples)
    assert reasons(report) == {"1": f"its {name} holds NaN or infinity"}
    assert [layer.name for layer in report.swapped] == ["2", "3"]
    for layer in report.swapped:
        assert layer.proof is not None
        assert layer.proof.rows == 64
        assert layer.proof.relative_error < 0.02
    assert type(model[1]) is torch.nn.Linear
    assert not model[1]._forward_hooks
    with torch.no_grad():
        assert not is_finite(model(IDS)), "the model itself is as it was"


def test_a_layer_that_is_left_out_spoils_no_other() -> None:
    model = chain()
    model.get_parameter("1.weight").data[3, 5] = torch.nan
    report = convert(model, dtype="int8", samples=IDS, skip=("1",))
    assert reasons(report) == {"1": "it is in skip"}


def test_an_output_beyond_its_type_is_told_of() -> None:
    model = chain(torch.float16)
    model.get_parameter("1.weight").data[3] = 60000.0
    assert reasons(convert(model, dtype="int8", samples=IDS)) == {"1": OVERFLOWS}
    assert type(model[2]) is nn.Int8Linear
    alone = chain(torch.float16)
    alone.get_parameter("2.weight").data[3] = 60000.0
    inputs = {str(index): torch.full((4, 48), 3.0).half() for index in (1, 2, 3)}
    assert reasons(convert(alone, dtype="int8", samples=inputs)) == {"2": OVERFLOWS}


def test_rows_that_are_not_finite_are_no_samples() -> None:
    model = chain()
    model.get_parameter("0.weight").data[7] = torch.nan
    report = convert(model, dtype="int8", samples=IDS)
    assert report.left == ()
    assert [layer.proof and layer.proof.rows for layer in report.swapped] == [63, 63, 63]


def test_nothing_is_proven_where_no_number_is_left() -> None:
    model = chain()
    model.get_parameter("0.weight").data[:] = torch.nan
    left = reasons(convert(model, dtype="int8", samples=IDS))
    nothing = "no row of finite numbers of the sample input reaches it, so that nothing is proven"
    assert left == dict.fromkeys("123", nothing)
    model = chain()
    model.get_parameter("1.weight").data[:] = torch.nan
    left = reasons(convert(model, dtype="int8", samples=IDS))
    assert left == {
        "1": "its weight holds NaN or infinity",
        "2": "its sample input is all zeros, so that nothing is proven",
    }
