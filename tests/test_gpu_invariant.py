"""The batch-invariant mode on a GPU: a row has the same bits in every batch."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch

import gemmsmith
from gemmsmith.invariant import sums_in_sequence
from gemmsmith.kernelset import default_kernels
from gemmsmith.kinds import first_fitting
from gemmsmith.nn import Linear
from gemmsmith.operands import TORCH_DTYPES
from gemmsmith.problem import packed_problem

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
    assert len(names) > 1  # each number of rows has its kernel


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_residual_with_factors_has_one_kernel_and_its_bits(dtype: torch.dtype) -> None:
    data = rows(dtype)
    names = set()

    def result(m: int) -> torch.Tensor:
        x, residual = data["x"][:m], data["residual"][:m]
        found = gemmsmith.gemm(x, data["w"].t(), None, residual, 0.37, 0.7, deterministic="batch")
        names.add(ran())
        return found

    whole = result(max(M))
    for m in M:
        assert torch.equal(result(m), whole[:m]), f"M={m}"
    assert len(names) == 1


CALLS: dict[str, dict[str, Any]] = {
    "plain": {},
    "factor": {"alpha": 0.37},
    "residual": {"residual": True},
    "gelu": {"activation": "gelu"},
    "silu and residual": {"activation": "silu", "residual": True},
    "swiglu": {"gate": "silu"},
    "geglu": {"gate": "gelu_tanh"},
    "contiguous b": {"layout": "rrr"},
}


@pytest.mark.parametrize("k", [8192, 1040, 48])
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.int8])
def test_kernels_that_sum_in_sequence_give_the_same_bits(
    dtype: torch.dtype, call: str, k: int
) -> None:
    asked = dict(CALLS[call])
    element, layout = TORCH_DTYPES[dtype], asked.pop("layout", "rcr")
    out = torch.bfloat16 if dtype == torch.int8 else dtype
    if dtype == torch.int8 and layout != "rcr":
        pytest.skip("int8 operands are contiguous along K")
    m, n = 264, 512
    problem = packed_problem(
        m,
        n,
        k,
        element,
        d=TORCH_DTYPES[out],
        layout=layout,
        residual=asked.get("residual", False),
        activation=asked.get("activation", "none"),
        gate=asked.get("gate", "none"),
        scaled=dtype == torch.int8,
    )
    kernels = default_kernels("sm_90a")
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("on other GPUs one kernel takes all numbers of rows")
    alike = first_fitting([spec for spec in kernels.specs if sums_in_sequence(spec)], problem)
    if not alike:
        pytest.skip("no kernel of ours takes such calls")
    torch.manual_seed(k)
    new = partial(torch.randn, device="cuda")
    if dtype == torch.int8:
        x, w = (torch.randint(-127, 128, s, device="cuda").to(dtype) for s in ((m, k), (n, k)))
        asked.update(a_scale=torch.rand(m, device="cuda"), b_scale=torch.rand(n, device="cuda"))
        asked.update(out_dtype=out)
    else:
        x, w = new(m, k).to(dtype), new(n, k).to(dtype)
    if "gate" not in asked:
        asked["bias"] = new(n).to(out)
    if problem.residual:
        asked["residual"] = new(m, n).to(out)
    b = w.t() if layout == "rcr" else w.t().contiguous()
    results = {
        spec.name: gemmsmith.gemm(x, b, **asked, kernels=kernels[spec.name].handle)
        for spec in alike
    }
    first = next(iter(results.values()))
    assert not first.isnan().any()
    others = [name for name, result in results.items() if not torch.equal(result, first)]
    assert others == []


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
