"""The promise that no queued work writes keys but the newest: who makes it, and what it chooses."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

import gemmsmith
from attention_calls import STEP
from attention_data import check_near, exact, tokens
from decoder_data import decoder, ids
from gemmsmith.arch import SM_80, SM_90A
from gemmsmith.attn.arguments import Attention
from gemmsmith.attn.choose import misfit, ranked
from gemmsmith.attn.config import load_attention
from gemmsmith.attn.execute import _promised, problem_of
from gemmsmith.attn.spec import AttentionSpec, AttentionTile, AttentionWarps
from gemmsmith.cli.app import app
from gemmsmith.dtypes import BF16, FP16
from gemmsmith.errors import ArgumentTypeError, IllegalKernelError, NoKernelError
from gemmsmith.nn import KVCache
from gemmsmith.nn import attention as blocks
from gemmsmith.resources import configs_dir
from gemmsmith.spec_dict import spec_from_dict, spec_to_dict

LATE = AttentionSpec(
    arch=SM_90A,
    dtype=BF16,
    head_dim=128,
    tile=AttentionTile(8, 128),
    schedule="split_kv",
    stages=2,
    warps=AttentionWarps(1, 8),
)
EARLY = replace(LATE, constant_cache=True)
PROMISED = replace(STEP, constant_cache=True)
FILE = """\
attention:
  - name: mine
    arch: sm_90a
    dtype: bf16
    head_dim: 128
    schedule: split_kv
    tile: [8, 128]
    warps: [1, 8]
    constant_cache: true
