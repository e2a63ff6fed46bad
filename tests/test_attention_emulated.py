"""The split-KV kernels' own C++, compiled by g++ and run on the CPU: indices, tails, combining."""

from __future__ import annotations

import itertools

import pytest
import torch

from attention_data import check_near, exact, tokens
from attention_emulator import CASES, Emulator, call_of, kernel_of, launch
from gemmsmith.attn.arguments import Attention
from gemmsmith.attn.spec import AttentionSpec
from gemmsmith.dtypes import BF16, FP16
from paged_data import NAN, poisoned, scattered

pytestmark = pytest.mark.nvcc  # for the toolkit's headers


SPECS = (
    kernel_of(BF16, 64, (8, 64), (1, 2), 1),
    kernel_of(FP16, 64, (72, 64), (3, 2), 2),
    kernel_of(FP16, 80, (8, 32), (1, 2), 3, cluster=2),
    kernel_of(BF16, 96, (32, 48), (2, 3), 2),
    kernel_of(BF16, 128, (16, 32), (1, 2), 2, cluster=4),
    kernel_of(FP16, 256, (8, 32), (1, 2), 1),
)


@pytest.fixture(scope="module")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Emulator:
    """The kernels of SPECS."""
    return Emulator(SPECS, tmp_path_factory.mktemp("emulated"))


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: str(spec.name))
def test_y03_kernels_agree_with_float64_in_poisoned_memory(
    spec: AttentionSpec, emulator: Emulator
) -> None:
    kernel = emulator.kernels[spec.name]
    dtype = torch.float16 if spec.dtype == FP16 else torch.bfloat16
    seeds = itertools.cycle((0, 1, 2))
    for case in CASES:
        size = spec.head_dim - case.narrower
        q, k, v = tokens(2, case.queries, case.keys, case.heads, case.kv_heads, size, dtype=dtype)
        ends = [case.keys] * 2 if case.lengths is None else case.lengths
        ends = [min(end, case.keys) for end in ends]
        table = None
        if case.page:
            k_given, v_given, table = scattered(k, v, ends, case.page)
        else:
            k_given, v_given = poisoned(k, v, ends)
        lengths = None if case.lengths is None else torch.tensor(case.lengths, dtype=torch.int32)
        how = {"causal": False, "window": None, "softcap": None, "scale": None, **case.how}
        call = Attention(q, k_given, v_given, mask=None, lengths=lengths, block_table=table, **how)
        room = torch.full((2, case.queries, case.heads, size + 8), NAN, dtype=dtype)
        out = room[..., :size]
        filled = call_of(call, out, case.splits)
        right = exact(q, k, v, lengths=ends, **case.how)
        found = []
        for eager in (0, 1):
            room.fill_(NAN)
            emulator.set(seed=next(seeds), eager=eager)
            assert not launch(kernel, filled).any(), case
            check_near(out, right)
            assert room[..., size:].isnan().all(), case
            found.append(out.clone())
        assert torch.equal(*found), case  # whatever came first


def test_the_table_says_how_kernels_are_launched(emulator: Emulator) -> None:
    kernel = emulator.kernels[SPECS[0].name]
    assert (kernel.threads, kernel.stages, kernel.dependent_launch) == (64, 1, True)
    before = emulator.early_launches
    q, k, v = tokens(1, 1, 70, 2, 2, 64)
    call = Attention(q, k, v, False, None, None, None, None, None, None)
    out = torch.empty_like(q)
    launch(kernel, call_of(call, out))
    assert emulator.early_launches == before + 1


def test_keys_are_parted_for_as_many_blocks_as_multiprocessors(emulator: Emulator) -> None:
    kernel = emulator.kernels[SPECS[0].name]
    needs = []
    for batch, keys in ((1, 64), (1, 2000), (2, 2000), (5, 2000)):
        q, k, v = tokens(batch, 1, keys, 1, 1, 64)
        call = Attention(q, k, v, False, None, None, None, None, None, None)
        needs.append(kernel.needs(call_of(call, torch.empty_like(q))))
    part = 8 * (64 + 2) * 4
    assert needs == [(0, 0, 0), (0, 5 * part, 1), (0, 2 * 2 * part, 2), (0, 0, 0)]


REFUSED: list[tuple[dict[str, int], str]] = [
    ({"head_dim": 72}, "head_dim must be a multiple of 8, no larger than the kernel's"),
    ({"head_dim": 60}, "head_dim must be a multiple of 8, no larger than the kernel's"),
    ({"k_row": 68}, "must be multiples of 16 bytes"),
    ({"q_head": 63}, "of q of 4"),
    ({"out": 4}, "of the result of 8"),
    ({"batch": 70_000}, "a size, window, softcap or number of splits is out of range"),
    ({"splits": -1}, "a size, window, softcap or number of splits is out of range"),
    ({"block_table": 16, "page_size": 48, "pages": 9}, "the page size must be a power of two"),
    ({"cu_q": 16, "cu_k": 16}, "packed sequences are not taken"),
]


@pytest.mark.parametrize(("change", "words"), REFUSED, ids=[str(change) for change, _ in REFUSED])
def test_what_a_kernel_does_not_take_is_said(
    change: dict[str, int], words: str, emulator: Emulator
) -> None:
    kernel = emulator.kernels[SPECS[0].name]
    q, k, v = tokens(2, 1, 70, 2, 2, 64)
    call = Attention(q, k, v, False, None, None, None, None, None, None)
    filled = call_of(call, torch.empty_like(q))
    assert kernel.can_run(filled) == 0
    status = kernel.can_run(filled._replace(**change))
    assert status > 0
    assert words in kernel.explain(status)
    assert kernel.needs(filled._replace(**change))[0] == status
    assert kernel.launch(filled._replace(**change), 0, 0) == status


def test_a_launch_without_its_memory_is_refused(emulator: Emulator) -> None:
    kernel = emulator.kernels[SPECS[0].name]
    q, k, v = tokens(1, 1, 400, 2, 2, 64)
    call = Attention(q, k, v, False, None, None, None, None, None, None)
    filled = call_of(call, torch.empty_like(q), splits=4)
    status = kernel.launch(filled, 0, 0)
    assert kernel.explain(status) == "workspace or counters are missing"
