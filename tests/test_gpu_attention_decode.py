"""Attention of few queries on a GPU: every split-KV kernel in poisoned memory, then the op."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

import gemmsmith  # noqa: E402
from attention_data import check_near, exact, tokens  # noqa: E402
from decode_steps import built, shipped  # noqa: E402
from gemmsmith.attn.arguments import Attention  # noqa: E402
from gemmsmith.attn.execute import attention_call, launch_attention, problem_of  # noqa: E402
from gemmsmith.attn.spec import AttentionSpec  # noqa: E402
from gemmsmith.dtypes import FP16  # noqa: E402
from gemmsmith.launcher import AttentionKernel  # noqa: E402
from paged_data import NAN, poisoned, scattered  # noqa: E402

pytestmark = pytest.mark.gpu
GQA = [(28, 4), (32, 8), (64, 8), (71, 1), (32, 32)]


def run(kernel: AttentionKernel, call: Attention, splits: int = 0) -> Any:
    """Return what a kernel computes for a call: 20 times the same, and nothing beside it."""
    batch, queries, heads, size = call.check()
    room = torch.full((batch, queries, heads, size + 8), NAN, dtype=call.q.dtype, device="cuda")
    out = room[..., :size]
    sms = torch.cuda.get_device_properties(0).multi_processor_count
    filled = attention_call(call, problem_of(call), out, 0, sms)._replace(splits=splits)
    assert kernel.can_run(filled) == 0, kernel.explain(kernel.can_run(filled))
    first = None
    for _ in range(20):
        room.fill_(NAN)
        launch_attention(kernel, filled, room.device)
        found = out.clone()
        first = found if first is None else first
        assert torch.equal(found, first)
    assert room[..., size:].isnan().all()
    return first


CASES: list[tuple[tuple[int, ...], dict[str, Any]]] = [  # queries, keys, heads, KV heads
    ((1, 4097, 8, 2), {"causal": True}),
    ((1, 1000, 71, 1), {}),
    ((2, 300, 4, 4), {"causal": True, "window": 40}),
    ((8, 520, 8, 2), {"causal": True, "softcap": 30.0}),
    ((5, 3, 6, 2), {"causal": True}),  # queries without keys
    ((3, 700, 14, 2), {"causal": True, "window": 256, "softcap": 50.0}),
    ((64, 700, 8, 2), {"causal": True}),
]


@pytest.mark.parametrize("spec", shipped(), ids=lambda spec: str(spec.name))
def test_kernels_agree_with_float64(
    spec: AttentionSpec,
) -> None:
    dtype = torch.float16 if spec.dtype == FP16 else torch.bfloat16
    for number, ((queries, keys, heads, kv_heads), how) in enumerate(CASES):
        size = spec.head_dim - 8 * (number == 1)
        q, k, v = tokens(2, queries, keys, heads, kv_heads, size, dtype=dtype, device="cuda")
        k_given, v_given = poisoned(k, v, [keys, keys])
        full = {"causal": False, "window": None, "softcap": None, "scale": None, **how}
        call = Attention(q, k_given, v_given, mask=None, lengths=None, block_table=None, **full)
        right = exact(q, k, v, **how)
        for splits in (0, 1, 3, 40):
            try:
                check_near(run(built()[spec], call, splits), right)
            except AssertionError as error:
                raise AssertionError(f"{CASES[number]} splits {splits}: {error}") from error


@pytest.mark.parametrize("spec", shipped(), ids=lambda spec: str(spec.name))
def test_y03_nothing_beyond_a_length_is_read_with_pages_or_without(
    spec: AttentionSpec,
) -> None:
    dtype = torch.float16 if spec.dtype == FP16 else torch.bfloat16
    ends = [0, 1, 17, 200, 256]
    lengths = torch.tensor(ends, dtype=torch.int32, device="cuda")
    for queries in (1, 3):
        q, k, v = tokens(5, queries, 256, 8, 2, spec.head_dim, dtype=dtype, device="cuda")
        right = exact(q, k, v, causal=True, lengths=ends)
        for page in (0, 16, 64, 256):
            table = None
            if page:
                k_given, v_given, table = scattered(k, v, ends, page)
            else:
                k_given, v_given = poisoned(k, v, ends)
            call = Attention(q, k_given, v_given, True, None, None, None, None, lengths, table)
            check_near(run(built()[spec], call), right)


def ran() -> str:
    record = gemmsmith.last_kernel()
    assert record is not None
    return record.name


@pytest.mark.parametrize("heads", GQA, ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_y07_the_op_decodes_for_groups_of_heads(heads: tuple[int, int], dtype: Any) -> None:
    for queries in range(1, 9):
        q, k, v = tokens(2, queries, 777, *heads, 128, dtype=dtype, device="cuda")
        out = gemmsmith.attention(q, k, v, causal=True)
        assert "_split_" in ran()
        check_near(out, exact(q, k, v, causal=True))


@pytest.mark.parametrize("batch", [1, 8])
def test_71_heads_that_share_one_of_k_have_many_groups_of_rows(
    batch: int,
) -> None:
    q, k, v = tokens(batch, 1, 4096, 71, 1, 64, device="cuda")
    right = exact(q, k, v)
    call = Attention(q, k, v, False, None, None, None, None, None, None)
    fitting = [s for s in built() if s.head_dim == 64 and s.dtype != FP16]
    assert fitting
    for spec in fitting:
        check_near(run(built()[spec], call), right)


def test_one_query_and_131072_keys() -> None:
    q, k, v = tokens(1, 1, 131072, 14, 2, 64, device="cuda")
    out = gemmsmith.attention(q, k, v, causal=True)
    assert "_split_" in ran()
    check_near(out, exact(q, k, v, causal=True))


def test_a_graph_is_replayed_with_new_lengths_while_eager_calls_run() -> None:
    q, k, v = tokens(4, 1, 4096, 32, 8, 128, device="cuda")
    lengths = torch.tensor([1, 17, 200, 4096], dtype=torch.int32, device="cuda")
    gemmsmith.attention(q, k, v, causal=True, lengths=lengths)
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.graph(graph):
        first = gemmsmith.attention(q, k, v, causal=True, lengths=lengths)
        second = gemmsmith.attention(first, k, v, causal=True, lengths=lengths)
    for ends in ([1, 17, 200, 4096], [4096, 0, 3000, 64]):
        lengths.copy_(torch.tensor(ends, dtype=torch.int32))
        right = gemmsmith.attention(q, k, v, causal=True, lengths=lengths)
        again = gemmsmith.attention(right, k, v, causal=True, lengths=lengths)
        torch.cuda.synchronize()
        for _ in range(20):
            graph.replay()
            with torch.cuda.stream(stream):
                beside = gemmsmith.attention(q, k, v, causal=True, lengths=lengths)
        torch.cuda.synchronize()
        assert torch.equal(first, right)
        assert torch.equal(second, again)
        assert torch.equal(beside, right)
        check_near(right, exact(q, k, v, causal=True, lengths=ends))


def test_keys_that_the_kernel_ahead_writes_are_read_as_it_wrote_them() -> None:
    # Each call's result is keys and values of the next, or its query.
    q, k, v = tokens(64, 1, 96, 32, 8, 128, device="cuda")
    found, right = [(torch.empty_like(q), torch.empty_like(q)) for _ in range(2)]

    def chain(queries: Any, keys: Any, after: Any) -> None:
        for _ in range(5):
            gemmsmith.attention(queries, k, v, out=keys)
            after()
            cache = keys.view(1, 256, 8, 128)
            gemmsmith.attention(queries[7:8], cache, cache, out=queries[:1])
            after()
            gemmsmith.attention(queries[:1], cache, cache, out=queries[1:2])
            after()

    found[0].copy_(q)
    chain(*found, lambda: None)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        chain(*found, lambda: None)
    for _ in range(40):
        fresh = torch.randn_like(q)
        for queries, _ in (found, right):
            queries.copy_(fresh)
        graph.replay()
        chain(*right, torch.cuda.synchronize)
        assert torch.equal(found[0], right[0])
        assert torch.equal(found[1], right[1])
        assert not torch.equal(found[0][:2], fresh[:2])


def test_two_graphs_and_two_streams_count_apart() -> None:
    q, k, v = tokens(1, 1, 16384, 32, 8, 128, device="cuda")
    right = gemmsmith.attention(q, k, v, causal=True)
    graphs, found = [torch.cuda.CUDAGraph() for _ in range(2)], []
    for graph in graphs:
        with torch.cuda.graph(graph):
            found.append([gemmsmith.attention(q, k, v, causal=True) for _ in range(4)])
    streams = [torch.cuda.Stream() for _ in range(4)]
    torch.cuda.synchronize()
    eager = []
    for _ in range(50):
        for stream, graph in zip(streams[:2], graphs, strict=True):
            with torch.cuda.stream(stream):
                graph.replay()
        for stream in streams[2:]:
            with torch.cuda.stream(stream):
                eager.append(gemmsmith.attention(q, k, v, causal=True))
    torch.cuda.synchronize()
    for out in (*found[0], *found[1], *eager):
        assert torch.equal(out, right)


def test_tables_and_lengths_that_are_views_are_used_as_they_are_meant() -> None:
    q, k, v = tokens(2, 1, 100, 8, 2, 128, device="cuda")
    ends = [100, 33]
    k_store, v_store, table = scattered(k, v, ends, 16)
    wide = torch.zeros(2, 2, dtype=torch.int32, device="cuda")
    wide[:, 1] = torch.tensor(ends, dtype=torch.int32)
    turned = table.t().contiguous().t()
    out = gemmsmith.attention(
        q, k_store, v_store, causal=True, lengths=wide[:, 1], block_table=turned
    )
    assert "_split_" in ran()
    check_near(out, exact(q, k, v, causal=True, lengths=ends))


def test_compiled_with_graphs_of_torch_s_own() -> None:
    q, k, v = tokens(1, 1, 4096, 32, 8, 128, device="cuda")
    step = torch.compile(
        lambda q: gemmsmith.attention(q * 2, k, v, causal=True) + 1, mode="reduce-overhead"
    )
    right = gemmsmith.attention(q * 2, k, v, causal=True) + 1
    for _ in range(5):
        torch.testing.assert_close(step(q).clone(), right)


def test_what_the_decode_kernels_do_not_take_goes_to_torch() -> None:
    q, k, v = tokens(1, 1, 96, 4, 2, 128, device="cuda")
    pages = [part.reshape(2, 48, 2, 128) for part in (k, v)]
    table = torch.tensor([[0, 1]], dtype=torch.int32, device="cuda")
    lengths = torch.tensor([96], dtype=torch.int32, device="cuda")
    out = gemmsmith.attention(q, *pages, lengths=lengths, block_table=table)
    record = gemmsmith.last_kernel()
    assert record is not None
    assert record.name == "torch"
    assert "the page size must be a power of two" in record.reason
    check_near(out, exact(q, k, v))
