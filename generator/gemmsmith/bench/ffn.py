"""Benchmark of a SwiGLU feed-forward block: its gated product; the whole in bf16 and int8."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

import gemmsmith
from gemmsmith import nn
from gemmsmith.bench.environment import environment_here
from gemmsmith.bench.gemm import checked_tokens
from gemmsmith.bench.gpu import require_gpu
from gemmsmith.bench.graphs import Arm
from gemmsmith.bench.judged import enter_judged
from gemmsmith.bench.measure import rotating
from gemmsmith.bench.model_shapes import ModelShapes, load_model
from gemmsmith.bench.race import Entrants, Race, RaceReport, Rivalry
from gemmsmith.bench.race_run import run_races
from gemmsmith.bench.report import OURS
from gemmsmith.bench.rivals import compiled_arm, eager_arm, forget_compiled
from gemmsmith.bench.tasks import interleaved, linear_of, make_task
from gemmsmith.errors import MeasureError, NoKernelError
from gemmsmith.kernelset import default_kernels
from gemmsmith.nvml import detect_architecture
from gemmsmith.progress import Progress

DEFAULT_M = (1, 16, 64, 512, 2048, 4096, 8192)
EAGER, COMPILED, INT8 = "torch eager", "torch compiled", "gemmsmith int8"
UP, WHOLE = "swiglu up", "ffn"
_GROUPS = ("M >= 2048", "M >= 512", "M <= 64")
RIVALRIES = (
    Rivalry(section=UP, over=EAGER, under=OURS, groups=_GROUPS),
    Rivalry(section=UP, over=COMPILED, under=OURS, groups=_GROUPS),
    Rivalry(section=WHOLE, over=COMPILED, under=OURS, groups=_GROUPS),
    Rivalry(section=WHOLE, over=COMPILED, under=INT8, groups=_GROUPS),
)
NOTES = (
    "swiglu up: silu(x @ gate.T) * (x @ up.T) in bf16, gate and up one weight. torch eager:"
    " F.linear, silu, mul; torch compiled: the same in one torch.compile, for each M anew;"
    " gemmsmith: one gated product. ffn: that and the product with down; gemmsmith int8:"
    " quantise, gated product, quantise, product, from bf16 to bf16. Ratio a / b: a's time over"
    " b's, above 1 b is faster [95 % interval of the median]."
)
_ROWS = 1024  # that are held in float64 at a time
_BF16_LIMIT, _INT8_LIMIT = 0.08, 0.5  # of an element's error, in root mean squares of its row


@dataclass(frozen=True, kw_only=True)
class Block:
    """The weights of one feed-forward block."""

    gate_up: Tensor
    """(2 I, H): the gate's rows, then those of up."""
    ready: Tensor
    """The same in blocks of 8, as gated kernels read it."""
    down: Tensor
    """(H, I)."""


def make_block(hidden: int, inner: int, *, device: str = "cuda") -> Block:
    """Return random weights that keep unit normal activations about unit normal."""
    new = partial(torch.randn, dtype=torch.bfloat16, device=device)
    gate_up = new(2 * inner, hidden).div_(math.sqrt(hidden))
    down = new(hidden, inner).div_(math.sqrt(inner))
    return Block(gate_up=gate_up, ready=interleaved(gate_up), down=down)


