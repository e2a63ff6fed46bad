"""The kernels of one decoder layer of ours, one by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

import gemmsmith
from gemmsmith.nn import DecoderLayer, KeysValues

Parts = dict[str, Callable[[], object]]


def parts_of(
    layer: DecoderLayer, x: Tensor, positions: Tensor, memory: KeysValues, keys: Tensor | None
) -> Parts:
    """Return what a call of the layer does, step by step, on inputs that are at hand.

    ``o`` and ``down`` add the residual, and of an int8 layer quantise what they read; its norms
    quantise what they write.
    """
    block, inner = layer.attention, layer.feed_forward
    normed: Any = layer.attention_norm.ahead_of(block.qkv, x)
    qkv = block.qkv.product(normed)
    q, k, v = block.split(qkv)
    tokens = x.shape[1]
    if keys is not None:  # one kernel, which writes the cache as well
        seen = keys
        attending: Parts = {"attention": lambda: block.step(memory, q, k, v, seen)}
    else:
        k_seen, v_seen = (each[:, :tokens] for each in memory)
        attending = {
            "rope+cache": lambda: block.keep(memory, q, k, v, positions),
            "attention": lambda: block.attend(q, k_seen, v_seen),
        }
    attended: list[Any] = [call() for call in attending.values()]
    y = attended[-1].flatten(-2)
    h = block.o(y, residual=x)
    h_normed: Any = layer.feed_forward_norm.ahead_of(inner.gate_up, h)
    gated = inner.gate_up.product(h_normed, gate=inner.kind)
    return {
        "norm": lambda: layer.attention_norm.ahead_of(block.qkv, x),
        "qkv": lambda: block.qkv.product(normed),
        **attending,
        "o": lambda: block.o.product(y, residual=x),
        "norm 2": lambda: layer.feed_forward_norm.ahead_of(inner.gate_up, h),
        "gate_up": lambda: inner.gate_up.product(h_normed, gate=inner.kind),
        "down": lambda: inner.down.product(gated, residual=h),
    }


def kernels_of(parts: Parts) -> dict[str, str]:
    """Return what the products and attention among the parts run, or why torch computes them."""
    found = {}
    for name, call in parts.items():
        if name in ("qkv", "attention", "o", "gate_up", "down"):
            call()
            record = gemmsmith.last_kernel()
            if record is not None:
                found[name] = f"torch ({record.reason})" if record.reason else record.name
    return found


def launches(call: Callable[[], object]) -> tuple[str, ...]:
    """Return the names of all that one call puts on the GPU, in order."""
    call()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        call()
        torch.cuda.synchronize()
    events: list[Any] = [e for e in profiler.events() or () if e.device_type.name == "CUDA"]
    return tuple(e.name for e in sorted(events, key=lambda event: event.time_range.start))
