"""What all kernels that a file asks for have, be they GEMMs or attention."""

from __future__ import annotations

from dataclasses import dataclass

from gemmsmith.arch import Architecture
from gemmsmith.errors import Objection, Problem


@dataclass(frozen=True, kw_only=True)
class AskedKernel:
    """One kernel that a file asks for, without its spec: its place, and why it cannot exist."""

    file: str
    """Path of the file as the user gave it."""
    line: int
    """1-based line of the kernel's entry."""
    family: str
    """Name of the family."""
    title: str
    """Architecture, types and tile in words; legal or not."""
    arch: Architecture
    """The architecture asked for."""
    objections: tuple[Objection, ...] = ()
    """The rules that it breaks; empty for a legal kernel."""
    lines: tuple[int, ...] = ()
    """For each objection the line of its key."""
    skipped: bool = False
    """Illegal here, but legal on another architecture that the same entry names: no mistake."""

    @property
    def reason(self) -> str:
        """The objections in one line; empty for a legal kernel."""
        return "; ".join(map(str, self.objections))

    @property
    def problems(self) -> tuple[Problem, ...]:
        """The objections with file, line, family and kernel; empty for a skipped kernel."""
        if self.skipped:
            return ()
        return tuple(
            Problem(
                file=self.file,
                line=line,
                message=f"family {self.family!r}, kernel on line {self.line} ({self.title}):"
                f" {objection}",
            )
            for line, objection in zip(self.lines, self.objections, strict=True)
        )
