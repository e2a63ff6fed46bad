"""Prints the GB/s of rotary operations beside torch eager and torch.compile (needs a GPU).

``rope_to_cache`` rotates q in place and writes rotated k, and v, to a KV cache; ``rope`` rotates
both in place. torch does the same with cosines and sines at hand. Measured as rows.py does it: CUDA
graphs whose replays are interleaved; fused qkv rows and caches rotate over more memory than the L2
cache holds where calls are large.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

import gemmsmith
from gemmsmith.bench.gpu import exit_without_gpu
from gemmsmith.bench.measure import ROTATED_BYTES, compare, copy_bandwidth, normal, rotating
from gemmsmith.bench.rounds import Policy

SECONDS = 0.5
"""Time for each line."""
MOST_SETS = 256
"""Inputs that an operation rotates over at most: they all are in one graph."""
CAPACITY = 4096
"""Tokens of a sequence that a cache has room for."""


@dataclass(frozen=True, kw_only=True)
class Model:
    """Heads of one attention layer."""

    name: str
    heads: int
    kv_heads: int
    head_dim: int
    rotary: int

    def moved(self, tokens: int) -> int:
        """Return the bytes that ``rope_to_cache`` must move: q twice, k and v twice."""
        return tokens * 4 * (self.heads * self.rotary + 2 * self.kv_heads * self.head_dim)


MODELS = (
    Model(name="llama3-8b", heads=32, kv_heads=8, head_dim=128, rotary=128),
    Model(name="smollm2-135m", heads=9, kv_heads=3, head_dim=64, rotary=64),
    Model(name="phi-2", heads=32, kv_heads=32, head_dim=80, rotary=32),
)
TOKENS = ((1, 1), (16, 1), (1, 2048), (4, 2048))
"""Sequences, and tokens of each."""


@dataclass(frozen=True, kw_only=True)
class Set:
    """What one call works on."""

    q: Tensor
    k: Tensor
    v: Tensor
    k_cache: Tensor
    v_cache: Tensor


def one_set(model: Model, batch: int, length: int) -> Set:
    """Return views of one fused qkv buffer, and caches of which a call writes ``length`` tokens."""
    counts = (model.heads, model.kv_heads, model.kv_heads)
    fused = normal(batch, length, sum(counts) * model.head_dim, dtype=torch.bfloat16)
    q, k, v = fused.unflatten(-1, (-1, model.head_dim)).split(counts, 2)
    room = max(length, CAPACITY if length == 1 and batch == 1 else 2 * length)
    caches = normal(2, batch, room, model.kv_heads, model.head_dim, dtype=torch.bfloat16)
    return Set(q=q, k=k, v=v, k_cache=caches[0], v_cache=caches[1])


def turned(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Return rotated heads as models have it, halves paired, in f32."""
    rotary = 2 * cosine.shape[-1]
    head = x[..., :rotary].float()
    first, second = head.chunk(2, -1)
    left, right = first * cosine - second * sine, second * cosine + first * sine
    whole = torch.cat((left, right), -1).to(x.dtype)
    return torch.cat((whole, x[..., rotary:]), -1) if rotary < x.shape[-1] else whole


def in_torch(one: Set, cosine: Tensor, sine: Tensor, rows: Tensor, positions: Tensor) -> None:
    """Do what ``rope_to_cache`` does."""
    one.k_cache[rows, positions] = turned(one.k, cosine, sine)
    one.v_cache[rows, positions] = one.v
    one.q.copy_(turned(one.q, cosine, sine))


def in_place(one: Set, cosine: Tensor, sine: Tensor) -> None:
    """Do what ``rope`` does."""
    one.k.copy_(turned(one.k, cosine, sine))
    one.q.copy_(turned(one.q, cosine, sine))


@torch.inference_mode()
def main() -> None:
    """Measure and print."""
    exit_without_gpu()
    large = copy_bandwidth(seconds=SECONDS)
    print(f"{torch.cuda.get_device_name()}, copying 1 GiB: {large:.0f} GB/s")
    head = ("operation", "tokens", "µs", "GB/s", "of copy", "vs eager", "vs compile")
    for model in MODELS:
        print(f"\n{model.name}")
        print("{:<18}{:>9}{:>9}{:>9}{:>9}{:>10}{:>12}".format(*head))
        for batch, length in TOKENS:
            line(model, batch, length, large)


def line(model: Model, batch: int, length: int, large: float) -> None:
    """Measure and print both operations for that many tokens."""
    frequencies = gemmsmith.rope_frequencies(model.rotary, 500_000.0).cuda()
    positions = torch.arange(length, device="cuda", dtype=torch.int32).expand(batch, length)
    angle = (positions.double()[..., None] * frequencies)[..., None, :]
    cosine, sine = angle.cos().float(), angle.sin().float()
    rows = torch.arange(batch, device="cuda")[:, None].expand(batch, length)
    places = positions.long().contiguous()
    tokens = batch * length
    moved = model.moved(tokens)
    sets = rotating(
        partial(one_set, model, batch, length), moved, min(ROTATED_BYTES, MOST_SETS * moved)
    )

    def ours(one: Set) -> None:
        gemmsmith.rope_to_cache(
            one.q, one.k, one.v, one.k_cache, one.v_cache, positions, frequencies
        )

    def ours_in_place(one: Set) -> None:
        gemmsmith.rope(one.q, one.k, positions, frequencies)

    cached: Any = partial(in_torch, cosine=cosine, sine=sine, rows=rows, positions=places)
    placed: Any = partial(in_place, cosine=cosine, sine=sine)
    less = tokens * 4 * model.kv_heads * (2 * model.head_dim - model.rotary)
    for name, kernel, eager, size in (
        ("rope_to_cache", ours, cached, moved),
        ("rope", ours_in_place, placed, moved - less),
    ):
        torch._dynamo.reset()
        compiled = torch.compile(eager, fullgraph=True, dynamic=False)
        arms = {"ours": kernel, "eager": eager, "compile": compiled}
        found = compare(
            {arm: [partial(run, one) for one in sets] for arm, run in arms.items()},
            keep=tuple(arms),
            policy=Policy(seconds=SECONDS),
        )
        micros = found.median("ours")
        rate = size / micros / 1000
        print(
            f"{name:<18}{tokens:>9}{micros:9.2f}{rate:9.0f}{rate / large:9.0%}"
            f"{found.median('eager') / micros:10.2f}{found.median('compile') / micros:12.2f}"
        )


if __name__ == "__main__":
    main()
