"""Every default kernel of this GPU is right: exact on integers, within bounds on random data."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from gemm_data import (  # noqa: E402
    error_bound,
    matrix,
    padded,
    poison_of,
    rounded,
    small_integers,
    untouched,
)
from gemmsmith.errors import NoKernelError  # noqa: E402
from gemmsmith.kernelset import KernelSet  # noqa: E402
from kernel_sets import SETS, TORCH_OF, kernel_set, plain_names, run_twice, unit  # noqa: E402

pytestmark = pytest.mark.gpu

TOKENS = (1, 7, 17, 200, 2048)
WEIGHTS = ((64, 64), (1000, 712), (4096, 1024))
"""(N, K): one tile, odd multiples of 8, many tiles."""


@pytest.fixture(scope="module", params=SETS)
def kernels(request: pytest.FixtureRequest) -> KernelSet:
    return kernel_set(request.param)


def factors(spec) -> tuple[float, float]:  # type: ignore[no-untyped-def]
    """Return an alpha and a beta that the kernel takes: whole ones for int32."""
    return (3.0, -2.0) if spec.d.name == "int32" else (2.0, -0.5)


def test_integers_are_exact(kernels: KernelSet) -> None:
    tested = 0
    for name in plain_names(kernels):
        kernel = kernels[name]
        spec = kernel.spec
        dtype, out_dtype = TORCH_OF[spec.a], TORCH_OF[spec.d]
        for m in TOKENS:
            for n, k in WEIGHTS:
                values_a = small_integers(m, k, dtype=dtype, device="cuda")
                values_b = small_integers(k, n, dtype=dtype, device="cuda")
                a, b = (
                    matrix(m, k, spec.layout[0], values_a),
                    matrix(k, n, spec.layout[1], values_b),
                )
                bias = (
                    small_integers(n, dtype=TORCH_OF[spec.bias_type], device="cuda")
                    if spec.bias
                    else None
                )
                if kernel.misfit(a, b, bias):
                    continue
                exact = a.double() @ b.double()
                if bias is not None:
                    exact = exact + bias.double()
                if spec.acc.name == "fp16" and exact.abs().max() > 2048:
                    continue  # integers above 2^11 are not exact in fp16
                result = run_twice(kernel, a, b, bias=bias)
                assert torch.equal(result, rounded(exact, out_dtype)), f"{name} at {m}x{n}x{k}"
                tested += 1
    print(f"{tested} kernel and shape pairs exact")
    assert tested >= 3 * len(plain_names(kernels))


def test_random_data_within_one_ulp_and_the_sum_bound(kernels: KernelSet) -> None:
    tested = 0
    for name in plain_names(kernels):
        kernel = kernels[name]
        spec = kernel.spec
        if spec.acc.name != "fp32":
            continue
        dtype, out_dtype = TORCH_OF[spec.a], TORCH_OF[spec.d]
        for m, n, k in ((1, 1000, 712), (17, 4096, 1024), (200, 1000, 4096), (2048, 4096, 1024)):
            a = matrix(m, k, spec.layout[0], torch.randn(m, k, dtype=dtype, device="cuda"))
            b = matrix(k, n, spec.layout[1], torch.randn(k, n, dtype=dtype, device="cuda"))
            if kernel.misfit(a, b):
                continue
            result = run_twice(kernel, a, b)
            exact = a.double() @ b.double()
            magnitude = a.double().abs() @ b.double().abs()
            bound = error_bound(exact, magnitude, k, out_dtype)
            excess = ((result.double() - exact).abs() / bound).max().item()
            assert excess <= 1.0, f"{name} at {m}x{n}x{k}: {excess:.2f} of the bound"
            tested += 1
    # at least the sizes that are multiples of 8 everywhere
    assert tested >= 2 * sum(spec.acc.name == "fp32" for spec in kernels.specs) > 0


def test_int8_sums_are_exact_at_the_top_of_their_range(kernels: KernelSet) -> None:
    """127 * 126 * 4096 needs 26 bits, more than the 24 of f32; one product makes the sum odd."""
    names = [name for name in plain_names(kernels) if kernels[name].spec.a.name == "int8"]
    if not names:
        pytest.skip("no int8 kernel in this set")
    m, n, k = 40, 48, 4096
    values_a = torch.full((m, k), 127, dtype=torch.int8, device="cuda")
    values_b = torch.full((k, n), 126, dtype=torch.int8, device="cuda")
    values_b[0] = torch.arange(79, 79 + n, device="cuda").to(torch.int8)
    exact = values_a.double() @ values_b.double()
    for name in names:
        kernel = kernels[name]
        spec = kernel.spec
        a, b = matrix(m, k, spec.layout[0], values_a), matrix(k, n, spec.layout[1], values_b)
        dtype = TORCH_OF[spec.d]
        alpha = 1.0 if dtype == torch.int32 else 2.0**-20
        result = run_twice(kernel, a, b, alpha=alpha)
        if dtype == torch.int32:
            assert torch.equal(result.double(), exact), name
        else:  # the sum is rounded to f32, then scaled by a power of two, then rounded once more
            assert torch.equal(result, rounded(exact.float() * alpha, dtype)), name


def test_n03_int8_outputs_are_rounded_half_to_even_and_saturated(kernels: KernelSet) -> None:
    names = [name for name in plain_names(kernels) if kernels[name].spec.d.name == "int8"]
    if not names:
        pytest.skip("no kernel of this set writes int8")
    values_a = torch.randint(-128, 128, (64, 64), dtype=torch.int8, device="cuda")
    values_b = torch.zeros(64, 64, dtype=torch.int8, device="cuda")
    values_b[:, :16] = torch.eye(64, 16, device="cuda").to(torch.int8) * 127
    values_b[:, 16:32] = torch.eye(64, 16, device="cuda").to(torch.int8)
    values_b[:, 32:] = torch.randint(-1, 2, (64, 32), dtype=torch.int8, device="cuda")
    exact = 0.5 * (values_a.double() @ values_b.double())
    assert (exact % 1 == 0.5).any(), "there must be ties"
    assert (exact.abs() > 128).any(), "there must be sums to saturate"
    for name in names:
        kernel = kernels[name]
        spec = kernel.spec
        a, b = matrix(64, 64, spec.layout[0], values_a), matrix(64, 64, spec.layout[1], values_b)
        result = run_twice(kernel, a, b, alpha=0.5)
        assert torch.equal(result, rounded(exact, torch.int8)), name


def test_residual_alpha_beta_and_bias(kernels: KernelSet) -> None:
    tested = 0
    for name in plain_names(kernels):
        kernel = kernels[name]
        spec = kernel.spec
        m, n, k = (each * unit(spec) for each in (25, 125, 89))
        if not spec.residual:
            continue
        dtype, out_dtype = TORCH_OF[spec.a], TORCH_OF[spec.d]
        a = matrix(m, k, spec.layout[0], small_integers(m, k, dtype=dtype, device="cuda", most=1))
        b = matrix(k, n, spec.layout[1], small_integers(k, n, dtype=dtype, device="cuda", most=1))
        c = matrix(m, n, spec.layout[2], small_integers(m, n, dtype=out_dtype, device="cuda"))
        bias = small_integers(n, dtype=TORCH_OF[spec.bias_type], device="cuda")
        for use_bias in (False, True) if spec.bias else (False,):
            alpha, beta = factors(spec)
            extra: dict[str, Any] = {"residual": c, "alpha": alpha, "beta": beta}
            exact = alpha * (a.double() @ b.double()) + beta * c.double()
            if use_bias:
                extra["bias"] = bias
                exact = exact + bias.double()
            result = run_twice(kernel, a, b, **extra)
            assert torch.equal(result, rounded(exact, out_dtype)), f"{name}, bias {use_bias}"
            tested += 1
        in_place = c.clone(memory_format=torch.preserve_format)
        kernel(a, b, residual=in_place, out=in_place)
        exact = a.double() @ b.double() + c.double()
        assert torch.equal(in_place, rounded(exact, out_dtype)), f"{name} in place"
    assert tested, "no default kernel has a residual"


def test_alpha_scales_the_product_and_not_the_bias(kernels: KernelSet) -> None:
    for name in plain_names(kernels):
        kernel = kernels[name]
        spec = kernel.spec
        m, n, k = (each * unit(spec) for each in (25, 125, 89))
        dtype, out_dtype = TORCH_OF[spec.a], TORCH_OF[spec.d]
        a = matrix(m, k, spec.layout[0], small_integers(m, k, dtype=dtype, device="cuda", most=1))
        b = matrix(k, n, spec.layout[1], small_integers(k, n, dtype=dtype, device="cuda", most=1))
        bias = small_integers(n, dtype=TORCH_OF[spec.bias_type], device="cuda")
        for alpha in (-3.0, 2.0) if spec.d.name == "int32" else (-1.5, 0.25):
            for added in (None, bias) if spec.bias else (None,):
                exact = alpha * (a.double() @ b.double())
                if added is not None:
                    exact = exact + added.double()
                result = run_twice(kernel, a, b, alpha=alpha, bias=added)
                assert torch.equal(result, rounded(exact, out_dtype)), (
                    f"{name}, alpha {alpha}, bias {added is not None}"
                )


def epilogues(spec, c, bias):  # type: ignore[no-untyped-def]
    """Yield the arguments of a kernel's epilogue in all combinations that it has, and their sum."""
    yield {}, 0.0
    if spec.bias:
        yield {"bias": bias}, bias.double()
    if spec.residual:
        yield {"residual": c, "beta": -2.0}, -2.0 * c.double()
    if spec.bias and spec.residual:
        yield {"bias": bias, "residual": c, "beta": -2.0}, bias.double() - 2.0 * c.double()


