"""Builds the kernels that are not there yet, many at once, and tells for each what came out."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path

from gemmsmith.cache import Cache, CachedKernel
from gemmsmith.card import Card, can_inspect, device_functions, make_card, objection
from gemmsmith.compile import CompiledLibrary, Stop, compile_library, keep, terminable
from gemmsmith.errors import ArgumentError, CompileError, GemmsmithError, LoadError, ToolchainError
from gemmsmith.identity import Identity, identity
from gemmsmith.jobs import parallel_jobs
from gemmsmith.launcher.with_ctypes import read_table
from gemmsmith.lookup import build_command, identities_of, stock
from gemmsmith.plan import Group, makespan, plan
from gemmsmith.progress import Progress, Silent
from gemmsmith.render import render
from gemmsmith.rowspec import AnySpec
from gemmsmith.settings import settings
from gemmsmith.toolchain import Toolchain, warn_of_refused_choice
from gemmsmith.toolchains import Toolchains, find_toolchains
from gemmsmith.torch_cuda import warn_of_mismatch

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class BuiltKernel:
    """A kernel that is ready to be loaded."""

    spec: AnySpec
    library: Path
    """Shared library that holds it, perhaps among others."""
    card: Card = field(repr=False)
    cached: bool
    """Whether it was there before this build."""
    built_with: Mapping[str, str] = field(repr=False, hash=False)
    """Parts of its identity, as recorded when it was compiled."""

    @property
    def seconds(self) -> float:
        """Wall time of the compiler run that made it."""
        return self.card.compile_seconds

    @property
    def peak_bytes(self) -> int:
        """Memory of the largest process of that run."""
        return self.card.compile_peak_bytes


@dataclass(frozen=True, kw_only=True)
class FailedKernel:
    """A kernel that could not be built."""

    spec: AnySpec
    error: GemmsmithError


@dataclass(frozen=True, kw_only=True)
class BuildReport:
    """What a build came to; each spec is in one of the two, in the order given."""

    built: tuple[BuiltKernel, ...]
    failed: tuple[FailedKernel, ...]
    seconds: float
    """Wall time of the build."""

    def __repr__(self) -> str:
        cached = sum(kernel.cached for kernel in self.built)
        return (
            f"<BuildReport: {len(self.built)} built ({cached} of them cached), "
            f"{len(self.failed)} failed, {self.seconds:.1f} s>"
        )

    def raise_if_failed(self) -> None:
        """Raise CompileError with the errors of all failed kernels, if there are any."""
        if self.failed:
            raise CompileError("\n".join(str(failure.error) for failure in self.failed))


def build(
    specs: Sequence[AnySpec],
    *,
    toolchain: Toolchain | None = None,
    jobs: int | None = None,
    progress: Progress | None = None,
    source: str = "",
) -> BuildReport:
    """Return where the compiled kernels are, compiling those that are missing.

    Kernels of bundles count as compiled, unless a ``toolchain`` is named. ``source`` is the file
    of the kernels, for the command that an error names.
    Each architecture is compiled for by the usual toolchain or, where that cannot target it, by a
    further one (:mod:`gemmsmith.toolchains`); ``toolchain`` stands in for all of them.
    ``jobs`` is the number of compilers at once (default: :func:`gemmsmith.jobs.parallel_jobs`).
    A kernel that fails is in the report; the others are built all the same. While compilers run,
    SIGTERM to the main thread ends them as an interrupt does, and raises SystemExit.

    Raises:
        ArgumentError: where ``jobs`` is no whole number from 1 up.
        ToolchainError: where a kernel is missing and there is nothing to compile it with.
        CacheError: where a kernel is missing and the cache cannot be written.
        BundleError: where GEMMSMITH_BUNDLES names what is no bundle.
    """
    _check_jobs(jobs)
    started = time.monotonic()
    wanted = tuple(dict.fromkeys(specs))
    toolchains = find_toolchains(toolchain)
    places = stock(bundles=toolchain is None)  # what a named compiler makes is what is asked for
    cache = places.cache
    identities = identities_of(wanted, toolchains)
    found = {spec: places.find(identities[spec]) for spec in wanted}
    built: dict[AnySpec, BuiltKernel] = {
        spec: _ready(spec, kernel, cached=True)
        for spec, kernel in found.items()
        if kernel is not None
    }
    if built and toolchains.refusal is not None:
        warn_of_refused_choice(toolchains.refusal)
    failed: dict[AnySpec, GemmsmithError] = {}
    missing = [spec for spec in wanted if spec not in built]
    if missing and settings().never_compile:
        failed = {
            spec: _never(spec, places.explain_miss(identities[spec]), source) for spec in missing
        }
    elif missing:
        compilers, failed = _compilers(missing, toolchains)
        todo = [spec for spec in missing if spec not in failed]
        for spec in todo:
            _log.info("%s", places.explain_miss(identities[spec]))
        identities.update({spec: identity(render([spec]), compilers[spec]) for spec in todo})
        for compiler in dict.fromkeys(compilers.values()):
            warn_of_mismatch(compiler)
        workers = jobs or parallel_jobs({spec.arch for spec in todo})
        builder = _Builder(cache, compilers, identities, workers, progress or Silent())
        with terminable():
            builder.run(todo, cached=len(built))
        built.update(builder.built)
        failed.update(builder.failed)
    return BuildReport(
        built=tuple(built[spec] for spec in wanted if spec in built),
        failed=tuple(
            FailedKernel(spec=spec, error=failed[spec]) for spec in wanted if spec in failed
        ),
        seconds=time.monotonic() - started,
    )


def _compilers(
    specs: Sequence[AnySpec], toolchains: Toolchains
) -> tuple[dict[AnySpec, Toolchain], dict[AnySpec, GemmsmithError]]:
    """Return the toolchain for each kernel, and why there is none for the others.

    Raises:
        ToolchainError: where this machine has no toolchain for any of them.
    """
    compilers: dict[AnySpec, Toolchain] = {}
    refused: dict[AnySpec, GemmsmithError] = {}
    for spec in specs:
        try:
            compilers[spec] = toolchains.of(spec.arch)
        except ToolchainError as error:
            refused[spec] = ToolchainError(f"{spec.name}: {error}")
    if toolchains.refusal is not None and not compilers:
        raise toolchains.refusal
    return compilers, refused


class _Builder:
    """One build's compiler runs: groups in parallel, a failed group again kernel by kernel."""

    def __init__(
        self,
        cache: Cache,
        toolchains: Mapping[AnySpec, Toolchain],
        identities: Mapping[AnySpec, Identity],
        jobs: int,
        progress: Progress,
    ) -> None:
        self.built: dict[AnySpec, BuiltKernel] = {}
        self.failed: dict[AnySpec, GemmsmithError] = {}
        self._cache = cache
        self._toolchains = toolchains
        self._identities = identities
        self._jobs = jobs
        self._progress = progress
        self._open: dict[Group, float] = {}  # not finished yet -> when it began, or infinity
        self._pace = 1.0  # measured over expected seconds
        self._lock = threading.Lock()
        self._stop = Stop()

    def run(self, specs: Sequence[AnySpec], *, cached: int) -> None:
        """Build ``specs`` and sort them into ``built`` and ``failed``."""
        if not specs:
            return
        if not all(can_inspect(self._toolchains[spec]) for spec in specs):
            _log.warning(
                "cuobjdump and nvdisasm were not both found: the machine code of new kernels is "
                "not inspected; pip install nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm"
            )
        groups = plan(specs, self._jobs, self._cache.last_card)
        self._open = dict.fromkeys(groups, float("inf"))
        try:
            with self._cache.scratch() as scratch, ThreadPoolExecutor(self._jobs) as pool:
                self._progress.begin(
                    missing=len(specs), cached=cached, jobs=self._jobs, remaining=self._remaining()
                )
                try:
                    self._drain(pool, scratch, groups)
                except BaseException:  # an interrupt above all: nobody waits for compilers then
                    pool.shutdown(wait=False, cancel_futures=True)
                    self._stop.give()
                    raise
        finally:
            self._progress.end()

    def _drain(self, pool: ThreadPoolExecutor, scratch: Path, groups: Sequence[Group]) -> None:
        """Compile ``groups``; those that fail as a whole come back as groups of one."""
        running: dict[Future[GemmsmithError | None], Group] = {}
        number = 0
        todo = list(groups)
        while todo or running:
            for group in todo:
                number += 1
                running[pool.submit(self._compile, group, scratch / str(number))] = group
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            todo = []
            for future in done:
                group = running.pop(future)
                error = future.result()
                with self._lock:
                    self._open.pop(group)
                if error is not None and len(group.specs) > 1:
                    _log.info("a group failed, compiling its kernels alone: %s", error)
                    left = [spec for spec in group.specs if spec not in self.built]
                    todo += [part for spec in left for part in plan([spec], 1)]
                elif error is not None:
                    self._fail(group.specs[0], error)
            with self._lock:
                self._open.update(dict.fromkeys(todo, float("inf")))

    def _compile(self, group: Group, folder: Path) -> GemmsmithError | None:
        """Compile what is still missing of ``group``; return the error of a run that failed."""
        identities = [self._identities[spec] for spec in group.specs]
        with self._cache.locked(identities, self._stop.given):
            missing = []
            for spec in group.specs:
                kernel = self._cache.find(self._identities[spec])
                if kernel is None:
                    missing.append(spec)
                else:  # another process built it since
                    self._finish(spec, kernel, cached=True)
            if not missing:
                return None
            with self._lock:
                self._open[group] = time.monotonic()
                self._progress.started([spec.name for spec in missing], remaining=self._remaining())
            try:
                with self._cache.writing():
                    folder.mkdir()
                    compiled = compile_library(
                        render(missing),
                        self._toolchains[missing[0]],
                        folder,
                        jobs=self._jobs,
                        failures=self._failures(missing[0]),
                        stop=self._stop,
                    )
                cards = self._cards(missing, compiled)
            except (CompileError, LoadError) as error:
                return error
            with self._lock:
                self._pace = (self._pace + compiled.seconds / group.seconds) / 2
            reasons = {spec: objection(spec, card) for spec, card in cards.items()}
            bad = {spec: reason for spec, reason in reasons.items() if reason is not None}
            for spec, reason in bad.items():
                kept = keep(compiled.source, compiled.log, self._failures(spec))
                self._fail(spec, CompileError(f"{spec.name} compiled, but {reason}\n{kept}"))
            good = [spec for spec in missing if spec not in bad]
            if not good:
                return None
            stored = self._cache.store(
                compiled, [(self._identities[spec], cards[spec]) for spec in good]
            )
        for spec in good:
            self._finish(spec, stored[spec.name], cached=False)
        return None

    def _cards(self, specs: Sequence[AnySpec], compiled: CompiledLibrary) -> dict[AnySpec, Card]:
        """Return what the kernels of one library turned out to be."""
        table = read_table(compiled.path)
        log = compiled.log.read_text(errors="replace")
        toolchain = self._toolchains[specs[0]]
        functions = device_functions(compiled.path, log, toolchain)
        cards = {}
        for spec in specs:
            if spec.name not in table:
                raise CompileError(f"{spec.name} is not in the table of its library")
            cards[spec] = make_card(
                spec,
                table[spec.name],
                functions,
                toolchain=toolchain,
                seconds=compiled.seconds,
                compiled_with=len(specs),
                peak_bytes=compiled.peak_bytes,
                library_bytes=compiled.path.stat().st_size,
            )
        return cards

    def _finish(self, spec: AnySpec, kernel: CachedKernel, *, cached: bool) -> None:
        with self._lock:
            self.built[spec] = _ready(spec, kernel, cached=cached)
            self._progress.finished(kernel.card, remaining=self._remaining())

    def _fail(self, spec: AnySpec, error: GemmsmithError) -> None:
        with self._lock:
            self.failed[spec] = error
            self._progress.failed(spec.name, error, remaining=self._remaining())

    def _failures(self, spec: AnySpec) -> Path:
        return self._cache.failures(self._identities[spec])

    def _remaining(self) -> float:
        """Expected seconds until all open groups are done."""
        now = time.monotonic()
        rest = [
            max(0.0, group.seconds * self._pace - max(0.0, now - began))
            for group, began in self._open.items()
        ]
        return makespan(rest, self._jobs)


def _check_jobs(jobs: int | None) -> None:
    if jobs is None:
        return
    if isinstance(jobs, bool) or not isinstance(jobs, int) or jobs < 1:
        raise ArgumentError(
            f"jobs is {jobs!r}: give a whole number from 1 up, or None to go by cores and memory"
        )


def _ready(spec: AnySpec, kernel: CachedKernel, *, cached: bool) -> BuiltKernel:
    return BuiltKernel(
        spec=spec,
        library=kernel.library,
        card=kernel.card,
        cached=cached,
        built_with=kernel.built_with,
    )


def _never(spec: AnySpec, why: str, source: str) -> CompileError:
    return CompileError(
        f"{why}, and GEMMSMITH_NEVER_COMPILE is set: unset it, or build beforehand with "
        f"{build_command(source, spec.arch.name)}"
    )
