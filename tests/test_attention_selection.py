"""Attention kernels called by name or chosen among a file's: what runs, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import gemmsmith
from attention_data import check_near, exact, tokens
from gemmsmith.attn.arguments import Attention
from gemmsmith.attn.execute import problem_of
from gemmsmith.attn.selection import attention_selection
from gemmsmith.errors import ConfigError, LaunchError, NoKernelError
from gemmsmith.kernelset import KernelSet
from gemmsmith.launcher import AttentionCall

FILE = """\
attention:
  - name: mine
    arch: sm_90a
    dtype: bf16
    head_dim: 128
    kernels: [{tile: [128, 128]}, {tile: [128, 64]}]
"""
NAME = "attention_bf16_d128_128x128_s2_pp_sm90a"


@pytest.fixture
def kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> KernelSet:
    monkeypatch.setenv("GEMMSMITH_CACHE_DIR", str(tmp_path / "cache"))
    path = tmp_path / "mine.yaml"
    path.write_text(FILE)
    return gemmsmith.load(path, arch="sm_90a")


def test_a_file_of_attention_alone_is_a_set(kernels: KernelSet) -> None:
    assert kernels.names == (NAME, "attention_bf16_d128_128x64_s2_pp_sm90a")
    assert kernels.specs == ()
    assert "2 kernels for sm_90a" in repr(kernels)
    exact_kernel = kernels[NAME]
    assert kernels[NAME] is exact_kernel
    assert (exact_kernel.name, exact_kernel.spec.tile) == (NAME, (128, 128))
    with pytest.raises(NoKernelError, match=f"the nearest is {NAME}"):
        kernels[NAME[:-3]]
    with pytest.raises(ConfigError, match="has kernels for sm_90a, none for sm_80"):
        gemmsmith.load(kernels.source, arch="sm_80")


def test_on_the_cpu_a_named_kernel_gives_what_torch_gives(kernels: KernelSet) -> None:
    q, k, v = tokens(2, 5, 9, 4, 2, 128)
    how: dict[str, Any] = {"causal": True, "softcap": 20.0}
    right = exact(q, k, v, **how)
    for call in (kernels[NAME], kernels.attention):
        check_near(call(q, k, v, **how), right)
    out = torch.empty_like(q)
    assert kernels[NAME](q, k, v, out=out, **how) is out
    check_near(out, right)
    cu_q, cu_k = (torch.tensor([0, n], dtype=torch.int32) for n in (5, 9))
    check_near(kernels[NAME].varlen(q[0], k[0], v[0], cu_q, cu_k, 5, 9, **how)[None], right[:1])


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"dtype": torch.float16}, "takes bf16, the call has fp16"),
    ({"dtype": torch.float32}, "float32 inputs have no kernel; leave kernels out"),
    ({"size": 136}, "takes heads up to 128, the call has 136"),
    ({"size": 100}, "head_dim 100 is no multiple of 8"),
    ({"mask": torch.ones(5, 9).bool()}, "a mask has no kernel; leave kernels out"),
]


@pytest.mark.parametrize(("change", "reason"), REFUSED, ids=[reason for _, reason in REFUSED])
def test_a_named_kernel_runs_or_says_why_it_cannot(
    kernels: KernelSet, change: dict[str, Any], reason: str
) -> None:
    dtype, size = change.pop("dtype", torch.bfloat16), change.pop("size", 128)
    q, k, v = tokens(1, 5, 9, 4, 2, size, dtype=dtype)
    for call in (kernels[NAME], kernels.attention):
        with pytest.raises(NoKernelError, match=reason):
            call(q, k, v, **change)
    with pytest.raises(NoKernelError, match=reason) as caught:
        kernels[NAME](q, k, v, out=torch.empty_like(q), **change)
    assert str(caught.value).count(NAME) == 1


def test_pages_need_a_kernel_that_reads_them(kernels: KernelSet) -> None:
    q, k, v = tokens(1, 1, 16, 4, 2, 128)
    table, lengths = torch.zeros(1, 1).int(), torch.tensor([16]).int()
    with pytest.raises(NoKernelError, match="does not read a block table"):
        kernels[NAME](q, k, v, lengths=lengths, block_table=table)


def planned(call: Tensor, kernels: KernelSet, capability: tuple[int, int]) -> Any:
    zeros = AttentionCall(**dict.fromkeys(AttentionCall._fields, 0))
    given = Attention(call, call, call, False, None, None, None, None, None, None)
    named = attention_selection(kernels[NAME].handle)
    return named.plan(problem_of(given), zeros._replace(sm_count=132), capability)


def test_what_is_not_built_says_how_to_build_it(kernels: KernelSet) -> None:
    q, *_ = tokens(1, 5, 5, 2, 2, 128)
    with pytest.raises(NoKernelError, match=rf"{NAME} is not built: call \.build\(\) first, or"):
        planned(q, kernels, (9, 0))
    with pytest.raises(LaunchError, match=r"built for sm_90a, the GPU has compute capability 8\.0"):
        planned(q, kernels, (8, 0))


def test_a_handle_of_another_process_is_refused(kernels: KernelSet) -> None:
    q, k, v = tokens(1, 5, 5, 2, 2, 128)
    with pytest.raises(NoKernelError, match="no set of attention kernels of this process"):
        gemmsmith.attention(q, k, v, kernels="attention@1")
    with pytest.raises(NoKernelError, match="no set of attention kernels"):
        gemmsmith.attention(q, k, v, kernels=kernels.handle)  # that of its GEMMs


def test_a_named_kernel_compiles_without_a_break(kernels: KernelSet) -> None:
    q, k, v = tokens(1, 5, 5, 4, 2, 128)
    call = kernels[NAME]
    compiled = torch.compile(
        lambda q, k, v: call(q, k, v, causal=True), fullgraph=True, backend="aot_eager"
    )
    check_near(compiled(q, k, v), exact(q, k, v, causal=True))