def test_rows_or_columns_may_lie_apart(kernels: KernelSet) -> None:
    """A, B, residual and D have a leading dimension of their own each; the gaps stay untouched."""
    for name in plain_names(kernels):
        kernel = kernels[name]
        spec = kernel.spec
        step = unit(spec)
        m, n, k = 25 * step, 33 * step, 17 * step
        dtype, out_dtype = TORCH_OF[spec.a], TORCH_OF[spec.d]
        a = small_integers(m, k, dtype=dtype, device="cuda", most=1)
        b = small_integers(k, n, dtype=dtype, device="cuda", most=1)
        c = small_integers(m, n, dtype=out_dtype, device="cuda")
        bias = small_integers(n, dtype=TORCH_OF[spec.bias_type], device="cuda")
        a, b = padded(a, spec.layout[0], 3 * step), padded(b, spec.layout[1], 5 * step)
        c = padded(c, spec.layout[2], 2 * step)
        for extra, added in epilogues(spec, c, bias):
            exact = a.double() @ b.double() + added
            result = run_twice(kernel, a, b, padding=step, **extra)
            assert torch.equal(result, rounded(exact, out_dtype)), f"{name}, {sorted(extra)}"


def test_a_batch_of_three(kernels: KernelSet) -> None:
    """Each product has its own A, B and residual; the bias is one for all."""
    for name in plain_names(kernels):
        kernel = kernels[name]
        spec = kernel.spec
        step = unit(spec)
        m, n, k = 17 * step, 25 * step, 33 * step
        dtype, out_dtype = TORCH_OF[spec.a], TORCH_OF[spec.d]
        a = small_integers(3, m, k, dtype=dtype, device="cuda", most=1)
        b = small_integers(3, k, n, dtype=dtype, device="cuda", most=1)
        c = padded(
            small_integers(3, m, n, dtype=out_dtype, device="cuda"), spec.layout[2], 2 * step
        )
        bias = small_integers(n, dtype=TORCH_OF[spec.bias_type], device="cuda")
        a, b = padded(a, spec.layout[0], 0), padded(b, spec.layout[1], step)
        for extra, added in epilogues(spec, c, bias):
            exact = a.double() @ b.double() + added
            for padding in (0, step):
                result = run_twice(kernel, a, b, padding, **extra)
                assert torch.equal(result, rounded(exact, out_dtype)), f"{name}, {sorted(extra)}"


