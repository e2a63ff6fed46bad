"""How CUTLASS's 2.x main loops share the loading of a tile among the lanes and warps of a block."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gemmsmith.spec import KernelSpec

MOST_PREDICATES = 64  # one for each load of a thread's share of a tile
_ACCESS_BYTES = 16  # of a lane, whatever the alignment: narrower loads fill it in parts
_LANES = 32
_MOST_LANES = 8  # along a row of shared memory: 128 B
_FEWEST_LANES = {"sm_70": 8}  # where K is not the contiguous dimension


def whole_rows(spec: KernelSpec, operand: str) -> int:
    """Return the multiple of which the side of an operand's tile must be, in elements.

    1 where K is contiguous in the operand.
    """
    if _along_k(spec, operand):
        return 1
    lanes = _FEWEST_LANES.get(spec.arch.name, min(_MOST_LANES, _vectors(spec, operand)))
    return lanes * _ACCESS_BYTES // spec.a.bytes


def loads_evenly(spec: KernelSpec, operand: str, warps: int) -> bool:
    """Return whether ``warps`` warps load all of an operand's tile, each as much as the others.

    Warps are laid across rows first, then along them; a remainder is never loaded, and the kernel
    sums what lies in shared memory.
    """
    vectors = _vectors(spec, operand)
    lanes = vectors if _along_k(spec, operand) else min(_MOST_LANES, vectors)
    rows = _side(spec, operand) if _along_k(spec, operand) else spec.tile.k
    across, along = rows // (_LANES // lanes), vectors // lanes
    if across >= warps:
        return across % warps == 0
    return across > 0 and warps % across == 0 and along % (warps // across) == 0


def least_alignment(spec: KernelSpec, operand: str, warps: int) -> int:
    """Return the narrowest loads of an operand, in elements, that a thread has predicates for."""
    elements = _side(spec, operand) * spec.tile.k // (warps * _LANES)  # of each thread
    least = 1
    while elements > MOST_PREDICATES * least:
        least *= 2
    return least


def _along_k(spec: KernelSpec, operand: str) -> bool:
    return spec.layout[0] == "r" if operand == "a" else spec.layout[1] == "c"


def _side(spec: KernelSpec, operand: str) -> int:
    return spec.tile.m if operand == "a" else spec.tile.n


def _vectors(spec: KernelSpec, operand: str) -> int:
    """16 B accesses along the contiguous dimension of an operand's tile."""
    contiguous = spec.tile.k if _along_k(spec, operand) else _side(spec, operand)
    return contiguous * spec.a.bytes // _ACCESS_BYTES
