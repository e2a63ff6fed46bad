"""A user's kernels, ready to be built, named and called."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gemmsmith.arch import ARCHITECTURES, Architecture, parse_architecture, portable
from gemmsmith.attn.exact import ExactAttention
from gemmsmith.attn.selection import AttentionSelection
from gemmsmith.attn.spec import AttentionSpec
from gemmsmith.build import BuildReport
from gemmsmith.bundle import is_bundle, read_bundle
from gemmsmith.choose import Tuning, rank, tune
from gemmsmith.config import load_kernels, load_specs
from gemmsmith.errors import LaunchError, NoKernelError
from gemmsmith.fit import misfit, misfits
from gemmsmith.kinds import Kind, kind_of, kinds_of
from gemmsmith.launcher import Kernel
from gemmsmith.nvml import detect_architecture
from gemmsmith.problem import GemmProblem
from gemmsmith.progress import Progress
from gemmsmith.resources import configs_dir
from gemmsmith.rowspec import AnySpec
from gemmsmith.selection import DeviceFacts, Plan, register
from gemmsmith.settings import settings
from gemmsmith.shelf import AttentionShelf, Shelf
from gemmsmith.spec import KernelSpec
from gemmsmith.supply import Bundled, Compiled, Supply
from gemmsmith.tables import tables_for
from gemmsmith.tuned import left_to_torch

if TYPE_CHECKING:
    from torch import Tensor
    from typing_extensions import Unpack

    from gemmsmith.gemm_options import GemmOptions


def load(path: str | Path, arch: str = "auto", run_on: str = "") -> KernelSet:
    """Return the kernels that a YAML file, or a folder of them, describes for one architecture.

    Compiles nothing and, unless ``arch`` is ``auto``, needs no GPU. A folder that ``gemmsmith
    export`` made gives the kernels that it holds, without a compiler.

    Args:
        path: the file or folder.
        arch: any spelling of an architecture; ``auto`` for that of the first visible GPU.
        run_on: ``sm_90`` compiles the kernels of an older ``arch`` for Hopper instead, to be proven
            there (:func:`gemmsmith.arch.portable`); their speed means nothing.

    Raises:
        ConfigError: with all that is wrong in the files.
        BundleError: where a folder of exported kernels cannot be used here.
        NoDeviceError: where ``arch`` is ``auto`` and there is no GPU.
        UnknownArchitectureError: where ``arch`` names none, or the GPU has no kernels.
    """
    bundle = read_bundle(Path(path)) if is_bundle(Path(path)) else None
    row = detect_architecture() if arch == "auto" else parse_architecture(arch)
    target = portable(row, run_on) if run_on else row
    if bundle is not None:
        specs, attention = bundle.specs_by_kind(target)
        supply = Bundled(bundle)
        return KernelSet(specs, attention, arch=target, source=str(path), supply=supply)
    if run_on:
        specs = tuple(replace(spec, arch=target) for spec in load_specs(path, arch=[row.name]))
        return KernelSet(specs, arch=target, source=str(path))
    specs, attention = load_kernels(path, arch=[row.name])
    return KernelSet(specs, attention, arch=target, source=str(path))


@cache
def default_kernels(arch: str) -> KernelSet:
    """Return the kernels that gemmsmith ships for ``arch``; what is not built is, at first use."""
    row = parse_architecture(arch)
    folder = configs_dir() / "kernels"
    specs = load_specs(folder, arch=[row.name])
    return KernelSet(specs, arch=row, source=str(folder), build_on_use=True, torch_may_run=True)


def rows_of_every_gpu() -> tuple[KernelSpec, ...]:
    """Return the default kernels of all architectures that write rows.

    By them a call can be checked on a machine without a GPU.
    """
    every = (spec for row in ARCHITECTURES for spec in default_kernels(row.name).specs)
    return tuple(spec for spec in every if spec.layout[2] == "r")


class KernelSet:
    """Kernels of one architecture: ``ks["name"](a, b)`` runs one, ``ks.gemm(a, b)`` chooses.

    Attention kernels likewise: ``ks["attention_…"](q, k, v)``, ``ks.attention(q, k, v)``.
    Where some have ``constant_b``, naming the set is the promise that :func:`gemmsmith.gemm` tells.
    """

    def __init__(
        self,
        specs: Sequence[KernelSpec],
        attention: Sequence[AttentionSpec] = (),
        *,
        arch: Architecture,
        source: str,
        build_on_use: bool = False,
        torch_may_run: bool = False,
        supply: Supply | None = None,
    ) -> None:
        self.specs: tuple[KernelSpec, ...] = tuple(specs)
        self.attention_specs: tuple[AttentionSpec, ...] = tuple(attention)
        self.arch = arch
        self.source = source
        self._by_name = {spec.name: spec for spec in self.specs}
        self.torch_may_run = torch_may_run
        self.constant_b = not torch_may_run and any(spec.constant_b for spec in self.specs)
        self.supply = supply or Compiled(source)
        self._of_kind: dict[Kind, list[KernelSpec]] = {}
        for spec in self.specs:
            self._of_kind.setdefault(kind_of(spec), []).append(spec)
        self._shelves = {
            kind: Shelf(alike, self.supply, build_on_use=build_on_use)
            for kind, alike in self._of_kind.items()
        }
        self._exact: dict[str, ExactKernel | ExactAttention] = {}
        self._attention = self._attention_of(self.attention_specs)
        self.handle = register(self, "set")

    def __repr__(self) -> str:
        count = len(self.specs) + len(self.attention_specs)
        return f"<KernelSet {self.source}: {count} kernels for {self.arch.name}>"

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the kernels, in the order of the file."""
        return (*self._by_name, *(spec.name for spec in self.attention_specs))

    def build(self, *, jobs: int | None = None, progress: Progress | None = None) -> BuildReport:
        """Compile what the cache lacks and return what is ready.

        Raises:
            CompileError: where a kernel fails; the others are built all the same.
            ToolchainError: where something is missing and there is no compiler.
        """
        specs: tuple[AnySpec, ...] = (*self.specs, *self.attention_specs)
        report = self.supply.build(specs, jobs=jobs, progress=progress)
        for shelf in self._shelves.values():
            shelf.look_again()
        self._attention.shelf.look_again()
        self.handle = register(self, "set")  # choices made among fewer kernels are of the old one
        report.raise_if_failed()
        return report

    def __getitem__(self, name: str) -> Any:
        """Return exactly the kernel ``name``: :class:`ExactKernel`, of attention
        :class:`ExactAttention`.

        Raises:
            NoKernelError: naming the nearest, where the set has no such kernel.
        """
        if name not in self._exact:
            attention = {spec.name: spec for spec in self.attention_specs}
            if name in self._by_name:
                self._exact[name] = ExactKernel(self, self._by_name[name])
            elif name in attention:
                alone = self._attention_of([attention[name]])
                self._exact[name] = ExactAttention(attention[name], alone)
            else:
                raise NoKernelError(_no_such_kernel(str(name), self))
        return self._exact[name]

    def _attention_of(self, specs: Sequence[AttentionSpec]) -> AttentionSelection:
        shelf = AttentionShelf(specs, self.supply, build_on_use=False)
        return AttentionSelection(shelf, arch=self.arch, source=self.source)

    def attention(self, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        """Return :func:`gemmsmith.attention` by the best attention kernel of this set.

        Raises:
            NoKernelError: where none fits, with each kernel's reason.
        """
        from gemmsmith import attention

        return attention(q, k, v, **options, kernels=self._attention.handle)

    def attention_with_kvcache(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        lengths: Tensor,
        inv_freq: Tensor | None = None,
        **options: Any,
    ) -> Tensor:
        """Return :func:`gemmsmith.attention_with_kvcache` by this set's best attention kernel.

        Raises:
            NoKernelError: where none fits, with each kernel's reason.
        """
        from gemmsmith import attention_with_kvcache

        given = (q, k, v, k_cache, v_cache, lengths, inv_freq)
        return attention_with_kvcache(*given, **options, kernels=self._attention.handle)

    def gemm(
        self,
        a: Tensor,
        b: Tensor,
        bias: Tensor | None = None,
        residual: Tensor | None = None,
        alpha: float = 1,  # as in ops.gemm
        beta: float | None = None,
        out: Tensor | None = None,
        **options: Unpack[GemmOptions],
    ) -> Tensor:
        """Return :func:`gemmsmith.gemm` by the best kernel of this set.

        Arguments are those of that function; ``deterministic`` and ``constant_b`` choose among the
        default kernels.

        Raises:
            ArgumentError: where one of those two is given: it says what does the same here.
            NoKernelError: where none fits, with each kernel's reason.
        """
        from gemmsmith import gemm

        return gemm(a, b, bias, residual, alpha, beta, out, **options, kernels=self.handle)

    def plan(self, problem: GemmProblem, device: DeviceFacts) -> Plan | str:
        """Return the kernel for ``problem``, or why torch has to take it."""
        _check_device(self.arch, device)
        told = self._tabled(problem, device)
        if told is not None:
            return told
        some_built = False
        for kind in kinds_of(problem):
            ranked = rank(self._of_kind.get(kind, ()), problem, device.sm_count)
            if not ranked:
                continue  # and nothing is built for it
            loaded = self._shelves[kind].kernels()
            some_built = some_built or bool(loaded)
            chosen = next((choice for choice in ranked if choice.spec in loaded), None)
            if chosen is not None:
                why = left_to_torch(chosen, problem, device.sm_count) if self.torch_may_run else ""
                if why:
                    return why
                return Plan(spec=chosen.spec, kernel=loaded[chosen.spec], tuning=chosen.tuning)
        reasons = misfits(self.specs, problem)
        if self.torch_may_run:
            return "; ".join(reasons) or self._no_default()
        if not reasons:
            which = "no kernel that fits" if some_built else "no kernel"
            advice = self.supply.how_to_get(self.specs)
            raise NoKernelError(f"{which} of {self.source} is built: {advice}")
        raise NoKernelError(f"no kernel of {self.source} fits: {'; '.join(reasons)}")

    def _tabled(self, problem: GemmProblem, device: DeviceFacts) -> Plan | str | None:
        """Return what the tuned tables say; None where they say nothing that can be done."""
        tables = tables_for(device.name, device.sm_count, device.capability)
        for told in tables.choices(problem, self._by_name, torch=self.torch_may_run):
            if isinstance(told, str):
                return told
            loaded = self._shelves[kind_of(told.spec)].kernels()
            if told.spec in loaded:
                return Plan(spec=told.spec, kernel=loaded[told.spec], tuning=told.tuning)
        return None

    def _no_default(self) -> str:
        reason = f"no default kernel for {self.arch.name} is built"
        if not settings().never_compile:
            return reason  # the log says what a build said
        return f"{reason}: {self.supply.how_to_get(self.specs)}"

    def loaded(self, spec: KernelSpec) -> Kernel:
        """Return the kernel of ``spec``, loaded.

        Raises:
            NoKernelError: where it is not built.
        """
        shelf = self._shelves[kind_of(spec)]
        ready = shelf.kernels()
        if spec not in ready:
            shelf.look_again()  # another process may have built it
            ready = shelf.kernels()
        if spec not in ready:
            raise NoKernelError(f"{spec.name} is not built: {self.supply.how_to_get([spec])}")
        return ready[spec]


class ExactKernel:
    """One kernel of a set, called by name: it runs or says why it cannot."""

    torch_may_run = False

    def __init__(self, kernels: KernelSet, spec: KernelSpec, tuning: Tuning | None = None) -> None:
        self.spec = spec
        self.constant_b = spec.constant_b  # naming it is the promise
        self._kernels = kernels
        self._tuning = tuning
        self.handle = register(self, spec.name)

    def __repr__(self) -> str:
        return f"<kernel {self.spec.name}>"

    @property
    def name(self) -> str:
        """The kernel's name."""
        return self.spec.name

    @property
    def specs(self) -> tuple[KernelSpec, ...]:
        """This kernel alone."""
        return (self.spec,)

    def with_tuning(self, tuning: Tuning) -> ExactKernel:
        """Return the same kernel with run-time knobs of the caller's choice."""
        return ExactKernel(self._kernels, self.spec, tuning)

    def __call__(
        self,
        a: Tensor,
        b: Tensor,
        bias: Tensor | None = None,
        residual: Tensor | None = None,
        alpha: float = 1,  # as in ops.gemm
        beta: float | None = None,
        out: Tensor | None = None,
        **options: Unpack[GemmOptions],
    ) -> Tensor:
        """Return :func:`gemmsmith.gemm` by this kernel.

        Arguments are those of that function, among them the activation or gate that the kernel has;
        the result has the kernel's output type.

        Raises:
            ArgumentError: where ``deterministic`` or ``constant_b`` is given, as for a set.
            NoKernelError: naming the argument that does not fit and what would.
        """
        from gemmsmith import gemm

        return gemm(a, b, bias, residual, alpha, beta, out, **options, kernels=self.handle)

    def misfit(
        self,
        a: Tensor,
        b: Tensor,
        bias: Tensor | None = None,
        residual: Tensor | None = None,
        out: Tensor | None = None,
    ) -> str:
        """Return why the kernel cannot take these operands; empty where it can."""
        from gemmsmith.ops import problem_of

        return misfit(self.spec, problem_of(a, b, bias, residual, out, kernels=self.handle))

    def plan(self, problem: GemmProblem, device: DeviceFacts) -> Plan | str:
        """Return this kernel, or raise; see :class:`Selection`."""
        _check_device(self.spec.arch, device)
        reason = misfit(self.spec, problem)
        if reason:
            raise NoKernelError(f"{self.name}: {reason}")
        kernel = self._kernels.loaded(self.spec)
        tuning = self._tuning or tune(self.spec, problem)
        return Plan(spec=self.spec, kernel=kernel, tuning=tuning)


def _check_device(arch: Architecture, device: DeviceFacts) -> None:
    if device.capability != arch.capability:
        major, minor = device.capability
        raise LaunchError(
            f"the kernels are built for {arch.name}, {device.name} has compute capability"
            f" {major}.{minor}: load them with an arch of that GPU, or arch='auto'"
        )


def _no_such_kernel(name: str, kernels: KernelSet) -> str:
    import difflib

    near = difflib.get_close_matches(name, kernels.names, n=1, cutoff=0.0)
    hint = f"; the nearest is {near[0]}" if near else ""
    return f"{kernels.source} has no kernel {name!r} for {kernels.arch.name}{hint}"
