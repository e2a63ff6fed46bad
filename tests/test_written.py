"""Which tensors share elements, beside a count of their addresses."""

from __future__ import annotations

import random
import time

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


def test_views_of_several_types_share_what_their_bytes_say() -> None:
    draw = random.Random(1)
    memory = torch.arange(400, dtype=torch.int16)
    found = [0, 0]
    for _ in range(1000):
        views, places = [], []
        for dtype in draw.choice(((torch.int16, torch.int32), (torch.int8, torch.int64))):
            typed = memory.view(dtype)
            most = len(typed) // 4
            size, stride = draw.randint(1, 4), draw.randint(2, most)
            views.append(typed.as_strided([size, 2], [stride, 1], draw.randint(0, most - 3)))
            bytes_of = torch.arange(800).view(-1, typed.element_size())
            rows = [views[-1].storage_offset() + index * stride for index in range(size)]
            places.append({at for row in rows for at in bytes_of[row : row + 2].flatten().tolist()})
        expected = bool(places[0] & places[1])
        assert share_elements(*views) is expected, views
        found[expected] += 1
    assert min(found) > 100


def test_views_that_take_long_to_tell_apart_are_given_up() -> None:
    memory = torch.empty(1 << 31, dtype=torch.int8, device="meta")
    views = (
        memory.as_strided([32, 16, 32, 8, 64], [24576, 1536, 48, 1, 2359296], 0),
        memory.as_strided([32, 16, 32, 8, 96], [65536, 2048, 32, 1, 2097152], 56201608),
    )
    begun = time.perf_counter()
    assert not share_elements(*views)
    pitches = [
        memory.as_strided([100_000, 8], [pitch, 1], start)
        for pitch, start in ((8192, 0), (8208, 8))
    ]
    share_elements(*pitches)
    assert time.perf_counter() - begun < 0.2


def test_parts_of_a_fused_row_and_every_other_row_do_not_touch() -> None:
    memory = torch.empty(2 * 512, 48, 128, dtype=torch.bfloat16).unflatten(0, (2, 512))
    for first in range(0, 40, 8):
        out, other = memory[:, :, first : first + 8], memory[:, :, first + 8 : first + 16]
        assert not share_elements(out, other)
        assert share_elements(out, memory[:, :, first + 7 : first + 15])
    assert not share_elements(memory[:, ::2], memory[:, 1::2])
    assert not share_elements(memory, torch.empty_like(memory))
    assert not share_elements(memory[:0], memory)
