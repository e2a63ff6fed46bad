"""Decoding on a GPU with keys fetched early: steps right behind what writes the newest ones."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

import gemmsmith  # noqa: E402
from attention_data import check_near, exact  # noqa: E402
from gemmsmith.arch import architecture_of  # noqa: E402
from paged_data import NAN  # noqa: E402

pytestmark = pytest.mark.gpu
HEADS, KV_HEADS, PAGE, ROOM, LAYERS = 32, 8, 64, 1024, 3


@pytest.fixture(autouse=True)
def starts_early() -> None:
    """Skips where no kernel starts before the one ahead has ended."""
    arch = architecture_of(torch.cuda.get_device_capability())
    if not arch.dependent_launch:
        pytest.skip(f"{arch.name} starts no kernel early")


class Steps:
    """Layers that add tokens to their caches and attend to them: a graph of one step."""

    def __init__(
        self, queries: int, size: int, starts: list[int], *, paged: bool, promised: bool
    ) -> None:
        torch.manual_seed(1)
        batch, self.promised = len(starts), promised
        new: dict[str, Any] = {"dtype": torch.bfloat16, "device": "cuda"}
        shape = (LAYERS, batch, queries, HEADS + 2 * KV_HEADS, size)
        self.given = torch.randn(shape, **new)
        self.qkv = self.given.clone()
        memory = torch.full((LAYERS, 2, batch * ROOM, KV_HEADS, size), NAN, **new)
        pages = batch * ROOM // PAGE
        order = torch.randperm(pages, device="cuda") if paged else torch.arange(pages).cuda()
        self.table = order.view(batch, -1).int()
        rows = (PAGE, KV_HEADS, size)
        for b, start in enumerate(starts):
            for page in range(-(-start // PAGE)):
                count = min(PAGE, start - page * PAGE)
                at = int(self.table[b, page])
                old = torch.randn(LAYERS, 2, count, KV_HEADS, size, **new)
                memory.view(LAYERS, 2, pages, *rows)[:, :, at, :count] = old
        self.memory = memory.view(LAYERS, 2, pages if paged else batch, -1, KV_HEADS, size)
        self.paged: dict[str, Any] = {"block_table": self.table} if paged else {}
        ends = torch.tensor(starts, dtype=torch.int32, device="cuda") + queries
        self.lengths = ends
        self.positions = ends[:, None] - queries + torch.arange(queries, device="cuda").int()
        self.frequencies = gemmsmith.rope_frequencies(size).cuda()
        self.out = torch.empty(LAYERS, batch, queries, HEADS, size, **new)
        self.name = ""

    def step(self) -> None:
        self.qkv.copy_(self.given)
        for layer in range(LAYERS):
            q, k, v = self.qkv[layer].split([HEADS, KV_HEADS, KV_HEADS], -2)
            k_cache, v_cache = self.memory[layer]
            gemmsmith.rope_to_cache(
                q, k, v, k_cache, v_cache, self.positions, self.frequencies, **self.paged
            )
            gemmsmith.attention(
                q,
                k_cache,
                v_cache,
                causal=True,
                lengths=self.lengths,
                constant_cache=self.promised,
                out=self.out[layer],
                **self.paged,
            )
            record = gemmsmith.last_kernel()
            assert record is not None
            self.name = record.name

    def advance(self) -> None:
        self.lengths += self.qkv.shape[2]
        self.positions += self.qkv.shape[2]

    def captured(self) -> Any:
        self.step()  # loads kernels; a step that is repeated writes what is there
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.step()
            self.advance()
        return graph

    def right(self, layer: int) -> Any:
        """Return float64's attention to what is in the cache now."""
        q = self.qkv[layer, :, :, :HEADS]
        k, v = self.memory[layer]
        if self.paged:
            k, v = (each[self.table.long()].flatten(1, 2) for each in (k, v))
        ends = (self.lengths - q.shape[1]).tolist()  # advance() has counted already
        return exact(q, k, v, causal=True, lengths=ends)


@pytest.mark.parametrize("paged", [False, True], ids=["contiguous", "paged"])
@pytest.mark.parametrize(
    ("queries", "size", "starts"),
    [
        (1, 128, [0, 5, 127, 900]),
        (1, 64, [255]),
        (1, 96, [40, 700]),
        (1, 256, [1, 63, 300]),
        (2, 128, [0, 250]),
        (1, 120, [500]),  # narrower than the kernel
    ],
    ids=str,
)
def test_steps_in_graphs_have_the_bits_of_those_without_the_promise(
    queries: int, size: int, starts: list[int], paged: bool
) -> None:
    plain, early = (
        Steps(queries, size, starts, paged=paged, promised=promised) for promised in (False, True)
    )
    graphs = plain.captured(), early.captured()
    assert early.name == plain.name.replace("_split_", "_split_constkv_")
    for step in range(40):
        for graph in graphs:
            graph.replay()
        assert torch.equal(early.out, plain.out), step
        assert not early.out.isnan().any(), step
        if step % 13 == 0:
            check_near(early.out[LAYERS - 1], early.right(LAYERS - 1))
    for _ in range(5):  # replays without a look between
        for graph in graphs:
            for _ in range(8):
                graph.replay()
        assert torch.equal(early.out, plain.out)


def test_eager_steps_have_the_bits_of_those_without_the_promise() -> None:
    plain, early = (
        Steps(1, 128, [30, 800], paged=False, promised=promised) for promised in (False, True)
    )
    for _ in range(100):
        for steps in (plain, early):
            steps.step()
            steps.advance()
        assert torch.equal(early.out, plain.out)


def test_a_decoder_that_promises_both_says_the_same() -> None:
    from decoder_data import decoder

    ours = decoder(torch.bfloat16, "cuda")
    prompts = [[1, 2, 3, 4, 5], [7, 6]]
    right = ours.generate(prompts, 40, keep_logits=True)
    ours.constant_cache = ours.constant_weight = True
    made = ours.generate(prompts, 40, keep_logits=True)
    assert made.logits is not None
    assert right.logits is not None
    torch.testing.assert_close(made.logits[:, 0], right.logits[:, 0], rtol=0, atol=0.1)
    assert torch.isfinite(made.logits).all()
