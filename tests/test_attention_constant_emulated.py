"""Split-KV kernels behind a grid that still writes, on the CPU: what they read before it ends."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from attention_data import check_near, exact, tokens
from attention_emulator import CASES, Case, Emulator, call_of, kernel_of, launch
from gemmsmith.attn.arguments import Attention
from gemmsmith.attn.spec import AttentionSpec
from gemmsmith.dtypes import BF16, FP16
from paged_data import NAN, NO_PAGE, poisoned, scattered

pytestmark = pytest.mark.nvcc  # for the toolkit's headers

EARLY = (
    kernel_of(BF16, 64, (8, 64), (1, 2), 1, constant_cache=True),
    kernel_of(FP16, 80, (8, 32), (1, 2), 3, cluster=2, constant_cache=True),
    kernel_of(BF16, 96, (32, 48), (2, 3), 2, constant_cache=True),
    kernel_of(BF16, 128, (16, 32), (1, 2), 2, cluster=4, constant_cache=True),
)
LATE = tuple(replace(spec, constant_cache=False) for spec in EARLY)


@pytest.fixture(scope="module")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Emulator:
    """The kernels of EARLY and LATE."""
    return Emulator([*EARLY, *LATE], tmp_path_factory.mktemp("emulated"))


def like(tensor: Tensor) -> Tensor:
    """Return a copy in a copy of all its memory."""
    memory = tensor.untyped_storage().clone()
    place = (tensor.storage_offset(), tensor.shape, tensor.stride())
    return torch.empty(0, dtype=tensor.dtype).set_(memory, *place)  # type: ignore[call-overload]


def without_newest(tensor: Tensor, table: Tensor | None, ends: list[int], newest: int) -> Tensor:
    """Return keys or values as they were before the newest of each sequence were written."""
    stale = like(tensor)
    for b, end in enumerate(ends):
        for key in range(max(end - newest, 0), end):
            if table is None:
                stale[b, key] = NAN
            else:
                stale[table[b, key // tensor.shape[1]], key % tensor.shape[1]] = NAN
    return stale


def found(
    emulator: Emulator, spec: AttentionSpec, case: Case, *, newest: int | None
) -> tuple[Tensor, Tensor]:
    """Return what a kernel finds while q and the newest keys are still written, and float64's.

    ``newest`` None: while everything is, the lengths and the table too.
    """
    dtype = torch.float16 if spec.dtype == FP16 else torch.bfloat16
    size = spec.head_dim - case.narrower
    q, k, v = tokens(2, case.queries, case.keys, case.heads, case.kv_heads, size, dtype=dtype)
    ends = [min(end, case.keys) for end in case.lengths or [case.keys] * 2]
    lengths = None if case.lengths is None else torch.tensor(case.lengths, dtype=torch.int32)
    how: dict[str, Any] = {"causal": False, "window": None, "softcap": None, "scale": None}
    how |= case.how
    right = exact(q, k, v, lengths=ends, **how)
    table = None
    if case.page:
        k, v, table = scattered(k, v, ends, case.page)
    else:
        k, v = poisoned(k, v, ends)
    call = Attention(q, k, v, mask=None, lengths=lengths, block_table=table, **how)
    out = torch.full_like(q, NAN)
    count = case.keys if newest is None else newest
    memory: list[tuple[Tensor, Tensor | None]] = [(out, None), (q, torch.full_like(q, NAN))]
    memory += [(each, without_newest(each, table, ends, count)) for each in (k, v)]
    if newest is None and lengths is not None:
        memory.append((lengths, torch.zeros_like(lengths)))
    if newest is None and table is not None:
        memory.append((table, like(table).fill_(NO_PAGE)))
    with emulator.written_ahead(*memory):
        assert not launch(emulator.kernels[spec.name], call_of(call, out, case.splits)).any()
    return out, right


@pytest.mark.parametrize("seed", [0, 3])
@pytest.mark.parametrize("spec", EARLY, ids=lambda spec: str(spec.name))
def test_keys_but_the_newest_are_all_that_is_read_before_the_grid_ahead_has_ended(
    spec: AttentionSpec, seed: int, emulator: Emulator
) -> None:
    emulator.set(seed=seed, eager=seed % 2)
    for case in CASES:
        check_near(*found(emulator, spec, case, newest=case.queries))


@pytest.mark.parametrize("spec", LATE, ids=lambda spec: str(spec.name))
def test_kernels_without_the_promise_read_nothing_before_the_grid_ahead_has_ended(
    spec: AttentionSpec, emulator: Emulator
) -> None:
    for case in CASES:
        check_near(*found(emulator, spec, case, newest=None))


@pytest.mark.parametrize("spec", EARLY, ids=lambda spec: str(spec.name))
def test_older_keys_are_read_before_the_grid_ahead_has_ended(
    spec: AttentionSpec, emulator: Emulator
) -> None:
    case = Case(1, 200, 3, 1, lengths=[200, 90])
    assert not found(emulator, spec, case, newest=1)[0].isnan().any()
    assert found(emulator, spec, case, newest=200)[0].isnan().all()  # which breaks the promise


def lines(tensor: Tensor, keys: Collection[int]) -> set[int]:
    """Return where lines of 128 bytes begin in the rows of keys or values."""
    count, _, heads, size = tensor.shape
    strides = [2 * stride for stride in tensor.stride()]
    return {
        tensor.data_ptr() + b * strides[0] + key * strides[1] + head * strides[2] + byte
        for b in range(count)
        for key in keys
        for head in range(heads)
        for byte in range(0, 2 * size, 128)
    }


def first_keys(spec: AttentionSpec, keys: int) -> set[int]:
    """Return what the buffers of a cluster's blocks take first, of a sequence of so many keys."""
    assert spec.warps is not None
    tile = spec.tile.key // spec.warps.key
    each = -(-keys // spec.cluster)
    each += -each % tile
    taken = spec.stages * spec.tile.key
    starts = range(0, keys, each)
    return {key for first in starts for key in range(first, min(first + taken, keys))}


@pytest.mark.parametrize("spec", LATE, ids=lambda spec: str(spec.name))
def test_l2_is_told_of_first_keys_and_values_where_the_call_alone_says_which(
    spec: AttentionSpec, emulator: Emulator
) -> None:
    dtype = torch.float16 if spec.dtype == FP16 else torch.bfloat16
    q, k, v = tokens(2, 1, 600, 4, 2, spec.head_dim, dtype=dtype)
    k, v = poisoned(k, v, [600, 600])
    how: dict[str, Any] = {"causal": False, "window": None, "softcap": None, "scale": None}
    call = Attention(q, k, v, mask=None, lengths=None, block_table=None, **how)
    several = call._replace(lengths=torch.tensor([600, 600], dtype=torch.int32))
    pages, table = scattered(k, v, [600, 600], 64)[::2]
    paged = several._replace(k=pages, v=pages, block_table=table)
    late, early = (
        emulator.kernels[replace(spec, constant_cache=promised).name] for promised in (False, True)
    )

    def told(kernel: Any, call: Attention, splits: int) -> set[int]:
        emulator.fetched()
        assert not launch(kernel, call_of(call, torch.empty_like(q), splits)).any()
        return set(emulator.fetched())

    assert told(late, several, 1) == told(late, paged, 1) == told(early, call, 1) == set()
    taken = first_keys(spec, 600)
    assert len(taken) < 600
    assert told(late, call, 1) == lines(k, taken) | lines(v, taken)
    assert told(late, call, 12) == lines(k, range(600))  # which buffers take, so no values


TOO_EARLY = {
    "newest": {"place.key(stage) + kTile <= written": "place.key(stage) < place.length"},
    "one_query": {"place.length - params.queries; /*": "place.length - 1; /*"},
    "tile": {"place.key(stage) + kTile <= written": "place.key(stage) < written"},
    "queries": {
        "    Queries const queries = queries_of<kAppends>(place, appender);\n": "",
        "    int ready = 0;": "    Queries const queries(place);\n    int ready = 0;",
    },
}


@pytest.mark.parametrize("edits", TOO_EARLY.values(), ids=TOO_EARLY.keys())
def test_a_kernel_that_reads_too_early_is_caught(edits: dict[str, str], tmp_path: Path) -> None:
    emulator = Emulator(EARLY[:1], tmp_path, edits)
    results = [found(emulator, EARLY[0], case, newest=case.queries)[0] for case in CASES]
    assert any(result.isnan().any() for result in results)
