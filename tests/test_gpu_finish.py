"""Kernels with functions, scales, zero points and gates: exact where that can be, else one ulp."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from gemm_data import error_bound, matrix, rounded, small_integers  # noqa: E402
from gemmsmith.finish import ACTIVATIONS, finished, make_finish  # noqa: E402
from gemmsmith.kernelset import KernelSet  # noqa: E402
from kernel_sets import SETS, TORCH_OF, kernel_set, run_twice, unit  # noqa: E402

pytestmark = pytest.mark.gpu

EXACT = ("none", "relu")
"""Functions whose results are exact where their arguments are."""


@pytest.fixture(scope="module", params=SETS)
def kernels(request: pytest.FixtureRequest) -> KernelSet:
    return kernel_set(request.param)


def rich(kernels: KernelSet, **fields: Any) -> list[Any]:
    """Return the kernels with an epilogue beyond bias and residual, and with these ``fields``."""
    every = [kernels[name] for name in kernels.names]
    chosen = [
        kernel
        for kernel in every
        if kernel.spec.activation != "none" or kernel.spec.gate != "none" or kernel.spec.scaled
    ]
    chosen = [k for k in chosen if all(getattr(k.spec, key) == to for key, to in fields.items())]
    if not chosen:
        pytest.skip(f"no kernel of this set has an epilogue with {fields}")
    return chosen


def shapes(spec: Any) -> Iterator[tuple[int, int, int]]:
    """Yield (M, N, K), M never N: wide, tall, and where rows are contiguous one row."""
    step = unit(spec)
    columns = step * (1 if spec.gate == "none" else 2)
    yield 5 * step, 33 * columns, 9 * step
    yield 33 * step, 3 * columns, 8 * step
    if spec.layout[0] == spec.layout[2] == "r":
        yield 1, 5 * columns, 4 * step
    if set(spec.alignment) == {1}:
        yield 37, 75, 51


def powers(size: int) -> Any:
    """Return factors that keep whole numbers exact, of both signs and zero."""
    choice = torch.tensor([0.0, 0.25, 0.5, 1.0, 2.0, -0.5, -1.0], device="cuda")
    return choice[torch.randint(len(choice), (size,), device="cuda")]


def integers(*shape: int, dtype: Any, most: int = 3) -> Any:
    return small_integers(*shape, dtype=dtype, device="cuda", most=most)


class Call:
    """Operands and epilogue of one call, from whole numbers, and its result in f32 or better."""

    def __init__(self, spec: Any, m: int, n: int, k: int) -> None:
        dtype, self.dtype = TORCH_OF[spec.a], TORCH_OF[spec.d]
        self.spec = spec
        self.a = matrix(m, k, spec.layout[0], integers(m, k, dtype=dtype))
        self.b = matrix(k, n, spec.layout[1], integers(k, n, dtype=dtype))
        self.alpha = 0.5
        self.parts: dict[str, Any] = {}
        if spec.bias:
            self.parts["bias"] = integers(n, dtype=TORCH_OF[spec.bias_type])
        if spec.residual:
            c = matrix(m, n, spec.layout[2], integers(m, n, dtype=self.dtype))
            self.parts["residual"] = c
        if spec.scaled:
            self.parts["a_scale"], self.parts["b_scale"] = powers(m), powers(n)
        if spec.zero_point:
            self.parts["a_zero_point"] = integers(m, dtype=torch.int32, most=9)

    def subsets(self) -> Iterator[dict[str, Any]]:
        """Yield all parts, none of them, and all but each: what is absent is a null pointer."""
        yield self.parts
        yield {}
        for left_out in self.parts if len(self.parts) > 1 else ():
            yield {name: part for name, part in self.parts.items() if name != left_out}

    def arguments(self, parts: dict[str, Any], activation: str) -> dict[str, Any]:
        extra = {**parts, "alpha": self.alpha, "activation": activation, "gate": self.spec.gate}
        if "residual" in parts:
            extra["beta"] = -2.0
        if self.spec.d.name == "int8":
            extra["out_scale"] = 0.25
        return extra

    def expected(self, parts: dict[str, Any], activation: str) -> Any:
        """Return the result before it is rounded; what tests on the CPU prove says what it is."""
        a_scale, b_scale, zero = (
            parts.get(name) for name in ("a_scale", "b_scale", "a_zero_point")
        )
        scale = 0.25 if self.spec.d.name == "int8" else 1.0
        finish = make_finish(
            self.a, self.b, activation, self.spec.gate, a_scale, b_scale, zero, None, scale
        )
        sums = self.a.double() @ self.b.double()
        result = finished(sums, finish, self.alpha, parts.get("bias")).double()
        if "residual" in parts:
            result = result - 2.0 * parts["residual"].double()
        return result * scale

    def functions(self) -> tuple[str, ...]:
        return ACTIVATIONS if self.spec.activation == "any" else (self.spec.activation,)


def excess(result: Any, exact: Any, magnitude: float) -> float:
    """Return the error over what a function in f32 and one rounding may leave."""
    if result.dtype == torch.int8:
        error = (result.double() - exact.clamp(-128, 127)).abs()
        return float((error / (0.5 + 2.0**-18 * magnitude)).max())
    small = torch.full_like(exact, magnitude)
    bound = error_bound(exact, small, 64, result.dtype)  # 2^-18 of the largest beside one ulp
    return float(((result.double() - exact).abs() / bound).max())


def test_every_part_of_an_epilogue_is_right_present_and_absent(kernels: KernelSet) -> None:
    tested = 0
    for kernel in rich(kernels):
        for m, n, k in shapes(kernel.spec):
            call = Call(kernel.spec, m, n, k)
            for activation in call.functions():
                for parts in call.subsets():
                    result = run_twice(kernel, call.a, call.b, **call.arguments(parts, activation))
                    exact = call.expected(parts, activation)
                    where = f"{kernel.name} at {m}x{n}x{k}, {activation}, {sorted(parts)}"
                    if activation in EXACT and kernel.spec.gate == "none":
                        assert torch.equal(result, rounded(exact, call.dtype)), where
                    else:
                        assert excess(result, exact, float(exact.abs().max())) <= 1.0, where
                    tested += 1
    print(f"{tested} kernels, shapes and epilogues right")
    assert tested >= 4 * len(rich(kernels)) > 0


def test_a_bias_beside_a_residual_goes_through_the_function_alone(kernels: KernelSet) -> None:
    """A batch, rows apart: each matrix has its own residual, the bias is one for all."""
    for kernel in rich(kernels, scaled=False, residual=True):
        spec = kernel.spec
        m, n, k = (each * unit(spec) for each in (3, 5, 7))
        call = Call(spec, m, n, k)
        a, b, c = (
            torch.stack([part, part.flip(-1), part.flip(-2)])
            for part in (call.a, call.b, call.parts["residual"])
        )
        a, b, c = (
            each if letter == "r" else each.mT.contiguous().mT
            for each, letter in zip((a, b, c), spec.layout, strict=True)
        )
        bias = call.parts.get("bias")
        activation = "relu" if spec.activation == "any" else spec.activation
        result = run_twice(
            kernel, a, b, padding=unit(spec), bias=bias, residual=c, activation=activation
        )
        finish = make_finish(a, b, activation, "none", None, None, None, None, 1.0)
        exact = finished(a.double() @ b.double(), finish, 1.0, bias).double() + c.double()
        if activation in EXACT:
            assert torch.equal(result, rounded(exact, call.dtype)), kernel.name
        else:
            assert excess(result, exact, float(exact.abs().max())) <= 1.0, kernel.name


def test_r06_rows_and_columns_do_not_change_places_in_a_square(kernels: KernelSet) -> None:
    """Scales, zero points and bias of a square result, each different at each index."""
    for kernel in rich(kernels, scaled=True, gate="none"):
        spec = kernel.spec
        size = 10 * unit(spec)
        call = Call(spec, size, size, size)
        places = torch.arange(size, device="cuda")
        call.parts["a_scale"] = 2.0 ** (places % 5).float()
        call.parts["b_scale"] = 2.0 ** -(places % 3).float()
        activation = "none" if spec.activation == "any" else spec.activation
        result = run_twice(kernel, call.a, call.b, **call.arguments(call.parts, activation))
        exact = call.expected(call.parts, activation)
        if activation in EXACT:
            assert torch.equal(result, rounded(exact, call.dtype)), kernel.name
        else:
            assert excess(result, exact, float(exact.abs().max())) <= 1.0, kernel.name


def test_vectors_may_begin_at_any_element(kernels: KernelSet) -> None:
    """Scales and zero points need no alignment, and nothing beyond their ends is used."""
    for kernel in rich(kernels, scaled=True):
        m, n, k = next(shapes(kernel.spec))
        call = Call(kernel.spec, m, n, k)
        activation = call.functions()[0]
        aligned = run_twice(kernel, call.a, call.b, **call.arguments(call.parts, activation))
        for name in ("a_scale", "b_scale", "a_zero_point"):
            if name in call.parts:
                part = call.parts[name]
                room = part.new_full((len(part) + 2,), -(2**30))
                room[1:-1] = part
                call.parts[name] = room[1:-1]
        result = run_twice(kernel, call.a, call.b, **call.arguments(call.parts, activation))
        assert torch.equal(result, aligned), kernel.name


def test_zero_scales_give_the_function_of_the_bias_exactly(kernels: KernelSet) -> None:
    for kernel in rich(kernels, scaled=True, bias=True, gate="none"):
        m, n, k = next(shapes(kernel.spec))
        call = Call(kernel.spec, m, n, k)
        for name in ("a_scale", "b_scale"):
            for activation in call.functions():
                parts = {"bias": call.parts["bias"], name: torch.zeros_like(call.parts[name])}
                result = run_twice(kernel, call.a, call.b, **call.arguments(parts, activation))
                assert bool((result == result[:1]).all()), f"{kernel.name}: rows differ"
                exact = call.expected(parts, activation)
                if activation in EXACT:
                    assert torch.equal(result, rounded(exact, call.dtype)), kernel.name
                else:
                    assert excess(result, exact, 4.0) <= 1.0, kernel.name


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_nan_and_inf_stay_in_their_row(kernels: KernelSet, poison: float) -> None:
    """From A, or for whole numbers from a scale; relu and gates do not hide a NaN."""
    for kernel in rich(kernels):
        spec = kernel.spec
        m, n, k = next(shapes(spec))
        call = Call(spec, m, n, k)
        activation = call.functions()[-1]
        clean = run_twice(kernel, call.a, call.b, **call.arguments(call.parts, activation))
        row = 3
        if spec.a.name != "int8":
            call.a[row, 2] = poison
        elif "a_scale" in call.parts:
            call.parts["a_scale"][row] = poison
        result = run_twice(kernel, call.a, call.b, **call.arguments(call.parts, activation))
        others = torch.arange(m, device="cuda") != row
        assert torch.equal(result[others], clean[others]), f"{kernel.name}: left its row"
        if poison != poison and spec.d.name != "int8":  # of int8 there is no NaN
            assert bool(result[row].isnan().all()), f"{kernel.name}: a NaN was hidden"


def test_int8_results_are_scaled_then_rounded_half_to_even_and_saturated(
    kernels: KernelSet,
) -> None:
    for kernel in rich(kernels, gate="none"):
        spec = kernel.spec
        if spec.d.name != "int8" or spec.activation not in ("none", "any", "relu"):
            continue
        m, n, k = next(shapes(spec))
        call = Call(spec, m, n, k)
        call.alpha = 8.0
        activation = "none" if spec.activation == "any" else spec.activation
        parts = {name: call.parts[name] for name in ("bias",) if name in call.parts}
        exact = call.expected(parts, activation)
        assert bool((exact % 1 == 0.5).any() if spec.bias else True), "there must be ties"
        assert bool((exact > 128).any()), "there must be results to saturate"
        result = run_twice(kernel, call.a, call.b, **call.arguments(parts, activation))
        assert torch.equal(result, rounded(exact, torch.int8)), kernel.name
