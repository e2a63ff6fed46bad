"""What a benchmark found, as tables for people and as JSON for programs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from gemmsmith.bench.rounds import Comparison, Ratio

TORCH = "torch"
"""Name of the arm that is torch's ``F.linear``."""
OURS = "gemmsmith"
"""Name of the arm that is gemmsmith's op with the kernel of its own choice."""


@dataclass(frozen=True, kw_only=True)
class Environment:
    """What the numbers hold for."""

    gpu: str
    sm_count: int
    driver: str
    torch: str
    cuda: str
    """CUDA version that torch was built with."""
    cutlass: str
    gemmsmith: str
    commit: str
    """Commit of the checkout, ``+`` where it is changed; empty outside a checkout."""
    copy_gbs: float
    """GB/s of a large device-to-device copy in this run."""
    matmul_tflops: float
    """TFLOP/s of torch's 8192³ bf16 matmul in this run."""

    def __str__(self) -> str:
        commit = f" ({self.commit})" if self.commit else ""
        return (
            f"{self.gpu}, {self.sm_count} SMs, driver {self.driver}; torch {self.torch}, "
            f"CUDA {self.cuda}; CUTLASS {self.cutlass}; gemmsmith {self.gemmsmith}{commit}; "
            f"copy {self.copy_gbs:.0f} GB/s, torch matmul 8192³ {self.matmul_tflops:.0f} TFLOP/s"
        )


@dataclass(frozen=True, kw_only=True)
class BenchRow:
    """One shape: y (m, n) = x (m, k) @ w (n, k).T."""

    model: str
    op: str
    m: int
    n: int
    k: int
    dtype: str
    """Name of the element type of x, w and y."""
    element_bytes: int
    comparison: Comparison
    """Times of ``torch``, of ``gemmsmith`` if it ran and was right, and of single kernels."""
    kernel: str
    """The kernel that gemmsmith chose; empty where it had none."""
    wrong: Mapping[str, str]
    """Arms that were not timed because their result is wrong or they failed, and how."""
    missing: str = ""
    """Why gemmsmith has no kernel here; empty where it has."""

    @property
    def torch_us(self) -> float:
        """µs of ``F.linear``."""
        return self.comparison.median(TORCH)

    @property
    def ours_us(self) -> float | None:
        """µs of gemmsmith's choice; None where it is wrong or missing."""
        return self.comparison.median(OURS) if OURS in self.comparison.samples else None

    @property
    def ratio(self) -> Ratio | None:
        """Times of torch over ours: above 1, gemmsmith is faster; None where it did not run."""
        return self.comparison.ratio(TORCH, OURS) if self.ours_us is not None else None

    @property
    def best(self) -> tuple[str, Ratio] | None:
        """The fastest single kernel and torch's time over its; None where none was timed alone."""
        kernels = [arm for arm in self.comparison.samples if arm not in (TORCH, OURS)]
        if not kernels:
            return None
        name = self.comparison.fastest(kernels)
        return name, self.comparison.ratio(TORCH, name)

    @property
    def flops(self) -> int:
        """Floating-point operations of the product."""
        return 2 * self.m * self.n * self.k

    @property
    def bytes(self) -> int:
        """The fewest bytes to move: x, w and y once each."""
        return (self.m * self.k + self.n * self.k + self.m * self.n) * self.element_bytes

    @property
    def loses(self) -> bool:
        """Whether torch is faster beyond doubt, or gemmsmith has no right answer at all."""
        ratio = self.ratio
        if ratio is None:
            return True
        return (ratio.median if ratio.high is None else ratio.high) < 1

    @property
    def label(self) -> str:
        """Words that name the shape."""
        return f"{self.model} {self.op} {self.m}x{self.n}x{self.k} {self.dtype}"

    def as_json(self) -> dict[str, Any]:
        """Return everything in plain types."""
        ratio, best = self.ratio, self.best
        return {
            **{key: getattr(self, key) for key in ("model", "op", "m", "n", "k", "dtype")},
            "kernel": self.kernel,
            "missing": self.missing,
            "wrong": dict(self.wrong),
            "torch_us": self.torch_us,
            "ours_us": self.ours_us,
            "ratio": asdict(ratio) if ratio else None,
            "best": {"kernel": best[0], "ratio": asdict(best[1])} if best else None,
            "comparison": self.comparison.as_json(),
        }


GROUPS: tuple[tuple[str, Callable[[int], bool]], ...] = (
    ("M <= 64", lambda m: m <= 64),
    ("M 65..2047", lambda m: 64 < m < 2048),
    ("M >= 2048", lambda m: m >= 2048),
    ("all", lambda m: True),
)
"""Groups of shapes that are summed up apart: decode, in between, prefill."""


@dataclass(frozen=True, kw_only=True)
class GroupSummary:
    """Ratios of a group of shapes."""

    name: str
    geomean: float
    """Geometric mean of torch's time over ours."""
    worst: BenchRow
    """The shape with the smallest ratio."""
    best_geomean: float | None
    """The same with the fastest kernel at each shape; None where they were not all timed."""
    count: int
    """Shapes that have a ratio."""
    without: int
    """Shapes that have none: wrong or missing."""


def geomean(values: Iterable[float]) -> float:
    """Return the geometric mean of positive numbers; there must be one."""
    logs = [math.log(value) for value in values]
    return math.exp(math.fsum(logs) / len(logs))


def summaries(rows: Sequence[BenchRow]) -> list[GroupSummary]:
    """Return the groups that have a shape with a ratio."""
    found = []
    for name, belongs in GROUPS:
        group = [row for row in rows if belongs(row.m)]
        rated = [(row, row.ratio.median) for row in group if row.ratio]
        if not rated:
            continue
        bests = [row.best[1].median for row, _ in rated if row.best]
        found.append(
            GroupSummary(
                name=name,
                geomean=geomean(ratio for _, ratio in rated),
                worst=min(rated, key=lambda pair: pair[1])[0],
                best_geomean=geomean(bests) if len(bests) == len(rated) else None,
                count=len(rated),
                without=len(group) - len(rated),
            )
        )
    return found


@dataclass(frozen=True, kw_only=True)
class BenchReport:
    """A finished benchmark."""

    environment: Environment
    rows: tuple[BenchRow, ...]

    @property
    def wrong(self) -> tuple[tuple[BenchRow, str, str], ...]:
        """Every (shape, arm, fault) whose result was wrong or that failed."""
        return tuple((row, arm, why) for row in self.rows for arm, why in row.wrong.items())

    @property
    def losses(self) -> tuple[BenchRow, ...]:
        """Shapes where torch is faster or gemmsmith has no answer, the worst first."""
        lost = [row for row in self.rows if row.loses]
        return tuple(sorted(lost, key=lambda row: row.ratio.median if row.ratio else 0.0))

    def as_json(self) -> dict[str, Any]:
        """Return everything in plain types, all raw samples included."""
        return {
            "format": 1,
            "environment": asdict(self.environment),
            "rows": [row.as_json() for row in self.rows],
        }
