"""Benchmark of a whole decoder layer beside the same in compiled torch; and of its parts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from gemmsmith.bench.environment import environment_here
from gemmsmith.bench.gemm import checked_tokens
from gemmsmith.bench.gpu import require_gpu
from gemmsmith.bench.graphs import Arm
from gemmsmith.bench.judged import judge
from gemmsmith.bench.layer_parts import kernels_of, launches, parts_of
from gemmsmith.bench.layer_torch import (
    BASE,
    EPS,
    Sizes,
    Weights,
    angles,
    exact_layer,
    layer_sizes,
    new_weights,
    torch_layer,
)
from gemmsmith.bench.measure import ROTATED_BYTES, compare
from gemmsmith.bench.model_shapes import ModelShapes, load_model
from gemmsmith.bench.race import Entrants, Race, RaceReport, Rivalry
from gemmsmith.bench.race_run import run_races
from gemmsmith.bench.report import OURS
from gemmsmith.bench.rivals import forget_compiled
from gemmsmith.bench.rounds import Policy
from gemmsmith.bench.tasks import linear_of
from gemmsmith.kernelset import default_kernels
from gemmsmith.nn import (
    Attention,
    DecoderLayer,
    FeedForward,
    Int8Attention,
    Int8FeedForward,
    KVCache,
    RMSNorm,
    Rotary,
)
from gemmsmith.nvml import detect_architecture
from gemmsmith.progress import Progress
from gemmsmith.rope_math import rope_frequencies

DEFAULT_M = (1, 16, 2048)
KEYS = 2048
"""Keys that a step of decoding sees, its own among them."""
MOST_SEQUENCES = 64
"""M up to here is that many sequences which decode a token each; above, the tokens of a prompt."""
COMPILED, AUTOTUNED, INT8 = "torch compiled", "torch max-autotune", "gemmsmith int8"
PREFILL, DECODE = "layer prefill", "layer decode"
RIVALRIES = tuple(
    Rivalry(section=section, over=over, under=under, groups=("all",))
    for section in (PREFILL, DECODE)
    for under in (OURS, INT8)
    for over in (COMPILED, AUTOTUNED)
)
NOTES = (
    "A decoder layer with random weights, bf16 in and out, each arm in a CUDA graph. layer decode:"
    f" M sequences, one token each, {KEYS} keys; layer prefill: a prompt of M tokens. torch:"
    " rms_norm, F.linear, RoPE by tables, cache write, scaled_dot_product_attention and SwiGLU in"
    " one torch.compile for each M, by default and with max-autotune. gemmsmith: nn.DecoderLayer"
    " with constant weights and cache; int8: its four products in int8. best torch: the faster of"
    " both. Columns in µs tell a part of ours alone, its inputs rotated; kernels: launches of a"
    " call."
)
_LIMITS = {COMPILED: 0.15, AUTOTUNED: 0.15, OURS: 0.15, INT8: 0.5}  # of an element, see judge
_LAYERS = 4  # so that each of the weights, too, is out of the cache when it is read again


@dataclass(frozen=True, kw_only=True)
class Setting:
    """The inputs of one race."""

    x: Tensor
    """(B, S, hidden)."""
    places: Tensor
    """(S,) int64, of the tokens in their sequences."""
    caches: tuple[Tensor, Tensor]
    """(layers, B, Hkv, keys, D): what is there before."""
    sizes: Sizes

    @property
    def decodes(self) -> bool:
        """Whether it is one token a sequence."""
        return self.x.shape[1] == 1


def new_setting(m: int, sizes: Sizes, device: str, keys: int = KEYS) -> Setting:
    """Return random inputs for M tokens."""
    decodes = m <= MOST_SEQUENCES
    batch, tokens = (m, 1) if decodes else (1, m)
    room = keys if decodes else tokens
    one = 4 * batch * room * sizes.kv_heads * sizes.head_dim
    layers = max(_LAYERS, math.ceil(ROTATED_BYTES / one)) if device == "cuda" else _LAYERS
    new = partial(torch.randn, dtype=torch.bfloat16, device=device)
    shape = (layers, batch, sizes.kv_heads, room, sizes.head_dim)
    return Setting(
        x=new(batch, tokens, sizes.hidden),
        places=torch.arange(room - tokens, room, device=device),
        caches=(new(shape), new(shape)),
        sizes=sizes,
    )


def our_layer(w: Weights, sizes: Sizes, rotary: Rotary, *, int8: bool) -> DecoderLayer:
    """Return the layer of ours with these weights, which it promises to leave as they are,
    and so the cache but for the newest token."""
    heads = {"heads": sizes.heads, "kv_heads": sizes.kv_heads}
    attention = Attention.from_fused(linear_of(w.qkv), linear_of(w.o), **heads, rotary=rotary)
    feed_forward = FeedForward.from_fused(linear_of(w.gate_up), linear_of(w.down), "gate_up")
    if int8:
        attention = Int8Attention.of(attention)
        feed_forward = Int8FeedForward.of(feed_forward)
    norms = (RMSNorm(w.attention_norm, EPS), RMSNorm(w.feed_forward_norm, EPS))
    layer = DecoderLayer(norms[0], attention, norms[1], feed_forward)
    layer.constant_weight = layer.constant_cache = True
    return layer


def our_cache(setting: Setting) -> KVCache:
    """Return a cache of ours that holds what torch's does."""
    k, v = (each.transpose(2, 3) for each in setting.caches)
    cache = KVCache(*k.shape, device=k.device.type)
    for index, memory in enumerate(cache.layers):
        memory.k.copy_(k[index])
        memory.v.copy_(v[index])
    return cache


