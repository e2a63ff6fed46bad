"""A bundle as a wheel: data alone, installed by pip where there is no compiler, found by itself."""

from __future__ import annotations

import base64
import hashlib
import re
import tempfile
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path

import gemmsmith
from gemmsmith.bundle import checksum
from gemmsmith.bundle_export import Exportable, export
from gemmsmith.bundles import PACKAGE
from gemmsmith.elf import LibraryNeeds, read_needs
from gemmsmith.errors import BundleError
from gemmsmith.manifest import MANIFEST, Manifest
from gemmsmith.progress import Progress

_PROFILES = (  # oldest glibc -> newest C++ library symbols that all its distributions have
    ((2, 17), (3, 4, 19), (1, 3, 7)),
    ((2, 28), (3, 4, 24), (1, 3, 11)),
    ((2, 31), (3, 4, 28), (1, 3, 12)),
    ((2, 34), (3, 4, 29), (1, 3, 13)),
    ((2, 35), (3, 4, 30), (1, 3, 13)),
    ((2, 39), (3, 4, 33), (1, 3, 15)),
)
_EVERYWHERE = re.compile(r"(lib(c|m|dl|rt|pthread)|libstdc\+\+|libgcc_s|ld-linux[\w-]*)\.so\.\d+")


def distribution_name(file: Path | None, archs: Sequence[str]) -> str:
    """Return what a wheel of these kernels is called: by their file and architectures."""
    stem = "" if file is None else re.sub(r"[^a-z0-9]+", "-", file.stem.lower()).strip("-")
    words = ["gemmsmith-kernels", stem, *(arch.replace("_", "") for arch in archs)]
    return "-".join(word for word in words if word)


def export_wheel(
    wanted: Exportable,
    folder: Path,
    *,
    file: Path | None = None,
    jobs: int | None = None,
    progress: Progress | None = None,
) -> tuple[Path, Manifest]:
    """Write a wheel of ``wanted``, the kernels of ``file``, to ``folder``; return both.

    Raises:
        BundleError: where the folder cannot be written.
        CompileError, ToolchainError, CacheError: from the build.
    """
    if folder.exists() and not folder.is_dir():  # told before a build of minutes
        raise BundleError(f"{folder} is a file: name a folder for the wheel with -o")
    with tempfile.TemporaryDirectory() as scratch:
        bundle = Path(scratch) / "bundle"
        source = "" if file is None else str(file)
        manifest = export(wanted, bundle, source=source, jobs=jobs, progress=progress)
        name = distribution_name(file, manifest.archs)
        return write_wheel(bundle, manifest, name, folder), manifest


def write_wheel(bundle: Path, manifest: Manifest, name: str, folder: Path) -> Path:
    """Write the wheel ``name`` of the bundle in the folder ``bundle`` to ``folder``; return it.

    Its version carries a digest of the manifest, so that pip tells other kernels apart.

    Raises:
        BundleError: where it cannot be written.
    """
    digest = hashlib.sha256(manifest.as_text().encode()).hexdigest()[:8]
    version = f"{gemmsmith.__version__}+k{digest}"
    module = name.replace("-", "_")
    tag = f"py3-none-{platform_tag([read_needs(bundle / file) for file in manifest.files])}"
    info = f"{module}-{version}.dist-info"
    wheel = folder / f"{module}-{version}-{tag}.whl"
    texts = {
        f"{info}/METADATA": _metadata(name, version, manifest),
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: gemmsmith "
        f"{gemmsmith.__version__}\nRoot-Is-Purelib: false\nTag: {tag}\n",
    }
    data = [f"{PACKAGE}/{module}/{file}" for file in (*manifest.files, MANIFEST)]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        draft = wheel.with_suffix(".part")
        with zipfile.ZipFile(draft, "w", zipfile.ZIP_DEFLATED) as archive:
            record = []
            for path in data:
                file = bundle / Path(path).relative_to(f"{PACKAGE}/{module}")
                archive.writestr(_entry(path), file.read_bytes())
                record.append((path, bytes.fromhex(checksum(file)), file.stat().st_size))
            for path, text in texts.items():
                archive.writestr(_entry(path), text)
                record.append((path, hashlib.sha256(text.encode()).digest(), len(text.encode())))
            archive.writestr(_entry(f"{info}/RECORD"), _record(record, f"{info}/RECORD"))
        draft.replace(wheel)
    except OSError as error:
        raise BundleError(
            f"{wheel} cannot be written ({error.strerror}): name another folder with -o"
        ) from error
    return wheel


def platform_tag(needs: Sequence[LibraryNeeds]) -> str:
    """Return pip's name for the machines that load all these libraries.

    ``manylinux_X_Y`` where they ask for nothing that a distribution with glibc X.Y lacks; else
    ``linux``, which pip takes anywhere on that kind of machine.
    """
    machine = needs[0].machine
    if all(_EVERYWHERE.fullmatch(name) for need in needs for name in need.libraries):
        for glibc, glibcxx, cxxabi in _PROFILES:
            limits = {"GLIBC": glibc, "GLIBCXX": glibcxx, "CXXABI": cxxabi}
            if all(
                need.versions.get(kind, ()) <= limit
                for need in needs
                for kind, limit in limits.items()
            ):
                return f"manylinux_{glibc[0]}_{glibc[1]}_{machine}"
    return f"linux_{machine}"


def _metadata(name: str, version: str, manifest: Manifest) -> str:
    archs = ", ".join(manifest.archs)
    return (
        "Metadata-Version: 2.1\n"
        f"Name: {name}\n"
        f"Version: {version}\n"
        f"Summary: {len(manifest.kernels)} compiled gemmsmith kernels for {archs}\n"
        "Requires-Python: >=3.10\n"
        "Requires-Dist: gemmsmith\n"
    )


def _entry(path: str) -> zipfile.ZipInfo:
    """Return an archive member without a clock, so that equal kernels give equal wheels."""
    entry = zipfile.ZipInfo(path, date_time=(1980, 1, 1, 0, 0, 0))
    entry.compress_type = zipfile.ZIP_DEFLATED
    entry.external_attr = 0o100644 << 16
    return entry


def _record(rows: Iterable[tuple[str, bytes, int]], own: str) -> str:
    lines = [
        f"{path},sha256={base64.urlsafe_b64encode(digest).rstrip(b'=').decode()},{size}"
        for path, digest, size in rows
    ]
    return "\n".join([*lines, f"{own},,", ""])
