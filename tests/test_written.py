"""Which tensors share elements, beside a count of their addresses."""

from __future__ import annotations

import random

import torch

from gemmsmith.written import share_elements


def test_views_of_one_memory_share_what_their_addresses_say() -> None:
    draw = random.Random(0)
    memory = torch.arange(4000)
    found = [0, 0]
    for _ in range(3000):
        views = []
        for _ in "ab":
            sizes = [draw.randint(1, 5) for _ in range(3)]
            strides = [draw.choice((0, 30, 48, 60, 96)), draw.choice((6, 12, 15)), 1]
            views.append(memory.as_strided(sizes, strides, draw.randint(0, 150)))
        expected = bool(set(views[0].flatten().tolist()) & set(views[1].flatten().tolist()))
        assert share_elements(*views) is expected, views
        found[expected] += 1
    assert min(found) > 200


def test_parts_of_a_fused_row_and_every_other_row_do_not_touch() -> None:
    memory = torch.empty(2 * 512, 48, 128, dtype=torch.bfloat16).unflatten(0, (2, 512))
    for first in range(0, 40, 8):
        out, other = memory[:, :, first : first + 8], memory[:, :, first + 8 : first + 16]
        assert not share_elements(out, other)
        assert share_elements(out, memory[:, :, first + 7 : first + 15])
    assert not share_elements(memory[:, ::2], memory[:, 1::2])
    assert not share_elements(memory, torch.empty_like(memory))
    assert not share_elements(memory[:0], memory)
