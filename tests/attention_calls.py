"""Calls of Llama-3 8B's attention: a prompt, and a step of decoding."""

from __future__ import annotations

from dataclasses import replace

from gemmsmith.attn.choose import AttentionProblem
from gemmsmith.dtypes import BF16

PROMPT = AttentionProblem(
    dtype=BF16,
    batch=1,
    queries=2048,
    keys=2048,
    heads=32,
    kv_heads=8,
    head_dim=128,
    causal=True,
    window=0,
    paged=False,
    packed=False,
    lengths=False,
)
STEP = replace(PROMPT, queries=1, keys=4096)