def torch_block(x: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    """Return the block's result by torch's functions."""
    gate, up = functional.linear(x, gate_up).chunk(2, -1)
    return functional.linear(functional.silu(gate) * up, down)


def our_block(x: Tensor, ready: Tensor, down: Tensor) -> Tensor:
    """Return the block's result by two of gemmsmith's products."""
    return gemmsmith.gemm(gemmsmith.gemm(x, ready.t(), gate="silu"), down.t())


def int8_arm(x: Tensor, blocks: Sequence[Block]) -> Arm:
    """Return the blocks with int8 weights, as gemmsmith's layers, on ``x``.

    Raises:
        NoKernelError: where there is no such layer.
    """
    layer_class: Any = vars(nn).get("Int8FeedForward")
    if layer_class is None:
        raise NoKernelError("gemmsmith.nn has no Int8FeedForward")
    return [
        partial(layer_class(*map(linear_of, (*block.gate_up.chunk(2), block.down))), x)
        for block in blocks
    ]


def exact_block(x: Tensor, block: Block) -> Tensor:
    """Return the block's result in float64."""
    gate, up = (half.double() for half in block.gate_up.chunk(2))
    down = block.down.double()
    done = [
        (functional.silu(rows.double() @ gate.t()) * (rows.double() @ up.t())) @ down.t()
        for rows in torch.split(x, _ROWS)
    ]
    return torch.cat(done)


def race_ffn(
    model: ModelShapes, m: Sequence[int], *, seconds: float, device: str = "cuda"
) -> Iterator[Race]:
    """Yield the gated product and the whole block for each M, their results checked first."""
    hidden, inner = sizes(model)
    for size in sorted(set(m)):
        forget_compiled()  # the next M is compiled for itself, as is best for it
        yield _race_up(model.model, (size, 2 * inner, hidden), seconds, device)
        yield _race_block(model.model, (size, inner, hidden), seconds, device)
        if device == "cuda":
            torch.cuda.empty_cache()
    forget_compiled()


def sizes(model: ModelShapes) -> tuple[int, int]:
    """Return the features of the model and those inside its feed-forward block.

    Raises:
        MeasureError: where it has no gate_up and down that fit each other.
    """
    shapes = {shape.op: shape for shape in model.shapes}
    up, down = shapes.get("gate_up"), shapes.get("down")
    if up is None or down is None or (up.n, up.k) != (2 * down.k, down.n):
        raise MeasureError(
            f"{model.model} has no gated feed-forward block: its shapes must hold gate_up (2 I, H)"
            " and down (H, I)"
        )
    return up.k, down.k


def _race_up(label: str, shape: tuple[int, int, int], seconds: float, device: str) -> Race:
    task = make_task(*shape, torch.bfloat16, gate="silu", device=device)
    entrants = Entrants()
    entrants.torch(COMPILED, task, compiled_arm(task, any_m=False))
    entrants.torch(EAGER, task, eager_arm(task))
    entrants.ours(OURS, task)
    return entrants.race(UP, label, shape, seconds=seconds)


def _race_block(label: str, shape: tuple[int, int, int], seconds: float, device: str) -> Race:
    m, inner, hidden = shape
    x = torch.randn(m, hidden, dtype=torch.bfloat16, device=device)
    blocks = rotating(lambda: make_block(hidden, inner, device=device), 3 * inner * hidden)
    right = exact_block(x, blocks[0])
    compiled = torch.compile(torch_block, fullgraph=True, dynamic=False)
    arms: dict[str, tuple[Callable[[], Arm], float]] = {
        COMPILED: (
            lambda: [partial(compiled, x, b.gate_up, b.down) for b in blocks],
            _BF16_LIMIT,
        ),
        OURS: (lambda: [partial(our_block, x, b.ready, b.down) for b in blocks], _BF16_LIMIT),
        INT8: (lambda: int8_arm(x, blocks), _INT8_LIMIT),
    }
    entrants = Entrants()
    errors: dict[str, float] = {}
    for name, (make, limit) in arms.items():
        errors |= enter_judged(entrants, name, make, right, limit, ours=name != COMPILED)
    return entrants.race(WHOLE, label, shape, seconds=seconds, figures=errors)


def run_ffn(
    model: str,
    *,
    m: Sequence[int] | None = None,
    json_path: Path | None = None,
    seconds_per_shape: float = 1.0,
    progress: Callable[[str], None] = lambda line: None,
    building: Progress | None = None,
) -> RaceReport:
    """Return the measured feed-forward block of a model; arguments are those of ``run_bench``.

    Raises:
        ConfigError: where the model cannot be read.
        MeasureError: where ``m`` or the model is none that can be measured.
        NoDeviceError: where there is no GPU.
        CompileError, ToolchainError: where a kernel is missing and cannot be built.
    """
    shapes, tokens = load_model(model), checked_tokens(m) or DEFAULT_M
    sizes(shapes)
    require_gpu()
    default_kernels(detect_architecture().name).build(progress=building)
    return run_races(
        race_ffn(shapes, tokens, seconds=seconds_per_shape),
        environment=environment_here(),
        notes=NOTES,
        rivalries=RIVALRIES,
        json_path=json_path,
        progress=progress,
    )
