"""How many blocks of a kernel one multiprocessor holds, and what keeps it from holding more."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

from gemmsmith.arch import Multiprocessor

_WARP = 32
_REGISTER_UNIT = 256  # registers are handed out to a warp by this many
_PARTITIONS = 4  # of a multiprocessor, each with a quarter of its registers


@dataclass(frozen=True, kw_only=True)
class Occupancy:
    """What a multiprocessor holds at once of one kernel."""

    blocks: int
    """Resident blocks; 0 where not even one fits."""
    limited_by: tuple[str, ...]
    """Resources that allow no further block: registers, shared memory, warps, blocks."""
    warps: int
    """Resident warps."""
    warps_available: int
    """Warps that could be resident."""

    def as_dict(self) -> dict[str, Any]:
        """Return the facts as plain JSON values."""
        return {
            "blocks": self.blocks,
            "limited_by": list(self.limited_by),
            "warps": self.warps,
            "warps_available": self.warps_available,
        }


def occupancy(
    multiprocessor: Multiprocessor, *, registers: int, threads: int, shared_bytes: int
) -> Occupancy:
    """Return what ``multiprocessor`` holds of blocks of ``threads`` threads.

    ``registers`` are those of a thread, ``shared_bytes`` the static and dynamic shared memory of a
    block without what the driver reserves.
    """
    warps = -(-threads // _WARP)
    allowed = {
        "registers": _by_registers(multiprocessor, registers, warps),
        "shared memory": _by_shared_memory(multiprocessor, shared_bytes),
        "warps": multiprocessor.warps // warps,
        "blocks": multiprocessor.blocks,
    }
    blocks = min(allowed.values())
    return Occupancy(
        blocks=blocks,
        limited_by=tuple(name for name, most in allowed.items() if most == blocks),
        warps=blocks * warps,
        warps_available=multiprocessor.warps,
    )


def registers_of_block(registers: int, threads: int) -> int:
    """Return the registers that a block must find free to be launched at all.

    A warp takes whole units, and the check at launch counts warps as if all partitions had equally
    many.
    """
    warps = -(-threads // _WARP)
    return _up(registers * _WARP, _REGISTER_UNIT) * _up(warps, _PARTITIONS)


def _by_registers(multiprocessor: Multiprocessor, registers: int, warps: int) -> int:
    if registers_of_block(registers, warps * _WARP) > multiprocessor.registers:
        return 0
    each = _up(max(registers, 1) * _WARP, _REGISTER_UNIT)
    in_partition = multiprocessor.registers // _PARTITIONS // each
    return in_partition * _PARTITIONS // warps


def _by_shared_memory(multiprocessor: Multiprocessor, shared_bytes: int) -> int:
    taken = shared_bytes + multiprocessor.shared_memory_reserved
    each = _up(taken, multiprocessor.shared_memory_unit)
    return multiprocessor.shared_memory // each if each else sys.maxsize


def _up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
