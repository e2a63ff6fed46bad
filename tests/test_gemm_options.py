"""Options of a call of one's own kernels: functions, scales and zero points, on the CPU."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, get_type_hints

import pytest
import torch
from torch import Tensor

import gemmsmith
from gemm_data import small_integers
from gemmsmith import ops
from gemmsmith.dtypes import BF16, INT8
from gemmsmith.errors import ArgumentError, NoKernelError
from gemmsmith.gemm_options import GemmOptions
from gemmsmith.kernelset import KernelSet
from gemmsmith.spec import Alignment, KernelSpec
from rule_data import AMPERE, HOPPER, INTEGERS

GELU = KernelSpec(**AMPERE, activation="gelu")
GATED = KernelSpec(**HOPPER, gate="silu", store="strip")
SCALED = KernelSpec(
    **{**INTEGERS, "d": BF16, "alignment": Alignment(16, 16, 8)}, scaled=True, zero_point=True
)
NARROW = KernelSpec(**{**INTEGERS, "d": INT8, "alignment": Alignment(16, 16, 16)}, scaled=True)


def calls(*specs: KernelSpec) -> tuple[Callable[..., Tensor], Callable[..., Tensor]]:
    """Return the first kernel by its name, and the choice among all."""
    kernels = KernelSet(specs, arch=specs[0].arch, source="own.yaml")
    return kernels[specs[0].name], kernels.gemm


def operands(dtype: torch.dtype = torch.bfloat16) -> tuple[Tensor, Tensor]:
    a, w = (small_integers(rows, 64, dtype=dtype, device="cpu") for rows in (16, 32))
    return a, w.t()


def test_they_are_those_of_gemm() -> None:
    names = dict(inspect.signature(gemmsmith.gemm).parameters)
    only_named = {each for each in names if names[each].kind is inspect.Parameter.KEYWORD_ONLY}
    hints = get_type_hints(gemmsmith.gemm)
    assert get_type_hints(GemmOptions, localns=vars(ops)) == {
        name: hints[name] for name in only_named - {"kernels"}
    }


@pytest.mark.parametrize(("spec", "option"), [(GELU, "activation"), (GATED, "gate")])
def test_a_kernel_with_a_function_computes_it_and_says_what_to_pass(
    spec: KernelSpec, option: str
) -> None:
    a, b = operands()
    word = getattr(spec, option)
    for call in calls(spec):
        found = call(a, b, **{option: word})
        assert torch.equal(found, gemmsmith.gemm(a, b, **{option: word}))
        with pytest.raises(NoKernelError, match=rf'the call has none: pass {option}="{word}"$'):
            call(a, b)


def test_scales_zero_points_and_their_sums_reach_the_kernel() -> None:
    a, b = operands(torch.int8)
    given: dict[str, Any] = {
        "a_scale": torch.rand(16),
        "b_scale": torch.rand(32),
        "a_zero_point": torch.arange(16, dtype=torch.int32),
    }
    right = gemmsmith.gemm(a, b, **given, out_dtype=torch.bfloat16)
    for call in calls(SCALED, NARROW):
        given["b_sum"] = None
        assert torch.equal(call(a, b, **given, out_dtype=torch.bfloat16), right)
        given["b_sum"] = -b.sum(0, dtype=torch.int32)
        assert torch.equal(call(a, b, **given, out_dtype=torch.bfloat16), right)
        given["b_sum"] += 1
        assert not torch.equal(call(a, b, **given, out_dtype=torch.bfloat16), right)


def test_int8_results_are_scaled() -> None:
    a, b = operands(torch.int8)
    right = gemmsmith.gemm(a, b, out_dtype=torch.int8, out_scale=0.25, a_scale=torch.ones(1))
    for call in calls(NARROW):
        assert torch.equal(call(a, b, out_scale=0.25, a_scale=torch.ones(1)), right)


def test_modes_of_the_default_kernels_are_refused_and_misspelt_options_too() -> None:
    a, b = operands()
    for call in calls(GELU):
        with pytest.raises(ArgumentError, match="chooses among the default kernels"):
            call(a, b, activation="gelu", deterministic="batch")
        with pytest.raises(ArgumentError, match="chooses among the default kernels"):
            call(a, b, activation="gelu", constant_b=True)
        with pytest.raises(TypeError, match="'activaton'"):
            call(a, b, activaton="gelu")


def test_calls_with_options_compile_into_one_graph() -> None:
    from torch._dynamo.testing import CompileCounterWithBackend

    named, chosen = calls(SCALED)
    a, b = operands(torch.int8)
    scale = torch.rand(16)
    counter = CompileCounterWithBackend("aot_eager")
    torch._dynamo.reset()

    def both(x: Tensor, y: Tensor, factors: Tensor) -> tuple[Tensor, Tensor]:
        first = named(x, y, a_scale=factors, out_dtype=torch.bfloat16)
        return first, chosen(x, y, a_scale=factors, activation="none")

    fast = torch.compile(both, backend=counter, fullgraph=True)
    right = gemmsmith.gemm(a, b, a_scale=scale, out_dtype=torch.bfloat16)
    assert all(torch.equal(found, right) for found in fast(a, b, scale))
    assert counter.frame_count == 1
    torch._dynamo.reset()
