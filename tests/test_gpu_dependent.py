"""Kernels that start before the one ahead has ended write the same bits as those that do not."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import Tensor  # noqa: E402

import gemmsmith  # noqa: E402
from gemmsmith.config import load_specs  # noqa: E402
from gemmsmith.kernelset import ExactKernel, KernelSet  # noqa: E402
from gemmsmith.spec import KernelSpec  # noqa: E402

pytestmark = pytest.mark.gpu
BF16 = torch.bfloat16
STEPS = 64
RUNS = 20
SIZES = ((1, 512), (16, 1024), (200, 1024), (512, 2048))
"""(M, N = K): fewer blocks than multiprocessors, where kernels overlap most, and more."""
DEPENDENT = tuple(
    spec for spec in load_specs(Path(__file__).with_name("unusual.yaml")) if spec.dependent_launch
)


def late_twin(spec: KernelSpec) -> KernelSpec:
    return replace(spec, dependent_launch=False, constant_b=False)


@pytest.fixture(scope="module")
def kernels() -> KernelSet:
    """The kernels with the option and their twins without it."""
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("the GPU is no Hopper")
    twins = list(dict.fromkeys(map(late_twin, DEPENDENT)))
    loaded = KernelSet((*DEPENDENT, *twins), arch=DEPENDENT[0].arch, source="pairs")
    loaded.build()
    return loaded


class Chain:
    """Products that each need the one ahead, in two buffers that take turns."""

    def __init__(self, spec: KernelSpec, m: int, n: int, device: str = "cuda") -> None:
        torch.manual_seed(m + n)
        self.spec = spec
        columns = n if spec.gate == "none" else 2 * n
        self.size = 1.0 if spec.gate == "none" else 0.5  # a gate squares: its chain must not grow
        self.weights = [self._weight(columns, n, device) for _ in range(3)]
        self.bias = (self.size * torch.randn(columns, device=device)).to(BF16)
        self.norm = torch.ones(n, dtype=BF16, device=device)
        self.start = torch.randn(m, n, device=device).to(BF16)
        self.buffers = [torch.empty_like(self.start) for _ in range(2)]
        self.sum = torch.empty_like(self.start)

    def _weight(self, columns: int, k: int, device: str) -> Tensor:
        weight = torch.randn(columns, k, device=device)
        whole = self.spec.scaled
        made: Tensor = (weight * 30).clamp(-127, 127) if whole else self.size * weight / k**0.5
        return made.to(torch.int8 if whole else BF16)

    def run(self, kernel: ExactKernel, *, between: bool) -> None:
        """Queue the chain; with ``between`` other kernels take their turns in it."""
        self.buffers[0].copy_(self.start)
        self.sum.copy_(self.start)
        for step in range(STEPS):
            source, target = self.buffers[step % 2], self.buffers[(step + 1) % 2]
            self._product(kernel, source, self.weights[step % 3], target)
            if self.spec.residual and step % 2:  # reads and writes the sum, and reads its source
                kernel(target, self.weights[0].t(), residual=self.sum, beta=-0.5, out=self.sum)
            if between and step % 4 == 1:
                target.mul_(0.5)
            if between and step % 4 == 2:
                target.copy_(gemmsmith.rms_norm(target, self.norm, 1e-5))

    def _product(self, kernel: ExactKernel, source: Tensor, weight: Tensor, out: Tensor) -> None:
        if self.spec.scaled:
            quantized, scale = gemmsmith.quantize_rows(source)
            scales = torch.full_like(
                self.bias, 1 / 30 / weight.shape[1] ** 0.5, dtype=torch.float32
            )
            gemmsmith.gemm(
                quantized,
                weight.t(),
                self.bias,
                out=out,
                a_scale=scale,
                b_scale=scales,
                kernels=kernel.handle,
            )
        else:
            gemmsmith.gemm(
                source,
                weight.t(),
                self.bias,
                out=out,
                gate=self.spec.gate,
                kernels=kernel.handle,
            )

    def results(self) -> list[Tensor]:
        """Return copies of all that the chain writes."""
        return [each.clone() for each in (*self.buffers, self.sum)]

    def spoil(self) -> None:
        """Fill all that the chain writes with NaN, which would spread."""
        for each in (*self.buffers, self.sum):
            each.fill_(float("nan"))


def expect(chain: Chain, run: Callable[[], None], right: list[Tensor], where: str) -> None:
    for number in range(RUNS):
        chain.spoil()
        run()
        for found, wanted in zip(chain.results(), right, strict=True):
            assert torch.equal(found, wanted), f"{where}, run {number}"


@pytest.mark.parametrize("between", [False, True], ids=["alone", "with other kernels"])
@pytest.mark.parametrize("spec", DEPENDENT, ids=lambda spec: spec.name)
def test_chains_have_the_bits_of_kernels_that_follow_each_other(
    spec: KernelSpec, between: bool, kernels: KernelSet
) -> None:
    early, late = kernels[spec.name], kernels[late_twin(spec).name]
    for m, n in SIZES:
        where = f"{spec.name} at {m}x{n}x{n}"
        chain = Chain(spec, m, n)
        chain.run(late, between=between)
        right = chain.results()
        assert all(each.isfinite().all() for each in right), where
        assert right[0].abs().max() > 0, where
        expect(chain, partial(chain.run, early, between=between), right, f"{where} eager")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            chain.run(early, between=between)
        expect(chain, graph.replay, right, f"{where} in a graph")


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("m", [1, 16, 200])
def test_layers_with_constant_weights_have_the_bits_of_those_that_wait_for_each_other(
    m: int,
) -> None:
    layers = [gemmsmith.nn.Linear(1024, 1024, False, "cuda", BF16) for _ in range(4)]
    for layer in layers:
        layer.requires_grad_(False)
        layer.weight.normal_(std=1024**-0.5)
        layer.constant_weight = True
    start, result = (torch.randn(m, 1024, device="cuda").to(BF16) for _ in range(2))

    def run(*, waiting: bool = False) -> None:
        y = start
        for step in range(STEPS):
            y = layers[step % 4](y)
            if waiting:
                torch.cuda.synchronize()
        result.copy_(y)

    run(waiting=True)
    right = result.clone()
    assert right.isfinite().all()
    assert right.abs().max() > 0
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    for each in (run, graph.replay):
        for number in range(RUNS):
            result.fill_(float("nan"))
            each()
            assert torch.equal(result, right), f"run {number}"


def programmatic_edges(graph: Any) -> int:
    """Return how many edges of a captured graph let a kernel start before its source has ended."""
    driver = ctypes.CDLL("libcuda.so.1")
    handle, count = ctypes.c_void_p(graph.raw_cuda_graph()), ctypes.c_size_t(0)
    edges = driver.cuGraphGetEdges_v2
    assert edges(handle, None, None, None, ctypes.byref(count)) == 0
    sources, targets = ((ctypes.c_void_p * count.value)() for _ in range(2))
    data = (ctypes.c_ubyte * 8 * count.value)()  # from port, to port, type, five reserved
    assert edges(handle, sources, targets, data, ctypes.byref(count)) == 0
    return sum(edge[2] == 1 for edge in data)


def test_captured_launches_have_programmatic_edges(kernels: KernelSet) -> None:
    if not hasattr(torch.cuda.CUDAGraph, "raw_cuda_graph"):
        pytest.skip("this torch does not give out the graph")
    spec = next(spec for spec in DEPENDENT if spec.store == "tma" and spec.scheduler == "static")
    chain = Chain(spec, 16, 1024)
    found = {}
    for dependent in (False, True):
        kernel = kernels[(spec if dependent else late_twin(spec)).name]
        chain.run(kernel, between=False)
        graph = torch.cuda.CUDAGraph(keep_graph=True)
        with torch.cuda.graph(graph):
            chain.run(kernel, between=False)
        found[dependent] = programmatic_edges(graph)
    assert found[False] == 0
    assert found[True] >= STEPS - 1
