"""What a compiled kernel turned out to be, read from its binary, and whether it may be used."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from gemmsmith.attn.spec import AttentionSpec
from gemmsmith.dependency import GridDependency, dependency_fault, read_dependency, weakest
from gemmsmith.errors import CompileError
from gemmsmith.launcher.interface import TableEntry
from gemmsmith.occupancy import registers_of_block
from gemmsmith.rowspec import AnySpec, RowSpec
from gemmsmith.spec import KernelSpec
from gemmsmith.toolchain import Toolchain

_FUNCTION = re.compile(r"^\s*Function\s*:?\s*([\w$.]+)", re.MULTILINE)
_USAGE = re.compile(r"^\s*Function ([\w$.]+):\s*REG:(\d+) STACK:(\d+)", re.MULTILINE)
_TENSOR = re.compile(r"^\s+/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+ )?([A-Z]*MMA\.[\w.]+)", re.MULTILINE)
_WIDTH = re.compile(r"[HI]GMMA\.64x(\d+)x")
_PTXAS = re.compile(
    r"Function properties for (?P<name>[\w$.]+)\s+"
    r"(?P<stack>\d+) bytes stack frame, (?P<store>\d+) bytes spill stores, "
    r"(?P<load>\d+) bytes spill loads\s+"
    r"ptxas info\s*: Used (?P<registers>\d+) registers(?P<rest>.*)"
)
_STATIC = re.compile(r"(\d+) bytes smem")


@dataclass(frozen=True, kw_only=True)
class Card:
    """The facts of one compiled kernel. Sizes are in bytes."""

    name: str
    """KernelSpec.name."""
    arch: str
    """Name of the architecture."""
    registers: int
    """Registers of a thread at launch."""
    spill_store_bytes: int
    """What a thread writes to local memory for want of registers; more than 0 costs speed."""
    spill_load_bytes: int
    """What a thread reads back of it."""
    stack_bytes: int
    """Stack frame of a thread."""
    static_shared_bytes: int
    """Shared memory of a block, known to the compiler."""
    dynamic_shared_bytes: int
    """Shared memory of a block, asked for at launch."""
    threads: int
    """Threads of a block."""
    stages: int
    """Buffers of the main loop; 0 for row kernels."""
    tensor_instructions: Mapping[str, int] = field(hash=False)
    """Tensor-core instruction in the machine code, with its shape -> how often it stands there."""
    sass_inspected: bool
    """Whether the machine code was read; without cuobjdump and nvdisasm it cannot be."""
    compile_seconds: float
    """Wall time of the nvcc run that made it."""
    compiled_with: int
    """Kernels that shared that run."""
    compile_peak_bytes: int
    """Memory of the largest process of that run."""
    library_bytes: int
    """Size of the shared library that holds it."""
    dependent_launch: bool = False
    """Whether it is launched so that it may start before the kernel ahead has ended."""
    grid_waits: int = 0
    """Instructions that wait for the kernel ahead to end; 0 also where the code was not read."""
    grid_releases: int = 0
    """Instructions that let the kernel behind start."""
    early_access: str = ""
    """First access to global memory ahead of the first wait, if there is a wait and an access."""
    constant_loads: int = 0
    """Loads through the cache for memory that does not change while a kernel runs."""

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block in all."""
        return self.static_shared_bytes + self.dynamic_shared_bytes

    def as_dict(self) -> dict[str, Any]:
        """Return the card as plain JSON values, for :meth:`from_dict`."""
        return {**asdict(self), "tensor_instructions": dict(self.tensor_instructions)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Card:
        """Return the card that :meth:`as_dict` gave; TypeError where fields miss or are unknown."""
        return cls(**values)


@dataclass(frozen=True, kw_only=True)
class DeviceFunction:
    """One ``__global__`` function of a library, by its mangled name."""

    name: str
    registers: int
    stack: int
    shared: int
    spill_store: int
    spill_load: int
    instructions: Mapping[str, int]
    dependency: GridDependency


def can_inspect(toolchain: Toolchain) -> bool:
    """Return whether machine code can be read; cuobjdump starts nvdisasm for it."""
    return toolchain.cuobjdump is not None and toolchain.nvdisasm is not None


def device_functions(library: Path, log: str, toolchain: Toolchain) -> tuple[DeviceFunction, ...]:
    """Return the device functions of ``library``, from ptxas' part of the log and the binary.

    Shared memory and spills are ptxas' words: the binary does not tell spills, and on sm_90 it
    counts 1 KiB that the driver reserves beyond what a block may use. Without the tools all comes
    from the log, and no instructions are known.

    Raises:
        CompileError: where cuobjdump cannot read the library.
    """
    usage: dict[str, tuple[int, int]] = {}
    code: dict[str, str] = {}
    if can_inspect(toolchain):
        resources = _dump("-res-usage", library, toolchain)
        usage = {found[1]: (int(found[2]), int(found[3])) for found in _USAGE.finditer(resources)}
        code = _functions(_dump("-sass", library, toolchain))
    functions = []
    for found in _PTXAS.finditer(log):
        name, static = found["name"], _STATIC.search(found["rest"])
        registers, stack = usage.get(name, (int(found["registers"]), int(found["stack"])))
        functions.append(
            DeviceFunction(
                name=name,
                registers=registers,
                stack=stack,
                shared=int(static[1]) if static else 0,
                spill_store=int(found["store"]),
                spill_load=int(found["load"]),
                instructions=Counter(_TENSOR.findall(code.get(name, ""))),
                dependency=read_dependency(code.get(name, "")),
            )
        )
    return tuple(functions)


def make_card(
    spec: AnySpec,
    entry: TableEntry,
    functions: Sequence[DeviceFunction],
    *,
    toolchain: Toolchain,
    seconds: float,
    compiled_with: int,
    peak_bytes: int,
    library_bytes: int,
) -> Card:
    """Return the card of ``spec`` from the device functions whose mangled names hold its name.

    Raises:
        CompileError: where there is no such function.
    """
    own = [function for function in functions if f"{len(spec.name)}{spec.name}" in function.name]
    if not own:
        raise CompileError(
            f"{spec.name}: no device function of the library bears its name; "
            f"there are: {', '.join(function.name[:120] for function in functions) or 'none'}"
        )
    counts: Counter[str] = Counter()
    for function in own:
        counts.update(function.instructions)
    dependency = weakest([function.dependency for function in own])
    return Card(
        name=spec.name,
        arch=spec.arch.name,
        registers=max(function.registers for function in own),
        spill_store_bytes=sum(function.spill_store for function in own),
        spill_load_bytes=sum(function.spill_load for function in own),
        stack_bytes=max(function.stack for function in own),
        static_shared_bytes=max(function.shared for function in own),
        dynamic_shared_bytes=entry.shared_bytes,
        threads=entry.threads,
        stages=entry.stages,
        tensor_instructions=dict(sorted(counts.items())),
        sass_inspected=can_inspect(toolchain),
        compile_seconds=seconds,
        compiled_with=compiled_with,
        compile_peak_bytes=peak_bytes,
        library_bytes=library_bytes,
        dependent_launch=entry.dependent_launch,
        grid_waits=dependency.waits,
        grid_releases=dependency.releases,
        early_access=dependency.early_access,
        constant_loads=dependency.constant_loads,
    )


def objection(spec: AnySpec, card: Card) -> str | None:
    """Return why the compiled kernel is not what ``spec`` promises, or None where it is.

    Spills are no objection: they cost speed, not results. Which instructions are promised holds
    for the spec's own architecture; kernels compiled for another one have that one's, row kernels
    none.
    """
    limit = spec.arch.smem_per_block
    if card.shared_bytes > limit:
        return (
            f"it takes {card.shared_bytes:,} B of shared memory a block, "
            f"{spec.arch.name} has {limit:,}: lower stages or tile"
        )
    registers = registers_of_block(card.registers, card.threads)
    if registers > spec.arch.multiprocessor.registers:
        return (
            f"its {card.threads} threads take {card.registers} registers each, {registers:,} a "
            f"block as they are handed out, {spec.arch.name} has "
            f"{spec.arch.multiprocessor.registers:,}: lower the tile or the number of warps"
        )
    if card.dependent_launch != spec.dependent_launch:
        return (
            "dependent_launch is on, and it is launched without the attribute"
            if spec.dependent_launch
            else "it is launched to start before the kernel ahead has ended, unasked"
        )
    if card.dependent_launch and card.sass_inspected:
        fault = dependency_fault(
            GridDependency(
                waits=card.grid_waits,
                releases=card.grid_releases,
                early_access=card.early_access,
                constant_loads=card.constant_loads,
            ),
            constant_b=isinstance(spec, KernelSpec) and spec.constant_b,
            constant_cache=isinstance(spec, AttentionSpec) and spec.constant_cache,
        )
        if fault is not None:
            return f"dependent_launch is on, and {fault}"
    if isinstance(spec, RowSpec) or not card.sass_inspected or spec.arch.runs_on != spec.arch.name:
        return None
    if isinstance(spec, AttentionSpec):
        return _wrong_product(spec, card)
    return _wrong_instruction(spec, card)


def _wrong_product(spec: AttentionSpec, card: Card) -> str | None:
    if spec.schedule in ("split_kv", "multistage"):
        promised = "HMMA.16816.F32"
        if spec.schedule == "multistage":  # of all since Turing CUTLASS's example uses Turing's
            promised = "HMMA.884.F32" if spec.arch.name == "sm_70" else "HMMA.1688.F32"
        if any(name.startswith(promised) for name in card.tensor_instructions):
            return None
        found = ", ".join(card.tensor_instructions) or "none"
        return f"its machine code lacks {promised} (tensor-core code: {found})"
    wanted = {spec.tile.key, spec.head_dim}
    matches = [_WIDTH.match(name) for name in card.tensor_instructions]
    widths = {int(match[1]) for match in matches if match}
    if widths != wanted:
        found = ", ".join(card.tensor_instructions) or "none"
        words = " and ".join(map(str, sorted(wanted)))
        return f"it wants instructions {words} wide, the machine code has {found}"
    return None


def _wrong_instruction(spec: KernelSpec, card: Card) -> str | None:
    found = ", ".join(card.tensor_instructions) or "none"
    wanted = spec.arch.sass[spec.a.name]
    right = [name for name in card.tensor_instructions if name.startswith(wanted)]
    if not right:
        return f"its machine code lacks {wanted} (tensor-core code: {found})"
    widths = {int(match[1]) for name in right if (match := _WIDTH.match(name))}
    if widths and widths != {spec.device_tile.n}:
        return (
            f"its tile wants instructions {spec.device_tile.n} wide, the machine code has {found}: "
            "CUTLASS fell back to another width, which is slow"
        )
    return None


def _dump(what: str, library: Path, toolchain: Toolchain) -> str:
    done = subprocess.run(
        [str(toolchain.cuobjdump), what, str(library)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        env=toolchain.environment,
        check=False,
    )
    if done.returncode:
        raise CompileError(
            f"{toolchain.cuobjdump} {what} cannot read {library}: "
            f"{done.stderr.decode(errors='replace').strip()}"
        )
    return done.stdout.decode(errors="replace")


def _functions(sass: str) -> dict[str, str]:
    """Return the parts of a disassembly by mangled function name."""
    heads = list(_FUNCTION.finditer(sass))
    ends = [head.start() for head in heads[1:]] + [len(sass)]
    return {head[1]: sass[head.end() : end] for head, end in zip(heads, ends, strict=True)}
