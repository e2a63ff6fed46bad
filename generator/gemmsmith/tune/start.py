"""Tuning on the GPUs of this machine: which kernels, which file, how many processes."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from gemmsmith.arch import Architecture, architecture_of
from gemmsmith.build import BuildReport, build
from gemmsmith.config import load_specs
from gemmsmith.config_problems import nearest
from gemmsmith.errors import ConfigError, MeasureError, NoKernelError, Problem
from gemmsmith.lookup import find_built, find_cached
from gemmsmith.progress import Progress
from gemmsmith.resources import configs_dir
from gemmsmith.software import made_here
from gemmsmith.spec import KernelSpec
from gemmsmith.tune.building import Workshop
from gemmsmith.tune.console import ConsoleWatcher
from gemmsmith.tune.gpu import GpuBenches, device_here
from gemmsmith.tune.run import CANDIDATES, Outcome, run
from gemmsmith.tune.store import Store, open_store
from gemmsmith.tune.work import Job
from gemmsmith.tuned_file import read_table


@dataclass(frozen=True, kw_only=True)
class Request:
    """What a tuning run is asked for beside its jobs."""

    files: tuple[Path, ...] = ()
    """YAML files of kernels that are candidates beside the default ones."""
    only_files: bool = False
    """Whether the default kernels are left out."""
    out: Path | None = None
    """Table to write; None: the user's own."""
    budget: float | None = None
    """Seconds."""
    candidates: int = CANDIDATES
    without: tuple[str, ...] = ()
    """Kernels to leave out, by name."""
    again: bool = False
    """Whether jobs that are measured already are measured once more."""
    gpus: int = 1


def pool_of(arch: Architecture | None, request: Request) -> tuple[KernelSpec, ...]:
    """Return the kernels that may win, each once; without ``arch`` those of all architectures.

    Raises:
        ConfigError: where a file cannot be used, or gives another kernel a name that is taken.
        NoKernelError: where none has a name that is to be left out (of all architectures).
    """
    places = [] if request.only_files else [configs_dir() / "kernels"]
    found: dict[str, KernelSpec] = {}
    for place in [*places, *request.files]:
        for spec in load_specs(place, arch=None if arch is None else [arch.name]):
            if found.setdefault(spec.name, spec) != spec:
                message = f"{spec.name} is another kernel than the one of that name before it"
                raise ConfigError([Problem(file=str(place), line=0, message=message)])
    unknown = [name for name in request.without if arch is None and name not in found]
    if unknown:
        near = nearest(unknown[0], found)
        hint = f"; did you mean {near}?" if near else ""
        raise NoKernelError(f"--without {unknown[0]}: no kernel of these is called that{hint}")
    return tuple(spec for name, spec in found.items() if name not in request.without)


def check_request(request: Request) -> None:
    """Refuse what can be seen to be wrong with a request where there is no GPU.

    Raises:
        ConfigError: where a file of kernels or the table to go on with cannot be used.
        NoKernelError: where none has a name that is to be left out.
        MeasureError: where no kernel is left.
    """
    if request.only_files and not request.files:
        raise MeasureError("--only-files leaves no kernel: name some with --file")
    pool_of(None, request)
    if request.out is not None and request.out.exists():
        read_table(request.out)


def tune_here(jobs: Sequence[Job], request: Request) -> tuple[Outcome, Path]:
    """Return what was measured on the GPUs here, and the table's file.

    Raises:
        NoDeviceError: where there is no GPU.
        MeasureError: where there are fewer GPUs of one kind than asked for, or no kernel is left.
        ConfigError, NoKernelError: as :func:`check_request` does.
    """
    check_request(request)
    device_here()
    started = time.monotonic()
    if request.gpus == 1:
        return _tune(jobs, request, ConsoleWatcher())
    alike = sum(_same_as_first(index) for index in range(torch.cuda.device_count()))
    if request.gpus > alike:
        raise MeasureError(f"--gpus {request.gpus}: {alike} GPUs like the first are visible")
    _, store = _place(request)
    spawn = multiprocessing.get_context("spawn")  # CUDA is started here, so no fork
    workers = [
        spawn.Process(target=_work, args=(index, part, request))
        for index, part in enumerate(dealt(jobs, request.gpus))
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    failed = [index for index, worker in enumerate(workers) if worker.exitcode]
    if failed:
        raise MeasureError(
            f"tuning ended early on GPU {', '.join(map(str, failed))} (see above);"
            f" entries so far are in {store.path}: run again to go on"
        )
    return _gathered(jobs, request, time.monotonic() - started), store.path


def dealt(jobs: Sequence[Job], count: int) -> list[list[Job]]:
    """Return the jobs in ``count`` parts of about equal work; a weight's jobs stay together."""
    parts: list[list[Job]] = [[] for _ in range(count)]
    loads = [0.0] * count
    weights = dict.fromkeys(job.weight for job in jobs)
    for weight in sorted(weights, key=lambda each: -each.n * each.k):
        mine = [job for job in jobs if job.weight == weight]
        least = loads.index(min(loads))
        parts[least] += mine
        loads[least] += len(mine) * (1 + weight.n * weight.k / 1e9)
    return [part for part in parts if part]


def _same_as_first(index: int) -> bool:
    first, other = (torch.cuda.get_device_properties(each) for each in (0, index))
    return (first.name, first.multi_processor_count) == (other.name, other.multi_processor_count)


def _work(index: int, jobs: Sequence[Job], request: Request) -> None:
    torch.cuda.set_device(index)
    _tune(jobs, request, ConsoleWatcher(prefix=f"GPU {index}: "))


def _place(request: Request) -> tuple[tuple[KernelSpec, ...], Store]:
    """Return the kernels that may win, and the store."""
    device = device_here()
    arch = architecture_of(device.capability)
    pool = pool_of(arch, request)
    releases = {kernel.built_with.get("nvcc", "") for kernel in find_cached(pool).values()}
    nvcc = "+".join(sorted(releases - {""}))
    made = made_here(device.name, device.sm_count, arch.name, nvcc=nvcc)
    return pool, open_store(made, request.out)


def _tune(jobs: Sequence[Job], request: Request, watcher: ConsoleWatcher) -> tuple[Outcome, Path]:
    pool, store = _place(request)
    outcome = run(
        jobs,
        pool,
        benches=GpuBenches(),
        workshop=lambda specs: Workshop(
            specs, there=lambda some: list(find_built(some)), build=_build, told=watcher.say
        ),
        store=store,
        sm_count=device_here().sm_count,
        watcher=watcher,
        budget=request.budget,
        candidates=request.candidates,
        again=request.again,
    )
    if request.gpus == 1:
        store.tidy()
    return outcome, store.path


def _build(specs: Sequence[KernelSpec], *, progress: Progress | None = None) -> BuildReport:
    return build(specs, progress=progress)


def _gathered(jobs: Sequence[Job], request: Request, seconds: float) -> Outcome:
    """Return what several processes have measured."""
    _, store = _place(request)
    store.tidy()
    found = [store.find(job.key) for job in jobs]
    entries = tuple(entry for entry in found if entry is not None)
    return Outcome(
        entries=entries,
        measured=len(entries),
        skipped=(),
        left=len(jobs) - len(entries),
        seconds=seconds,
    )
