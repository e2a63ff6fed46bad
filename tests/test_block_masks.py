"""What a mask of transformers says, in the words of a kernel."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from gemmsmith.blocks import masks
from gemmsmith.blocks.masks import Sight, sight
from gemmsmith.errors import ArgumentError


def numbers(seen: Tensor) -> Tensor:
    """Return the mask that is added to scores, as eager attention has it."""
    return torch.where(seen, 0.0, torch.finfo(torch.bfloat16).min).bfloat16()


def causal(queries: int, keys: int, window: int | None = None) -> Tensor:
    last = torch.arange(queries)[:, None] + keys - queries
    position = torch.arange(keys)
    seen = position <= last
    return (seen if window is None else seen & (position > last - window))[None, None]


def facts(found: Sight) -> tuple[int, bool, int | None, list[int] | None, bool]:
    lengths = None if found.lengths is None else found.lengths.tolist()
    return found.keys, found.causal, found.window, lengths, found.mask is not None


@pytest.mark.parametrize("form", [lambda seen: seen, numbers])
def test_what_a_mask_says_beyond_tensors(form: object) -> None:
    assert callable(form)

    def of(seen: Tensor, decoder: bool = True, window: int | None = None) -> object:
        queries, keys = seen.shape[-2:]
        return facts(sight(form(seen), queries, keys, causal=decoder, window=window))

    assert of(causal(5, 5)) == (5, True, None, None, False)
    assert of(causal(3, 7)) == (7, True, None, None, False)
    assert of(causal(1, 7)) == (7, False, None, None, False)
    assert of(causal(6, 6, 3), window=3) == (6, True, 3, None, False)
    assert of(causal(6, 6), window=6) == (6, True, None, None, False)
    assert of(causal(1, 7, 3), window=3) == (7, True, 3, None, False)
    static = torch.zeros(2, 1, 3, 9, dtype=torch.bool)
    static[..., :7] = causal(3, 7)
    assert of(static) == (7, True, None, None, False)
    # more than a kernel can be told
    left = causal(5, 5).repeat(2, 1, 1, 1)
    left[1, ..., :2] = False
    assert of(left) == (5, False, None, None, True)
    assert of(causal(6, 6, 3)) == (6, False, None, None, True)  # a window that the layer has not
    assert of(causal(6, 6), window=3) == (6, False, None, None, True)
    assert of(causal(5, 5).repeat(1, 2, 1, 1)) == (5, False, None, None, True)
    # an encoder's padding on the right and elsewhere
    right = torch.ones(3, 1, 1, 5, dtype=torch.bool)
    right[1, ..., 3:] = False
    assert of(right.expand(-1, -1, 5, -1), decoder=False) == (5, False, None, [5, 3, 5], False)
    assert of(right[1:2].expand(-1, -1, 5, -1), decoder=False) == (3, False, None, None, False)
    right[2, ..., 0] = False
    assert of(right, decoder=False) == (5, False, None, None, True)


def test_numbers_other_than_seen_and_hidden_are_passed_on() -> None:
    bias = numbers(causal(4, 4))
    bias[..., 3, 1] = -0.5
    assert sight(bias, 4, 4, causal=True).mask is bias


def test_no_mask_means_what_it_means_to_transformers() -> None:
    assert facts(sight(None, 4, 4, causal=True)) == (4, True, None, None, False)
    assert facts(sight(None, 1, 9, causal=True)) == (9, False, None, None, False)
    assert facts(sight(None, 4, 9, causal=True, window=3)) == (4, True, 3, None, False)
    assert facts(sight(None, 4, 4, causal=False)) == (4, False, None, None, False)


def test_a_mask_is_read_once_and_again_when_it_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    meaning = masks._meaning

    def counted(mask: Tensor, *rest: object) -> Sight:
        read.append(1)
        return meaning(mask, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(masks, "_meaning", counted)
    mask, other = causal(4, 4), causal(4, 4)
    for _ in range(3):
        for each in (mask, other):
            assert sight(each, 4, 4, causal=True).causal
    assert len(read) == 2
    mask[..., 0, 0] = False
    assert sight(mask, 4, 4, causal=True).mask is mask
    assert len(read) == 3


def test_masks_of_other_implementations_are_refused() -> None:
    with pytest.raises(ArgumentError, match=r'attention_mask is \(2, 4\); .* "sdpa" and "eager"'):
        sight(torch.ones(2, 4), 4, 4, causal=True)
    with pytest.raises(ArgumentError, match="attention_mask is dict"):
        sight({}, 4, 4, causal=True)  # type: ignore[arg-type]
