"""Split-KV kernels that append a key to their cache, on the CPU: what they find and write."""

from __future__ import annotations

import faulthandler
import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from append_data import STEPS, Step, prepared, same_bits
from attention_emulator import Emulator, call_of, kernel_of, launch
from gemmsmith.attn.arguments import Attention
from gemmsmith.attn.spec import AttentionSpec
from gemmsmith.dtypes import BF16, FP16
from paged_data import NAN

pytestmark = pytest.mark.nvcc  # for the toolkit's headers

EARLY = (
    kernel_of(BF16, 64, (8, 64), (1, 2), 1, constant_cache=True),
    kernel_of(FP16, 80, (8, 32), (1, 2), 3, cluster=2, constant_cache=True),
    kernel_of(BF16, 96, (32, 48), (2, 3), 2, constant_cache=True),
    kernel_of(BF16, 128, (16, 32), (1, 2), 2, cluster=4, constant_cache=True),
    kernel_of(FP16, 256, (8, 16), (1, 1), 1, constant_cache=True),
)
SPECS = (*EARLY, *(replace(spec, constant_cache=False) for spec in EARLY))


@pytest.fixture(scope="module")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Emulator:
    """The kernels of SPECS."""
    return Emulator(SPECS, tmp_path_factory.mktemp("emulated"))


def prepared_for(spec: AttentionSpec, step: Step) -> tuple[Attention, Attention]:
    """Return :func:`prepared` for a kernel."""
    return prepared(torch.float16 if spec.dtype == FP16 else torch.bfloat16, spec.head_dim, step)


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: str(spec.name))
def test_a_call_that_appends_is_rope_cache_and_attention_to_the_bit(
    spec: AttentionSpec, emulator: Emulator
) -> None:
    kernel = emulator.kernels[spec.name]
    for seed, step in enumerate(STEPS):
        emulator.set(seed=seed, eager=seed % 2)
        appending, after = prepared_for(spec, step)
        right, out = torch.full_like(after.q, NAN), torch.full_like(after.q, NAN)
        assert not launch(kernel, call_of(after, right, step.splits)).any()
        assert not right.isnan().any()
        assert appending.newest is not None
        written = (appending.q, appending.newest.k, appending.newest.v)
        with emulator.written_ahead(*((each, torch.full_like(each, NAN)) for each in written)):
            assert not launch(kernel, call_of(appending, out, step.splits)).any()
        assert torch.equal(out, right), step
        assert same_bits(appending.k, after.k), step
        assert same_bits(appending.v, after.v), step


def test_pages_that_there_are_not_are_not_written(emulator: Emulator) -> None:
    kernel = emulator.kernels[EARLY[0].name]
    appending, _ = prepared_for(EARLY[0], Step([17, 17], 40, 2, 2, page=16))
    assert appending.block_table is not None
    for page in (-1, appending.k.shape[0]):
        appending.block_table[0, 1] = page
        before, out = appending.k.clone(), torch.empty_like(appending.q)
        launch(kernel, call_of(appending, out))
        own = appending.block_table[1, 1]
        assert not appending.k[own, 0].isnan().any()
        appending.k[own, 0] = before[own, 0] = 0
        assert same_bits(appending.k, before)


def test_a_write_behind_shared_memory_is_caught(tmp_path: Path) -> None:
    """Here the newest value, whose row the kernel is made to forget."""
    short = {"(kRows + 2) * kFreshPitch; /* behind": "(kRows + 1) * kFreshPitch; /* behind"}
    emulator = Emulator(EARLY[:1], tmp_path, short)
    appending, _ = prepared_for(EARLY[0], STEPS[0])
    filled = call_of(appending, torch.empty_like(appending.q))
    child = os.fork()
    if child == 0:  # it ends by a trap
        faulthandler.disable()
        launch(emulator.kernels[EARLY[0].name], filled)
        os._exit(0)
    assert os.WIFSIGNALED(os.waitpid(child, 0)[1])


REFUSED = (
    {"pairs": 12},
    {"pairs": 40},
    {"pairs": -8},
    {"interleaved": 1, "pairs": 6},
    {"frequencies": 0},
    {"lengths": 0},
    {"queries": 2},
    {"new_k": 8},
    {"new_v": 0},
    {"q_head": 68},
    {"new_v_head": 68},
    {"new_k_batch": 4},
)


@pytest.mark.parametrize("change", REFUSED, ids=str)
def test_what_is_not_appended_is_said(change: dict[str, int], emulator: Emulator) -> None:
    kernel = emulator.kernels[EARLY[0].name]
    appending, _ = prepared_for(EARLY[0], Step([3, 2], 9, 2, 2))
    filled = call_of(appending, torch.empty_like(appending.q))
    assert kernel.can_run(filled) == 0
    status = kernel.can_run(filled._replace(**change))
    assert "a key is appended to a sequence of known length" in kernel.explain(status)
    assert kernel.launch(filled._replace(**change), 0, 0) == status
