"""int8 layers on the CPU and, marked ``gpu``, on the kernels: the same tests."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch
from torch import Tensor

import gemmsmith
from gemmsmith import nn
from gemmsmith.errors import ArgumentError, ArgumentTypeError
from layer_data import BF16, exact, linear, numbers, on_each, outliers, relative


def row_bound(layer: torch.nn.Linear, x: Tensor) -> Tensor:
    """Return how far W8A8 with a scale a row and a channel may be off, for each output, in f64.

    Each factor is off by half a step at most: |x w - x' w'| <= |x| dw + dx |w| + dx dw, summed over
    K; then 1 ulp of the bf16 result.
    """
    rows, w = x.cpu().double().reshape(-1, x.shape[-1]).abs(), layer.weight.cpu().double().abs()
    dx = rows.amax(-1, keepdim=True) / 254 * 1.001
    dw = w.amax(-1, keepdim=True) / 254 * 1.001
    k = rows.shape[-1]
    off = rows.sum(-1, keepdim=True) * dw.t() + dx * w.sum(-1) + k * dx * dw.t()
    return off.reshape(*x.shape[:-1], -1) + 2.0**-7 * exact(layer, x).abs() + 1e-6


@on_each
@pytest.mark.parametrize("m", [1, 2, 15, 16, 17, 31])
def test_x26_any_number_of_tokens_is_right(m: int, device: str) -> None:
    """The library's own int8 product wants more than 16 rows."""
    theirs, x = linear(1024, 1024, device=device), numbers(m, 1024, device=device)
    y = nn.Int8Linear.from_torch(theirs)(x)
    right = exact(theirs, x)
    assert y.shape == (m, 1024)
    assert y.dtype == BF16
    assert ((y.cpu().double() - right).abs() <= row_bound(theirs, x)).all()
    assert 1e-4 < relative(y, right) < 0.02
    assert _kernel_ran(device)


def _kernel_ran(device: str) -> bool:
    record = gemmsmith.last_kernel()
    return record is not None and record.name.startswith("cpu" if device == "cpu" else "gemm_int8_")


@on_each
@pytest.mark.parametrize("bias", [True, False])
def test_y19_a_layer_with_an_outlier_column_moves_and_comes_back(bias: bool, device: str) -> None:
    theirs = linear(4096, 11008 if device == "cuda" else 1376, bias, device)
    x = numbers(2, 3, 4096, device=device)
    x[..., 77] *= 1000
    ours = nn.Int8Linear.from_torch(theirs)
    assert ours.weight.dtype == torch.int8
    assert ours.weight.untyped_storage().nbytes() == 4096 * theirs.out_features
    assert ours.weight_scale.dtype == torch.float32
    y = ours(x)
    assert y.shape == (2, 3, theirs.out_features)
    right = exact(theirs, x)
    assert ((y.cpu().double() - right).abs() <= row_bound(theirs, x)).all()
    # a scale for the whole tensor would spoil rows without the outlier; rows have their own
    mixed = torch.cat((x[0, :1], numbers(1, 4096, device=device)))
    assert relative(ours(mixed)[1], exact(theirs, mixed)[1]) < 0.02

    file = io.BytesIO()
    torch.save(ours.state_dict(), file)
    file.seek(0)
    fresh = nn.Int8Linear(4096, theirs.out_features, bias=bias, dtype=BF16, device=device)
    fresh.load_state_dict(torch.load(file, weights_only=True))
    moved = copy.deepcopy(ours).to("cpu").to(device)
    for other in (fresh, moved, pickle.loads(pickle.dumps(ours))):
        assert type(other) is nn.Int8Linear
        assert torch.equal(other(x), y)
        for (name, value), (_, own) in zip(
            other.state_dict().items(), ours.state_dict().items(), strict=True
        ):
            assert value.dtype == own.dtype, name
            assert torch.equal(value, own), name


