"""A bundle: a folder of compiled kernels that came from another machine, with a manifest.

No library of a bundle is given out before its checksum was compared.
"""

from __future__ import annotations

import hashlib
import os
import platform
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import gemmsmith
from gemmsmith.arch import Architecture
from gemmsmith.attn.spec import AttentionSpec
from gemmsmith.cache import CachedKernel
from gemmsmith.errors import BundleError, GemmsmithError
from gemmsmith.identity import Identity
from gemmsmith.launcher.abi import abi_version
from gemmsmith.manifest import MANIFEST, BundledKernel, Manifest, ManifestError, parse_manifest
from gemmsmith.rowspec import AnySpec
from gemmsmith.spec import KernelSpec
from gemmsmith.spec_dict import spec_from_dict


def is_bundle(folder: Path) -> bool:
    """Return whether ``folder`` holds a manifest, whatever it says."""
    return os.path.isfile(folder / MANIFEST)  # noqa: PTH113 - Path.is_file can raise


def read_bundle(folder: Path) -> Bundle:
    """Return the bundle in ``folder``; none of its libraries is touched.

    Raises:
        BundleError: where the folder is no bundle, or one that this machine cannot use.
    """
    file = folder / MANIFEST
    try:
        manifest = parse_manifest(file.read_text())
    except FileNotFoundError:
        what = "has no manifest.json" if folder.is_dir() else "is no folder"
        raise BundleError(f"{folder} {what}: name a folder that gemmsmith export made") from None
    except (OSError, UnicodeDecodeError) as error:
        raise BundleError(f"{file} cannot be read: {error}") from error
    except ManifestError as error:
        raise BundleError(f"{file} cannot be used: {error}") from error
    bundle = Bundle(folder=folder, manifest=manifest)
    objection = bundle.objection()
    if objection:
        raise BundleError(f"the bundle {folder} cannot be used here: {objection}")
    return bundle


