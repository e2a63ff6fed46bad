"""Row kernels on a GPU: bit for bit what torch computes on the CPU, in poisoned memory."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import gemmsmith  # noqa: E402
from gemmsmith import row_ops  # noqa: E402
from gemmsmith.arch import architecture_of  # noqa: E402
from gemmsmith.build import build  # noqa: E402
from gemmsmith.launcher import RowKernel, load_row_library  # noqa: E402
from gemmsmith.operands import TORCH_DTYPES  # noqa: E402
from gemmsmith.rowspec import RowOperation, row_dtypes, row_specs  # noqa: E402
from row_data import (  # noqa: E402
    MATRIX_OPERATIONS,
    RowCase,
    cases,
    check_bits,
    check_gate,
    matrix_specs,
    run_case,
)

pytestmark = pytest.mark.gpu
BF16 = torch.bfloat16
LARGE = (
    RowCase(rows=2048, columns=4096),
    RowCase(rows=8192, columns=14336),
    RowCase(rows=70_000, columns=128),
    RowCase(rows=300, columns=65_536),
)


@pytest.fixture(scope="module")
def kernels() -> dict[str, RowKernel]:
    """The row kernels of the GPU, by operation and element type."""
    arch = architecture_of(torch.cuda.get_device_capability())
    report = build(matrix_specs(arch))
    report.raise_if_failed()
    return {built.spec.name: load_row_library(built.library)[built.spec.name]
            for built in report.built}  # fmt: skip


def kernel_of(kernels: dict[str, RowKernel], operation: RowOperation, dtype) -> RowKernel:  # type: ignore[no-untyped-def]
    arch = architecture_of(torch.cuda.get_device_capability())
    if TORCH_DTYPES[dtype] not in row_dtypes(arch):
        pytest.skip(f"{arch.name} has no {dtype} row kernels")
    return kernels[f"rows_{operation}_{TORCH_DTYPES[dtype].name}_{arch.suffix}"]


@pytest.mark.parametrize("dtype", [torch.float16, BF16, torch.float32], ids=str)
@pytest.mark.parametrize("operation", MATRIX_OPERATIONS)
def test_kernels_write_what_the_cpu_computes(
    operation: RowOperation, dtype, kernels: dict[str, RowKernel]
) -> None:  # type: ignore[no-untyped-def]
    kernel = kernel_of(kernels, operation, dtype)
    check = check_gate if "gate" in operation else check_bits
    stream = torch.cuda.current_stream().cuda_stream
    for case in (*cases(operation), *LARGE):
        try:
            check(run_case(kernel, operation, case, dtype, "cuda", stream))
        except AssertionError as error:
            raise AssertionError(f"{kernel.name} {case}: {error}") from error


def same(found, right) -> None:  # type: ignore[no-untyped-def]
    found = found if isinstance(found, tuple) else (found,)
    right = right if isinstance(right, tuple) else (right,)
    for one, other in zip(found, right, strict=True):
        torch.testing.assert_close(one.cpu(), other, rtol=0, atol=0, equal_nan=True)


def test_ops_run_kernels_and_give_the_cpu_s_bits() -> None:
    x, residual = torch.randn(3, 37, 1000).to(BF16), torch.randn(3, 37, 1000).to(BF16)
    weight = torch.randn(1000).to(BF16)
    on_gpu = [tensor.cuda() for tensor in (x, weight, residual)]
    quantized = gemmsmith.quantize_rows(x)
    same(gemmsmith.quantize_rows(on_gpu[0]), quantized)
    assert row_ops.last_row_kernel().startswith("rows_quantize_bf16_")
    scaled = gemmsmith.quantize_rows(x, column_scale=weight)
    same(gemmsmith.quantize_rows(on_gpu[0], column_scale=on_gpu[1]), scaled)
    assert not torch.equal(scaled[0], quantized[0])
    for norm in (gemmsmith.rms_norm, gemmsmith.rms_norm_quantize):
        for given in (None, residual):
            right = norm(x, weight, 1e-5, given)
            same(norm(on_gpu[0], on_gpu[1], 1e-5, given if given is None else on_gpu[2]), right)
            assert row_ops.last_row_kernel().startswith(f"rows_{norm.__name__}_bf16_")
    out = gemmsmith.gate(on_gpu[0], "gelu_tanh")
    assert row_ops.last_row_kernel().startswith("rows_gate_bf16_")
    torch.testing.assert_close(out.cpu(), gemmsmith.gate(x, "gelu_tanh"), rtol=2**-7, atol=1e-30)
    q, scale = gemmsmith.quantize_weight(on_gpu[0][0])
    same((q, scale), gemmsmith.quantize_weight(x[0]))


def test_views_and_a_given_output() -> None:
    big = torch.randn(64, 512).to(BF16)
    room = torch.full((32, 160), 99, dtype=torch.int8, device="cuda")
    scale = torch.full((32,), float("nan"), device="cuda")
    view = big.cuda()[::2, 8:136]
    gemmsmith.quantize_rows(view, out=(room[:, 16:144], scale))
    same((room[:, 16:144], scale), gemmsmith.quantize_rows(big[::2, 8:136]))
    assert (room[:, :16] == 99).all()
    assert (room[:, 144:] == 99).all()
    same(gemmsmith.quantize_rows(big.cuda().t()), gemmsmith.quantize_rows(big.t().contiguous()))
    assert gemmsmith.quantize_rows(view[:0])[0].shape == (0, 128)


def test_n05_a_zero_row_and_nan_stay_in_their_rows() -> None:
    x = torch.randn(4, 4096).to(BF16)
    x[1], x[2, 5] = 0.0, float("nan")
    q, scale = (part.cpu() for part in gemmsmith.quantize_rows(x.cuda()))
    assert scale[1] == 0
    assert not q[1].any()
    assert scale.isnan().tolist() == [False, False, True, False]


def test_the_current_stream_and_a_graph() -> None:
    x = torch.randn(64, 4096, device="cuda").to(BF16)
    gemmsmith.quantize_rows(x)
    stream = torch.cuda.Stream()
    fresh = torch.randn(64, 4096).to(BF16)
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(100_000_000)
        x.copy_(fresh)
        found = gemmsmith.quantize_rows(x)
    stream.synchronize()
    same(found, gemmsmith.quantize_rows(fresh))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        q, scale = gemmsmith.quantize_rows(x)
    for _ in range(3):
        fresh = torch.randn(64, 4096).to(BF16)
        x.copy_(fresh)
        graph.replay()
        same((q, scale), gemmsmith.quantize_rows(fresh))


def test_compiled_without_breaks() -> None:
    weight = torch.randn(1024, device="cuda").to(BF16)

    def layer(x):  # type: ignore[no-untyped-def]
        q, scale = gemmsmith.rms_norm_quantize(x, weight, 1e-5)
        return q.float() * scale[:, None]

    compiled = torch.compile(layer, fullgraph=True, dynamic=True)
    for rows in (1, 7, 129):
        x = torch.randn(rows, 1024, device="cuda").to(BF16)
        torch.testing.assert_close(compiled(x), layer(x))


def test_opcheck() -> None:
    x, weight = torch.randn(5, 96, device="cuda").to(BF16), torch.randn(96, device="cuda").to(BF16)
    torch.library.opcheck(torch.ops.gemmsmith.quantize_rows.default, (x,))
    torch.library.opcheck(torch.ops.gemmsmith.quantize_rows.default, (x, weight))
    torch.library.opcheck(torch.ops.gemmsmith.add_rms_norm_quantize.default, (x, weight, 1e-5, x))
    torch.library.opcheck(torch.ops.gemmsmith.gate_quantize.default, (x, "silu", True))


def test_both_launchers_give_equal_bits() -> None:
    from gemmsmith.launcher.with_ctypes import CtypesLauncher
    from gemmsmith.launcher.with_pybind11 import pybind11_launcher
    from gemmsmith.lookup import find_built

    arch = architecture_of(torch.cuda.get_device_capability())
    spec = next(s for s in row_specs(arch) if s.operation == "rms_norm_quantize")
    build([spec]).raise_if_failed()
    path = str(find_built([spec])[spec])
    case = RowCase(rows=33, columns=1000, residual=True)
    stream = torch.cuda.current_stream().cuda_stream
    for launcher in (CtypesLauncher(), pybind11_launcher()):
        kernel = next(k for k in launcher.load_rows(path) if k.name == spec.name)
        check_bits(run_case(kernel, spec.operation, case, torch.float16, "cuda", stream))
