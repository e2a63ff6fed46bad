"""Attention kernels from Volta to Ada, compiled: their cards, and which calls they refuse."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from attention_data import tokens
from gemmsmith.arch import SM_70, SM_75, SM_86, Architecture, portable
from gemmsmith.attn.arguments import Attention, PackedAttention
from gemmsmith.attn.config import load_attention
from gemmsmith.attn.execute import attention_call, problem_of
from gemmsmith.attn.rules import shared_bytes, threads
from gemmsmith.attn.spec import AttentionSpec
from gemmsmith.build import BuiltKernel, build
from gemmsmith.card import objection
from gemmsmith.launcher import AttentionCall, AttentionKernel, load_attention_library
from gemmsmith.resources import configs_dir


def shipped(arch: Architecture, dtype: str = "fp16") -> list[AttentionSpec]:
    specs = load_attention(configs_dir() / "kernels", arch=[arch.name])
    return [spec for spec in specs if spec.schedule == "multistage" and spec.dtype.name == dtype]


def built(specs: list[AttentionSpec]) -> list[BuiltKernel]:
    report = build(specs)
    report.raise_if_failed()
    return list(report.built)


def check_cards(kernels: list[BuiltKernel], instruction: str) -> None:
    for kernel in kernels:
        spec, card = kernel.spec, kernel.card
        assert isinstance(spec, AttentionSpec)
        assert card.dynamic_shared_bytes == shared_bytes(spec)
        assert (card.threads, card.stages) == (threads(spec), spec.stages)
        assert card.spill_store_bytes <= 64
        if card.sass_inspected:
            assert all(name.startswith(instruction) for name in card.tensor_instructions)
            other = replace(card, tensor_instructions={"FFMA": 1})
            assert objection(spec, other) == (
                f"its machine code lacks {instruction}.F32 (tensor-core code: FFMA)"
            )


@pytest.mark.nvcc
@pytest.mark.parametrize(("arch", "dtype"), [(SM_75, "fp16"), (SM_86, "bf16")], ids=str)
def test_kernels_compile_and_keep_their_promises(
    arch: Architecture, dtype: str, cache_dir: Path
) -> None:
    kernels = built(shipped(arch, dtype))
    assert {kernel.spec.name.split("_")[2] for kernel in kernels} == {"d64", "d128", "d256"}
    check_cards(kernels, "HMMA.1688")


@pytest.mark.sm_70
def test_volta_s_kernels_compile_with_its_toolkit(cache_dir: Path) -> None:
    kernels = built(shipped(SM_70))
    assert len(kernels) == 3
    check_cards(kernels, "HMMA.884")


@pytest.fixture(scope="module")
def by_head() -> dict[int, AttentionKernel]:
    """Turing's kernels for a Hopper GPU, by head_dim; nothing of them but host code runs here."""
    specs = [replace(spec, arch=portable(spec.arch)) for spec in shipped(SM_75)]
    found = {}
    for kernel in built(specs):
        spec = kernel.spec
        assert isinstance(spec, AttentionSpec)
        assert spec.name.endswith("_ms_sm75_on_sm90")
        assert objection(spec, kernel.card) is None
        found[spec.head_dim] = load_attention_library(kernel.library)[spec.name]
    return found


def dense(size: int = 128) -> AttentionCall:
    q, k, v = tokens(2, 70, 90, 4, 2, size, dtype=torch.float16)
    call = Attention(q, k, v, True, None, None, None, None, None, None)
    return attention_call(call, problem_of(call), torch.empty_like(q), 0, 132)


REFUSED: list[tuple[dict[str, float], str]] = [
    ({"queries": 0}, "a size is out of range"),
    ({"batch": 1 << 28}, "a size is out of range"),
    ({"heads": 5}, "a size is out of range"),
    ({"cu_q": 16, "tokens_q": 9, "tokens_k": 9}, "a size is out of range"),  # no cu_k
    ({"head_dim": 136}, "head_dim must be a multiple of 8, no larger than the kernel's"),
    ({"head_dim": 100}, "head_dim must be a multiple of 8, no larger than the kernel's"),
    ({"softcap": 30.0}, "scores are neither capped nor cut to a window"),
    ({"window": 89}, "scores are neither capped nor cut to a window"),
    ({"block_table": 16}, "block tables are not read, nor are keys split or appended"),
    ({"new_k": 16}, "block tables are not read, nor are keys split or appended"),
    ({"splits": 2}, "block tables are not read, nor are keys split or appended"),
    ({"k_row": 260}, "addresses and strides must be multiples of 16 bytes"),
    ({"out_head": 132}, "addresses and strides must be multiples of 16 bytes"),
    ({"v": 8}, "addresses and strides must be multiples of 16 bytes"),
    ({"k_row": 1 << 24}, "the keys of a sequence lie further apart than 2^31 elements"),
    ({"v_row": 1 << 24}, "the keys of a sequence lie further apart than 2^31 elements"),
]


@pytest.mark.nvcc
@pytest.mark.parametrize(("change", "words"), REFUSED, ids=[str(change) for change, _ in REFUSED])
def test_what_a_kernel_does_not_take_is_said(
    change: dict[str, float], words: str, by_head: dict[int, AttentionKernel]
) -> None:
    kernel, filled = by_head[128], dense()
    assert kernel.can_run(filled) == 0
    asked = filled._replace(**change)  # type: ignore[arg-type]
    status = kernel.can_run(asked)
    assert status > 0
    assert kernel.explain(status) == words
    assert kernel.needs(asked)[0] == status
    assert kernel.launch(asked, 0, 0) == status


@pytest.mark.nvcc
def test_what_is_not_stepped_may_have_any_stride_and_a_wide_window_cuts_nothing(
    by_head: dict[int, AttentionKernel],
) -> None:
    one = dense()._replace(batch=1, q_batch=3, k_batch=5, v_batch=7, out_batch=9)
    assert by_head[128].can_run(one) == 0
    assert by_head[128].can_run(one._replace(keys=1, k_row=3, v_row=5)) == 0
    assert by_head[128].can_run(one._replace(window=90)) == 0
    assert by_head[64].can_run(dense(64)._replace(k_row=0, k_head=0, k_batch=0)) == 0


@pytest.mark.nvcc
def test_wide_heads_keep_their_sums_in_memory(by_head: dict[int, AttentionKernel]) -> None:
    assert by_head[128].needs(dense()) == (0, 0, 0)
    assert by_head[256].needs(dense(256)) == (0, 2 * 70 * 4 * 256 * 4, 0)
    status = by_head[256].launch(dense(256), 0, 0)
    assert by_head[256].explain(status) == "workspace is missing"
    q, k, v = (part.flatten(0, 1) for part in tokens(2, 70, 90, 4, 2, 240, dtype=torch.float16))
    cu_q = torch.tensor([0, 50, 100], dtype=torch.int32)
    packed = PackedAttention(q, k, v, cu_q, cu_q, 50, 50, True, None, None, None)
    filled = attention_call(packed, problem_of(packed), torch.empty_like(q), 0, 132)
    assert by_head[256].needs(filled) == (0, 140 * 4 * 240 * 4, 0)
