"""Decoding on a GPU by kernels that append to the cache: the bits of RoPE, cache and attention."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

import gemmsmith  # noqa: E402
from append_data import FACTOR, STEPS, Step, place_of, prepared, same_bits  # noqa: E402
from gemmsmith.arch import architecture_of  # noqa: E402
from gemmsmith.attn.arguments import Attention  # noqa: E402
from gemmsmith.attn.config import load_attention  # noqa: E402
from gemmsmith.attn.execute import attention_call, launch_attention, problem_of  # noqa: E402
from gemmsmith.attn.spec import AttentionSpec  # noqa: E402
from gemmsmith.build import build  # noqa: E402
from gemmsmith.dtypes import FP16  # noqa: E402
from gemmsmith.launcher import AttentionKernel, load_attention_library  # noqa: E402
from gemmsmith.resources import configs_dir  # noqa: E402
from paged_data import NAN  # noqa: E402

pytestmark = pytest.mark.gpu
HEADS, KV_HEADS, PAGE, ROOM, LAYERS = 32, 8, 64, 1024, 3


def shipped() -> tuple[AttentionSpec, ...]:
    """The split-KV kernels for this GPU; none where there is no GPU."""
    if not torch.cuda.is_available():
        return ()
    arch = architecture_of(torch.cuda.get_device_capability())
    specs = load_attention(configs_dir() / "kernels", arch=[arch.name])
    return tuple(spec for spec in specs if spec.schedule == "split_kv")


@pytest.fixture(scope="module")
def kernels() -> dict[AttentionSpec, AttentionKernel]:
    """The kernels of :func:`shipped`."""
    report = build(shipped())
    report.raise_if_failed()
    libraries = {kernel.spec.name: kernel.library for kernel in report.built}
    return {spec: load_attention_library(libraries[spec.name])[spec.name] for spec in shipped()}


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
    spec: AttentionSpec, kernels: dict[AttentionSpec, AttentionKernel]
) -> None:
    dtype = torch.float16 if spec.dtype == FP16 else torch.bfloat16
    for step in STEPS:
        appending, after = prepared(dtype, spec.head_dim, step, "cuda")
        after = brought_up_to_date(appending, after, step)
        right = run(kernels[spec], after, step.splits)
        assert not right.isnan().any(), step
        for sequence, length in enumerate(step.lengths):
            if 0 < length <= step.keys:
                for memory in (appending.k, appending.v):
                    assert (
                        place_of(memory, appending.block_table, sequence, length - 1).isnan().all()
                    )
        for _ in range(3):
            assert torch.equal(run(kernels[spec], appending, step.splits), right), step
            assert same_bits(appending.k, after.k), step
            assert same_bits(appending.v, after.v), step


class Steps:
    """Layers that each append a token to their cache and attend to it: a graph of one step."""

    def __init__(
        self, size: int, starts: list[int], *, paged: bool, promised: bool, at_once: bool
    ) -> None:
        torch.manual_seed(1)
        batch, self.promised, self.at_once = len(starts), promised, at_once
        new: dict[str, Any] = {"dtype": torch.bfloat16, "device": "cuda"}
        self.given = torch.randn(LAYERS, batch, 1, HEADS + 2 * KV_HEADS, size, **new)
        self.qkv = self.given.clone()
        pages = batch * ROOM // PAGE
        order = torch.randperm(pages, device="cuda") if paged else torch.arange(pages).cuda()
        self.table = order.view(batch, -1).int()
        memory = torch.full((LAYERS, 2, pages, PAGE, KV_HEADS, size), NAN, **new)
        for b, start in enumerate(starts):
            old = torch.randn(LAYERS, 2, start, KV_HEADS, size, **new)
            for key in range(start):
                memory[:, :, int(order.view(batch, -1)[b, key // PAGE]), key % PAGE] = old[
                    :, :, key
                ]
        self.memory = memory if paged else memory.view(LAYERS, 2, batch, ROOM, KV_HEADS, size)
        self.paged: dict[str, Any] = {"block_table": self.table} if paged else {}
        self.lengths = torch.tensor(starts, dtype=torch.int32, device="cuda") + 1
        self.positions = self.lengths[:, None] - 1
        self.frequencies = gemmsmith.rope_frequencies(size).cuda()
        self.out = torch.empty(LAYERS, batch, 1, HEADS, size, **new)
        self.name = ""

    def step(self) -> None:
        self.qkv.copy_(self.given)
        for layer in range(LAYERS):
            q, k, v = self.qkv[layer].split([HEADS, KV_HEADS, KV_HEADS], -2)
            how: dict[str, Any] = {"constant_cache": self.promised, **self.paged}
            new = (q, k, v, *self.memory[layer])
            if self.at_once:
                out = gemmsmith.attention_with_kvcache(*new, self.lengths, self.frequencies, **how)
            else:
                gemmsmith.rope_to_cache(*new, self.positions, self.frequencies, **self.paged)
                how |= {"lengths": self.lengths, "causal": True}
                out = gemmsmith.attention(q, *self.memory[layer], **how)
            self.out[layer] = out
            record = gemmsmith.last_kernel()
            assert record is not None
            self.name = record.name

    def advance(self) -> None:
        self.lengths += 1
        self.positions += 1

    def captured(self) -> Any:
        self.step()  # loads kernels; a step that is repeated writes what is there
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.step()
            self.advance()
        return graph


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
        Steps(size, starts, paged=paged, promised=promised, at_once=at_once)
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
    steps = Steps(128, [30], paged=False, promised=False, at_once=True)
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