@on_each
@pytest.mark.parametrize(("k", "n"), [(1024, 256), (100, 50)])
@pytest.mark.parametrize("m", [1, 17])
def test_y19_samples_take_outlier_columns_out(k: int, n: int, m: int, device: str) -> None:
    theirs, x = linear(k, n, device=device), outliers(m, k, device=device)
    plain = nn.Int8Linear.from_torch(theirs)
    ours = nn.Int8Linear.from_torch(theirs, outliers(64, k, device=device))
    right = exact(theirs, x)
    y = ours(x)
    assert relative(y, right) < 0.6 * relative(plain(x), right)
    assert _kernel_ran(device)
    assert ours.column_scale is not None
    assert (ours.column_scale.shape, ours.column_scale.dtype) == ((k,), BF16)
    assert "columns scaled" in repr(ours)
    assert "columns scaled" not in repr(plain)
    assert ours.state_dict()["column_scale"].shape == (k,)
    assert "column_scale" not in plain.state_dict()

    fresh = nn.Int8Linear(k, n, dtype=BF16, device=device)
    fresh.load_state_dict(ours.state_dict())
    assigned = nn.Int8Linear(k, n, device="meta", dtype=BF16)
    assigned.load_state_dict(ours.state_dict(), assign=True)
    moved = copy.deepcopy(ours).to("cpu").to(device)
    for other in (fresh, assigned, moved, pickle.loads(pickle.dumps(ours))):
        assert torch.equal(other(x), y)
    with pytest.raises(RuntimeError, match=r"Missing key.*column_scale"):
        ours.load_state_dict(plain.state_dict())


@on_each
def test_a_column_scale_survives_casts_and_leaves_whole_numbers_exact(device: str) -> None:
    columns = (torch.arange(48) % 7 - 4.0).exp2().to(device)
    scaled = torch.randint(-127, 128, (5, 48), device=device)
    divided = torch.randint(-127, 128, (32, 48), device=device)
    scaled[:, 0] = divided[:, 1] = 127
    x, weight = (scaled / columns).to(BF16), (divided * columns).to(BF16)
    ours = nn.Int8Linear.from_weight(weight, column_scale=columns)
    q, steps = ours.quantize(x)
    assert steps.unique().tolist() == [1.0]
    assert torch.equal(q[:, :48], scaled.to(torch.int8))
    assert torch.equal(ours.weight, divided.to(torch.int8))
    right = x.cpu().double() @ weight.cpu().double().t()
    assert torch.equal(ours(x).cpu(), right.to(BF16))
    for dtype in (torch.float16, torch.float32, BF16):
        ours.to(dtype)
        assert ours.column_scale is not None
        assert ours.column_scale.dtype == dtype
        assert torch.equal(ours.column_scale.float(), columns)
        assert torch.equal(ours(x).cpu(), right.to(BF16))
    static = ours.use_input_scale(1.0)
    assert torch.equal(static(x).cpu(), right.to(BF16))


@on_each
def test_n05_a_column_scale_leaves_zero_rows_and_bad_rows_alone(device: str) -> None:
    theirs, x = linear(64, 32, device=device), outliers(5, 64, device=device)
    theirs.weight[7] = 0
    x[2] = 0
    ours = nn.Int8Linear.from_torch(theirs, outliers(32, 64, device=device))
    assert ours.column_scale is not None
    y = ours(x)
    assert torch.equal(y[2], theirs.bias)
    assert torch.equal(y[:, 7], theirs.bias[7].expand(5))
    x[3, 9], x[4, 3] = torch.nan, torch.inf
    bad = ours(x)
    assert not bad[3:].isfinite().any()
    assert torch.equal(bad[:3], y[:3])


def test_column_scales_that_lose_bits_are_refused() -> None:
    with pytest.raises(ArgumentError, match=r"column_scale holds 0\.3"):
        nn.Int8Linear.from_weight(numbers(32, 64), column_scale=torch.full((64,), 0.3))
    with pytest.raises(ArgumentError, match=r"inputs are \(3, 63\)"):
        nn.Int8Linear.from_torch(linear(64, 32), numbers(3, 63))


