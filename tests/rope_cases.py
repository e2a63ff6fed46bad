"""Calls of rotary kernels on poisoned memory, beside f64: for the CPU and the GPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from gemmsmith.launcher import RowKernel
from gemmsmith.rope_call import rope_call
from gemmsmith.rope_math import rope_frequencies
from rope_data import turned

PAGE, PAGES, COLUMNS = 4, 7, 3
FACTOR = 1.25


@dataclass(frozen=True, kw_only=True)
class RopeCase:
    """One call. Positions of tokens that are kept are mixed with some that have no place."""

    batch: int = 2
    length: int = 5
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    rotary: int = 64
    interleaved: bool = False
    into: Literal["", "cache", "pages", "slots"] = ""
    gap: int = 0
    """Elements between the fused rows of tokens."""
    skew: int = 0
    """Elements by which memory begins past a 16-byte boundary."""
    wide: bool = False
    """Whether positions and slots are int64 and frequencies f64, else int32 and f32."""


@dataclass(frozen=True, kw_only=True)
class Memory:
    """A tensor and all the memory around it."""

    whole: Tensor
    view: Tensor

    @classmethod
    def make(
        cls, values: Tensor, strides: tuple[int, ...], skew: int, device: str, dtype: torch.dtype
    ) -> Memory:
        """Return a copy of ``values`` with those strides, between NaN."""
        size = sum((n - 1) * step for n, step in zip(values.shape, strides, strict=True)) + 1
        whole = torch.full((skew + size + 64,), float("nan"), dtype=dtype, device=device)
        view = whole.as_strided(values.shape, strides, skew).copy_(values)
        return cls(whole=whole, view=view)

    def exact(self) -> Memory:
        """Return the same in f64 on the CPU."""
        whole = self.whole.cpu().double()
        offset, strides = self.view.storage_offset(), self.view.stride()
        return Memory(whole=whole, view=whole.as_strided(self.view.shape, strides, offset))


def cache(case: RopeCase, dtype: torch.dtype, device: str) -> Memory:
    """Return an empty cache, its heads with room behind them."""
    rows, size = (case.batch, case.length + 3) if case.into == "cache" else (PAGES, PAGE)
    room = case.head_dim + 8
    strides = (size * case.kv_heads * room, case.kv_heads * room, room, 1)
    shape = (rows, size, case.kv_heads, case.head_dim)
    return Memory.make(torch.full(shape, float("nan")), strides, case.skew, device, dtype)


def places(case: RopeCase, positions: Tensor, slots: Tensor | None, table: Tensor) -> list[int]:
    """Return where each token goes, counted through the cache; below 0 for nowhere."""
    found = []
    for b in range(case.batch):
        for s in range(case.length):
            position = int(positions[b, s])
            at = -1
            if slots is not None:
                at = int(slots[b, s])
                at = at if at < PAGES * PAGE else -1
            elif case.into == "cache":
                size = case.length + 3
                at = b * size + position if 0 <= position < size else -1
            elif 0 <= position < COLUMNS * PAGE:
                page = int(table[b, position // PAGE])
                at = page * PAGE + position % PAGE if 0 <= page < PAGES else -1
            found.append(at)
    return found


def run_case(
    kernel: RowKernel, case: RopeCase, dtype: torch.dtype, device: str, stream: int
) -> None:
    """Run ``kernel``; assert that all memory is f64's rounded once, and the rest untouched."""
    torch.manual_seed(0)
    shape = (case.batch, case.length)
    heads = case.heads + 2 * case.kv_heads
    row = heads * case.head_dim + case.gap
    values = torch.randn(*shape, heads, case.head_dim).to(dtype)
    strides = (case.length * row, row, case.head_dim, 1)
    fused = Memory.make(values, strides, case.skew, device, dtype)
    parts = (case.heads, case.kv_heads, case.kv_heads)
    q, k, v = fused.view.split(parts, 2)
    index = torch.int64 if case.wide else torch.int32
    frequencies = rope_frequencies(case.rotary)
    frequencies = frequencies if case.wide else frequencies.float()
    k_cache = v_cache = slots = table = None
    most = {"": 131_072, "cache": case.length + 5, "pages": 14, "slots": 131_072}[case.into]
    positions = torch.stack([torch.randperm(most)[: case.length] for _ in range(case.batch)])
    if case.into:
        positions[-1, -1] = -1
        k_cache, v_cache = cache(case, dtype, device), cache(case, dtype, device)
    pages = torch.tensor([[5, 0, 3], [1, PAGES, -1], [2, 6, 4]], dtype=torch.int32)
    if case.into == "pages":
        table = pages[: case.batch].to(device)
    if case.into == "slots":
        places_of = torch.randperm(PAGES * PAGE + 2)[: case.batch * case.length] - 1
        slots = places_of.view(shape).to(index).to(device)
    given = positions.to(index).to(device), frequencies.to(device)  # alive until it has run
    call = rope_call(
        q,
        k,
        *given,
        interleaved=case.interleaved,
        attention_factor=FACTOR,
        v=v if case.into else None,
        k_cache=None if k_cache is None else k_cache.view,
        v_cache=None if v_cache is None else v_cache.view,
        slots=slots,
        block_table=table,
    )
    right, before = fused.exact(), fused.exact()
    right_caches = None
    old_q, old_k, old_v = before.view.split(parts, 2)
    new_q, new_k, _ = right.view.split(parts, 2)
    way = (positions, frequencies, case.interleaved, FACTOR)
    new_q.copy_(turned(old_q, *way))
    if k_cache is None or v_cache is None:
        new_k.copy_(turned(old_k, *way))
    else:
        right_caches = k_cache.exact(), v_cache.exact()
        found = places(case, positions, None if slots is None else slots.cpu(), pages)
        for at, one, other in zip(
            found, turned(old_k, *way).flatten(0, 1), old_v.flatten(0, 1), strict=True
        ):
            if at >= 0:
                size = right_caches[0].view.shape[1]
                right_caches[0].view[at // size, at % size] = one
                right_caches[1].view[at // size, at % size] = other
    status = kernel.launch(call, stream)
    assert status == 0, kernel.explain(status)
    near(fused, right)
    if right_caches is not None and k_cache is not None and v_cache is not None:
        near(k_cache, right_caches[0])
        assert torch.equal(
            v_cache.exact().whole.nan_to_num(9e9), right_caches[1].whole.nan_to_num(9e9)
        )


def near(found: Memory, right: Memory) -> None:
    """Assert that values are f64's rounded once, but for what f32 sums may add."""
    step = torch.finfo(found.whole.dtype).eps / 2 + 2.0**-21
    exact = right.whole
    torch.testing.assert_close(
        found.whole.cpu().double(), exact, rtol=step, atol=2.0**-18, equal_nan=True
    )


CASES = (
    RopeCase(),
    RopeCase(interleaved=True, wide=True),
    RopeCase(head_dim=80, rotary=32, gap=8),
    RopeCase(head_dim=80, rotary=20),
    RopeCase(head_dim=80, rotary=20, interleaved=True),
    RopeCase(head_dim=80, rotary=24, interleaved=True, into="cache"),
    RopeCase(head_dim=100, rotary=100, heads=3, kv_heads=3, into="cache"),
    RopeCase(head_dim=128, rotary=128, heads=32, kv_heads=8, batch=1, length=1, into="cache"),
    RopeCase(head_dim=128, rotary=128, heads=71, kv_heads=1, into="cache"),
    RopeCase(head_dim=256, rotary=256, heads=66, kv_heads=8, batch=1, length=2),
    RopeCase(into="cache", skew=1),
    RopeCase(into="cache", gap=3, wide=True),
    RopeCase(into="pages", head_dim=80, rotary=32),
    RopeCase(into="pages", batch=3, wide=True, interleaved=True),
    RopeCase(into="slots"),
    RopeCase(into="slots", wide=True, head_dim=6, rotary=2, heads=1, kv_heads=1),
    RopeCase(batch=5, length=211, head_dim=8, rotary=6, heads=2, kv_heads=1),
    RopeCase(batch=5, length=211, head_dim=16, rotary=16, heads=9, kv_heads=3, into="cache"),
)
