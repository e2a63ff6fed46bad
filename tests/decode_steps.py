"""Decode kernels of a GPU: those that ship, and layers that add tokens to their caches by them."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

import gemmsmith
from attention_data import exact
from gemmsmith.arch import architecture_of
from gemmsmith.attn.config import load_attention
from gemmsmith.attn.spec import AttentionSpec
from gemmsmith.build import build
from gemmsmith.launcher import AttentionKernel, load_attention_library
from gemmsmith.resources import configs_dir
from paged_data import NAN

HEADS, KV_HEADS, PAGE, ROOM, LAYERS = 32, 8, 64, 1024, 3


def shipped() -> tuple[AttentionSpec, ...]:
    """The split-KV kernels for this GPU; none where there is no GPU."""
    if not torch.cuda.is_available():
        return ()
    arch = architecture_of(torch.cuda.get_device_capability())
    specs = load_attention(configs_dir() / "kernels", arch=[arch.name])
    return tuple(spec for spec in specs if spec.schedule == "split_kv")


@cache
def built() -> dict[AttentionSpec, AttentionKernel]:
    """The kernels of :func:`shipped`."""
    report = build(shipped())
    report.raise_if_failed()
    libraries = {kernel.spec.name: kernel.library for kernel in report.built}
    return {spec: load_attention_library(libraries[spec.name])[spec.name] for spec in shipped()}


class Steps:
    """Layers that add tokens to their caches and attend to them, by two kernels or ``at_once``:
    a graph of one step."""

    def __init__(
        self,
        queries: int,
        size: int,
        starts: list[int],
        *,
        paged: bool,
        promised: bool,
        at_once: bool = False,
    ) -> None:
        torch.manual_seed(1)
        batch, self.promised, self.at_once = len(starts), promised, at_once
        new: dict[str, Any] = {"dtype": torch.bfloat16, "device": "cuda"}
        shape = (LAYERS, batch, queries, HEADS + 2 * KV_HEADS, size)
        self.given = torch.randn(shape, **new)
        self.qkv = self.given.clone()
        memory = torch.full((LAYERS, 2, batch * ROOM, KV_HEADS, size), NAN, **new)
        pages = batch * ROOM // PAGE
        order = torch.randperm(pages, device="cuda") if paged else torch.arange(pages).cuda()
        self.table = order.view(batch, -1).int()
        rows = (PAGE, KV_HEADS, size)
        for b, start in enumerate(starts):
            for page in range(-(-start // PAGE)):
                count = min(PAGE, start - page * PAGE)
                at = int(self.table[b, page])
                old = torch.randn(LAYERS, 2, count, KV_HEADS, size, **new)
                memory.view(LAYERS, 2, pages, *rows)[:, :, at, :count] = old
        self.memory = memory.view(LAYERS, 2, pages if paged else batch, -1, KV_HEADS, size)
        self.paged: dict[str, Any] = {"block_table": self.table} if paged else {}
        ends = torch.tensor(starts, dtype=torch.int32, device="cuda") + queries
        self.lengths = ends
        self.positions = ends[:, None] - queries + torch.arange(queries, device="cuda").int()
        self.frequencies = gemmsmith.rope_frequencies(size).cuda()
        self.out = torch.empty(LAYERS, batch, queries, HEADS, size, **new)
        self.name = ""

    def step(self) -> None:
        self.qkv.copy_(self.given)
        for layer in range(LAYERS):
            q, k, v = self.qkv[layer].split([HEADS, KV_HEADS, KV_HEADS], -2)
            k_cache, v_cache = self.memory[layer]
            how: dict[str, Any] = {"constant_cache": self.promised, **self.paged}
            if self.at_once:
                self.out[layer] = gemmsmith.attention_with_kvcache(
                    q, k, v, k_cache, v_cache, self.lengths, self.frequencies, **how
                )
            else:
                gemmsmith.rope_to_cache(
                    q, k, v, k_cache, v_cache, self.positions, self.frequencies, **self.paged
                )
                how |= {"lengths": self.lengths, "out": self.out[layer]}
                gemmsmith.attention(q, k_cache, v_cache, causal=True, **how)
            record = gemmsmith.last_kernel()
            assert record is not None
            self.name = record.name

    def advance(self) -> None:
        self.lengths += self.qkv.shape[2]
        self.positions += self.qkv.shape[2]

    def captured(self) -> Any:
        self.step()  # loads kernels; a step that is repeated writes what is there
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.step()
            self.advance()
        return graph

    def right(self, layer: int) -> Any:
        """Return float64's attention to what is in the cache now."""
        q = self.qkv[layer, :, :, :HEADS]
        k, v = self.memory[layer]
        if self.paged:
            k, v = (each[self.table.long()].flatten(1, 2) for each in (k, v))
        ends = (self.lengths - q.shape[1]).tolist()  # advance() has counted already
        return exact(q, k, v, causal=True, lengths=ends)
