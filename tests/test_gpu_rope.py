"""Rotary kernels on a GPU: what f64 says, in poisoned memory, and nothing beyond a cache."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch")

import gemmsmith  # noqa: E402
from gemmsmith.arch import architecture_of  # noqa: E402
from gemmsmith.build import build  # noqa: E402
from gemmsmith.launcher import RowKernel, load_row_library  # noqa: E402
from gemmsmith.operands import TORCH_DTYPES  # noqa: E402
from gemmsmith.row_ops import last_row_kernel  # noqa: E402
from gemmsmith.rowspec import row_dtypes, row_specs  # noqa: E402
from rope_cases import CASES, RopeCase, run_case  # noqa: E402
from rope_data import qkv  # noqa: E402

pytestmark = pytest.mark.gpu
BF16 = torch.bfloat16
LARGE = (
    RopeCase(batch=1, length=4097, heads=32, kv_heads=8, head_dim=128, rotary=128, into="cache"),
    RopeCase(batch=3, length=1500, heads=14, kv_heads=2, gap=64, wide=True),
    RopeCase(batch=1, length=1100, heads=32, kv_heads=32, head_dim=80, rotary=32, into="cache"),
    RopeCase(batch=300, length=4, heads=1, kv_heads=1, head_dim=8, rotary=8, into="cache"),
)


@pytest.fixture(scope="module")
def kernels() -> dict[str, RowKernel]:
    """The rotary kernels of the GPU by element type."""
    arch = architecture_of(torch.cuda.get_device_capability())
    report = build([spec for spec in row_specs(arch) if spec.operation == "rope"])
    report.raise_if_failed()
    return {
        built.spec.name.split("_")[2]: load_row_library(built.library)[built.spec.name]
        for built in report.built
    }


@pytest.mark.parametrize("case", [*CASES, *LARGE], ids=str)
@pytest.mark.parametrize("dtype", [torch.float16, BF16, torch.float32], ids=str)
def test_kernels_write_what_f64_says(case, dtype, kernels) -> None:  # type: ignore[no-untyped-def]
    name = TORCH_DTYPES[dtype].name
    if name not in kernels:
        pytest.skip(f"no {name} kernels, only {', '.join(kernels)}")
    run_case(kernels[name], case, dtype, "cuda", torch.cuda.current_stream().cuda_stream)


def near(found, right) -> None:  # type: ignore[no-untyped-def]
    torch.testing.assert_close(found.cpu(), right, rtol=2.0**-7, atol=2.0**-16, equal_nan=True)


@pytest.mark.parametrize("interleaved", [False, True])
def test_y13_ops_run_kernels_for_both_pairings(interleaved: bool) -> None:
    buffer, q, k, _ = qkv((3, 37), 6, 2, 80, BF16)
    frequencies = gemmsmith.rope_frequencies(32)
    positions = torch.arange(37).expand(3, 37)
    on_gpu = buffer.cuda()
    first, second, _ = on_gpu.unflatten(-1, (-1, 80)).split((6, 2, 2), -2)
    gemmsmith.rope(q, k, positions, frequencies, interleaved=interleaved)
    cuda = (positions.cuda(), frequencies.cuda())
    gemmsmith.rope(first, second, *cuda, interleaved=interleaved)
    assert last_row_kernel().startswith("rows_rope_bf16_")
    near(on_gpu, buffer)
    other = first.clone()
    gemmsmith.rope(other, second, *cuda, interleaved=not interleaved)
    assert not torch.equal(other, first)


@pytest.mark.parametrize("dtype", [torch.float16, BF16], ids=str)
def test_y12_high_positions_are_exact(dtype) -> None:  # type: ignore[no-untyped-def]
    positions = torch.tensor([257, 4095, 15962, 131_071], device="cuda")
    q = torch.zeros(4, 1, 128, dtype=dtype, device="cuda")
    q[..., 0] = 1.0
    k = q.clone()
    gemmsmith.rope(q, k, positions, gemmsmith.rope_frequencies(128).cuda())
    step = 1.01 * torch.finfo(dtype).eps / 2
    for x in (q, k):
        angles = positions.tolist()
        right = [math.cos(angle) for angle in angles]
        assert x[:, 0, 0].tolist() == pytest.approx(right, rel=step, abs=1e-6)
        right = [math.sin(angle) for angle in angles]
        assert x[:, 0, 64].tolist() == pytest.approx(right, rel=step, abs=1e-6)


def test_tokens_without_a_place_are_dropped_and_pages_are_found() -> None:
    _, q, k, v = qkv((2, 3), 4, 2, 64, BF16, "cuda")
    positions = torch.tensor([[0, 1, -1], [5, 12, 2**31 + 1]], device="cuda")
    table = torch.tensor([[1, 0], [3, 9]], dtype=torch.int32, device="cuda")
    frequencies = gemmsmith.rope_frequencies(64).cuda()
    right = k.clone()
    gemmsmith.rope(q.clone(), right, positions, frequencies)
    for where, places in (
        ({}, {(0, 0): (0, 0), (0, 1): (0, 1), (1, 5): (1, 0)}),
        ({"block_table": table}, {(1, 0): (0, 0), (1, 1): (0, 1), (3, 5): (1, 0)}),
    ):
        rows = 4 if where else 2
        caches = [torch.full((rows, 8, 2, 64), 7.0, device="cuda").to(BF16) for _ in range(2)]
        given = (q.clone(), k, v, caches[0], caches[1], positions, frequencies)
        gemmsmith.rope_to_cache(*given, **where)
        assert last_row_kernel().startswith("rows_rope_bf16_")
        for at, token in places.items():
            assert torch.equal(caches[0][at], right[token])
            assert torch.equal(caches[1][at], v[token])
        for cache in caches:
            assert (cache != 7.0).any(-1).any(-1).sum() == len(places)


def test_the_current_stream_and_a_graph_whose_positions_move_on() -> None:
    _, q, k, v = qkv((2, 1), 4, 2, 64, BF16)
    frequencies = gemmsmith.rope_frequencies(64)
    tensors = [x.cuda() for x in (q, k, v)]
    caches = [torch.zeros(2, 8, 2, 64, dtype=BF16, device="cuda") for _ in range(2)]
    right = [torch.zeros(2, 8, 2, 64, dtype=BF16) for _ in range(2)]
    lengths = torch.tensor([[0], [3]], dtype=torch.int32, device="cuda")
    given = (*tensors, *caches, lengths, frequencies.cuda())
    gemmsmith.rope_to_cache(*given)
    for tensor in (*caches, lengths):
        tensor.zero_()
    lengths[1] = 3
    tensors[0].copy_(q)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        gemmsmith.rope_to_cache(*given)
        lengths += 1
    for step in range(4):
        graph.replay()
        gemmsmith.rope_to_cache(
            q, k, v, right[0], right[1], torch.tensor([[step], [3 + step]]), frequencies
        )
        near(tensors[0], q)
        tensors[0].copy_(q)
    for found, expected in zip(caches, right, strict=True):
        near(found, expected)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(100_000_000)
        tensors[1].fill_(1.0)
        lengths.zero_()
        gemmsmith.rope_to_cache(*given)
    stream.synchronize()
    assert (caches[0][:, 0] == 1.0).all()


def test_compiled_and_checked() -> None:
    frequencies = gemmsmith.rope_frequencies(64).cuda()

    def step(buffer, k_cache, v_cache, positions):  # type: ignore[no-untyped-def]
        q, k, v = (buffer * 2).unflatten(-1, (-1, 64)).split((4, 2, 2), -2)
        gemmsmith.rope_to_cache(q, k, v, k_cache, v_cache, positions, frequencies)
        return q + 1

    compiled = torch.compile(step, fullgraph=True, dynamic=True)
    for batch, tokens in ((2, 3), (1, 5), (3, 1)):
        buffer = qkv((batch, tokens), 4, 2, 64, BF16, "cuda")[0]
        caches = [torch.zeros(batch, 8, 2, 64, dtype=BF16, device="cuda") for _ in range(4)]
        positions = torch.arange(tokens, device="cuda").expand(batch, tokens)
        right = step(buffer, caches[0], caches[1], positions)
        found = compiled(buffer, caches[2], caches[3], positions)
        torch.testing.assert_close(found, right)
        assert torch.equal(caches[2], caches[0])
        assert torch.equal(caches[3], caches[1])
    _, q, k, v = qkv((2, 3), 4, 2, 64, BF16, "cuda")
    positions = torch.arange(3, device="cuda").expand(2, 3)
    ops = torch.ops.gemmsmith
    torch.library.opcheck(ops.rope.default, (q.clone(), k.clone(), positions, frequencies))
    cache = torch.zeros(2, 2, 8, 2, 64, dtype=BF16, device="cuda")
    given = (q.clone(), k, v, cache[0], cache[1], positions, frequencies)
    torch.library.opcheck(ops.rope_to_cache.default, given)


def test_heads_that_are_not_contiguous_are_rotated_by_torch() -> None:
    q = torch.randn(5, 64, 4, device="cuda").to(BF16).mT
    k = torch.randn(5, 2, 64, device="cuda").to(BF16)
    positions, frequencies = torch.arange(5), gemmsmith.rope_frequencies(64)
    right = q.cpu(), k.cpu()
    gemmsmith.rope(*right, positions, frequencies)
    gemmsmith.rope(q, k, positions.cuda(), frequencies.cuda())
    assert last_row_kernel() == "torch"
    near(q, right[0])
    near(k, right[1])


def test_both_launchers_call_the_kernel() -> None:
    from gemmsmith.launcher.with_ctypes import CtypesLauncher
    from gemmsmith.launcher.with_pybind11 import pybind11_launcher
    from gemmsmith.lookup import find_built

    arch = architecture_of(torch.cuda.get_device_capability())
    assert TORCH_DTYPES[torch.float16] in row_dtypes(arch)
    spec = next(s for s in row_specs(arch) if s.operation == "rope")
    build([spec]).raise_if_failed()
    path = str(find_built([spec])[spec])
    stream = torch.cuda.current_stream().cuda_stream
    for launcher in (CtypesLauncher(), pybind11_launcher()):
        kernel = next(k for k in launcher.load_rows(path) if k.name == spec.name)
        for case in (CASES[0], CASES[12]):
            run_case(kernel, case, torch.float16, "cuda", stream)
