from __future__ import annotations

import copy
import io
import pickle
from pathlib import Path

import numpy
import pytest
import torch
from torch._dynamo.testing import CompileCounter

from gemmsmith import nn
from gemmsmith.errors import ArgumentTypeError, NoKernelError
from gemmsmith.kernelset import load
from gemmsmith.ops import last_kernel


def integers(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """Small integers, so that sums are exact: |sum| < 256 for K up to 28."""
    return torch.randint(-3, 4, shape).to(dtype)


def layer(k: int = 24, n: int = 16, bias: bool = True) -> nn.Linear:
    torch.manual_seed(7)
    made = nn.Linear(k, n, bias=bias, dtype=torch.bfloat16)
    with torch.no_grad():
        made.weight.copy_(integers(n, k))
        if bias:
            made.bias.copy_(integers(n))
    return made


def expected(linear: torch.nn.Linear, x: torch.Tensor) -> torch.Tensor:
    y = x.double() @ linear.weight.double().t()
    if linear.bias is not None:
        y = y + linear.bias.double()
    return y.to(x.dtype)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(24,), (1, 24), (7, 24), (2, 3, 24), (2, 1, 3, 24), (0, 24)])
def test_values_keep_the_leading_dimensions(shape: tuple[int, ...], bias: bool) -> None:
    linear, x = layer(bias=bias), integers(*shape)
    with torch.no_grad():
        y = linear(x)
    assert y.dtype is torch.bfloat16
    assert y.shape == (*shape[:-1], 16)
    assert torch.equal(y, expected(linear, x))


def test_fp16_values() -> None:
    linear, x = layer().to(torch.float16), integers(5, 24, dtype=torch.float16)
    with torch.inference_mode():
        y = linear(x)
    assert y.dtype is torch.float16
    assert torch.equal(y, expected(linear, x))


def test_strided_input() -> None:
    linear, x = layer(), integers(10, 48)[::2, 24:]
    with torch.no_grad():
        assert torch.equal(linear(x), expected(linear, x))


def test_from_torch_shares_the_parameters() -> None:
    theirs = torch.nn.Linear(24, 16, dtype=torch.bfloat16).eval()
    theirs.weight.requires_grad_(False)
    ours = nn.Linear.from_torch(theirs)
    assert isinstance(ours, torch.nn.Linear)
    assert ours.weight is theirs.weight
    assert ours.bias is theirs.bias
    assert not ours.training
    with torch.no_grad():
        theirs.weight.fill_(1)
        theirs.bias.zero_()
        assert torch.equal(ours(torch.ones(24, dtype=torch.bfloat16)), torch.full((16,), 24.0))


def test_from_torch_without_bias_in_training_mode() -> None:
    ours = nn.Linear.from_torch(torch.nn.Linear(8, 8, bias=False, dtype=torch.float16))
    assert ours.training
    assert ours._parameters["bias"] is None


def test_from_torch_refuses_a_subclass() -> None:
    class Lora(torch.nn.Linear):
        pass

    with pytest.raises(ArgumentTypeError, match="Lora; from_torch takes exactly"):
        nn.Linear.from_torch(Lora(8, 8))


def test_a_gradient_is_refused_and_the_next_call_works() -> None:
    linear, x = layer(), integers(3, 24)
    with pytest.raises(Exception, match="forward only"):
        linear(x)
    with torch.no_grad():
        assert torch.equal(linear(x), expected(linear, x))
    linear.requires_grad_(False)
    assert torch.equal(linear(x), expected(linear, x))
    with pytest.raises(Exception, match="forward only"):
        linear(x.requires_grad_())


def test_state_dict_goes_both_ways() -> None:
    ours, theirs = layer(), torch.nn.Linear(24, 16, dtype=torch.bfloat16)
    theirs.load_state_dict(ours.state_dict())
    assert torch.equal(theirs.weight, ours.weight)
    fresh = nn.Linear(24, 16, dtype=torch.bfloat16)
    fresh.load_state_dict(theirs.state_dict())
    assert torch.equal(fresh.weight, ours.weight)
    assert torch.equal(fresh.bias, ours.bias)


def test_deepcopy_pickle_and_save() -> None:
    linear, x = layer(), integers(3, 24)
    file = io.BytesIO()
    torch.save(linear, file)
    file.seek(0)
    copies = (
        copy.deepcopy(linear),
        pickle.loads(pickle.dumps(linear)),
        torch.load(file, weights_only=False),
    )
    want = expected(linear, x)
    with torch.no_grad():
        linear.weight.zero_()
        for other in copies:
            assert type(other) is nn.Linear
            assert torch.equal(other(x), want)


def test_compiles_to_one_graph() -> None:
    linear = layer().requires_grad_(False)
    counted = CompileCounter()
    compiled = torch.compile(
        lambda x: torch.nn.functional.silu(linear(x)), fullgraph=True, dynamic=True, backend=counted
    )
    for rows in (2, 7, 16, 129):
        x = integers(rows, 24)
        assert torch.equal(compiled(x), torch.nn.functional.silu(expected(linear, x)))
    assert counted.frame_count == 1


def test_a_layer_may_be_tied_to_one_kernel(tmp_path: Path) -> None:
    file = tmp_path / "own.yaml"
    file.write_text(
        "families:\n"
        "  - {name: own, arch: sm_90a, dtype: {a: bf16, d: fp32},"
        " schedule: pingpong, tile: [64, 64, 64]}\n"
    )
    kernels = load(file, arch="sm_90a")
    (name,) = kernels.names
    linear, x = layer(bias=False).use(kernels[name]), integers(3, 24)
    with torch.no_grad():
        y = linear(x)
    assert y.dtype is torch.float32  # the kernel's output type, which no default would give
    assert torch.equal(y, expected(linear, x).float())
    record = last_kernel()
    assert record is not None
    assert record.name == "cpu"


def test_a_handle_of_another_process_is_refused() -> None:
    linear = layer()
    linear.kernels = "set-0123@4567"
    with torch.no_grad(), pytest.raises(NoKernelError, match="no kernel set of this process"):
        linear(integers(3, 24))


@pytest.mark.parametrize("value", [None, 5, [1.0], numpy.ones((2, 16))])
def test_an_input_that_is_no_tensor_is_named(value: object) -> None:
    with pytest.raises(ArgumentTypeError, match=r"^input is a \w+, not a torch\.Tensor$"):
        nn.Linear(16, 8)(value)
