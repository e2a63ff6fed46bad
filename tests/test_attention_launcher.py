"""Both launchers on attention kernels that nvcc compiled: their facts and what they refuse."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import gemmsmith
from gemmsmith.arch import SM_90A
from gemmsmith.attn.rules import shared_bytes, threads
from gemmsmith.attn.spec import AttentionSpec, AttentionTile, AttentionWarps
from gemmsmith.build import build
from gemmsmith.dtypes import BF16
from gemmsmith.launcher import AttentionCall, AttentionKernel, Launcher
from gemmsmith.lookup import find_cached
from gemmsmith.shelf import AttentionShelf
from gemmsmith.supply import Compiled

PREFILL = AttentionSpec(
    arch=SM_90A,
    dtype=BF16,
    head_dim=64,
    tile=AttentionTile(64, 48),
    schedule="pingpong",
    stages=2,
)
DECODE = AttentionSpec(
    arch=SM_90A,
    dtype=BF16,
    head_dim=64,
    tile=AttentionTile(8, 128),
    schedule="split_kv",
    stages=2,
    warps=AttentionWarps(1, 4),
)
pytestmark = pytest.mark.nvcc


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache folder with both kernels."""
    made = tmp_path_factory.mktemp("attention")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GEMMSMITH_CACHE_DIR", str(made))
        patch.delenv("GEMMSMITH_NEVER_COMPILE", raising=False)
        build([PREFILL, DECODE]).raise_if_failed()
    return made


@pytest.fixture
def cache(folder: Path, each_launcher: Launcher, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder as the cache, after a launcher has set its own."""
    monkeypatch.setenv("GEMMSMITH_CACHE_DIR", str(folder))


def loaded(launcher: Launcher, spec: AttentionSpec) -> AttentionKernel:
    library = find_cached([spec])[spec].library
    (own,) = (k for k in launcher.load_attention(str(library)) if k.name == spec.name)
    return own


def call(**changes: float) -> AttentionCall:
    """A call that both take: 2 sequences of 8 queries and 300 keys, 4 heads and 2 of keys."""
    given: dict[str, Any] = {
        **dict.fromkeys(AttentionCall._fields, 0),
        "q": 1 << 20,
        "k": 1 << 21,
        "v": 1 << 22,
        "out": 1 << 23,
        "batch": 2,
        "queries": 8,
        "keys": 300,
        "heads": 4,
        "kv_heads": 2,
        "head_dim": 64,
        "q_row": 256,
        "q_head": 64,
        "q_batch": 8 * 256,
        "k_row": 128,
        "k_head": 64,
        "k_batch": 300 * 128,
        "v_row": 128,
        "v_head": 64,
        "v_batch": 300 * 128,
        "out_row": 256,
        "out_head": 64,
        "out_batch": 8 * 256,
        "scale": 0.125,
        "causal": 1,
        "sm_count": 132,
    }
    return AttentionCall(**{**given, **changes})


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize("spec", [PREFILL, DECODE], ids=lambda spec: spec.schedule)
def test_a_kernel_tells_its_facts_as_they_were_foretold(
    each_launcher: Launcher, spec: AttentionSpec
) -> None:
    kernel = loaded(each_launcher, spec)
    assert kernel.threads == threads(spec)
    assert shared_bytes(spec) - 1024 < kernel.shared_bytes <= shared_bytes(spec)
    assert (kernel.stages, kernel.dependent_launch) == (2, True)
    card = find_cached([spec])[spec].card
    assert card.spill_store_bytes == card.spill_load_bytes == 0
    assert card.threads == kernel.threads


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize(
    ("changes", "takes"),
    [
        ({}, "both"),
        ({"window": 5}, "both"),
        ({"head_dim": 40}, "both"),
        ({"q_batch": 3, "batch": 1}, "both"),  # what is not stepped is not read
        ({"q_head": 60}, "split_kv"),  # q is not read by TMA
        ({"heads": 5}, "none"),
        ({"head_dim": 72}, "none"),
        ({"head_dim": 36}, "none"),
        ({"queries": 0}, "none"),
        ({"softcap": -1.0}, "none"),
        ({"window": -1}, "none"),
        ({"k": (1 << 21) + 8}, "none"),
        ({"v_row": 132}, "none"),
    ],
    ids=str,
)
def test_kernels_take_what_they_can_read_and_say_why_not(
    each_launcher: Launcher, changes: dict[str, float], takes: str
) -> None:
    for spec in (PREFILL, DECODE):
        kernel = loaded(each_launcher, spec)
        status = kernel.can_run(call(**changes))
        assert (status == 0) == (takes in ("both", spec.schedule)), spec.name
        assert (kernel.explain(status).lower() == "success") == (status == 0)


@pytest.mark.usefixtures("cache")
def test_prefill_takes_packed_sequences_and_no_pages(each_launcher: Launcher) -> None:
    kernel = loaded(each_launcher, PREFILL)
    packed = call(cu_q=1 << 24, cu_k=1 << 25, tokens_q=16, tokens_k=600)
    assert kernel.can_run(packed) == 0
    assert kernel.explain(kernel.can_run(packed._replace(cu_k=0))) == "Error Not Supported"
    paged = call(block_table=1 << 26, lengths=1 << 27, pages=99, page_size=16, table_stride=20)
    assert kernel.explain(kernel.can_run(paged)) == "Error Not Supported"
    assert kernel.needs(packed) == (0, 0, 0)
    assert loaded(each_launcher, DECODE).can_run(paged) == 0


@pytest.mark.usefixtures("cache")
def test_a_shelf_and_a_set_find_them(tmp_path: Path) -> None:
    shelf = AttentionShelf([PREFILL, DECODE], Compiled(""), build_on_use=False)
    assert set(shelf.kernels()) == {PREFILL, DECODE}
    file = tmp_path / "own.yaml"
    file.write_text(
        "attention:\n  - {name: own, arch: sm_90a, dtype: bf16, head_dim: 64, tile: [64, 48]}\n"
    )
    kernels = gemmsmith.load(file, arch="sm_90a")
    assert [built.cached for built in kernels.build().built] == [True]
    assert kernels.names == (PREFILL.name,)