class Ours:
    """Layers of ours, and how they are called in one setting."""

    def __init__(self, layers: Sequence[DecoderLayer], setting: Setting) -> None:
        self.layers, self.x = layers, setting.x
        self.cache = our_cache(setting)
        batch, _, _ = setting.x.shape
        self.positions = setting.places.to(torch.int32).expand(batch, -1).contiguous()
        self.keys = None
        if setting.decodes:
            room = self.cache.capacity
            self.keys = torch.full((batch,), room, dtype=torch.int32, device=setting.x.device)

    def arm(self) -> Arm:
        """Return a call of each layer; where it decodes, the keys tell the positions."""
        positions = self.positions if self.keys is None else None
        return [
            partial(layer, self.x, positions, cache=self.cache.layer(index), keys=self.keys)
            for index, layer in enumerate(self.layers)
        ]

    def parts(self) -> dict[str, Arm]:
        """Return the steps of the layers, one arm each; attention reads all memory in turns."""
        count = len(self.cache.layers)
        all_parts = [
            parts_of(
                self.layers[index % len(self.layers)],
                self.x,
                self.positions,
                self.cache.layer(index),
                self.keys,
            )
            for index in range(count)
        ]
        return {name: [parts[name] for parts in all_parts] for name in all_parts[0]}


def race_layer(
    model: ModelShapes, m: Sequence[int], *, seconds: float, device: str = "cuda"
) -> Iterator[Race]:
    """Yield the layer for each M, its results checked first."""
    sizes = layer_sizes(model)
    weights = [new_weights(sizes, device) for _ in range(_LAYERS)]
    rotary = Rotary(rope_frequencies(sizes.head_dim, BASE).to(device))
    ours = {
        name: [our_layer(w, sizes, rotary, int8=name == INT8) for w in weights]
        for name in (OURS, INT8)
    }
    for size in sorted(set(m)):
        forget_compiled()
        yield _race(model.model, new_setting(size, sizes, device), weights, ours, seconds)
        if device == "cuda":
            torch.cuda.empty_cache()
    forget_compiled()