@on_each
def test_n05_a_zero_row_or_channel_gives_the_bias_exactly(device: str) -> None:
    theirs, x = linear(64, 32, device=device), numbers(5, 64, device=device)
    theirs.weight[7] = 0
    x[2] = 0
    y = nn.Int8Linear.from_torch(theirs)(x)
    assert torch.equal(y[2], theirs.bias)
    assert torch.equal(y[:, 7], theirs.bias[7].expand(5))
    bare = linear(64, 32, bias=False, device=device)
    bare.weight[7] = 0
    z = nn.Int8Linear.from_torch(bare)(x)
    assert z[2].count_nonzero() == z[:, 7].count_nonzero() == 0
    assert z.isfinite().all()


@on_each
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("static", [False, True])
def test_nan_and_infinity_stay_in_their_row(bad: float, static: bool, device: str) -> None:
    theirs, x = linear(64, 32, device=device), numbers(5, 64, device=device)
    ours = nn.Int8Linear.from_torch(theirs)
    if static:
        ours.use_input_scale(float(x.abs().max()) / 127)
    clean = ours(x)
    x[3, 9] = bad
    y = ours(x)
    assert not y[3].isfinite().any()
    others = [0, 1, 2, 4]
    assert torch.equal(y[others], clean[others])


@on_each
@pytest.mark.parametrize(("k", "n"), [(100, 50), (17, 16), (64, 7), (33, 1)])
def test_sizes_that_are_no_multiples_of_16_are_padded_once(k: int, n: int, device: str) -> None:
    theirs, x = linear(k, n, device=device), numbers(2, 3, k, device=device)
    ours = nn.Int8Linear.from_torch(theirs)
    y = ours(x)
    assert y.shape == (2, 3, n)
    assert ((y.cpu().double() - exact(theirs, x)).abs() <= row_bound(theirs, x)).all()
    assert ours.weight.shape == (-(-n // 16) * 16, -(-k // 16) * 16)
    assert f"padded from {n}x{k} to " in repr(ours)
    assert _kernel_ran(device)
    stored = ours.state_dict()
    assert stored["weight"].shape == (n, k)
    assert stored["bias"].shape == stored["weight_scale"].shape == (n,)
    fresh = nn.Int8Linear(k, n, device=device, dtype=BF16)
    fresh.load_state_dict(stored)
    assert torch.equal(fresh(x), y)
    assigned = nn.Int8Linear(k, n, device="meta", dtype=BF16)
    assigned.load_state_dict(stored, assign=True)
    assert torch.equal(assigned(x), y)


@on_each
def test_the_result_is_the_scaled_integer_product_rounded_once(device: str) -> None:
    theirs, x = linear(96, 48, device=device), numbers(9, 96, device=device)
    ours = nn.Int8Linear.from_torch(theirs)
    q, scale = ours.quantize(x)
    sums = q.cpu().double() @ ours.weight.cpu().double().t()
    wide = sums * scale.cpu().double()[:, None] * ours.weight_scale.cpu().double()
    wide = wide + ours.bias.cpu().double()
    off = (ours(x).cpu().double() - wide).abs()
    assert (off <= 2.0**-8 * 1.01 * wide.abs() + 1e-6).all()
    assert torch.equal(ours.quantized(q, scale, BF16), ours(x))
    assert ours.quantized(q, scale, torch.float16).dtype == torch.float16


def test_casts_leave_scales_and_weights_alone() -> None:
    ours = nn.Int8Linear.from_torch(linear(64, 32)).use_input_scale(0.37)
    scale = ours.weight_scale.clone()
    for cast in (ours.half, ours.to(BF16).float, lambda: ours.to(torch.float16)):
        cast()
        assert ours.weight.dtype == torch.int8
        assert torch.equal(ours.weight_scale, scale)
        assert ours.weight_scale.dtype == torch.float32
        assert ours.input_scale is not None
        assert ours.input_scale.dtype == torch.float32
        assert ours.input_scale == torch.tensor(0.37)
    assert ours.bias.dtype == torch.float16
    empty = ours.to("meta").to_empty(device="cpu")
    assert empty.weight_scale.dtype == torch.float32


def test_a_static_input_scale_is_kept_and_may_be_given_up() -> None:
    theirs, x = linear(64, 32), numbers(5, 64)
    ours = nn.Int8Linear.from_torch(theirs)
    dynamic = ours(x)
    step = float(x.abs().max()) / 127
    y = ours.use_input_scale(step)(x)
    assert 1e-4 < relative(y, exact(theirs, x)) < 0.03
    assert not torch.equal(y, dynamic)
    fresh = nn.Int8Linear(64, 32, dtype=BF16)
    fresh.load_state_dict(ours.state_dict())
    assert torch.equal(fresh(x), y)
    clipped = ours.use_input_scale(step / 10)(x)
    assert relative(clipped, exact(theirs, x)) > 0.1
    assert torch.equal(ours.use_input_scale(None)(x), dynamic)
    with pytest.raises(ArgumentError, match=r"scale is 0\.0; a positive finite"):
        ours.use_input_scale(0.0)


def test_a_weight_stored_k_by_n_and_its_state() -> None:
    """GPT-2's Conv1D."""
    weight, bias, x = numbers(48, 40), numbers(40), numbers(3, 48)
    ours = nn.Int8Linear.from_weight(weight, bias, transposed=True)
    theirs = torch.nn.Linear(48, 40, dtype=BF16)
    theirs.weight.data, theirs.bias.data = weight.t().contiguous(), bias
    assert torch.equal(ours(x), nn.Int8Linear.from_torch(theirs)(x))
    assert ours.state_dict()["weight"].shape == (48, 40)
    plain = nn.PreparedLinear.from_weight(weight, bias, transposed=True)
    assert torch.equal(plain.state_dict()["weight"], weight)
    assert relative(plain(x), exact(theirs, x)) < 2**-8


def test_float_weights_are_not_cast_into_an_int8_layer() -> None:
    ours = nn.Int8Linear.from_torch(linear(64, 32))
    before = ours.weight.clone()
    with pytest.raises(RuntimeError, match=r"has torch\.bfloat16, the layer torch\.int8: quantise"):
        ours.load_state_dict({**ours.state_dict(), "weight": linear(64, 32).weight})
    with pytest.raises(RuntimeError, match=r"has \(32, 80\), the layer \(32, 64\)"):
        ours.load_state_dict({**ours.state_dict(), "weight": torch.zeros(32, 80).char()})
    with pytest.raises(RuntimeError, match=r"Missing key.*weight_scale"):
        ours.load_state_dict({"weight": before, "bias": ours.bias})
    assert torch.equal(ours.weight, before)


def test_what_an_int8_layer_does_not_take_is_named() -> None:
    ours = nn.Int8Linear.from_torch(linear(64, 32))
    with pytest.raises(ArgumentTypeError, match=r"input is torch\.float32; an int8 layer takes"):
        ours(torch.ones(3, 64))
    with pytest.raises(ArgumentError, match="input has 63 columns; 64 fit"):
        ours(numbers(3, 63))
    with pytest.raises(ArgumentTypeError, match="input is a NoneType"):
        ours(None)
    with pytest.raises(ArgumentTypeError, match=r"exactly a torch\.nn\.Linear"):
        nn.Int8Linear.from_torch(torch.nn.Bilinear(2, 2, 2))  # type: ignore[arg-type]
    assert ours(numbers(64)).shape == (32,)
    assert ours(numbers(0, 64)).shape == (0, 32)


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("n", [32, 40])
def test_an_int8_layer_compiles_to_one_graph(n: int, scaled: bool) -> None:
    ours = nn.Int8Linear.from_torch(linear(64, n), outliers(32, 64) if scaled else None)
    compiled = torch.compile(ours, fullgraph=True, dynamic=True, backend="aot_eager")
    for m in (1, 5, 33):
        x = numbers(2, m, 64)
        assert torch.equal(compiled(x), ours(x))
