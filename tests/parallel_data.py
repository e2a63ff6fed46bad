"""What each of two processes does with decoders and blocks divided over both, and what it saw."""

from __future__ import annotations

import copy
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed
from torch.distributed.device_mesh import init_device_mesh

from decoder_data import decoder, ids
from gemmsmith import nn
from gemmsmith.errors import ArgumentError
from layer_data import linear, numbers

RANKS, STEPS = 2, 5
PROMPTS = [9, 4]
"""Tokens of each of the two prompts, the second of which is padded."""
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
KINDS = (*DTYPES, "int8")
K, HEADS, SIZE, INNER = 48, 4, 16, 72  # of INNER each rank has 36, no multiple of 8
Seen = dict[str, Any]


def new_decoder(kind: str, device: str) -> nn.Decoder:
    if kind == "int8":
        return decoder(torch.bfloat16, device, tied=False).to_int8(ids(4, 32, device=device))
    return decoder(DTYPES[kind], device, bias=kind != "f32", tied=kind == "f32")


def answers(model: nn.Decoder, device: str) -> Seen:
    """Return logits of whole texts, and of prompts of two lengths and the steps behind them."""
    tokens = ids(2, 21, device=device)
    cache = model.cache(2, 16)
    for memory in cache.layers:
        memory.k.fill_(torch.nan)
        memory.v.fill_(torch.nan)
    logits = model.prefill(tokens[:, :9], cache, torch.tensor(PROMPTS, device=device))
    chosen = [logits]
    for _ in range(STEPS):
        chosen.append(model.step(chosen[-1].argmax(-1), cache))
    seen = {"whole": model(tokens), "steps": torch.stack(chosen, 1)}
    return {"cache": tuple(cache.layers[0].k.shape)} | {n: t.cpu() for n, t in seen.items()}


def new_blocks(device: str) -> dict[str, tuple[torch.nn.Module, bool]]:
    """Return blocks with biases by name, and whether they are attention."""

    def attention(kv_heads: int, size: int = SIZE) -> nn.Attention:
        rows = (HEADS * size, kv_heads * size, kv_heads * size)
        q, k, v = (linear(K, n, device=device) for n in rows)
        v.weight.mul_(-0.7)
        return nn.Attention(q, k, v, linear(HEADS * size, K, device=device), heads=HEADS)

    fused = linear(K, (HEADS + 4) * SIZE, device=device)
    stacked = nn.Attention.from_fused(
        fused, linear(HEADS * SIZE, K, device=device), heads=HEADS, kv_heads=2
    )
    gate, up = (linear(K, INNER, device=device) for _ in range(2))
    up.weight.mul_(-0.7)
    down, pair = linear(INNER, K, device=device), linear(K, 2 * INNER, device=device)
    apart = nn.FeedForward(gate, up, down)
    found: dict[str, tuple[torch.nn.Module, bool]] = {
        "attention": (attention(2), True),
        "one KV head": (attention(1), True),
        "heads of 5": (attention(2, 5), True),
        "stacked": (stacked, True),
        "int8 attention": (nn.Int8Attention.of(attention(2), numbers(9, K, device=device)), True),
        "gate, up": (apart, False),
        "int8 gate, up": (nn.Int8FeedForward.of(apart, numbers(9, K, device=device)), False),
    }
    for order in ("gate_up", "up_gate"):
        found[order] = (nn.FeedForward.from_fused(pair, down, order, "gelu"), False)
    return found


def block_answer(block: torch.nn.Module, attends: bool, device: str) -> Tensor:
    x = numbers(2, 7, K, device=device)
    residual = 3 * x.flip(0)
    answer: Tensor = block(x, residual=residual) if attends else block(x, residual)
    return answer.cpu()


def refusals(mesh: Any) -> dict[str, str]:
    """Return what is told of modules that cannot be divided."""
    found = {}
    q, kv, o = linear(K, 6 * SIZE), linear(K, 3 * SIZE), linear(6 * SIZE, K)
    odd = nn.FeedForward(linear(K, 41), linear(K, 41), linear(41, K))
    even = nn.FeedForward(linear(K, 40), linear(K, 40), linear(40, K))
    norms = [nn.RMSNorm(torch.ones(K, dtype=torch.bfloat16), 1e-5) for _ in range(2)]
    layer = nn.DecoderLayer(norms[0], nn.Attention(q, kv, kv, o, heads=6), norms[1], even)
    divided = nn.parallelize(nn.FeedForward(linear(K, 40), linear(K, 40), linear(40, K)), mesh)
    for name, module in {
        "heads": torch.nn.ModuleList([layer, odd]),
        "twice": divided,
        "nothing": linear(K, K),
    }.items():
        before = {key: tensor.clone() for key, tensor in module.state_dict().items()}
        try:
            nn.parallelize(module, mesh)
        except ArgumentError as error:
            found[name] = str(error)
        after = module.state_dict()
        same = before.keys() == after.keys() and all(
            torch.equal(tensor, after[key]) for key, tensor in before.items()
        )
        assert same, f"{name}: refused and changed"
    for name, call in {
        "quantise": lambda: nn.Int8FeedForward.of(divided),
        "activate": lambda: divided.down.activated(numbers(3, 20), "gelu"),
    }.items():
        try:
            call()
        except ArgumentError as error:
            found[name] = str(error)
    return found


@torch.no_grad()
def work(rank: int, folder: Path, device: str) -> None:
    """Do everything as one of the ranks, and leave what was seen in a file of ``folder``."""
    torch.set_num_threads(1)
    os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
    if device == "cuda":
        torch.cuda.set_device(rank)
    distributed.init_process_group(
        "nccl" if device == "cuda" else "gloo",
        init_method=f"file://{folder / 'meeting'}",
        rank=rank,
        world_size=RANKS,
    )
    mesh = init_device_mesh(device, (RANKS,))
    seen: Seen = {}
    for kind in KINDS:
        model = nn.parallelize(new_decoder(kind, device), mesh)
        seen[kind] = answers(model, device)
        state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        seen[kind]["state"] = {name: tensor.cpu() for name, tensor in state.items()}
        other = copy.deepcopy(model)
        for parameter in other.parameters():
            parameter.zero_()
        other.load_state_dict(state)
        seen[kind]["again"] = other(ids(2, 21, device=device)).cpu()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    seen["compiled"] = compiled(ids(2, 21, device=device)).cpu()
    moved = nn.parallelize(new_decoder("bf16", "cpu"), mesh).to(device)
    seen["moved"] = moved(ids(2, 21, device=device)).cpu()
    seen["blocks"] = {
        name: block_answer(nn.parallelize(block, mesh), attends, device)
        for name, (block, attends) in new_blocks(device).items()
    }
    seen["refusals"] = refusals(mesh)
    torch.save(seen, folder / f"{rank}.pt")
    distributed.destroy_process_group()
