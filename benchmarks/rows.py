"""Prints the GB/s of each row operation beside torch eager and torch.compile (needs a GPU).

All arms of a line are CUDA graphs whose replays are interleaved; inputs rotate over more memory
than a cache holds, those of few rows over as many as :data:`MOST_SETS` make. Bytes are those that
one pass has to read and write, without weights and scales. ``of copy`` is the share of the
bandwidth of copying 1 GiB.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

import gemmsmith
from gemmsmith.bench.gpu import exit_without_gpu
from gemmsmith.bench.measure import (
    ROTATED_BYTES,
    compare,
    copy_bandwidth,
    normal,
    rotating,
)
from gemmsmith.bench.rounds import Policy

SIZES = ((1, 4096), (16, 4096), (2048, 4096), (8192, 14336))
EPS = 1e-5
SECONDS = 0.5
"""Time for each line."""
MOST_SETS = 256
"""Inputs that an operation rotates over at most: they all are in one graph."""

Operation = Callable[..., Any]


def quantize(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantise as a model without a kernel for it does."""
    values = x.float()
    scale = values.abs().amax(-1, keepdim=True) / 127
    return (values / scale).round().clamp(-127, 127).to(torch.int8), scale


def norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Return the RMSNorm of ``x``."""
    return F.rms_norm(x, weight.shape, weight, EPS)


def add_norm(x: torch.Tensor, weight: torch.Tensor, residual: torch.Tensor) -> Any:
    """Return the norm of a sum, and the sum."""
    total = x + residual
    return norm(total, weight), total


def add_norm_quantize(x: torch.Tensor, weight: torch.Tensor, residual: torch.Tensor) -> Any:
    """Return the quantised norm of a sum, and the sum."""
    total = x + residual
    return (*quantize(norm(total, weight)), total)


def gate(x: torch.Tensor) -> torch.Tensor:
    """Return SiLU of one half times the other."""
    left, right = x.chunk(2, -1)
    return F.silu(left) * right


def operations(m: int, k: int) -> dict[str, tuple[Operation, Operation, int, tuple[Any, ...]]]:
    """Return name -> ours, torch's, bytes moved, shapes of the arguments."""
    n = m * k
    return {
        "quantize_rows": (gemmsmith.quantize_rows, quantize, 3 * n, ((m, k),)),
        "quantize_rows + column scale": (
            lambda x, c: gemmsmith.quantize_rows(x, column_scale=c),
            lambda x, c: quantize(x.float() * c.float()),
            3 * n,
            ((m, k), (k,)),
        ),
        "rms_norm": (lambda x, w: gemmsmith.rms_norm(x, w, EPS), norm, 4 * n, ((m, k), (k,))),
        "rms_norm + residual": (
            lambda x, w, r: gemmsmith.rms_norm(x, w, EPS, r),
            add_norm,
            8 * n,
            ((m, k), (k,), (m, k)),
        ),
        "rms_norm_quantize": (
            lambda x, w: gemmsmith.rms_norm_quantize(x, w, EPS),
            lambda x, w: quantize(norm(x, w)),
            3 * n,
            ((m, k), (k,)),
        ),
        "rms_norm_quantize + residual": (
            lambda x, w, r: gemmsmith.rms_norm_quantize(x, w, EPS, r),
            add_norm_quantize,
            7 * n,
            ((m, k), (k,), (m, k)),
        ),
        "gate": (gemmsmith.gate, gate, 6 * n, ((m, 2 * k),)),
        "gate interleaved": (
            lambda x: gemmsmith.gate(x, "silu", True),
            gate,
            6 * n,
            ((m, 2 * k),),
        ),
        "gate_quantize": (
            gemmsmith.gate_quantize,
            lambda x: quantize(gate(x)),
            5 * n,
            ((m, 2 * k),),
        ),
        "gate_quantize + column scale": (
            lambda x, c: gemmsmith.gate_quantize(x, column_scale=c),
            lambda x, c: quantize(gate(x) * c),
            5 * n,
            ((m, 2 * k), (k,)),
        ),
    }


def arguments(shapes: tuple[Any, ...]) -> tuple[torch.Tensor, ...]:
    """Return normal data of these shapes."""
    return tuple(normal(*shape, dtype=torch.bfloat16) for shape in shapes)


def calls(operation: Operation, sets: tuple[tuple[torch.Tensor, ...], ...]) -> list[Any]:
    """Return a closure for each set of arguments."""
    return [partial(operation, *one) for one in sets]


@torch.inference_mode()
def main() -> None:
    """Measure and print."""
    exit_without_gpu()
    large = copy_bandwidth(seconds=SECONDS)
    print(f"{torch.cuda.get_device_name()}, copying 1 GiB: {large:.0f} GB/s")
    head = ("operation", "µs", "GB/s", "of copy", "vs eager", "vs compile")
    for m, k in SIZES:
        print(f"\nM={m} K={k}")
        print("{:<32}{:>9}{:>9}{:>9}{:>10}{:>12}".format(*head))
        for name, (ours, eager, moved, shapes) in operations(m, k).items():
            torch._dynamo.reset()
            compiled = torch.compile(eager, fullgraph=True, dynamic=False)
            between = min(ROTATED_BYTES, MOST_SETS * moved)
            sets = rotating(partial(arguments, shapes), moved, between)
            found = compare(
                {
                    "ours": calls(ours, sets),
                    "eager": calls(eager, sets),
                    "compile": calls(compiled, sets),
                },
                keep=("ours", "eager", "compile"),
                policy=Policy(seconds=SECONDS),
            )
            micros = found.median("ours")
            rate = moved / micros / 1000
            print(
                f"{name:<32}{micros:9.2f}{rate:9.0f}{rate / large:9.0%}"
                f"{found.median('eager') / micros:10.2f}{found.median('compile') / micros:12.2f}"
            )


if __name__ == "__main__":
    main()
