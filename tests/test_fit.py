"""Which calls a kernel can take, and the reason for each that it cannot."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from gemmsmith.dtypes import BF16, FP16, INT8, INT32
from gemmsmith.fit import misfit, misfits
from gemmsmith.problem import GemmProblem
from gemmsmith.spec import Alignment, Cluster, KernelSpec, Tile
from rule_data import AMPERE, HOPPER, INTEGERS, LEAN


def call(**fields: Any) -> GemmProblem:
    return GemmProblem(**{"m": 64, "n": 64, "k": 64, "a": BF16, "b": BF16, "d": BF16, **fields})


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, ""),
        (
            {"a": FP16, "b": FP16},
            "the kernel computes bf16 @ bf16 -> bf16, the call is fp16 @ fp16 -> bf16",
        ),
        ({"layout": "rrr"}, "the kernel's layout is rcr, the strides of the call are rrr"),
        (
            {"layout": "rcc", "n": 1},
            "the kernel's layout is rcr, the strides of the call are rcc",
        ),
        ({"residual": True}, "the kernel has no residual (epilogue.residual is false)"),
        (
            {"b_align": 4},
            (
                "b: address, row stride or batch stride divides by 4 B only,"
                " the kernel needs 16 B (8 elements of bf16)"
            ),
        ),
    ],
)
def test_calls_that_a_kernel_cannot_take(fields: dict[str, Any], words: str) -> None:
    assert misfit(KernelSpec(**HOPPER), call(**fields)) == words


def test_a_kernel_without_bias_and_kernels_with_both() -> None:
    plain = KernelSpec(**HOPPER, bias=False)
    assert misfit(plain, call(bias=True)) == "the kernel has no bias (epilogue.bias is false)"
    for fields in (HOPPER, AMPERE):
        both = KernelSpec(**fields, residual=True)
        assert misfit(both, call(bias=True, residual=True)) == ""


def test_2x_kernels_have_every_epilogue_but_gates() -> None:
    rich = KernelSpec(**{**AMPERE, "layout": "rcc"}, activation="any", scaled=True, residual=True)
    asked = call(
        layout="rcc", bias=True, residual=True, activation="gelu", scaled=True, zero_point=False
    )
    assert misfit(rich, asked) == ""
    assert misfit(KernelSpec(**AMPERE), call(gate="silu")) == (
        "gate silu in one kernel needs sm_90a, the kernel is of sm_80"
    )
    narrow = {**INTEGERS, "d": INT8, "alignment": Alignment(16, 16, 16)}
    assert KernelSpec(**narrow, scaled=True, zero_point=True, activation="gelu").name == (
        "gemm_int8_rcr_128x128x64_w64x64_s4_scaled_zp_actgelu_sm80"
    )


def test_a_call_without_the_function_of_a_kernel_is_told_what_to_pass() -> None:
    gelu, gated = (
        KernelSpec(**HOPPER, activation="gelu"),
        KernelSpec(**HOPPER, gate="silu", store="strip"),
    )
    assert misfit(gelu, call(activation="gelu")) == misfit(gated, call(gate="silu")) == ""
    assert misfit(gelu, call()) == (
        'the kernel\'s activation is gelu, the call has none: pass activation="gelu"'
    )
    assert misfit(gelu, call(activation="relu")) == (
        "the kernel's activation is gelu, the call's is relu"
    )
    assert misfit(gated, call()) == (
        'the kernel\'s gate is silu, the call has none: pass gate="silu"'
    )
    assert misfit(gated, call(gate="gelu")) == "the kernel's gate is silu, the call's is gelu"


def test_reasons_are_those_of_the_kernels_that_come_nearest() -> None:
    specs = [
        KernelSpec(**AMPERE),
        KernelSpec(**{**AMPERE, "layout": "rrr"}),
        KernelSpec(**INTEGERS),
    ]
    assert misfits(specs, call(gate="silu")) == [
        "gate silu in one kernel needs sm_90a, the kernel is of sm_80"
    ]
    assert misfits(specs, call(activation="gelu")) == [
        "the kernel's activation is none, the call's is gelu"
    ]
    assert misfits(specs, call(a=INT8, b=INT8, d=INT32, scaled=True)) == [
        "the kernel takes no scales (epilogue.scaled is false)"
    ]
    assert len(misfits(specs, call(a=FP16, b=FP16, d=FP16, residual=True))) == 2
    assert misfits(specs, call(layout="rrr")) == misfits([], call()) == []


def test_calls_beyond_a_grid_are_refused_by_kernels_without_a_persistent_one() -> None:
    plain = KernelSpec(**{**HOPPER, "schedule": "warp_specialized", "tile": Tile(64, 64, 64)})
    many = GemmProblem(m=8, n=8, k=8, batch=65_536, a=BF16, b=BF16, d=BF16)
    wide = GemmProblem(m=8, n=65_536 * 64, k=8, a=BF16, b=BF16, d=BF16)
    assert misfit(plain, many) == "batch=65536 is over the 65535 that a grid's third axis holds"
    assert misfit(plain, wide) == ("N=4194304 is over 65535 tiles of 64, a grid's second axis")
    pairs = dataclasses.replace(plain, cluster=Cluster(1, 2))  # a grid is of whole clusters
    assert misfit(pairs, dataclasses.replace(wide, n=65_534 * 64)) == ""
    assert misfit(pairs, dataclasses.replace(wide, n=65_535 * 64)) == (
        "N=4194240 is over 65534 tiles of 64, a grid's second axis"
    )
    tall = dataclasses.replace(wide, m=wide.n, n=8)
    assert misfit(dataclasses.replace(plain, swap=True), tall).startswith("M=4194304 is over")
    assert misfit(dataclasses.replace(plain, schedule="pingpong"), many) == ""


def test_sizes_that_kernels_cannot_count_are_no_calls_for_them() -> None:
    """Else the launch fails where torch could take the call."""
    spec = KernelSpec(**{**HOPPER, "schedule": "pingpong", "tile": Tile(64, 128, 64)})
    assert misfit(spec, call(m=2**31 - 72)) == ""
    for size, words in [
        ({"m": 2**31}, "M=2147483648 in whole tiles of 64 is over 2147483647, what kernels"),
        ({"m": 2**31 - 8}, "M=2147483640 in whole tiles of 64 is over 2147483647"),
        ({"n": 2**31 - 64}, "N=2147483584 in whole tiles of 128 is over 2147483647"),
        ({"k": 2**40}, "K=1099511627776 in whole tiles of 64 is over 2147483647"),
        ({"batch": 2**31}, "batch=2147483648 is over 2147483647"),
    ]:
        assert misfit(spec, call(**size)).startswith(words)


def test_a_lean_kernel_takes_fewer_matrices_where_it_splits_k() -> None:
    spec = KernelSpec(**LEAN, split_k=4)
    call = GemmProblem(m=8, n=8, k=8, batch=16_383, a=BF16, b=BF16, d=BF16)
    assert misfit(spec, call) == ""
    assert misfit(spec, dataclasses.replace(call, batch=16_384)) == (
        "batch=16384 is over the 16383 that a grid's third axis holds"
    )
    assert misfit(spec, dataclasses.replace(call, layout="rrr")) == (
        "the kernel's layout is rcr, the strides of the call are rrr"
    )
    assert misfit(spec, dataclasses.replace(call, d_align=8)).startswith("d: address")


def test_the_first_axis_of_a_lean_grid_is_that_of_the_tokens() -> None:
    """However many rows there are: swapped kernels, too, have the features on the second."""
    spec = KernelSpec(**{**LEAN, "tile": Tile(64, 64, 64), "swap": True})
    tall = GemmProblem(m=65_536 * 64, n=64, k=8, a=BF16, b=BF16, d=BF16)
    assert misfit(spec, tall) == ""
    wide = dataclasses.replace(tall, m=64, n=65_536 * 64)
    assert misfit(spec, wide) == "N=4194304 is over 65535 tiles of 64, a grid's second axis"


def test_int8_sums_that_int32_cannot_hold_are_no_call_for_a_kernel() -> None:
    spec = KernelSpec(**INTEGERS)
    problem = GemmProblem(m=16, n=16, k=131_072, a=INT8, b=INT8, d=INT32, layout="rcr")
    assert misfit(spec, problem).startswith("K=131072: int32 holds 131,071 products of -128")
    assert misfit(spec, dataclasses.replace(problem, k=131_056)) == ""