def test_one_row_or_column_of_a_column_major_output_is_right_or_refused(
    kernels: KernelSet,
) -> None:
    """Such a view has both layouts by its strides, or only the one that the kernel lacks."""
    names = [name for name in plain_names(kernels) if kernels[name].spec.layout[2] == "c"]
    if not names:
        pytest.skip("no kernel of this set writes columns")
    right = refused = 0
    for name in names:
        kernel = kernels[name]
        spec = kernel.spec
        dtype, out_dtype = TORCH_OF[spec.a], TORCH_OF[spec.d]
        for m, n in ((64, 1), (1, 64), (1, 1)):
            a = small_integers(m, 64, dtype=dtype, device="cuda", most=1)
            b = small_integers(64, n, dtype=dtype, device="cuda", most=1)
            a, b = matrix(m, 64, spec.layout[0], a), matrix(64, n, spec.layout[1], b)
            exact = rounded(a.double() @ b.double(), out_dtype)
            for letter in "rc":
                poison = poison_of(out_dtype)
                room = torch.full((72, 72), poison, dtype=out_dtype, device="cuda")
                out = (room if letter == "r" else room.t())[:m, :n]
                where = f"{name} at {m}x{n} inside {letter}"
                if kernel.misfit(a, b, out=out):
                    with pytest.raises(NoKernelError, match=r"layout is|is not a multiple of"):
                        kernel(a, b, out=out)
                    refused += 1
                else:
                    kernel(a, b, out=out)
                    assert torch.equal(out, exact), where
                    right += 1
                    out.fill_(poison)
                assert untouched(room), f"{where}: written outside"
            if not kernel.misfit(a, b):
                assert torch.equal(kernel(a, b), exact), f"{name} at {m}x{n}"
    assert right >= 1
    assert refused >= 1


