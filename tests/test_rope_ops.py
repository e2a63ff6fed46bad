"""Rotary operations on the CPU against float64, and what they refuse."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import gemmsmith
from gemmsmith import row_ops
from gemmsmith.errors import ArgumentError, ArgumentTypeError
from rope_data import BASE, qkv, turned

DTYPES = [torch.float16, torch.bfloat16, torch.float32]
BF16 = torch.bfloat16


def check(found: Tensor, exact: Tensor) -> None:
    """Assert that values are f64 ones, rounded once, but for what f32 products may add."""
    step = torch.finfo(found.dtype).eps / 2 + 2.0**-21
    torch.testing.assert_close(found.double(), exact, rtol=step, atol=2.0**-21)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(("head_dim", "rotary"), [(64, 64), (80, 32), (100, 100), (80, 20), (6, 2)])
def test_q_and_k_are_rotated_in_place(
    head_dim: int, rotary: int, interleaved: bool, dtype: torch.dtype
) -> None:
    buffer, q, k, _ = qkv((2, 5), 6, 2, head_dim, dtype)
    before = buffer.clone(), q.clone(), k.clone()
    positions = torch.tensor([[0, 1, 2, 4095, 131_071], [7, 8, 9, 10, 2**30]])
    frequencies = gemmsmith.rope_frequencies(rotary)
    gemmsmith.rope(q, k, positions, frequencies, interleaved=interleaved, attention_factor=1.25)
    check(q, turned(before[1], positions, frequencies, interleaved, 1.25))
    check(k, turned(before[2], positions, frequencies, interleaved, 1.25))
    assert torch.equal(q[..., rotary:], before[1][..., rotary:])
    assert torch.equal(buffer[..., 8 * head_dim :], before[0][..., 8 * head_dim :])
    assert row_ops.last_row_kernel() == "cpu"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_y12_angles_do_not_depend_on_the_tensors_type(dtype: torch.dtype) -> None:
    positions = torch.tensor([257, 4095, 15962, 131_071], dtype=torch.int32)
    frequencies = gemmsmith.rope_frequencies(128, BASE)
    q = torch.zeros(4, 1, 128, dtype=dtype)
    q[..., 0] = 1.0  # becomes cosine and sine of the position itself
    k = q.clone()
    gemmsmith.rope(q, k, positions, frequencies)
    right = [math.cos(p) for p in positions.tolist()]
    assert [round(right[1], 3), round(right[2], 3)] == [-0.066, -0.908]
    step = torch.finfo(dtype).eps / 2
    assert q[:, 0, 0].tolist() == pytest.approx(right, rel=1.01 * step, abs=1e-6)
    sines = [math.sin(p) for p in positions.tolist()]
    assert k[:, 0, 64].tolist() == pytest.approx(sines, rel=1.01 * step, abs=1e-6)
    x = torch.randn(4, 3, 128).to(dtype)
    found = x.clone()
    gemmsmith.rope(found, k, positions, frequencies)
    check(found, turned(x, positions, frequencies))


def test_y12_frequencies_that_a_module_s_to_rounded_are_refused() -> None:
    module = torch.nn.Module()
    module.register_buffer("inv_freq", gemmsmith.rope_frequencies(64).float())
    x, positions = torch.randn(3, 2, 64), torch.arange(3)
    gemmsmith.rope(x.clone(), x.clone(), positions, module.inv_freq)  # type: ignore[arg-type]
    for moved in (module.to(BF16), module.half()):
        half: Any = moved.inv_freq
        with pytest.raises(ArgumentTypeError, match=r"inv_freq is torch.*rounds its buffers"):
            gemmsmith.rope(x.to(half.dtype), x.to(half.dtype), positions, half)


def test_f32_frequencies_are_multiplied_exactly() -> None:
    frequencies = gemmsmith.rope_frequencies(64, 500_000.0).float()
    positions = torch.tensor([131_071, 1_000_003])
    x = torch.randn(2, 2, 64)
    found = x.clone()
    gemmsmith.rope(found, x.clone(), positions, frequencies)
    check(found, turned(x, positions, frequencies))
    rounded = (positions[:, None].float() * frequencies).double()
    exact = positions[:, None].double() * frequencies.double()
    assert (rounded - exact).abs().max() > 1e-3  # what an f32 product would have lost


def test_y13_each_pairing_is_its_own_formula() -> None:
    x = torch.arange(8.0).view(1, 1, 8)
    frequencies = gemmsmith.rope_frequencies(8)
    angle = 3 * frequencies
    cosine, sine = angle.cos(), angle.sin()
    first, second = x[0, 0, :4].double(), x[0, 0, 4:].double()
    halves = torch.cat((first * cosine - second * sine, second * cosine + first * sine))
    even, odd = x[0, 0, 0::2].double(), x[0, 0, 1::2].double()
    pairs = torch.stack((even * cosine - odd * sine, odd * cosine + even * sine), -1).flatten()
    found = [x.clone() for _ in range(3)]
    position = torch.tensor([3])
    gemmsmith.rope(found[0], x.clone(), position, frequencies)
    gemmsmith.rope(found[1], x.clone(), position, frequencies, interleaved=False)
    gemmsmith.rope(found[2], x.clone(), position, frequencies, interleaved=True)
    torch.testing.assert_close(found[0].flatten().double(), halves, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(found[2].flatten().double(), pairs, rtol=1e-6, atol=1e-6)
    assert torch.equal(found[0], found[1])
    assert (halves - pairs).abs().max() > 1


def test_frequencies() -> None:
    found = gemmsmith.rope_frequencies(4, 100.0)
    assert found.dtype == torch.float64
    assert found.tolist() == [1.0, pytest.approx(0.1, rel=1e-15)]
    for bad in (3, 0, -2):
        with pytest.raises(ArgumentError, match=f"rotary_dim is {bad}; a positive even"):
            gemmsmith.rope_frequencies(bad)
    with pytest.raises(ArgumentError, match="base is 0"):
        gemmsmith.rope_frequencies(4, 0)


def test_bad_arguments_are_named() -> None:
    x, positions = torch.randn(2, 3, 4, 8).to(BF16), torch.zeros(2, 3, dtype=torch.int32)
    inv_freq = gemmsmith.rope_frequencies(8)
    bad: dict[str, Any] = {
        "q is a list": ([1.0], x, positions, inv_freq),
        "q is torch.int8; float16": (x.char(), x, positions, inv_freq),
        r"q is \(4, 8\); \(tokens, heads": (x[0, 0], x[0, 0], positions[0, 0], inv_freq),
        "k is torch.float32 on cpu, q is": (x, x.float(), positions, inv_freq),
        "all but the heads must agree": (x, x[:, :2], positions, inv_freq),
        "positions is torch.float32; int32": (x, x, positions.float(), inv_freq),
        r"positions is \(2,\); \(2, 3\) is": (x, x, positions[:, 0], inv_freq),
        "inv_freq is torch.bfloat16; float32 or": (x, x, positions, inv_freq.to(BF16)),
        r"inv_freq is \(5,\); one dimension of 1 to 4": (x, x, positions, torch.ones(5)),
        r"inv_freq is \(0,\); one dimension is needed": (x, x, positions, torch.ones(0)),
        "k is an expanded view": (x, x[:, :, :1].expand(2, 3, 4, 8), positions, inv_freq),
        "gemmsmith.rope is forward only": (
            x.float().requires_grad_(),
            x.float(),
            positions,
            inv_freq,
        ),
    }
    for message, arguments in bad.items():
        with pytest.raises((ArgumentError, ArgumentTypeError), match=message):
            gemmsmith.rope(*arguments)


def test_no_tokens_are_no_trouble() -> None:
    q, k = torch.randn(0, 4, 8), torch.randn(0, 2, 8)
    gemmsmith.rope(q, k, torch.zeros(0, dtype=torch.int64), torch.ones(4))
    assert q.shape == (0, 4, 8)


def test_opcheck_and_compiled_views_of_one_buffer() -> None:
    frequencies = gemmsmith.rope_frequencies(32)
    buffer, q, k, _ = qkv((2, 3), 4, 2, 80, BF16)
    positions = torch.arange(3).expand(2, 3)
    op = torch.ops.gemmsmith.rope.default
    torch.library.opcheck(op, (q.clone(), k.clone(), positions, frequencies, True, 1.5))

    def layer(buffer: Tensor, positions: Tensor) -> Tensor:
        heads: Tensor = (buffer * 2).unflatten(-1, (-1, 80))
        gemmsmith.rope(heads[..., :4, :], heads[..., 4:6, :], positions, frequencies)
        total: Tensor = heads + 1
        return total

    right = layer(buffer, positions)
    assert not torch.equal(right, (buffer * 2).unflatten(-1, (-1, 80)) + 1)
    compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend="aot_eager")
    assert torch.equal(compiled(buffer, positions), right)
    other = qkv((3, 7), 4, 2, 80, BF16)[0]
    places = torch.arange(7).expand(3, 7)
    assert torch.equal(compiled(other, places), layer(other, places))


def test_two_names_of_one_memory_and_switches_that_are_none_are_refused() -> None:
    q, k, v = (torch.randn(1, 3, 2, 64) for _ in "qkv")
    cache, other = torch.zeros(1, 8, 2, 64), torch.zeros(1, 8, 2, 64)
    positions, frequencies = torch.arange(3), gemmsmith.rope_frequencies(64)
    before = q.clone()
    with pytest.raises(ArgumentError, match="q and k are one memory"):
        gemmsmith.rope(q, q, positions, frequencies)
    for given, message in (
        ((q, q, v, cache, other), "q and k are one memory"),
        ((q, k, v, cache, cache), "k_cache and v_cache share memory"),
    ):
        with pytest.raises(ArgumentError, match=message):
            gemmsmith.rope_to_cache(*given, positions[None], frequencies)
    assert torch.equal(q, before)
    word: Any = "no"
    for call in (
        lambda: gemmsmith.rope(q, k, positions, frequencies, interleaved=word),
        lambda: gemmsmith.rope_to_cache(
            q, k, v, cache, other, positions[None], frequencies, interleaved=word
        ),
        lambda: gemmsmith.gate(q, interleaved=word),
        lambda: gemmsmith.gate_quantize(q, interleaved=word),
    ):
        with pytest.raises(ArgumentTypeError, match="interleaved is 'no'; True or False"):
            call()
