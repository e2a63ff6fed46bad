"""What is known of a kernel: read from its binary, or expected of it before it is compiled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gemmsmith.attn.rules import launch_registers, shared_bytes
from gemmsmith.attn.rules import threads as attention_threads
from gemmsmith.attn.spec import AttentionSpec
from gemmsmith.explain import explain_spec
from gemmsmith.occupancy import Occupancy, occupancy
from gemmsmith.rowspec import AnySpec, RowSpec

if TYPE_CHECKING:
    from gemmsmith.card import Card

_MOST_REGISTERS = 255  # of a thread
_BESIDE_ACCUMULATORS = 48  # registers: addresses, descriptors or fragments, loop state


@dataclass(frozen=True, kw_only=True)
class Inspection:
    """One kernel's use of a multiprocessor of its architecture."""

    spec: AnySpec
    card: Card | None
    """What the compiled kernel turned out to be; None where it is not compiled."""
    occupancy: Occupancy
    """From the binary; an estimate where ``card`` is None."""

    @property
    def estimated(self) -> bool:
        """Whether the occupancy is a guess from tile and stages."""
        return self.card is None

    def occupancy_dict(self) -> dict[str, Any]:
        """Return the occupancy as plain JSON values, and whether it is an estimate."""
        return {**self.occupancy.as_dict(), "estimated": self.estimated}


def inspect_kernel(spec: AnySpec, card: Card | None) -> Inspection:
    """Return what is known of ``spec``, whose compiled form is ``card``'s if there is one."""
    if card is not None:
        registers, threads, shared = card.registers, card.threads, card.shared_bytes
    elif isinstance(spec, RowSpec):
        registers, threads, shared = 64, 1024, 0  # of the longest rows
    elif isinstance(spec, AttentionSpec):
        registers, threads = launch_registers(spec), attention_threads(spec)
        shared = shared_bytes(spec)
    else:
        report = explain_spec(spec)
        registers, threads, shared = (
            expected_registers(report.threads, report.accumulator_registers),
            report.threads,
            report.shared_memory,
        )
    return Inspection(
        spec=spec,
        card=card,
        occupancy=occupancy(
            spec.arch.multiprocessor, registers=registers, threads=threads, shared_bytes=shared
        ),
    )


def expected_registers(threads: int, accumulators: int) -> int:
    """Return about how many registers a thread of a block of ``threads`` will have at launch.

    No more than let one block run: warp-specialised kernels ask for theirs after launch.
    """
    counted = -(-threads // 128) * 128  # warps are counted by fours
    most = min(_MOST_REGISTERS, 65_536 // counted // 8 * 8)
    return min(most, accumulators + _BESIDE_ACCUMULATORS)
