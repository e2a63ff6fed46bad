"""The op as torch traces it: under torch.compile, opcheck, and with shapes alone."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend

import gemmsmith
from gemmsmith.errors import ArgumentError
from op_data import BF16, exact, integers


@pytest.fixture
def compiled() -> Any:
    """Compile without a C++ compiler, whole graphs only, sizes kept symbolic; counts compiles."""
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")

    def compile_it(function: Callable[..., Any]) -> Any:
        return torch.compile(function, backend=counter, fullgraph=True, dynamic=True)

    compile_it.counter = counter  # type: ignore[attr-defined]
    yield compile_it
    torch._dynamo.reset()


def test_x08_empty_sizes_when_compiled(compiled: Any) -> None:
    linear = compiled(lambda x, w, bias: gemmsmith.gemm(x, w.t(), bias))
    w, bias = integers(6, 8), integers(6)
    for rows in (3, 0, 5):
        x = integers(rows, 8)
        assert torch.equal(linear(x, w, bias), exact(x, w.t(), bias))


def test_x23_a_gradient_is_refused_when_compiled_too(compiled: Any) -> None:
    linear = compiled(lambda x, w: gemmsmith.gemm(x, w.t()))
    a, w = integers(8, 16), integers(24, 16).requires_grad_()
    with pytest.raises(Exception, match="forward only"):
        linear(a, w)
    with torch.no_grad():
        assert torch.equal(linear(a, w), exact(a, w.detach().t()))


def test_x24_one_graph_and_two_compiles_for_all_numbers_of_tokens(compiled: Any) -> None:
    def layer(x: Tensor, w: Tensor, bias: Tensor) -> Tensor:
        return torch.nn.functional.silu(gemmsmith.gemm(x, w.t(), bias))

    fast = compiled(layer)
    w, bias = integers(24, 16), integers(24)
    for m in (1, 2, 7, 16, 129, 4096):
        x = integers(m, 16)
        assert torch.equal(fast(x, w, bias), layer(x, w, bias)), m
    assert 1 <= compiled.counter.frame_count <= 2
    nodes = compiled.counter.graphs[-1].graph.nodes
    ours = [str(node.target) for node in nodes if "gemmsmith" in str(node.target)]
    assert ours == ["gemmsmith.gemm.default"]


def test_x24_writing_in_place_when_compiled(compiled: Any) -> None:
    def layer(x: Tensor, w: Tensor, stream: Tensor) -> Tensor:
        gemmsmith.gemm(x, w.t(), residual=stream, out=stream)
        return stream * 2

    fast = compiled(layer)
    x, w = integers(8, 16), integers(24, 16)
    for rows in (8, 5):
        stream = integers(rows, 24)
        right = exact(x[:rows], w.t(), None, stream)
        assert torch.equal(fast(x[:rows], w, stream), right * 2)
        assert torch.equal(stream, right)
    assert compiled.counter.frame_count <= 2


@pytest.mark.parametrize(
    "arguments",
    [
        (integers(5, 16), integers(16, 24)),
        (integers(5, 16), integers(24, 16).t(), integers(24)),
        (integers(2, 5, 16), integers(16, 24), None, integers(2, 5, 24), 2.0, -1.0),
        (integers(3, 5, 16), integers(3, 16, 24), integers(24), integers(3, 5, 24), 1.0, 1.0),
        (integers(16, 5).t(), integers(32, 24)[::2]),
        (integers(1, 16, dtype=torch.float16), integers(16, 1, dtype=torch.float16)),
        (integers(0, 16), integers(16, 24)),
        (integers(5, 16, dtype=torch.float32), integers(16, 24, dtype=torch.float32)),
    ],
)
def test_opcheck(arguments: tuple[Any, ...]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, about its test utilities
        torch.library.opcheck(torch.ops.gemmsmith.gemm.default, arguments)
        shape = (*arguments[0].shape[:-1], arguments[1].shape[-1])
        out = torch.zeros(shape, dtype=arguments[0].dtype)
        torch.library.opcheck(torch.ops.gemmsmith.gemm_out.default, arguments, {"out": out})


def test_meta_tensors_give_shape_and_type_alone() -> None:
    a, b = integers(2, 5, 16).to("meta"), integers(16, 24).to("meta")
    result = gemmsmith.gemm(a, b)
    assert (result.shape, result.dtype, result.device.type) == ((2, 5, 24), BF16, "meta")
    with pytest.raises(ArgumentError, match=r"K=16, b is .* K=24"):
        gemmsmith.gemm(a, b.t())