def _race(
    label: str,
    setting: Setting,
    weights: Sequence[Weights],
    layers: Mapping[str, Sequence[DecoderLayer]],
    seconds: float,
) -> Race:
    sizes, on_gpu = setting.sizes, setting.x.is_cuda
    tables = angles(setting.places, sizes)
    caches = [(k, v) for k, v in zip(*setting.caches, strict=True)]
    right = exact_layer(setting.x, weights[0], tables, setting.places, caches[0], sizes)
    entrants, figures = Entrants(), {}
    for name, mode in ((COMPILED, None), (AUTOTUNED, "max-autotune-no-cudagraphs")):
        compiled = torch.compile(torch_layer, fullgraph=True, dynamic=False, mode=mode)
        rounded = (tables[0].to(torch.bfloat16), tables[1].to(torch.bfloat16))
        arm: Arm = [
            partial(compiled, setting.x, w, rounded, setting.places, memory, sizes)
            for w, memory in zip(weights, caches, strict=False)
        ]
        figures[f"{name} error %"] = _enter(entrants, name, arm, right)
    for name, mine in layers.items():
        called = Ours(mine, setting)
        figures[f"{name} error %"] = _enter(entrants, name, called.arm(), right)
        parts = called.parts()
        entrants.kernels |= {
            f"{name} {part}": kernel
            for part, kernel in kernels_of({key: arm[0] for key, arm in parts.items()}).items()
        }
        if on_gpu:
            figures |= _part_times(name, parts, seconds)
            figures[f"{name} kernels"] = len(launches(called.arm()[0]))
    section = DECODE if setting.decodes else PREFILL
    shape = (setting.x.shape[0] * setting.x.shape[1], sizes.inner, sizes.hidden)
    race = entrants.race(section, label, shape, seconds=seconds, figures=figures)
    figures |= _over_best(race)
    return race


def _enter(entrants: Entrants, name: str, arm: Arm, right: Tensor) -> float:
    """Enter an arm where it is right; return its error in per cent."""
    found = arm[0]()
    assert isinstance(found, Tensor), "a layer returns a tensor"
    why, error = judge(found.flatten(0, 1), right, _LIMITS[name])
    entrants.enter(name, arm, why)
    return error


def _part_times(name: str, parts: Mapping[str, Arm], seconds: float) -> dict[str, float]:
    """Return the µs of each part alone, and of all together."""
    found = compare(parts, keep=tuple(parts), policy=Policy(seconds=seconds))
    times = {f"{name} {part} µs": found.median(part) for part in parts}
    return {**times, f"{name} parts together µs": sum(times.values())}


def _over_best(race: Race) -> dict[str, float]:
    """Return the time of the faster torch over that of each of ours."""
    us = race.comparison.median
    peers = [us(name) for name in (COMPILED, AUTOTUNED) if name in race.comparison.samples]
    ours = [name for name in (OURS, INT8) if name in race.comparison.samples]
    return {f"best torch / {name}": min(peers) / us(name) for name in ours if peers}


def run_layer(
    model: str,
    *,
    m: Sequence[int] | None = None,
    json_path: Path | None = None,
    seconds_per_shape: float = 2.0,
    progress: Callable[[str], None] = lambda line: None,
    building: Progress | None = None,
) -> RaceReport:
    """Return the measured decoder layer of a model; arguments are those of ``run_bench``.

    Raises:
        ConfigError: where the model cannot be read.
        MeasureError: where ``m`` or the model is none that can be measured.
        NoDeviceError: where there is no GPU.
        CompileError, ToolchainError: where a kernel is missing and cannot be built.
    """
    shapes, tokens = load_model(model), checked_tokens(m) or DEFAULT_M
    layer_sizes(shapes)
    require_gpu()
    default_kernels(detect_architecture().name).build(progress=building)
    with torch.inference_mode():
        return run_races(
            race_layer(shapes, tokens, seconds=seconds_per_shape),
            environment=environment_here(),
            notes=NOTES,
            rivalries=RIVALRIES,
            json_path=json_path,
            progress=progress,
        )
