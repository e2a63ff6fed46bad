"""The attention calls that a benchmark times: their inputs, their work and their right results."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

_SCORES = 1 << 27  # f32 scores that are in memory at a time


@dataclass(frozen=True, kw_only=True)
class AttentionCase:
    """One call in bf16, without a mask other than the causal one."""

    batch: int
    queries: int
    """Of each sequence."""
    keys: int
    """Of each sequence."""
    heads: int
    kv_heads: int
    head_dim: int
    causal: bool
    """The last query sees every key."""

    @property
    def decodes(self) -> bool:
        """Whether it is one token a sequence."""
        return self.queries == 1

    @property
    def pairs(self) -> int:
        """Queries and keys of one head that see each other, over all sequences."""
        whole = self.queries * self.keys
        unseen = self.queries * (self.queries - 1) // 2 if self.causal else 0
        return self.batch * (whole - unseen)

    @property
    def flops(self) -> int:
        """Operations of both products."""
        return 4 * self.heads * self.head_dim * self.pairs

    @property
    def cache_bytes(self) -> int:
        """Bytes of all keys and values."""
        return 4 * self.batch * self.keys * self.kv_heads * self.head_dim

    @property
    def bytes(self) -> int:
        """The fewest bytes to move: q, k, v and the result once each."""
        return self.cache_bytes + 4 * self.batch * self.queries * self.heads * self.head_dim


def prefill(tokens: int, head_dim: int, *, causal: bool) -> AttentionCase:
    """Return a prompt of Llama 3's heads."""
    return AttentionCase(
        batch=1,
        queries=tokens,
        keys=tokens,
        heads=32,
        kv_heads=8,
        head_dim=head_dim,
        causal=causal,
    )


def decode(batch: int, keys: int, head_dim: int = 128) -> AttentionCase:
    """Return a step of Llama 3's heads."""
    return AttentionCase(
        batch=batch, queries=1, keys=keys, heads=32, kv_heads=8, head_dim=head_dim, causal=True
    )


CASES = (
    *(
        prefill(tokens, head_dim, causal=causal)
        for head_dim in (128, 64)
        for causal in (True, False)
        for tokens in (512, 1024, 2048, 4096, 8192, 16384)
    ),
    *(decode(batch, keys) for batch in (1, 4, 16) for keys in (1024, 4096, 16384)),
    *(decode(batch, keys, 64) for batch in (1, 16) for keys in (1024, 16384)),
)
"""What is timed where nothing else is asked for."""


def new_operands(case: AttentionCase, device: str) -> tuple[Tensor, Tensor, Tensor]:
    """Return random q (B, Sq, H, D), k and v (B, Sk, Hkv, D)."""
    new = partial(torch.randn, dtype=torch.bfloat16, device=device)
    kv = (case.batch, case.keys, case.kv_heads, case.head_dim)
    return new(case.batch, case.queries, case.heads, case.head_dim), new(kv), new(kv)


def exact_attention(q: Tensor, k: Tensor, v: Tensor, *, causal: bool) -> Tensor:
    """Return the result (B, Sq, H, D) by its formula in f32; causal is bottom-right aligned."""
    batch, queries, heads, size = q.shape
    keys, kv_heads = k.shape[1:3]
    group = heads // kv_heads
    out = torch.empty(q.shape, dtype=torch.float32, device=q.device)
    step = max(1, _SCORES // (group * keys))
    position = torch.arange(keys, device=q.device)
    for b in range(batch):
        for h in range(kv_heads):
            some = slice(h * group, (h + 1) * group)
            k32, v32 = k[b, :, h].float(), v[b, :, h].float()
            for first in range(0, queries, step):
                rows = q[b, first : first + step, some].float()
                count = rows.shape[0]
                scores = rows.reshape(-1, size) @ k32.t() / math.sqrt(size)
                if causal:
                    last = torch.arange(first, first + count, device=q.device) + keys - queries
                    unseen = position > last.repeat_interleave(group)[:, None]
                    scores.masked_fill_(unseen, -math.inf)
                found = scores.softmax(-1) @ v32
                out[b, first : first + count, some] = found.view(count, group, size)
    return out