def test_x14_c_is_not_read_when_beta_is_zero(kernels: KernelSet) -> None:
    m = n = 256
    k = 64
    tested = 0
    for name in plain_names(kernels):
        kernel = kernels[name]
        spec = kernel.spec
        if not spec.residual:
            continue
        dtype, out_dtype = TORCH_OF[spec.a], TORCH_OF[spec.d]
        a = matrix(m, k, spec.layout[0], small_integers(m, k, dtype=dtype, device="cuda"))
        b = matrix(k, n, spec.layout[1], small_integers(k, n, dtype=dtype, device="cuda"))
        exact = rounded(a.double() @ b.double(), out_dtype)
        for poison in (float("nan"), float("inf")) if spec.d.name[0] != "i" else (99, -1):
            for beta in (0.0, -0.0):
                c = torch.full((m, n), poison, dtype=out_dtype, device="cuda")
                c = matrix(m, n, spec.layout[2], c)
                result = kernel(a, b, residual=c, beta=beta)
                assert torch.equal(result, exact), f"{name}: {poison} leaks with beta {beta}"
                tested += 1
    with_residual = [name for name in plain_names(kernels) if kernels[name].spec.residual]
    assert tested == 4 * len(with_residual) > 0


def test_n01_half_accumulators_lose_ones_and_f32_ones_do_not(kernels: KernelSet) -> None:
    k = 4096
    names = [
        name
        for name in plain_names(kernels)
        if (kernels[name].spec.a.name, kernels[name].spec.d.name) == ("fp16", "fp16")
    ]
    assert names, "every architecture has fp16"
    for name in names:
        kernel = kernels[name]
        spec = kernel.spec
        a = torch.zeros(8, k, dtype=torch.float16, device="cuda")
        a[0, 0] = 2048
        a[0, 16:4096:16] = 1
        b = torch.ones(k, 8, dtype=torch.float16, device="cuda")
        a, b = matrix(8, k, spec.layout[0], a), matrix(k, 8, spec.layout[1], b)
        found = kernel(a, b)[0, 0].item()
        if spec.acc.name == "fp32":
            assert found == 2304.0, name  # 2303 rounded to fp16
        else:
            assert found < 2304.0, name  # in fp16, 2048 + 1 is 2048


def test_a_call_that_does_not_fit_is_refused_and_the_next_one_works(kernels: KernelSet) -> None:
    refused = 0
    for name in plain_names(kernels):
        kernel = kernels[name]
        spec = kernel.spec
        dtype = TORCH_OF[spec.a]
        a = matrix(8, 36, spec.layout[0], torch.ones(8, 36, dtype=dtype, device="cuda"))
        b = matrix(36, 8, spec.layout[1], torch.ones(36, 8, dtype=dtype, device="cuda"))
        if spec.layout.startswith("rc") and spec.alignment.a >= 8 and spec.alignment.b >= 8:
            with pytest.raises(NoKernelError, match=r"K=36 is not a multiple of (8|16)"):
                kernel(a, b)
            refused += 1
        a = matrix(16, 64, spec.layout[0], torch.ones(16, 64, dtype=dtype, device="cuda"))
        b = matrix(64, 16, spec.layout[1], torch.ones(64, 16, dtype=dtype, device="cuda"))
        assert (kernel(a, b) == 64).all(), name
    assert refused >= 1
