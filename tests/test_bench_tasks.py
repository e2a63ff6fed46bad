from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

import gemmsmith
from gemmsmith.bench import rivals, tasks
from gemmsmith.bench.tasks import Task, interleaved, make_task, sampled
from gemmsmith.resources import configs_dir

M, N, K = 300, 768, 128
KINDS: dict[str, dict[str, Any]] = {
    "bf16": {"dtype": torch.bfloat16},
    "epilogue": {"dtype": torch.bfloat16, "activation": "gelu", "bias": True, "residual": True},
    "gate": {"dtype": torch.bfloat16, "gate": "silu"},
    "int8": {"dtype": torch.int8},
    "int8 gate": {"dtype": torch.int8, "gate": "silu"},
}


@pytest.fixture(autouse=True)
def two_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "rotating", lambda make, size: (make(), make()))
    torch.manual_seed(1)


def task_of(kind: str, m: int = M) -> Task:
    return make_task(m, N, K, device="cpu", **KINDS[kind])


@pytest.mark.parametrize("kind", KINDS)
def test_what_the_op_computes_is_right(kind: str) -> None:
    task = task_of(kind)
    assert task.run() == ""
    assert task.out.shape == (M, N // 2 if "gate" in kind else N)
    assert task.out.dtype == torch.bfloat16
    assert 0.3 < float(task.out.float().std()) < 2  # functions are met where they bend
    first, second = (call() for call in task.arm())
    assert task.fault(first) == ""  # type: ignore[arg-type]
    assert task.fault(second) != ""  # type: ignore[arg-type]


def test_int8_data_has_no_zero_row_and_uses_its_range() -> None:
    task = task_of("int8")
    weight = task.weights[0]
    assert task.x.dtype == weight.values.dtype == torch.int8
    assert int(task.x.abs().max()) > 80
    assert bool((task.x != 0).any(1).all())
    assert task.a_scale is not None
    assert weight.scale is not None
    assert (task.a_scale.shape, weight.scale.shape) == ((M,), (N,))
    assert float(task.a_scale.min()) < 0.8 * float(task.a_scale.max())


def swap_rows(result: torch.Tensor) -> None:
    result[[5, 6]] = result[[6, 5]]


def shift_columns(result: torch.Tensor) -> None:
    result[:, 8:16] = result[:, 16:24].clone()


def leave_unwritten(result: torch.Tensor) -> None:
    result[M - 1, 7] = math.nan


def overflow(result: torch.Tensor) -> None:
    result[0, 0] = math.inf


def scale_a_tile_wrongly(result: torch.Tensor) -> None:
    result[128:256, 128:256] *= 1.03


def forget_a_scale(result: torch.Tensor) -> None:
    result[:, N // 2 - 1] *= 1.1


FAULTS = [
    swap_rows,
    shift_columns,
    leave_unwritten,
    overflow,
    scale_a_tile_wrongly,
    forget_a_scale,
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("spoil", FAULTS, ids=lambda spoil: spoil.__name__)
def test_faults_are_found(kind: str, spoil: Callable[[torch.Tensor], None]) -> None:
    task = task_of(kind)
    result = task.call()
    spoil(result)
    assert task.fault(result)


def test_a_forgotten_residual_or_scale_is_found() -> None:
    task = task_of("epilogue")
    assert replace(task, residual=None).fault(task.call())
    assert replace(task, bias=None).fault(task.call())
    assert replace(task, activation="relu").fault(task.call())
    whole = task_of("int8")
    assert whole.a_scale is not None
    assert replace(whole, a_scale=whole.a_scale.flip(0)).fault(whole.call())


def test_terms_that_cancel_may_be_off_by_their_own_rounding() -> None:
    """Scaled products less themselves, rounded to bf16: some elements come out next to zero."""
    task = make_task(M, N, K, torch.int8, residual=True, device="cpu")
    product = replace(task, residual=None).call()
    opposed = replace(task, residual=-product)
    assert opposed.fault(opposed.call()) == ""
    assert opposed.fault(opposed.call() + 2e-5)


def test_gate_and_up_come_in_blocks_of_eight() -> None:
    fused = torch.arange(32)  # 16 rows of the gate, 16 of up
    assert interleaved(fused).tolist() == [*range(8), *range(16, 24), *range(8, 16), *range(24, 32)]
    task = task_of("gate")
    weight = task.weights[0]
    assert torch.equal(weight.ready[8:16], weight.values[N // 2 : N // 2 + 8])


def test_every_stretch_is_sampled() -> None:
    found = sampled(8192, 256, torch.device("cpu"))
    assert {0, 8191} <= set(found.tolist())
    assert {int(place) // 64 for place in found} == set(range(128))
    assert sampled(5, 256, torch.device("cpu")).tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("kind", KINDS)
def test_torch_in_steps_is_right_but_for_roundings(kind: str) -> None:
    task = task_of(kind)
    assert rivals.fault_of(task, rivals.eager_arm(task)) == ""


@pytest.mark.parametrize("m", [1, 16, 17])
def test_int_mm_is_given_seventeen_rows(m: int) -> None:
    task = task_of("int8", m)
    arm = rivals.eager_arm(task)
    assert [call().shape for call in arm] == [(17, N), (17, N)]  # type: ignore[attr-defined]
    assert rivals.fault_of(task, arm) == ""


def test_compiled_rival_is_compiled_once_for_many_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = []

    def backend(graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        compiled.append(graph)
        return graph.forward

    compile_ = torch.compile
    monkeypatch.setattr(
        torch, "compile", lambda f, **options: compile_(f, backend=backend, **options)
    )
    for m in (1, 16, 64, 300):
        task = task_of("int8", m)
        assert rivals.fault_of(task, rivals.compiled_arm(task)) == ""
    assert len(compiled) == 1
    rivals.forget_compiled()


def test_kernels_of_another_kind_do_not_fit() -> None:
    kernels = gemmsmith.load(configs_dir().parent / "benchmarks" / "candidates_gate.yaml", "sm_90a")
    fitting = {
        kind: [name for name in kernels.names if not task_of(kind).misfit(kernels[name])]
        for kind in KINDS
    }
    assert fitting["bf16"] == fitting["epilogue"] == fitting["int8"] == []
    assert len(fitting["gate"]) == 9
    assert [name.startswith("gemm_int8") for name in fitting["int8 gate"]] == [True] * 3
