"""Decoding on a GPU by kernels that append to the cache: the bits of RoPE, cache and attention."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

import gemmsmith  # noqa: E402
from append_data import FACTOR, STEPS, Step, place_of, prepared, same_bits  # noqa: E402
from decode_steps import HEADS, KV_HEADS, Steps, built, shipped  # noqa: E402
from gemmsmith.attn.arguments import Attention  # noqa: E402
from gemmsmith.attn.execute import attention_call, launch_attention, problem_of  # noqa: E402
from gemmsmith.attn.spec import AttentionSpec  # noqa: E402
from gemmsmith.dtypes import FP16  # noqa: E402
from gemmsmith.launcher import AttentionKernel  # noqa: E402
from paged_data import NAN  # noqa: E402

pytestmark = pytest.mark.gpu


def run(kernel: AttentionKernel, call: Attention, splits: int) -> Any:
    """Return what a kernel computes for a call."""
    out = torch.full_like(call.q, NAN)
    sms = torch.cuda.get_device_properties(0).multi_processor_count
    filled = attention_call(call, problem_of(call), out, 0, sms)._replace(splits=splits)
    assert kernel.can_run(filled) == 0, kernel.explain(kernel.can_run(filled))
    launch_attention(kernel, filled, out.device)
    return out


def brought_up_to_date(appending: Attention, after: Attention, step: Step) -> Attention:
    """Return ``after`` as the GPU's own RoPE leaves it, whose cosines are not the CPU's."""
    newest = appending.newest
    assert newest is not None
    if newest.inv_freq is None:
        return after
    q, k, v = appending.q.clone(), after.k, after.v
    gemmsmith.rope_to_cache(
        q,
        newest.k,
        newest.v,
        k,
        v,
        torch.tensor(step.lengths, device="cuda")[:, None] - 1,
        newest.inv_freq,
        block_table=after.block_table,
        interleaved=newest.interleaved,
        attention_factor=FACTOR,
    )
    return after._replace(q=q)


@pytest.mark.parametrize("spec", shipped(), ids=lambda spec: str(spec.name))
def test_a_call_that_appends_is_rope_cache_and_attention_to_the_bit(
    spec: AttentionSpec,
) -> None:
    kernel = built()[spec]
    dtype = torch.float16 if spec.dtype == FP16 else torch.bfloat16
    for step in STEPS:
        appending, after = prepared(dtype, spec.head_dim, step, "cuda")
        after = brought_up_to_date(appending, after, step)
        right = run(kernel, after, step.splits)
        assert not right.isnan().any(), step
        for sequence, length in enumerate(step.lengths):
            if 0 < length <= step.keys:
                for memory in (appending.k, appending.v):
                    assert (
                        place_of(memory, appending.block_table, sequence, length - 1).isnan().all()
                    )
        for _ in range(3):
            assert torch.equal(run(kernel, appending, step.splits), right), step
            assert same_bits(appending.k, after.k), step
            assert same_bits(appending.v, after.v), step


@pytest.mark.parametrize("promised", [False, True], ids=["plain", "constant_cache"])
@pytest.mark.parametrize("paged", [False, True], ids=["contiguous", "paged"])
@pytest.mark.parametrize(
    ("size", "starts"),
    [
        (128, [0, 5, 127, 900]),
        (64, [255]),
        (96, [40, 700]),
        (256, [1, 63, 300]),
        (80, [500]),
    ],
    ids=str,
)
def test_steps_in_graphs_have_the_bits_of_those_by_two_kernels(
    size: int, starts: list[int], paged: bool, promised: bool
) -> None:
    both = [
        Steps(1, size, starts, paged=paged, promised=promised, at_once=at_once)
        for at_once in (False, True)
    ]
    graphs = [steps.captured() for steps in both]
    two, one = both
    assert one.name == two.name
    assert "_split_" in one.name
    for step in range(40):
        for graph in graphs:
            graph.replay()
        assert torch.equal(one.out, two.out), step
        assert not one.out.isnan().any(), step
    for _ in range(5):  # replays without a look between
        for graph in graphs:
            for _ in range(8):
                graph.replay()
        assert torch.equal(one.out, two.out)
    assert same_bits(one.memory, two.memory)


def test_one_token_takes_one_kernel_and_what_none_takes_is_two() -> None:
    steps = Steps(1, 128, [30], paged=False, promised=False, at_once=True)
    q, k, v = steps.qkv[0].split([HEADS, KV_HEADS, KV_HEADS], -2)
    cache = [each.clone() for each in steps.memory[0]]

    def launched(inv_freq: Any, **how: Any) -> list[str]:
        from gemmsmith.bench.layer_parts import launches

        given = (q, k, v, *cache, steps.lengths, inv_freq)
        return list(launches(lambda: gemmsmith.attention_with_kvcache(*given, **how)))

    assert len(launched(steps.frequencies)) == 1
    assert len(launched(None)) == 1
    odd = gemmsmith.rope_frequencies(10).cuda()  # five pairs, which no kernel turns by eights
    names = launched(odd)
    assert any("rope" in name for name in names)
    assert sum("decode_attention" in name for name in names) == 1