@dataclass(frozen=True, kw_only=True)
class Bundle:
    """Kernels that were compiled elsewhere."""

    folder: Path
    manifest: Manifest

    def objection(self) -> str:
        """Return why nothing of it can be loaded on this machine; empty where it can."""
        manifest, own = self.manifest, abi_version()
        if manifest.host != platform.machine():
            return (
                f"its libraries load on {manifest.host} machines, this is {platform.machine()}: "
                f"export it on an {platform.machine()} machine"
            )
        if manifest.abi != own:
            return (
                f"its kernels speak version {manifest.abi} of the C interface, gemmsmith "
                f"{gemmsmith.__version__} speaks {own}: export it again with this version, or use "
                f"gemmsmith {manifest.gemmsmith} here"
            )
        needed, here = manifest.needs.get("GLIBC", ""), _glibc()
        if needed and _numbers(needed) > _numbers(here):
            return (
                f"it needs glibc {needed}, here is {here or 'none'}: export it on a machine with "
                "the older one"
            )
        return ""

    def all_specs(self) -> tuple[AnySpec, ...]:
        """Return what its kernels compute, row kernels among them.

        Raises:
            BundleError: where this gemmsmith does not understand one.
        """
        return tuple(self._spec(kernel) for kernel in self.manifest.kernels)

    def specs(self, arch: Architecture) -> tuple[KernelSpec, ...]:
        """Return what its GEMM kernels for ``arch`` compute.

        Raises:
            BundleError: where it has none, or this gemmsmith does not understand one.
        """
        gemms = tuple(spec for spec in self._of(arch) if isinstance(spec, KernelSpec))
        if not gemms:
            raise self._none_for(arch)
        return gemms

    def specs_by_kind(
        self, arch: Architecture
    ) -> tuple[tuple[KernelSpec, ...], tuple[AttentionSpec, ...]]:
        """Return what its GEMM kernels and its attention kernels for ``arch`` compute.

        Raises:
            BundleError: where it has neither, or this gemmsmith does not understand one.
        """
        specs = self._of(arch)
        gemms = tuple(spec for spec in specs if isinstance(spec, KernelSpec))
        attention = tuple(spec for spec in specs if isinstance(spec, AttentionSpec))
        if not gemms and not attention:
            raise self._none_for(arch)
        return gemms, attention

    def _of(self, arch: Architecture) -> list[AnySpec]:
        wanted = target(arch)
        return [self._spec(kernel) for kernel in self.manifest.kernels if kernel.arch == wanted]

    def _none_for(self, arch: Architecture) -> BundleError:
        wanted = target(arch)
        reason = self.manifest.left_out.get(wanted)
        return BundleError(
            f"the bundle {self.folder} has kernels for {', '.join(self.manifest.archs) or 'none'}, "
            f"none for {wanted}"
            + (f": {reason}" if reason else f": export it with --arch {arch.name} too")
        )

    def kernel(self, spec: AnySpec) -> CachedKernel:
        """Return the kernel of a spec of :meth:`specs` or :meth:`all_specs`, its library checked.

        Raises:
            BundleError: where the library is not the file that was exported.
        """
        for kernel in self.manifest.kernels:
            if kernel.name == spec.name:
                return self._checked(kernel)
        raise BundleError(f"the bundle {self.folder} has no kernel {spec.name}")

    def find(self, identity: Identity) -> CachedKernel | str | None:
        """Return the kernel of that identity, whatever compiler made it, its library checked.

        A string says in what the kernel of that name differs; None: there is none.

        Raises:
            BundleError: where the kernel serves, but its library is not the file that was exported.
        """
        wanted = identity.without_toolchain()
        for kernel in self.manifest.kernels:
            if kernel.name != identity.name:
                continue
            changes = wanted.changes(kernel.built_with)
            if changes:
                return f"the bundle {self.folder} has {kernel.name}, but {changes}"
            return self._checked(kernel)
        return None

    def _spec(self, kernel: BundledKernel) -> AnySpec:
        try:
            spec = spec_from_dict(kernel.spec)
            if spec.name != kernel.name:
                raise ValueError(f"it is called {spec.name} here")
        except (GemmsmithError, ValueError) as error:
            raise BundleError(
                f"{kernel.name} of the bundle {self.folder}, exported by gemmsmith "
                f"{self.manifest.gemmsmith}, is not understood by {gemmsmith.__version__}: {error}"
            ) from error
        return spec

    def _checked(self, kernel: BundledKernel) -> CachedKernel:
        library = self.folder / kernel.library
        recorded = self.manifest.files[kernel.library]
        try:
            size = library.stat().st_size
            if size != recorded.bytes:
                raise BundleError(
                    f"{library} has {size:,} bytes, its manifest says {recorded.bytes:,}: "
                    "copy or export the bundle again"
                )
            digest = checksum(library)
        except OSError as error:
            raise BundleError(
                f"{library} cannot be read ({error.strerror}): copy or export the bundle again"
            ) from error
        if digest != recorded.sha256:
            raise BundleError(
                f"{library} does not match its checksum, so it is not loaded: "
                "copy or export the bundle again"
            )
        return CachedKernel(library=library, card=kernel.card, built_with=kernel.built_with)


def target(arch: Architecture) -> str:
    """Return how manifests call the GPUs that kernels of ``arch`` are compiled for."""
    return arch.name if arch.runs_on == arch.name else f"{arch.name}_on_{arch.runs_on}"


def checksum(file: Path) -> str:
    """Return the SHA-256 of a file; in one process it is read again only where it looks changed."""
    status = file.stat()
    return _checksum(file, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


@lru_cache(maxsize=4096)
def _checksum(file: Path, *_: int) -> str:
    with file.open("rb") as stream:
        digest = hashlib.sha256()
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _glibc() -> str:
    """Return the version of the C library, empty where it is not GNU's."""
    try:
        return (os.confstr("CS_GNU_LIBC_VERSION") or "").removeprefix("glibc ")
    except (AttributeError, ValueError, OSError):
        return ""


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())
