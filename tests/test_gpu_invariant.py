"""The batch-invariant mode on a GPU: a row has the same bits in every batch."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch

import gemmsmith
from gemmsmith.nn import Linear

pytestmark = pytest.mark.gpu

M = (1, 2, 7, 64, 513)
N, K = 3584, 4096


def rows(dtype: torch.dtype) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    new = partial(torch.randn, dtype=dtype, device="cuda")
    return {
        "x": new(max(M), K),
        "w": new(N, K),
        "bias": new(N),
        "residual": new(max(M), N),
    }


def ran() -> str:
    record = gemmsmith.last_kernel()
    assert record is not None
    assert record.reason == ""
    return record.name


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("with_residual", [False, True])
@pytest.mark.parametrize("with_bias", [False, True])
def test_a_rows_bits_do_not_depend_on_the_batch(
    dtype: torch.dtype, with_bias: bool, with_residual: bool
) -> None:
    data = rows(dtype)
    names = set()

    def result(part: torch.Tensor, some: slice | torch.Tensor) -> torch.Tensor:
        more: dict[str, Any] = {"bias": data["bias"] if with_bias else None}
        if with_residual:
            more["residual"] = data["residual"][some].contiguous()
        out = torch.full((part.shape[0], N), torch.nan, dtype=dtype, device="cuda")
        gemmsmith.gemm(part, data["w"].t(), **more, out=out, deterministic="batch")
        names.add(ran())
        return out

    whole = result(data["x"], slice(None))
    for m in M:
        assert torch.equal(result(data["x"][:m], slice(m)), whole[:m]), f"M={m}"
    shuffled = torch.randperm(max(M), device="cuda")[:64]
    assert torch.equal(result(data["x"][shuffled].contiguous(), shuffled), whole[shuffled])
    alone = torch.cat([result(data["x"][at : at + 1], slice(at, at + 1)) for at in range(40)])
    assert torch.equal(alone, whole[:40])
    assert len(names) == 1


def test_other_rows_may_hold_anything() -> None:
    data = rows(torch.bfloat16)
    whole = gemmsmith.gemm(data["x"], data["w"].t(), deterministic="batch")
    spoilt = data["x"].clone()
    spoilt[1::2] = torch.inf
    found = gemmsmith.gemm(spoilt, data["w"].t(), deterministic="batch")
    assert torch.equal(found[::2], whole[::2])


def test_a_layer_in_the_mode() -> None:
    data = rows(torch.bfloat16)
    layer = Linear.from_torch(torch.nn.Linear(K, N, dtype=torch.bfloat16, device="cuda"))
    layer.requires_grad_(False)
    layer.deterministic = "batch"
    whole = layer(data["x"])
    assert torch.equal(layer(data["x"][:2]), whole[:2])
    right = torch.nn.functional.linear(data["x"].double(), layer.weight.double())
    right += layer.bias.double()
    assert (whole.double() - right).abs().max() < 0.02 * right.abs().max()
