"""The description of one kernel: frozen, hashable, legal by construction."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from gemmsmith.arch import Architecture, Schedule, Store
from gemmsmith.dtypes import BF16, FP32, INT8, DType, accumulator_of

Layout = Literal["rcr", "rrr", "ccr", "crr", "rcc", "rrc", "ccc", "crc"]
Scheduler = Literal["static", "stream_k"]

Activation = Literal["none", "any", "relu", "gelu", "gelu_tanh", "silu"]
Gate = Literal["none", "silu", "gelu", "gelu_tanh"]

GATE_BLOCK = 8
"""Columns of the gate, then as many of up, in turns: a gated kernel's thread holds both."""

SCHEDULE_WORDS: dict[Schedule, str] = {
    "multistage": "",
    "warp_specialized": "ws",
    "pingpong": "pp",
    "cooperative": "coop",
    "lean": "lean",
}
"""Schedule to its short form inside kernel names."""


class Tile(NamedTuple):
    """Rows and columns of D and depth along K that one block (or warp) computes at a time."""

    m: int
    n: int
    k: int

    def __str__(self) -> str:
        return f"{self.m}x{self.n}x{self.k}"


class Cluster(NamedTuple):
    """Blocks of one cluster along the rows (m) and columns (n) of D."""

    m: int = 1
    n: int = 1

    @property
    def size(self) -> int:
        """Blocks in the cluster."""
        return self.m * self.n


class Alignment(NamedTuple):
    """Elements by which the contiguous dimension and the address of each operand must divide."""

    a: int = 8
    b: int = 8
    d: int = 8


def widest_alignment(a: DType, b: DType, d: DType, store: Store) -> Alignment:
    """Return what a kernel gets whose file gives no alignment: 16 bytes, the widest access.

    ``direct`` stores take any address, so they ask for nothing.
    """
    return Alignment(a=16 // a.bytes, b=16 // b.bytes, d=1 if store == "direct" else 16 // d.bytes)


@dataclass(frozen=True, kw_only=True)
class KernelSpec:
    """One tensor-core GEMM kernel, D = alpha * A @ B + beta * C + bias, on one architecture.

    All shapes are in the caller's frame: A is (M, K), B is (K, N), D is (M, N), tokens are rows.

    Raises:
        IllegalKernelError: with every rule that the fields break (:mod:`gemmsmith.legality`).
    """

    arch: Architecture
    """Row of the architecture table."""
    tile: Tile
    """Tile of a block: ``cooperative`` warpgroups share one, ``pingpong`` ones have one each."""
    schedule: Schedule
    """Main loop: ``multistage`` (2.x); ``warp_specialized``, ``pingpong`` or ``cooperative`` (3.x);
    ``lean``: one that is quick to start and to compile (sm_90a)."""
    a: DType = BF16
    """Element type of A."""
    b: DType = BF16
    """Element type of B."""
    acc: DType = FP32
    """Type that products are summed in."""
    d: DType = BF16
    """Element type of D, of the residual C and of the bias."""
    layout: Layout = "rcr"
    """Row-major (r) or column-major (c) for A, B and D; ``rcr`` is torch's ``x @ w.T``."""
    warp: Tile | None = None
    """Tile of one warp (2.x only)."""
    stages: int | None = None
    """Buffers of the main loop in shared memory; None: as many as fit (3.x only)."""
    cluster: Cluster = field(default_factory=Cluster)
    """Blocks that share operands by multicast (3.x only)."""
    split_k: int = 1
    """Blocks of a cluster that share the K loop of a tile and sum it together (``lean`` only)."""
    store: Store = "tma"
    """Epilogue: ``smem`` (2.x and lean), ``tma`` (staged, bulk store), ``direct`` (registers to
    memory), ``strip`` (gated: each warp through a strip of shared memory of its own)."""
    scheduler: Scheduler = "static"
    """``static``: each tile by one block; ``stream_k``: blocks may share the K loop of a tile."""
    swap: bool = False
    """Compute D^T = B^T A^T: the columns of D lie on the instruction's M side (3.x only)."""
    dependent_launch: bool = False
    """Start before the kernel ahead in the stream has ended, and wait for it before touching memory
    (programmatic dependent launch, sm_90a)."""
    constant_b: bool = False
    """Read B before the kernel ahead has ended: for weights that no queued work writes (``lean``
    with ``dependent_launch``)."""
    bias: bool = True
    """Whether the epilogue can add a bias vector (N,)."""
    residual: bool = False
    """Whether the epilogue can add beta * C."""
    activation: Activation = "none"
    """Function of alpha * A @ B + bias; ``any``: each call chooses one, or none."""
    gate: Gate = "none"
    """Function of the gate half; D is then function(gate) * up and has N / 2 columns.

    Columns of B come in blocks of 16: 8 of the gate, then 8 of up.
    """
    scaled: bool = False
    """Whether the product can be multiplied by a scale for each row and one for each column."""
    zero_point: bool = False
    """Whether zero points of A's rows can be taken off (int8)."""
    alignment: Alignment = field(default_factory=Alignment)
    """Alignment of A, B and D in elements."""

    def __post_init__(self) -> None:
        from gemmsmith.legality import check_spec

        check_spec(self)

    @property
    def name(self) -> str:
        """The kernel's name in reports, files, C++ symbols, logs and tables."""
        words = ["gemm", self.a.name]
        if self.acc != accumulator_of(self.a):
            words.append(f"acc{self.acc.name}")
        if self.d != self.a:
            words.append(f"out{self.d.name}")
        words += [self.layout, str(self.tile)]
        if self.warp:
            words.append(f"w{self.warp.m}x{self.warp.n}")
        if self.stages:
            words.append(f"s{self.stages}")
        if self.arch.clusters:
            words.append(f"c{self.cluster.m}x{self.cluster.n}")
        words += [SCHEDULE_WORDS[self.schedule]] if SCHEDULE_WORDS[self.schedule] else []
        words += ["streamk"] if self.scheduler == "stream_k" else []
        words += [f"splitk{self.split_k}"] if self.split_k > 1 else []
        words += ["swap"] if self.swap else []
        words += ["direct"] if self.store == "direct" else []
        words += ["pdl"] if self.dependent_launch else []
        words += ["constb"] if self.constant_b else []
        words += [] if self.bias else ["nobias"]
        words += ["res"] if self.residual else []
        words += ["scaled"] if self.scaled else []
        words += ["zp"] if self.zero_point else []
        words += [] if self.activation == "none" else [_joined("act", self.activation)]
        words += [] if self.gate == "none" else [_joined("gate", self.gate)]
        if self.alignment != widest_alignment(self.a, self.b, self.d, self.store):
            words.append("align" + "x".join(str(elements) for elements in self.alignment))
        return "_".join([*words, self.arch.suffix])

    @property
    def bias_type(self) -> DType:
        """Element type of the bias: that of D, but fp32 where D is int8."""
        return FP32 if self.d == INT8 else self.d

    @property
    def device_tile(self) -> Tile:
        """The tile as the device code sees it: m and n exchanged where ``swap`` is on."""
        return Tile(self.tile.n, self.tile.m, self.tile.k) if self.swap else self.tile

    @property
    def device_cluster(self) -> Cluster:
        """The cluster as the device code sees it: m and n exchanged where ``swap`` is on."""
        return Cluster(self.cluster.n, self.cluster.m) if self.swap else self.cluster


def _joined(word: str, function: str) -> str:
    return word + function.replace("_", "")
