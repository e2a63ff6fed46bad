"""Writing bundles: compiled kernels and a manifest in a folder that another machine can use."""

from __future__ import annotations

import platform
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import gemmsmith
from gemmsmith.arch import Architecture
from gemmsmith.build import BuildReport, BuiltKernel, build
from gemmsmith.bundle import checksum, is_bundle, target
from gemmsmith.elf import LibraryNeeds, read_needs
from gemmsmith.errors import BundleError, ToolchainError
from gemmsmith.launcher.abi import abi_version
from gemmsmith.manifest import MANIFEST, BundledFile, BundledKernel, Manifest
from gemmsmith.matrix_table import read_matrix
from gemmsmith.progress import Progress
from gemmsmith.rowspec import AnySpec
from gemmsmith.spec_dict import spec_to_dict


@dataclass(frozen=True, kw_only=True)
class Exportable:
    """Kernels of which this machine can make libraries that load beside their GPU."""

    specs: tuple[AnySpec, ...]
    left_out: Mapping[str, str]
    """Architecture whose kernels are not among them -> why."""
    asked: tuple[str, ...] = ()
    """Architectures that must not be left out."""


def exportable(specs: Sequence[AnySpec], *, asked: Sequence[str]) -> Exportable:
    """Return ``specs`` without those whose GPUs sit in another kind of machine.

    Raises:
        BundleError: where such an architecture is one of those ``asked`` for by name, or nothing
            is left.
    """
    left_out = {}
    for arch in dict.fromkeys(spec.arch for spec in specs):
        reason = foreign_host(arch)
        if reason:
            left_out[arch.name] = reason
    refused = [left_out[name] for name in asked if name in left_out]
    kept = tuple(spec for spec in specs if spec.arch.name not in left_out)
    if refused or not kept:
        raise BundleError("; ".join(refused or left_out.values()) or "there are no kernels")
    return Exportable(specs=kept, left_out=left_out, asked=tuple(asked))


def foreign_host(arch: Architecture) -> str:
    """Return why a library made here does not load where GPUs of ``arch`` are; empty if it does."""
    hosts = {row.arch.name: row.host for row in read_matrix().rows}
    host, here = hosts.get(arch.runs_on), platform.machine()
    if host in (None, here):
        return ""
    return (
        f"{arch.name} GPUs sit in {host} machines, and a library made here loads on "
        f"{here} machines only: run gemmsmith export --arch {arch.name} on such a machine"
    )


def export(
    wanted: Exportable,
    folder: Path,
    *,
    source: str = "",
    jobs: int | None = None,
    progress: Progress | None = None,
) -> Manifest:
    """Write a bundle of ``wanted`` to ``folder``, having compiled what is missing.

    Architectures that nobody asked for by name and no toolchain here can target are left out.
    An earlier bundle in the folder is replaced, nothing else is.

    Raises:
        BundleError: where the folder holds something else, or cannot be written.
        CompileError, ToolchainError, CacheError: from the build.
    """
    check_target(folder)
    with drafted(folder) as draft:  # told before a build of minutes where it cannot be written
        report = build(wanted.specs, jobs=jobs, progress=progress, source=source)
        untargeted = _untargeted(report, wanted.asked)
        return write_bundle(report, draft, left_out={**wanted.left_out, **untargeted})


def _untargeted(report: BuildReport, asked: Sequence[str]) -> dict[str, str]:
    """Return why whole architectures are missing in ``report``, where a bundle can do without.

    Raises:
        CompileError: where anything else is missing.
    """
    reasons: dict[str, str] = {}
    for failure in report.failed:
        arch = failure.spec.arch
        if isinstance(failure.error, ToolchainError) and arch.name not in asked:
            reasons.setdefault(target(arch), str(failure.error))
        else:
            report.raise_if_failed()
    if not report.built:
        report.raise_if_failed()
    return reasons


def write_bundle(report: BuildReport, folder: Path, *, left_out: Mapping[str, str]) -> Manifest:
    """Write the kernels that a build made to ``folder``, which exists and is empty."""
    names: dict[Path, str] = {}
    files: dict[str, BundledFile] = {}
    needs: list[LibraryNeeds] = []
    for library in dict.fromkeys(kernel.library for kernel in report.built):
        needs.append(read_needs(library))
        name = f"libraries/{checksum(library)[:32]}.so"
        target = folder / name
        target.parent.mkdir(exist_ok=True)
        shutil.copyfile(library, target)
        names[library] = name
        files[name] = BundledFile(sha256=checksum(target), bytes=target.stat().st_size)
    hosts = {need.machine for need in needs}
    if len(hosts) != 1:
        raise BundleError(f"libraries for {', '.join(sorted(hosts))} cannot be in one bundle")
    manifest = Manifest(
        abi=abi_version(),
        host=hosts.pop(),
        needs=_newest(needs),
        gemmsmith=gemmsmith.__version__,
        left_out=left_out,
        files=files,
        kernels=tuple(_kernel(kernel, names[kernel.library]) for kernel in report.built),
    )
    (folder / MANIFEST).write_text(manifest.as_text())
    return manifest


def check_target(folder: Path) -> None:
    """Raise BundleError where ``folder`` holds anything but a bundle."""
    if folder.is_dir() and (is_bundle(folder) or not any(folder.iterdir())):
        return
    if folder.exists():
        raise BundleError(
            f"{folder} exists and is no bundle: name a new folder with -o, or an earlier bundle"
        )


@contextmanager
def drafted(folder: Path) -> Iterator[Path]:
    """Give an empty folder that takes the place of ``folder`` once it is filled.

    Raises:
        BundleError: where it cannot be written.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".bundle-", dir=folder.parent) as scratch:
            draft = Path(scratch) / "new"
            draft.mkdir()
            yield draft
            if folder.exists():
                folder.replace(Path(scratch) / "old")
            draft.replace(folder)
    except OSError as error:
        raise BundleError(
            f"{error.filename or folder} cannot be written ({error.strerror or error}): "
            "name another folder with -o"
        ) from error


def _kernel(kernel: BuiltKernel, library: str) -> BundledKernel:
    return BundledKernel(
        name=kernel.spec.name,
        arch=target(kernel.spec.arch),
        spec=spec_to_dict(kernel.spec),
        library=library,
        built_with=kernel.built_with,
        card=kernel.card,
    )


def _newest(needs: Sequence[LibraryNeeds]) -> dict[str, str]:
    """Return the newest version of each kind of symbol that any library asks for."""
    newest: dict[str, tuple[int, ...]] = {}
    for need in needs:
        for kind, version in need.versions.items():
            newest[kind] = max(version, newest.get(kind, ()))
    return {kind: ".".join(map(str, version)) for kind, version in sorted(newest.items())}
