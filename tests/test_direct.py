"""When a call takes the short way past torch's dispatcher, and that nobody can tell."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import gemmsmith
from fake_gpu import FakeGpu, gpu_fixture, kernel_fixture  # noqa: F401  fixtures
from gemmsmith import direct, execute
from gemmsmith.errors import ArgumentError, GemmsmithError

BF16 = torch.bfloat16


def bf16(*shape: int) -> Tensor:
    return torch.zeros(*shape, dtype=BF16)


def int8(*shape: int) -> Tensor:
    return torch.zeros(*shape, dtype=torch.int8)


@pytest.fixture
def operands(gpu: FakeGpu) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """a, b and out of a call that is settled, with and without out."""
    a, b, out = bf16(32, 64), bf16(16, 64).t(), bf16(32, 16)
    gemmsmith.gemm(a, b, out=out)
    gemmsmith.gemm(a, b)
    assert (gpu.plans, gpu.through_op, gpu.launched) == (2, 2, 2)
    gpu.through_op = 0
    yield a, b, out
    gpu.through_op = 0
    gemmsmith.gemm(a, b, out=out)
    assert gpu.through_op == 0, "the short way is taken again afterwards"


class _Plain(Tensor):
    """A subclass that changes nothing."""


class _Modes:
    """Modes that see what is called, and change nothing."""

    class Function(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            return func(*args, **(kwargs or {}))

    class Dispatch(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    "context",
    [
        nullcontext,
        torch.no_grad,
        torch.inference_mode,
        lambda: torch.autocast("cpu", dtype=torch.float16),
        torch.enable_grad,
    ],
    ids=["plain", "no_grad", "inference_mode", "autocast", "enable_grad"],
)
def test_a_settled_eager_call_goes_past_the_dispatcher(
    gpu: FakeGpu, operands: tuple[Tensor, Tensor, Tensor], context: Callable[[], Any]
) -> None:
    a, b, out = operands
    with context():
        assert gemmsmith.gemm(a, b, out=out) is out
        made = gemmsmith.gemm(a, b)
        parameter = torch.nn.Parameter(b.t(), requires_grad=False)
        gemmsmith.gemm(a, parameter.t(), out=out)
    assert (made.shape, made.dtype, made.requires_grad) == ((32, 16), BF16, False)
    assert (gpu.launched, gpu.plans, gpu.through_op) == (5, 2, 0)


@pytest.mark.parametrize("mode", [_Modes.Function, _Modes.Dispatch, "profiler", "default device"])
def test_a_mode_sees_the_op(
    gpu: FakeGpu, operands: tuple[Tensor, Tensor, Tensor], mode: Any
) -> None:
    a, b, out = operands
    if mode == "profiler":
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
            gemmsmith.gemm(a, b, out=out)
        assert "gemmsmith::gemm_out" in [event.key for event in profiler.key_averages()]
    else:
        with torch.device("cpu") if mode == "default device" else mode():
            gemmsmith.gemm(a, b, out=out)
    assert (gpu.launched, gpu.through_op) == (3, 1)


def test_fake_tensors_reach_no_kernel(
    gpu: FakeGpu, operands: tuple[Tensor, Tensor, Tensor]
) -> None:
    a, b, _ = operands
    with FakeTensorMode() as mode:
        made = gemmsmith.gemm(mode.from_tensor(a), mode.from_tensor(b))
        assert made.shape == (32, 16)
    fake_a, fake_b = mode.from_tensor(a), mode.from_tensor(b)
    assert type(gemmsmith.gemm(fake_a, fake_b)) is not Tensor
    assert gemmsmith.gemm(a.to("meta"), b.to("meta")).is_meta
    assert gpu.launched == 2


def test_a_subclass_goes_through_the_dispatcher(
    gpu: FakeGpu, operands: tuple[Tensor, Tensor, Tensor]
) -> None:
    a, b, out = operands
    gemmsmith.gemm(a.as_subclass(_Plain), b, out=out)
    assert (gpu.through_op, gpu.plans, gpu.launched) == (1, 2, 3)


def test_a_wanted_derivative_is_refused_after_a_settled_call(
    gpu: FakeGpu, operands: tuple[Tensor, Tensor, Tensor]
) -> None:
    a, b, out = operands
    w = torch.nn.Parameter(b.t())

    def loss(x: Tensor) -> Tensor:
        return gemmsmith.gemm(x, b).float().sum()

    def forward_mode() -> object:
        with forward_ad.dual_level():
            return gemmsmith.gemm(forward_ad.make_dual(a, torch.ones_like(a)), b)

    calls: tuple[Callable[[], object], ...] = (
        lambda: gemmsmith.gemm(a, w.t(), out=out),
        lambda: gemmsmith.gemm(a.clone().requires_grad_(), b),
        lambda: gemmsmith.nn.Linear.from_torch(_linear(w))(a),
        lambda: torch.func.grad(loss)(a),
        lambda: torch.func.jvp(loss, (a,), (torch.ones_like(a),)),
        forward_mode,
    )
    for refused in calls:
        with pytest.raises(ArgumentError, match="forward only"):
            refused()
    assert gpu.launched == 2
    with torch.no_grad():
        gemmsmith.gemm(a, w.t(), out=out)
    assert (gpu.launched, gpu.through_op) == (3, 0)


def _linear(weight: torch.nn.Parameter) -> torch.nn.Linear:
    made = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
    made.weight = weight
    return made


def test_vmap_and_jit_trace_see_the_op(
    gpu: FakeGpu, operands: tuple[Tensor, Tensor, Tensor]
) -> None:
    a, b, _ = operands
    batched = torch.func.vmap(lambda x: gemmsmith.gemm(x, b))(a.expand(3, 32, 64))
    assert batched.shape == (3, 32, 16)
    assert gpu.through_op == 3
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        traced = torch.jit.trace(lambda x: gemmsmith.gemm(x, b), (a,), check_trace=False)
    assert "gemmsmith::gemm" in str(traced.graph)


@pytest.mark.parametrize("written", [False, True])
def test_x24_a_compiled_call_holds_the_op(
    gpu: FakeGpu, operands: tuple[Tensor, Tensor, Tensor], written: bool
) -> None:
    a, b, out = operands
    targets: list[str] = []

    def backend(module: torch.fx.GraphModule, inputs: Any) -> Any:
        targets.extend(str(node.target) for node in module.graph.nodes)
        return module

    torch._dynamo.reset()
    fast = torch.compile(
        lambda x: gemmsmith.gemm(x, b, out=out if written else None),
        backend=backend,
        fullgraph=True,
    )
    assert fast(a).shape == (32, 16)
    torch._dynamo.reset()
    assert [name for name in targets if "gemmsmith" in name] == [
        "gemmsmith.gemm_out.default" if written else "gemmsmith.gemm.default"
    ]
    assert gpu.through_op == 1


def test_an_exported_layer_holds_the_op(gpu: FakeGpu) -> None:
    layer = gemmsmith.nn.Linear(64, 16, dtype=BF16).requires_grad_(False)
    a = bf16(32, 64)
    for _ in range(2):
        layer(a)
    assert (gpu.launched, gpu.through_op) == (2, 1)
    for strict in (False, True):
        program = torch.export.export(layer, (a,), strict=strict)
        targets = [str(node.target) for node in program.graph.nodes]
        assert "gemmsmith.gemm.default" in targets
    assert gpu.launched == 2


def test_a_tensor_without_memory_or_to_be_negated_is_left_to_torch(gpu: FakeGpu) -> None:
    b, out = torch.zeros(1, 8).half(), bf16(8, 8).half()
    imaginary = torch.zeros(8, 1, dtype=torch.complex32).conj().imag
    assert imaginary.is_neg()
    real = torch.zeros(17).half().as_strided((8, 1), (2, 2), 1)
    assert (real.stride(), real.data_ptr() % 16) == (imaginary.stride(), imaginary.data_ptr() % 16)
    for through in (1, 2):  # it could be such a part itself
        gemmsmith.gemm(real, b, out=out)
        assert gpu.last().a == real.data_ptr()
        assert (gpu.plans, gpu.through_op) == (1, through)
    gemmsmith.gemm(imaginary, b, out=out)
    assert gpu.last().a != imaginary.data_ptr()
    zeros = torch._efficientzerotensor(8, 1, dtype=torch.half)
    gemmsmith.gemm(zeros, b, out=out)
    assert gpu.last().a != 0


def _same(call: Callable[[], object]) -> str:
    """Return in what words a call is refused."""
    with pytest.raises((GemmsmithError, RuntimeError, OverflowError)) as caught:
        call()
    return f"{type(caught.value).__name__}: {caught.value}"


WRONG: dict[str, Callable[[Tensor, Tensor, Tensor], dict[str, Any]]] = {
    "type of b": lambda a, b, out: {"b": b.half()},
    "K": lambda a, b, out: {"a": a[:, :32]},
    "dimensions": lambda a, b, out: {"a": a[0]},
    "bias type": lambda a, b, out: {"bias": torch.zeros(16)},
    "bias size": lambda a, b, out: {"bias": bf16(17)},
    "residual": lambda a, b, out: {"residual": bf16(31, 16)},
    "beta without residual": lambda a, b, out: {"beta": 2.0},
    "beta as a word": lambda a, b, out: {"beta": "2"},
    "alpha as a tensor": lambda a, b, out: {"alpha": torch.tensor(2.0)},
    "alpha as None": lambda a, b, out: {"alpha": None},
    "huge alpha": lambda a, b, out: {"alpha": 10**400},
    "activation": lambda a, b, out: {"activation": "tanh"},
    "activation as a list": lambda a, b, out: {"activation": ["relu"]},
    "gate and activation": lambda a, b, out: {"activation": "relu", "gate": "silu"},
    "out_dtype": lambda a, b, out: {"out_dtype": torch.float16},
    "out shape": lambda a, b, out: {"out": out[:31]},
    "out type": lambda a, b, out: {"out": out.double()},
    "out device": lambda a, b, out: {"out": out.to("meta")},
    "out strides": lambda a, b, out: {"out": bf16(1, 16).expand(32, 16)},
    "a as an array": lambda a, b, out: {"a": a.float().numpy()},
    "sparse a": lambda a, b, out: {"a": a.to_sparse()},
    "scale type": lambda a, b, out: {"a_scale": bf16(32)},
    "scale size": lambda a, b, out: {"b_scale": torch.ones(17)},
    "zero point": lambda a, b, out: {"a_zero_point": torch.zeros(32, dtype=torch.int32)},
    "kernels": lambda a, b, out: {"kernels": "gone@1"},
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_argument_is_refused_alike_before_and_after_a_settled_call(
    gpu: FakeGpu, wrong: str
) -> None:
    a, b, out = bf16(32, 64), bf16(16, 64).t(), bf16(32, 16)
    arguments = {"a": a, "b": b, "out": out, **WRONG[wrong](a, b, out)}

    def call() -> object:
        return gemmsmith.gemm(**arguments)

    before = _same(call)
    for _ in range(2):
        gemmsmith.gemm(a, b, out=out)
        gemmsmith.gemm(a, b)
    assert _same(call) == before
    assert gpu.launched == 4


def test_an_operand_as_output_is_refused_after_a_settled_call(gpu: FakeGpu) -> None:
    square, other, out = bf16(64, 64), bf16(64, 64), bf16(64, 64)
    for _ in range(2):
        gemmsmith.gemm(square, other, out=out)
    for target in (square, other):
        with pytest.raises(ArgumentError, match=r"out overlaps [ab]"):
            gemmsmith.gemm(square, other, out=target)
    gemmsmith.gemm(square, other, residual=out, out=out)
    assert gpu.last().c == gpu.last().d
    assert gpu.launched == 3


def test_broken_factors_of_whole_results_are_refused_after_a_settled_call(gpu: FakeGpu) -> None:
    a, b = int8(32, 64), int8(16, 64).t()
    for _ in range(2):
        assert gemmsmith.gemm(a, b, alpha=3).dtype == torch.int32
    assert gpu.last().alpha == 3.0
    for alpha in (0.5, float("inf"), float("nan")):
        with pytest.raises(ArgumentError, match="an int32 result takes whole factors"):
            gemmsmith.gemm(a, b, alpha=alpha)
    assert gpu.launched == 2


def test_the_vectors_of_a_call_reach_a_settled_launch(gpu: FakeGpu) -> None:
    a, b, out = int8(32, 64), int8(16, 64).t(), int8(32, 16)
    for plans in (1, 1):
        vectors = {
            "a_scale": torch.ones(32),
            "b_scale": torch.ones(16),
            "a_zero_point": torch.zeros(32, dtype=torch.int32),
            "b_sum": torch.zeros(16, dtype=torch.int32),
        }
        gemmsmith.gemm(a, b, out=out, activation="relu", out_scale=0.5, **vectors)  # type: ignore[arg-type]
        seen = gpu.last()
        pointers = [tensor.data_ptr() for tensor in vectors.values()]
        assert [seen.a_scale, seen.b_scale, seen.a_zero, seen.b_sum] == pointers
        assert (seen.activation, seen.out_scale) == (1, 0.5)
        assert (gpu.plans, gpu.through_op) == (plans, 1)
    one = torch.ones(())
    for through in (2, 3):  # made to 16 copies each time
        gemmsmith.gemm(a, b, out=out, b_scale=one)
        assert gpu.last().b_scale != one.data_ptr()
        assert gpu.through_op == through


def test_layers_take_the_short_way(gpu: FakeGpu) -> None:
    layer = gemmsmith.nn.Linear(64, 16, dtype=BF16)
    with torch.no_grad():
        for shape in ((32, 64), (2, 5, 64)):
            through = gpu.through_op
            for _ in range(3):
                x = bf16(*shape)
                y = layer(x)
                seen = gpu.last()
                assert seen.bias == layer.bias.data_ptr()
                assert (seen.a, seen.b, seen.d) == (
                    x.data_ptr(),
                    layer.weight.data_ptr(),
                    y.data_ptr(),
                )
            assert gpu.through_op == through + 1
        assert layer(bf16(64)).shape == (16,)
        through = gpu.through_op
        given = gemmsmith.gemm(x, layer.weight.t(), layer.bias)
        assert gpu.through_op == through, "a layer's weight is a transposed b"
        assert given.shape == (2, 5, 16)
        q, scale = int8(32, 64), torch.ones(32)
        packed = gemmsmith.nn.Int8Linear.from_torch(layer)
        for _ in range(2):
            packed.quantized_product(q, scale, BF16)
            assert gpu.last().a_scale == scale.data_ptr()
        assert gpu.through_op == through + 1


def test_the_cpu_needs_no_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct, "_table", None)
    monkeypatch.setattr(direct, "launch", direct._nothing)
    gemmsmith.gemm(bf16(4, 8), bf16(8, 8))
    assert direct._table is None
    record = execute.last_kernel()
    assert record is not None
    assert record.name == "cpu"
