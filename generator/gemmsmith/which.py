"""Why a call gets the kernel that it gets: tables, estimates, and why others do not fit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from gemmsmith.choose import Choice, Tuning, costs, rank, waves
from gemmsmith.fit import misfit
from gemmsmith.kinds import first_fitting
from gemmsmith.lookup import find_built
from gemmsmith.problem import GemmProblem
from gemmsmith.software import made_here
from gemmsmith.spec import KernelSpec
from gemmsmith.tables import (
    Found,
    Tables,
    carries_over,
    kernels_of,
    tables_for,
    torch_carries_over,
)
from gemmsmith.tuned import TORCH, Timing, key_of, left_to_torch, timed_as
from gemmsmith.wording import counted

_SHOWN = 5  # candidates of the estimate


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """What is estimated of one kernel that fits."""

    kernel: str
    tuning: Tuning
    us: float
    """Estimate, for ranking only: it is no time, and may be far off the measured one."""
    bound: str
    """The tightest limit."""
    limits: dict[str, float]
    """µs that each limit alone would take, by the same estimate."""
    waves: float
    built: bool


@dataclass(frozen=True, kw_only=True)
class Told:
    """What is told of any call on one GPU."""

    gpu: str
    sm_count: int
    call: str
    """Sizes, types and options in words."""
    choice: str
    """The kernel, ``torch`` where the table or lack of a kernel says so."""
    reason: str
    built: bool
    misfits: tuple[tuple[str, int], ...]
    """Reasons for which other kernels of these types do not fit, and of how many."""


@dataclass(frozen=True, kw_only=True)
class Explanation(Told):
    """How a kernel is chosen for one GEMM on one GPU."""

    bucket: int
    source: str
    """``table``, ``estimate`` or ``nothing``."""
    tuning: Tuning | None
    table: str
    """File of the entry; empty where there is none."""
    notes: tuple[str, ...]
    """Why tables, or parts of an entry, are not used; software that differs from theirs."""
    torch_us: float | None
    timings: tuple[Timing, ...]
    """What the entry holds."""
    candidates: tuple[Candidate, ...]
    """The best by estimate, the fastest first."""
    fitting: int
    """Kernels that fit, of the plainest kind that has any."""

    def as_json(self) -> dict[str, Any]:
        """Return everything in plain types."""
        plain = asdict(self)
        plain["timings"] = [timing.model_dump(exclude_defaults=True) for timing in self.timings]
        return plain


def explain_choice(
    specs: Sequence[KernelSpec],
    problem: GemmProblem,
    *,
    gpu: str,
    sm_count: int,
    torch_may_run: bool = True,
) -> Explanation:
    """Return how one of ``specs`` is chosen for ``problem``; needs neither GPU nor torch.

    What is not built counts as a kernel that can run: the first call builds it.
    """
    arch, key = specs[0].arch, key_of(problem)
    tables = tables_for(gpu, sm_count, arch.capability)
    found = tables.find(problem)
    of_types = [spec for spec in specs if (spec.a, spec.d) == (problem.a, problem.d)]
    fitting = first_fitting(specs, problem)
    ranked = rank(fitting, problem, sm_count)
    named = {spec.name: spec for spec in specs}
    told = next(tables.choices(problem, named, torch=torch_may_run), None)
    notes = _notes(tables, found, specs, problem, gpu, sm_count)
    if told is None and (why := _does_not_count(found, fitting, problem, torch=torch_may_run)):
        notes.insert(0, why)
    built = find_built([*fitting, *([told.spec] if isinstance(told, Choice) else [])])
    candidates = tuple(
        _candidate(choice, problem, sm_count, built=choice.spec in built)
        for choice in ranked[:_SHOWN]
    )
    tuning: Tuning | None
    if isinstance(told, str):
        source, choice, tuning, reason = "table", TORCH, None, told
    elif told is not None:
        source, choice, tuning = "table", told.spec.name, told.tuning
        reason = "measured: the fastest of the tuned table's kernels that are here"
        if found is not None and _waits(found, told, fitting, problem):
            reason += ", as those that were faster wait for the kernel ahead"
    elif ranked and torch_may_run and (why := left_to_torch(ranked[0], problem, sm_count)):
        source, choice, tuning, reason = "estimate", TORCH, None, why
    elif ranked:
        source, choice, tuning = "estimate", ranked[0].spec.name, ranked[0].tuning
        reason = "the smallest estimated time" + ("" if found is None else ": see the notes")
    else:
        source, choice, tuning = "nothing", TORCH if torch_may_run else "", None
        reason = "no kernel fits"
        if not of_types:
            reason += f": none here for {arch.name} computes {key.a} to {key.d}"
    counted = Counter(misfit(spec, problem) for spec in of_types)
    return Explanation(
        gpu=gpu,
        sm_count=sm_count,
        call=str(replace(key, m=problem.m)),
        bucket=key.m,
        source=source,
        choice=choice,
        tuning=tuning,
        reason=reason,
        built=choice in {spec.name for spec in built},
        table=str(found.path) if found else "",
        notes=tuple(notes),
        torch_us=found.entry.torch if found else None,
        timings=tuple(found.entry.order()) if found else (),
        candidates=candidates,
        fitting=len(fitting),
        misfits=tuple((why, count) for why, count in counted.most_common() if why),
    )


def _candidate(choice: Choice, problem: GemmProblem, sm_count: int, *, built: bool) -> Candidate:
    spec = choice.spec
    found = costs(spec, problem, sm_count)
    names = {} if spec.arch.api == "3.x" else {"TMA": "loads"}  # there threads bring tiles in
    return Candidate(
        kernel=spec.name,
        tuning=choice.tuning,
        us=choice.microseconds,
        bound=names.get(found.bound, found.bound),
        limits={names.get(name, name): us for name, us in found.limits.items()},
        waves=waves(spec, problem, sm_count),
        built=built,
    )


def _waits(found: Found, chosen: Choice, specs: Iterable[KernelSpec], problem: GemmProblem) -> bool:
    """Whether kernels that were timed faster than the chosen one lose by waiting in a model."""
    here = kernels_of(found.entry, problem, specs)
    faster = (each for each in found.entry.timings if each.us < chosen.microseconds)
    return any(each.kernel in here for each in faster)


def _does_not_count(
    found: Found | None, specs: Iterable[KernelSpec], problem: GemmProblem, *, torch: bool
) -> str:
    """Return why an entry is left that knows one of ``specs`` or prefers torch; empty where none
    does."""
    if found is None:
        return ""
    entry = found.entry
    kernels = kernels_of(entry, problem, specs)
    known = [timing for timing in entry.timings if timing.kernel in kernels]
    of_torch = torch and entry.winner == TORCH
    if not known and not of_torch:
        return ""
    counts = [carries_over(kernels[timing.kernel], entry, problem.m) for timing in known]
    if not any(counts) or (of_torch and not torch_carries_over(entry, problem.m)):
        return f"the entry does not count at {problem.m} rows: other widths may fit better"
    behind = min(each.us for each in known) / min(each.us for each in entry.timings)
    return (
        f"the entry does not count: of its kernels those that are here take {behind:.2f} times as"
        " long as its fastest, and by estimate one is better that was not timed"
    )


def _notes(
    tables: Tables,
    found: Found | None,
    specs: Sequence[KernelSpec],
    problem: GemmProblem,
    gpu: str,
    sm_count: int,
) -> list[str]:
    notes = [f"not used: {refusal}" for refusal in (*tables.unread, *tables.refused)]
    if found is None:
        return notes
    notes += differences(found, gpu, sm_count, specs[0].arch.name)
    if problem.constant_b and "constant" not in found.entry.epilogue.split("+"):
        notes.append("it was measured without constant_b")
    if found.entry.a != problem.a.name:
        notes.append(f"{found.entry.a} was measured, and stands for {problem.a.name}")
    known = {timed_as(spec, found.entry.a) for spec in specs}
    names = {kernel.partition("@")[0] for kernel in known}
    for timing in found.entry.timings:
        if timing.name not in names:
            notes.append(f"{timing.name} was timed and is not among these kernels")
        elif timing.kernel not in known:
            notes.append(f"{timing.name} was edited since it was timed")
    return notes


def differences(found: Found, gpu: str, sm_count: int, arch: str) -> list[str]:
    """Return in which software a table and this machine differ, in words."""
    now = made_here(gpu, sm_count, arch)
    return [
        f"{found.path.name} was measured with {name} {then}, here is {here}"
        for name, (then, here) in found.made.differences(now).items()
    ]


def text(told: Explanation) -> str:
    """Return an explanation for a terminal."""
    lines = opening(told, f"{told.source}: {told.reason}", _knobs(told.tuning))
    if told.table:
        lines += ["", f"{told.table}, entry of M = {told.bucket}: torch {told.torch_us:.1f} µs"]
        for timing in told.timings:
            interval = f" [{timing.low:.3f}, {timing.high:.3f}]" if timing.low else ""
            lines.append(
                f"  {timing.us:9.1f} µs  {timing.ratio:.3f}{interval}"
                f"  {timing.name}{_knobs(timing.tuning)}"
            )
    else:
        lines += ["", f"no tuned table has an entry for it (bucket M = {told.bucket})"]
    lines += [f"  note: {note}" for note in told.notes]
    fit = f"{counted(told.fitting, 'kernel')} fit{'s' if told.fitting == 1 else ''}"
    lines += ["", f"{fit}; by estimate (for ranking only, not times)"]
    for each in told.candidates:
        limits = ", ".join(f"{name} {us:.1f}" for name, us in each.limits.items())
        lines.append(
            f"  {each.us:9.1f} µs  {each.waves:6.2f} waves  {each.kernel}{_knobs(each.tuning)}"
            f"{'' if each.built else ' (not built)'}\n"
            f"{'':14}bound by {each.bound}: {limits} µs"
        )
    return "\n".join([*lines, *others(told, "these types")])


def opening(told: Told, reason: str, knobs: str = "") -> list[str]:
    """Return the lines about the call, the choice and its reason."""
    state = "" if told.choice in (TORCH, "") else ", built" if told.built else ", not built yet"
    return [
        f"{told.call} on {told.gpu} with {counted(told.sm_count, 'multiprocessor')}",
        f"choice: {told.choice or 'none'}{knobs}{state}",
        f"by:     {reason}",
    ]


def others(told: Told, kind: str) -> list[str]:
    """Return the lines about kernels of that kind that do not fit."""
    if not told.misfits:
        return []
    reasons = [f"  {count:3} x  {why}" for why, count in told.misfits]
    return ["", f"others of {kind} do not fit:", *reasons]


def _knobs(tuning: Tuning | None) -> str:
    if tuning is None:
        return ""
    return "".join(f" {name}={value}" for name, value in asdict(tuning).items() if value)
