"""Which calls a kernel can take: the half of the legality predicate that dispatch asks."""

from __future__ import annotations

from collections.abc import Iterable

from gemmsmith.dtypes import INT8
from gemmsmith.errors import ArgumentError
from gemmsmith.problem import GemmProblem
from gemmsmith.spec import GATE_BLOCK, KernelSpec

MAX_SIZE = 2**31 - 1
"""The largest M, N, K and batch, M, N and K in whole tiles: kernels count in 32 bits."""
MOST_BLOCKS_YZ = 65_535  # of a grid's second and third dimension
MOST_INT8_PRODUCTS = MAX_SIZE // 128**2


def check_sizes(**sizes: int) -> None:
    """Refuse sizes that no kernel can take, before numbers of absurd length are computed with.

    Raises:
        ArgumentError: where one is above :data:`MAX_SIZE`.
    """
    for name, size in sizes.items():
        if size > MAX_SIZE:
            raise ArgumentError(f"{name} is {size}; it must be {MAX_SIZE} or less")


def misfits(specs: Iterable[KernelSpec], problem: GemmProblem) -> list[str]:
    """Return why no kernel of ``specs`` takes the call, each reason once; empty where one does.

    The reasons are those of the kernels that come nearest to the call: of its types, of its gate,
    of its layout.
    """
    near = list(specs)
    for alike in (_same_promise, _same_types, _same_gate, _same_layout):
        near = [spec for spec in near if alike(spec, problem)] or near
    reasons = {misfit(spec, problem) for spec in near}
    return [] if "" in reasons else sorted(reasons)


def _same_promise(spec: KernelSpec, problem: GemmProblem) -> bool:
    return problem.constant_b or not spec.constant_b


def _same_types(spec: KernelSpec, problem: GemmProblem) -> bool:
    return (problem.a, problem.b, problem.d) == (spec.a, spec.b, spec.d)


def _same_gate(spec: KernelSpec, problem: GemmProblem) -> bool:
    return spec.gate == problem.gate


def _same_layout(spec: KernelSpec, problem: GemmProblem) -> bool:
    return spec.layout == problem.layout


def misfit(spec: KernelSpec, problem: GemmProblem) -> str:
    """Say why the kernel ``spec`` cannot take the call ``problem``; empty where it can.

    The sentence names the argument, the value found and the value needed.
    """
    if not _same_types(spec, problem):
        return (
            f"the kernel computes {spec.a} @ {spec.b} -> {spec.d},"
            f" the call is {problem.a} @ {problem.b} -> {problem.d}"
        )
    if problem.layout != spec.layout:
        return f"the kernel's layout is {spec.layout}, the strides of the call are {problem.layout}"
    if problem.bias and not spec.bias:
        return "the kernel has no bias (epilogue.bias is false)"
    if problem.residual and not spec.residual:
        return "the kernel has no residual (epilogue.residual is false)"
    if reason := _other_epilogue(spec, problem):
        return reason
    if spec.a == INT8 and problem.k > MOST_INT8_PRODUCTS:
        return f"K={problem.k}: int32 holds {MOST_INT8_PRODUCTS:,} products of -128 * -128 at most"
    if reason := _beyond_32_bits(spec, problem) or _beyond_the_grid(spec, problem):
        return reason
    for operand, elements, dtype, found, (dimension, extent) in zip(
        "abd",
        spec.alignment,
        (spec.a, spec.b, spec.d),
        (problem.a_align, problem.b_align, problem.d_align),
        problem.contiguous,
        strict=True,
    ):
        needed = elements * dtype.bytes
        if extent % elements:
            return (
                f"{operand}: {dimension}={extent} is not a multiple of {elements},"
                f" which the kernel's {needed} B accesses need"
            )
        if found % needed:
            return (
                f"{operand}: address, row stride or batch stride divides by {found} B only,"
                f" the kernel needs {needed} B ({elements} elements of {dtype.name})"
            )
    # last: a promise helps only where nothing else is amiss
    if spec.constant_b and not problem.constant_b:
        return (
            "the kernel reads b while the kernel ahead may still write it (constant_b): pass"
            " constant_b=True for weights that stay as they are and whose strides need no copy"
        )
    return ""


def _other_epilogue(spec: KernelSpec, problem: GemmProblem) -> str:
    if spec.gate != problem.gate and spec.arch.api == "2.x":
        return f"gate {problem.gate} in one kernel needs sm_90a, the kernel is of {spec.arch.name}"
    if spec.gate != problem.gate:
        return _other_function("gate", spec.gate, problem.gate)
    if spec.activation not in ("any", problem.activation):
        return _other_function("activation", spec.activation, problem.activation)
    if problem.scaled and not spec.scaled:
        return "the kernel takes no scales (epilogue.scaled is false)"
    if problem.scaled and problem.batch > 1:
        return "scales go with one matrix b, not with a batch of them"
    if problem.zero_point and not spec.zero_point:
        return "the kernel takes no zero point (epilogue.zero_point is false)"
    if problem.gate != "none" and problem.n % (2 * GATE_BLOCK):
        return f"N={problem.n} is not a multiple of 16, the blocks of gate and up"
    return ""


def _other_function(argument: str, wanted: str, found: str) -> str:
    if found == "none":
        return (
            f'the kernel\'s {argument} is {wanted}, the call has none: pass {argument}="{wanted}"'
        )
    return f"the kernel's {argument} is {wanted}, the call's is {found}"


def _beyond_32_bits(spec: KernelSpec, problem: GemmProblem) -> str:
    if problem.batch > MAX_SIZE:
        return f"batch={problem.batch} is over {MAX_SIZE}, what kernels count to"
    sizes = (problem.m, problem.n, problem.k)
    for name, size, tile in zip("MNK", sizes, spec.tile, strict=True):
        if size > MAX_SIZE - tile:
            return (
                f"{name}={size} in whole tiles of {tile} is over {MAX_SIZE}, what kernels count to"
            )
    return ""


def _beyond_the_grid(spec: KernelSpec, problem: GemmProblem) -> str:
    if spec.arch.api == "3.x" and spec.schedule not in ("warp_specialized", "lean"):
        return ""  # a persistent grid has one dimension
    most = MOST_BLOCKS_YZ // spec.split_k
    if problem.batch > most:
        return f"batch={problem.batch} is over the {most} that a grid's third axis holds"
    name, extent, tile, cluster = (
        ("M", problem.m, spec.tile.m, spec.cluster.m)
        if spec.swap and spec.schedule != "lean"  # whose first axis is always that of the tokens
        else ("N", problem.n, spec.tile.n, spec.cluster.n)
    )
    most = MOST_BLOCKS_YZ // cluster * cluster  # grids are of whole clusters
    if extent > most * tile:
        return f"{name}={extent} is over {most} tiles of {tile}, a grid's second axis"
    return ""
