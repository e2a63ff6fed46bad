"""How a kernel's machine code treats the grids around it: what programmatic launches rest on."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_WAIT, _RELEASE = "ACQBULK", "PREEXIT"  # griddepcontrol.wait and .launch_dependents
_LOAD = "UTMALDG"
_READS = ("LDG.", "LDGSTS.")
_INSTRUCTION = re.compile(r"^\s+/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+ )?([A-Z][\w.]*)", re.MULTILINE)
_GLOBAL = re.compile(
    r"(LD|LDG|LDGSTS|ST|STG|ATOM|ATOMG|RED|REDG|U?BLK(CP|RED)|UTMA(LDG|STG|REDG))(\.|$)"
    r"|CCTL\.(?!.*PF2|IV)"
)


@dataclass(frozen=True, kw_only=True)
class GridDependency:
    """Where device code waits for the grid ahead of it and lets the one behind start."""

    waits: int = 0
    """Instructions that wait until the grid ahead has ended and its memory is visible."""
    releases: int = 0
    """Instructions that let the grid behind start."""
    early_access: str = ""
    """First instruction ahead of the first wait that reads or writes global memory, if any; another
    load only where there is nothing else, a TMA load only where there is no such load. A prefetch
    to L2 is no access: what is written later is written there, too. One to L1 is."""
    constant_loads: int = 0
    """Loads through the cache for memory that does not change while a kernel runs."""


def read_dependency(sass: str) -> GridDependency:
    """Return what the disassembly of one device function says, in the order of its code."""
    names = _INSTRUCTION.findall(sass)
    ahead = names[: names.index(_WAIT)] if _WAIT in names else []
    return GridDependency(
        waits=names.count(_WAIT),
        releases=names.count(_RELEASE),
        early_access=_worst(name for name in ahead if _GLOBAL.match(name)),
        constant_loads=sum(name.startswith("LDG") and ".CONSTANT" in name for name in names),
    )


def weakest(found: Sequence[GridDependency]) -> GridDependency:
    """Return what holds for each of several device functions; nothing where there is none."""
    return GridDependency(
        waits=min((each.waits for each in found), default=0),
        releases=min((each.releases for each in found), default=0),
        early_access=_worst(each.early_access for each in found if each.early_access),
        constant_loads=max((each.constant_loads for each in found), default=0),
    )


def _worst(names: Iterable[str]) -> str:
    """Return the first that no kernel may have, else the first load, which some may."""
    return min(
        names, key=lambda name: (name.startswith(_LOAD), name.startswith(_READS)), default=""
    )


def dependency_fault(
    found: GridDependency, *, constant_b: bool = False, constant_cache: bool = False
) -> str | None:
    """Return why such code must not start before the grid ahead has ended, or None if it may.

    With ``constant_b`` its TMA may fetch B, which nothing writes, before that; with
    ``constant_cache`` its threads may load keys and where they lie.
    """
    allowed = ((_LOAD,) if constant_b else ()) + (_READS if constant_cache else ())
    if not found.waits:
        return f"its machine code lacks {_WAIT} (griddepcontrol.wait): it would not wait at all"
    if found.early_access and not found.early_access.startswith(allowed):
        return f"its machine code has {found.early_access} ahead of {_WAIT} (griddepcontrol.wait)"
    if found.constant_loads:
        return (
            f"its machine code has {found.constant_loads} LDG.CONSTANT, which may miss what the"
            " kernel ahead wrote meanwhile"
        )
    if not found.releases:
        return (
            f"its machine code lacks {_RELEASE} (griddepcontrol.launch_dependents): the kernel"
            " behind it would start no earlier"
        )
    return None
