"""Attention on the CPU against float64, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import gemmsmith
from attention_data import check_near, exact, tokens
from gemmsmith.errors import ArgumentError, ArgumentTypeError

NAN = float("nan")

SHAPES: list[tuple[str, tuple[int, ...], dict[str, Any]]] = [
    ("llama_decode", (1, 1, 4097, 32, 8, 128), {"causal": True}),
    ("qwen_prefill", (1, 513, 513, 28, 4, 128), {"causal": True}),
    ("falcon", (1, 257, 257, 71, 1, 64), {"causal": True}),
    ("qwen_long_decode", (1, 1, 16384, 14, 2, 64), {"causal": True}),
    ("smollm2", (1, 33, 33, 9, 3, 64), {"causal": True}),
    ("phi2", (1, 300, 300, 4, 4, 80), {"causal": True}),
    ("phi3_window", (1, 310, 310, 4, 4, 96), {"causal": True, "window": 256}),
    ("gemma2", (1, 300, 300, 8, 4, 256), {"causal": True, "window": 256, "softcap": 50.0}),
    ("openllama", (1, 200, 200, 4, 4, 100), {"causal": True}),
    ("vit", (2, 257, 257, 4, 4, 80), {}),
    ("bert", (2, 197, 197, 12, 12, 64), {}),
    ("whisper_cross", (1, 48, 1500, 20, 20, 64), {}),
]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize(("shape", "how"), [s[1:] for s in SHAPES], ids=[s[0] for s in SHAPES])
def test_shapes_of_real_models_agree_with_float64(
    shape: tuple[int, ...], how: dict[str, Any], dtype: torch.dtype
) -> None:
    batch, queries, keys, heads, kv_heads, size = shape
    q, k, v = tokens(batch, queries, keys, heads, kv_heads, size, dtype=dtype)
    check_near(gemmsmith.attention(q, k, v, **how), exact(q, k, v, **how))
    assert ran() == ("cpu", "the tensors are on the CPU")


def test_y01_causal_is_bottom_right_aligned_and_a_row_without_keys_is_zero() -> None:
    q, k, v = tokens(1, 5, 2, 2, 1, 64, dtype=torch.float32)
    out = gemmsmith.attention(q, k, v, causal=True)
    assert not out[:, :3].any()
    torch.testing.assert_close(out[0, 3], v[0, 0].expand(2, 64))
    check_near(out, exact(q, k, v, causal=True))


def test_y03_what_lies_beyond_a_length_has_no_effect() -> None:
    q, k, v = tokens(2, 3, 256, 8, 8, 64, dtype=torch.float16)
    lengths = torch.tensor([1, 200], dtype=torch.int32)
    cut = torch.zeros_like(q)
    for b, length in enumerate(lengths.tolist()):
        part = slice(b, b + 1)
        cut[part] = gemmsmith.attention(q[part], k[part, :length], v[part, :length], causal=True)
        k[b, length:], v[b, length:] = NAN, NAN
    out = gemmsmith.attention(q, k, v, causal=True, lengths=lengths)
    check_near(out, cut.double())
    check_near(out, exact(q, k, v, causal=True, lengths=[1, 200]))


@pytest.mark.parametrize("heads", [(28, 4), (32, 8), (64, 8), (71, 1), (32, 32)], ids=str)
def test_y07_head_h_reads_kv_head_h_over_the_group(heads: tuple[int, int]) -> None:
    q, k, v = tokens(1, 3, 5, *heads, 64)
    v[:] = torch.arange(heads[1])[:, None]
    expected = torch.arange(heads[0]) // (heads[0] // heads[1])
    out = gemmsmith.attention(q, k, v)
    torch.testing.assert_close(out, expected[:, None].expand_as(out).bfloat16(), rtol=0, atol=0.25)
    assert torch.equal(out.float().round(), expected[:, None].expand_as(out).float())


@pytest.mark.parametrize("width", [43, 77])
@pytest.mark.parametrize("kind", ["contiguous", "broadcast", "expanded", "bool", "f32"])
def test_y11_masks_of_any_width_and_stride(kind: str, width: int) -> None:
    q, k, v = tokens(2, width, width, 4, 2, 64)
    mask = torch.randn(2, 4, width, width).bfloat16()
    mask[..., 5] = float("-inf")
    mask[:, :, 7] = float("-inf")  # a query that sees nothing
    mask = {
        "contiguous": mask,
        "broadcast": mask[:1, :1],
        "expanded": mask[:, :1].expand(2, 4, width, width),
        "bool": mask > 0,
        "f32": mask.float() + 0.001,
    }[kind]
    ways: list[dict[str, Any]] = [{}, {"causal": True}, {"softcap": 5.0}]
    for how in ways:
        out = gemmsmith.attention(q, k, v, mask=mask, **how)
        check_near(out, exact(q, k, v, mask=mask, **how))
        assert not out[:, 7].any() or kind == "bool"


def paged(k: Tensor, v: Tensor, lengths: list[int], size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the pages of k and v in random order, unused memory NaN, and the block table."""
    batch, keys, *rest = k.shape
    pages = -(-keys // size)
    table = torch.randperm(batch * pages + 3)[: batch * pages].view(batch, pages).int()
    stores = [torch.full((batch * pages + 3, size, *rest), NAN, dtype=k.dtype) for _ in "kv"]
    for b, length in enumerate(lengths):
        for j in range(length):
            for store, whole in zip(stores, (k, v), strict=True):
                store[table[b, j // size], j % size] = whole[b, j]
        table[b, -(-length // size) :] = -1
    return stores[0], stores[1], table


@pytest.mark.parametrize("queries", [1, 5])
def test_pages_are_found_through_the_block_table(queries: int) -> None:
    q, k, v = tokens(3, queries, 90, 4, 2, 64)
    lengths = [90, 17, 1]
    k_pages, v_pages, table = paged(k, v, lengths, 16)
    out = gemmsmith.attention(
        q,
        k_pages,
        v_pages,
        causal=True,
        lengths=torch.tensor(lengths, dtype=torch.int32),
        block_table=table,
    )
    check_near(out, exact(q, k, v, causal=True, lengths=lengths))


@pytest.mark.parametrize(
    "how", [{}, {"causal": True}, {"causal": True, "window": 7, "softcap": 3.0}], ids=str
)
def test_packed_sequences_are_those_that_stand_alone(how: dict[str, Any]) -> None:
    q, k, v = (part[0] for part in tokens(1, 60, 70, 4, 2, 64))
    ends_q, ends_k = [0, 20, 20, 50, 55], [0, 25, 30, 60, 62]
    k[62:], v[62:] = NAN, NAN
    out = gemmsmith.attention_varlen(
        q,
        k,
        v,
        torch.tensor(ends_q, dtype=torch.int32),
        torch.tensor(ends_k, dtype=torch.int32),
        30,
        30,
        **how,
    )
    for place in range(4):
        rows, keys = (slice(ends[place], ends[place + 1]) for ends in (ends_q, ends_k))
        alone = exact(q[None, rows], k[None, keys], v[None, keys], **how)
        if alone.numel():
            check_near(out[None, rows], alone)
    assert not out[55:].any()


def test_parts_of_a_fused_projection_and_a_strided_output_are_used_in_place() -> None:
    fused = torch.randn(2, 9, (6 + 2 * 3) * 64).bfloat16()
    q, k, v = (part.unflatten(-1, (-1, 64)) for part in fused.split([384, 192, 192], -1))
    memory = torch.full((2, 9, 500), 7.0).bfloat16()
    out = memory[..., :384].unflatten(-1, (6, 64))
    assert gemmsmith.attention(q, k, v, causal=True, out=out) is out
    check_near(out, exact(q, k, v, causal=True))
    assert (memory[..., 384:] == 7).all()


def test_no_keys_and_no_queries_and_one_of_each() -> None:
    q, k, v = tokens(2, 3, 0, 2, 2, 64)
    assert not gemmsmith.attention(q, k, v).any()
    q, k, v = tokens(2, 0, 3, 2, 2, 64)
    assert gemmsmith.attention(q, k, v).shape == (2, 0, 2, 64)
    assert ran() == ("none", "the output is empty")
    q, k, v = tokens(1, 1, 1, 2, 2, 64)
    assert torch.equal(gemmsmith.attention(q, k, v), v)


def test_a_length_beyond_the_memory_is_all_of_it() -> None:
    q, k, v = tokens(1, 2, 6, 2, 2, 64)
    out = gemmsmith.attention(q, k, v, lengths=torch.tensor([9], dtype=torch.int32))
    check_near(out, exact(q, k, v))


def test_the_scale_is_used() -> None:
    q, k, v = tokens(1, 4, 6, 2, 2, 64)
    check_near(gemmsmith.attention(q, k, v, scale=0.5), exact(q, k, v, scale=0.5))


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"q": torch.zeros(2, 4, 64)}, r"q is \(2, 4, 64\); \(batch, sequence, heads, head_dim\)"),
    ({"q": torch.zeros(2, 4, 4, 64).int()}, "q is torch.int32; float16, bfloat16, float32"),
    ({"k": torch.zeros(2, 5, 2, 64).half()}, "k is torch.float16 on cpu, q is torch.float32"),
    ({"v": torch.zeros(2, 6, 2, 64)}, r"k is \(2, 5, 2, 64\), v is \(2, 6, 2, 64\)"),
    ({"q": torch.zeros(2, 4, 3, 64)}, "q has 3 heads, k has 2"),
    ({"q": torch.zeros(2, 4, 4, 32)}, "q has head_dim 32, k has 64"),
    ({"q": torch.zeros(1, 4, 4, 64)}, "k has batch 2, q has 1"),
    ({"window": 0, "causal": True}, "window is 0"),
    ({"window": 4}, "window goes with causal=True"),
    ({"softcap": 0.0}, "softcap is 0.0"),
    ({"scale": NAN}, "scale is nan"),
    ({"lengths": torch.ones(2)}, "lengths is torch.float32 on cpu; torch.int32"),
    ({"lengths": torch.ones(3).int()}, r"lengths is \(3,\); \(2,\)"),
    ({"block_table": torch.ones(2, 1).int()}, "block_table goes with lengths"),
    ({"mask": torch.zeros(3, 5)}, r"mask is \(3, 5\); it must broadcast to \(2, 4, 4, 5\)"),
    ({"mask": torch.zeros(4, 5).int()}, "mask is torch.int32"),
    ({"out": torch.zeros(2, 4, 4, 64).half()}, "out is torch.float16"),
    ({"out": torch.zeros(2, 4, 4, 32)}, r"out is \(2, 4, 4, 32\)"),
]


@pytest.mark.parametrize(("wrong", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_what_is_wrong_with_a_call_is_said(wrong: dict[str, Any], message: str) -> None:
    right = {
        "q": torch.zeros(2, 4, 4, 64),
        "k": torch.zeros(2, 5, 2, 64),
        "v": torch.zeros(2, 5, 2, 64),
    }
    with pytest.raises(ArgumentError, match=message):
        gemmsmith.attention(**{**right, **wrong})


def test_only_tensors_are_taken_and_an_input_is_no_output() -> None:
    q, k, v = tokens(1, 2, 2, 2, 2, 64)
    with pytest.raises(ArgumentTypeError, match="k is a list"):
        gemmsmith.attention(q, [k], v)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="pass a fourth tensor"):
        gemmsmith.attention(q, k, v, out=q)


def test_a_derivative_is_refused() -> None:
    q, k, v = tokens(1, 2, 2, 2, 2, 64)
    with pytest.raises(ArgumentError, match=r"gemmsmith.attention is forward only"):
        gemmsmith.attention(q.requires_grad_(), k, v)


def test_torch_checks_the_ops() -> None:
    q, k, v = tokens(2, 5, 6, 4, 2, 64)
    lengths = torch.tensor([6, 2], dtype=torch.int32)
    ops = torch.ops.gemmsmith
    dense = (q, k, v, True, 3, 5.0, None, None, lengths, None)
    torch.library.opcheck(ops.attention.default, dense)
    torch.library.opcheck(ops.attention.default, (*dense, True))
    torch.library.opcheck(ops.attention_out.default, dense, {"out": torch.empty_like(q)})
    cu = torch.tensor([0, 5], dtype=torch.int32)
    packed = (q[0], k[0, :5], v[0, :5], cu, cu, 5, 5, False, None, None, 0.1)
    torch.library.opcheck(ops.attention_varlen.default, packed)
    torch.library.opcheck(ops.attention_varlen_out.default, packed, {"out": torch.empty_like(q[0])})


def test_it_compiles_without_a_break() -> None:
    q, k, v = tokens(1, 5, 5, 4, 2, 64, dtype=torch.float32)
    compiled = torch.compile(
        lambda q, k, v: gemmsmith.attention(q, k, v, causal=True) * 2,
        fullgraph=True,
        backend="aot_eager",
    )
    check_near(compiled(q, k, v), 2 * exact(q, k, v, causal=True))


def ran() -> tuple[str, str]:
    record = gemmsmith.last_kernel()
    assert record is not None
    return record.name, record.reason
