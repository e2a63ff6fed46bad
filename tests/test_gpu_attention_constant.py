"""Decoding on a GPU with keys fetched early: steps right behind what writes the newest ones."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from attention_data import check_near  # noqa: E402
from decode_steps import LAYERS, Steps  # noqa: E402
from gemmsmith.arch import architecture_of  # noqa: E402

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def starts_early() -> None:
    """Skips where no kernel starts before the one ahead has ended."""
    arch = architecture_of(torch.cuda.get_device_capability())
    if not arch.dependent_launch:
        pytest.skip(f"{arch.name} starts no kernel early")


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
