"""Compares functions on the GPU: which is faster, by how much, and how sure is that."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TypeVar

import torch

from gemmsmith.bench.gpu import require_gpu
from gemmsmith.bench.graphs import Arm, GraphTimer
from gemmsmith.bench.rounds import Comparison, Policy, Ratio, run_rounds

T = TypeVar("T")

ROTATED_BYTES = 120e6
"""Bytes of others that are read before a set comes again: twice the largest L2 cache in use."""


def compare(
    arms: Mapping[str, Arm],
    *,
    baseline: str | None = None,
    keep: Collection[str] = (),
    policy: Policy | None = None,
    replay_us: float = 1000.0,
) -> Comparison:
    """Return the times of all arms, taken in interleaved rounds of CUDA-graph replays.

    Args:
        arms: Name to closures, one for each rotated input set (:func:`rotating`).
        baseline: The arm that the others are compared with; the first by default.
        keep: Arms that ``policy.retire_above`` must not retire.
        policy: When enough has been measured; :class:`Policy`'s defaults by default.
        replay_us: What one replay should last at least, in µs.

    Raises:
        NoDeviceError: where there is no GPU.
        MeasureError: where an arm cannot be captured in a CUDA graph.
    """
    timer = GraphTimer(arms, replay_us=replay_us)
    return run_rounds(
        tuple(arms),
        timer,
        policy=policy or Policy(),
        baseline=next(iter(arms)) if baseline is None else baseline,
        keep=keep,
    )


def rotating(
    make: Callable[[], T], bytes_per_set: float, between: float = ROTATED_BYTES
) -> tuple[T, ...]:
    """Return so many sets from ``make`` that the others hold ``between`` bytes: more than a cache.

    A set larger than that has a companion, too: part of it would still be in the cache otherwise.
    They are written when this returns, as kernels with ``constant_b`` need it.
    """
    sets = tuple(make() for _ in range(1 + math.ceil(between / bytes_per_set)))
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return sets


def normal(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    """Return standard normal data on the current GPU: zeros would run faster than real data."""
    return torch.randn(*shape, dtype=dtype, device="cuda")


def copy_bandwidth(*, size: int = 1 << 30, seconds: float = 0.5) -> float:
    """Return the GB/s (read plus written) of moving ``size`` bytes on the current GPU.

    By an elementwise kernel: in a graph, a plain copy becomes a node for the copy engine, which is
    far slower.
    """
    source = normal(size // 4, dtype=torch.float32)
    target = torch.empty_like(source)
    found = compare(
        {"copy": [lambda: torch.neg(source, out=target)]}, policy=Policy(seconds=seconds)
    )
    return 2 * size / found.median("copy") / 1000


def matmul_peak(
    dtype: torch.dtype = torch.bfloat16, *, size: int = 8192, seconds: float = 0.5
) -> float:
    """Return the TFLOP/s of torch's matmul on random normal ``size``³ data on the current GPU."""
    a, b = normal(size, size, dtype=dtype), normal(size, size, dtype=dtype)
    out = torch.empty_like(a)
    found = compare({"mm": [lambda: torch.mm(a, b, out=out)]}, policy=Policy(seconds=seconds))
    return float(2 * size**3 / found.median("mm") / 1e6)


@dataclass(frozen=True, kw_only=True)
class SelfTest:
    """Whether the harness sees what it is shown on this GPU."""

    same: Ratio
    """The same work in both arms; 1.00 is right."""
    slower: Ratio
    """21 calls against 20; 1.05 is right."""
    converged: bool
    """Whether the intervals became as narrow as asked in the time given."""
    tolerance: float = 0.01

    @property
    def passed(self) -> bool:
        """Whether both ratios are right."""
        return (
            abs(self.same.median - 1.0) <= self.tolerance
            and abs(self.slower.median - 1.05) <= self.tolerance
        )

    def __str__(self) -> str:
        return (
            f"same work in both arms: {self.same}, should be 1.00 ± {self.tolerance}\n"
            f"21 calls against 20:    {self.slower}, should be 1.05 ± {self.tolerance}\n"
            f"{'passed' if self.passed else 'FAILED'}"
            f"{'' if self.converged else ' (intervals wider than asked)'}"
        )


def self_test(*, seconds: float = 3.0) -> SelfTest:
    """Return what the harness measures where the answer is known: equal arms, and one 5 % slower.

    Raises:
        NoDeviceError: where there is no GPU.
    """
    require_gpu()
    sets = rotating(_gemm, 2 * 4096 * 4096)
    twenty: Arm = [_times(gemm, 20) for gemm in sets]
    arms: Mapping[str, Arm] = {
        "twenty": twenty,
        "twenty again": [_times(gemm, 20) for gemm in sets],
        "twenty-one": [_times(gemm, 21) for gemm in sets],
    }
    found = compare(arms, keep=tuple(arms), policy=Policy(seconds=seconds))
    return SelfTest(
        same=found.ratio("twenty again", "twenty"),
        slower=found.ratio("twenty-one", "twenty"),
        converged=found.converged,
    )


def _gemm() -> Callable[[], object]:
    """Return a matrix product on data of its own, some 100 µs on a large GPU."""
    a, b = normal(2048, 4096, dtype=torch.bfloat16), normal(4096, 4096, dtype=torch.bfloat16)
    out = torch.empty_like(a)
    return lambda: torch.mm(a, b, out=out)


def _times(call: Callable[[], object], count: int) -> Callable[[], None]:
    def repeated() -> None:
        for _ in range(count):
            call()

    return repeated