"""


def test_a_kernel_says_in_its_name_that_it_reads_early() -> None:
    assert EARLY.name == "attention_bf16_d128_8x128_w1x8_s2_split_constkv_sm90a"
    assert LATE.name == EARLY.name.replace("_constkv", "")
    assert spec_from_dict(json.loads(json.dumps(spec_to_dict(EARLY)))) == EARLY


def test_only_what_starts_early_and_shares_keys_may_read_them_early() -> None:
    with pytest.raises(IllegalKernelError, match=r"constant_cache: .* on sm_80 none .*leave"):
        replace(EARLY, arch=SM_80)
    with pytest.raises(IllegalKernelError, match="constant_cache goes with schedule split_kv"):
        replace(EARLY, schedule="pingpong", tile=AttentionTile(128, 128), warps=None)


def test_decode_kernels_ship_with_a_twin_that_reads_early() -> None:
    shipped = load_attention(configs_dir() / "kernels")
    early = [spec for spec in shipped if spec.constant_cache]
    assert {(spec.dtype, spec.head_dim) for spec in early} == {
        (dtype, size) for dtype in (BF16, FP16) for size in (64, 96, 128, 256)
    }
    assert all(replace(spec, constant_cache=False) in shipped for spec in early)


def test_kernels_that_read_early_are_for_calls_that_promise_it() -> None:
    words = "pass constant_cache=True where it writes the newest alone"
    assert words in misfit(EARLY, STEP)
    assert (misfit(EARLY, PROMISED), misfit(LATE, PROMISED)) == ("", "")
    assert "packed" in misfit(EARLY, replace(STEP, packed=True))
    shipped = load_attention(configs_dir() / "kernels", arch=["sm_90a"])
    for size, keys, batch in ((64, 700, 1), (96, 5000, 4), (128, 1024, 16), (256, 16384, 1)):
        call = replace(STEP, head_dim=size, keys=keys, batch=batch)
        late, early = (
            ranked(shipped, replace(call, constant_cache=promised), 132)[0]
            for promised in (False, True)
        )
        assert early == replace(late, constant_cache=True)
        assert not late.constant_cache
    many = replace(PROMISED, queries=2048, keys=2048)
    assert ranked(shipped, many, 132)[0].schedule == "pingpong"
    assert ranked(shipped, replace(PROMISED, head_dim=80), 132)[0].head_dim == 80


def promised(lengths: Tensor | None, table: Tensor | None = None, kernels: str = "") -> bool:
    q, k, v = tokens(2, 1, 16, 4, 2, 128)
    call = Attention(q, k, v, True, None, None, None, None, lengths, table, not kernels, kernels)
    return problem_of(_promised(call)).constant_cache


def test_a_copy_of_lengths_or_table_breaks_the_promise() -> None:
    both = torch.tensor([[16, 9], [16, 9]], dtype=torch.int32)
    assert promised(None)
    assert promised(both[0], both)
    assert not promised(both[:, 0])
    assert not promised(both[0], both.t())


def test_the_op_takes_the_promise_and_nothing_but_a_bool() -> None:
    q, k, v = tokens(2, 3, 20, 4, 2, 64)
    lengths = torch.tensor([20, 7], dtype=torch.int32)
    given: dict[str, Any] = {"causal": True, "lengths": lengths}
    out = gemmsmith.attention(q, k, v, **given, constant_cache=True)
    assert torch.equal(out, gemmsmith.attention(q, k, v, **given))
    check_near(out, exact(q, k, v, causal=True, lengths=[20, 7]))
    compiled = torch.compile(
        lambda q: gemmsmith.attention(q, k, v, **given, constant_cache=True),
        fullgraph=True,
        backend="aot_eager",
    )
    assert torch.equal(compiled(q), out)
    with pytest.raises(ArgumentTypeError, match="constant_cache is 1; True or False is legal"):
        gemmsmith.attention(q, k, v, constant_cache=1)  # type: ignore[arg-type]


def test_naming_kernels_that_read_early_is_the_promise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GEMMSMITH_CACHE_DIR", str(tmp_path / "cache"))
    path = tmp_path / "mine.yaml"
    path.write_text(FILE)
    own = gemmsmith.load(path, arch="sm_90a")
    assert own.names == (EARLY.name,)
    assert promised(None, kernels=own[EARLY.name].handle)
    q, k, v = tokens(2, 1, 20, 4, 2, 128)
    lengths = torch.tensor([[20, 0], [7, 0]], dtype=torch.int32)[:, 0]
    right = exact(q, k, v, lengths=[20, 7])
    for call in (own[EARLY.name], own.attention):
        check_near(call(q, k, v, lengths=lengths.contiguous()), right)
        with pytest.raises(NoKernelError, match="lengths and block_table need no copy"):
            call(q, k, v, lengths=lengths)
    path.write_text(FILE.replace("true", "false"))
    late = gemmsmith.load(path, arch="sm_90a")
    assert not promised(None, kernels=late[LATE.name].handle)


def test_explain_and_list_tell_it(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(FILE)
    told = CliRunner().invoke(app, ["explain", str(path)]).stdout
    assert "keys but the newest are read early: for calls with constant_cache=True" in told
    (kernel,) = json.loads(CliRunner().invoke(app, ["list", str(path), "--json"]).stdout)["kernels"]
    assert kernel["constant_cache"] is True
    path.write_text(FILE.replace("sm_90a", "sm_80"))
    refused = CliRunner().invoke(app, ["explain", str(path)])
    assert refused.exit_code == 2
    assert "constant_cache reads keys before the kernel ahead has ended" in refused.stdout


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[bool, bool]]:
    """For each call of attention by a block: whether it has lengths, whether it promises."""
    seen: list[tuple[bool, bool]] = []

    def attention(*given: Tensor, constant_cache: bool, **how: Any) -> Tensor:
        seen.append((how["lengths"] is not None, constant_cache))
        return gemmsmith.attention(*given, **how, constant_cache=constant_cache)

    def with_kvcache(*given: Tensor, constant_cache: bool, **how: Any) -> Tensor:
        seen.append((True, constant_cache))
        return gemmsmith.attention_with_kvcache(*given, **how, constant_cache=constant_cache)

    monkeypatch.setattr(blocks, "attention", attention)
    monkeypatch.setattr(blocks, "attention_with_kvcache", with_kvcache)
    return seen


def steps(ours: gemmsmith.nn.Decoder) -> Tensor:
    """Return the logits of a prompt and two tokens behind it."""
    cache = ours.cache(1, 8)
    logits = [ours.prefill(ids(1, 5), cache)]
    logits += [ours.step(ids(1, 1)[0], cache) for _ in range(2)]
    return torch.stack(logits)


@torch.no_grad()
def test_a_decoder_promises_its_cache_once_the_prompt_is_there(
    calls: list[tuple[bool, bool]],
) -> None:
    ours: Any = decoder(torch.bfloat16)
    layers = len(ours.layers)
    assert not ours.constant_cache
    right = steps(ours)
    assert {promise for _, promise in calls} == {False}
    calls.clear()
    ours.constant_cache = True
    assert ours.constant_cache
    assert all(layer.constant_cache for layer in copy.deepcopy(ours).layers)
    assert torch.equal(steps(ours), right)
    assert calls == [(False, False)] * layers + [(True, True)] * 2 * layers
    ours.layers[1].constant_cache = False
    assert not ours.constant_cache
    with pytest.raises(ArgumentTypeError, match="constant_cache is None; True or False is legal"):
        ours.constant_cache = None


@torch.no_grad()
def test_a_traced_block_does_not_promise(calls: list[tuple[bool, bool]]) -> None:
    block: Any = decoder(torch.bfloat16).layers[0].attention
    block.constant_cache = True
    memory = KVCache(1, 1, 8, block.kv_heads, block.head_dim).layer(0)
    memory.k.zero_()
    memory.v.zero_()
    q = torch.randn(1, 1, block.heads, block.head_dim).bfloat16()
    keys = torch.tensor([8], dtype=torch.int32)
    graphs: list[Any] = []

    def backend(graph: Any, _: Any) -> Any:
        graphs.append(graph)
        return graph

    new = torch.randn(2, 1, 1, block.kv_heads, block.head_dim).bfloat16()
    for method, given, place in (
        (block.attend, (q, *memory, keys), 10),
        (block.step, (memory, q, *new, keys), 13),
    ):
        graphs.clear()
        traced: Any = torch.compile(method, fullgraph=True, backend=backend)
        traced(*given)
        (op,) = (node for node in graphs[0].graph.nodes if "attention" in str(node.target))
        assert op.args[place] is False
        method(*given)
        assert calls[-1] == (True, True)
