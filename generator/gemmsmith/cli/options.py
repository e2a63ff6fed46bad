"""Arguments that several verbs share, and how results are printed."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from gemmsmith.attn.spec import AttentionSpec
    from gemmsmith.cache import CachedKernel
    from gemmsmith.rowspec import AnySpec, SpecT
    from gemmsmith.spec import KernelSpec

Source = Annotated[
    Path | None,
    typer.Argument(
        metavar="[FILE|FOLDER]",
        help="YAML file of kernels or a folder of them; by default gemmsmith's own.",
        show_default=False,
    ),
]
Archs = Annotated[
    list[str] | None,
    typer.Option(
        "--arch",
        metavar="ARCH",
        help="Only kernels of this architecture (sm_80, sm_90a, auto: the GPU here); repeatable.",
        show_default=False,
    ),
]
Names = Annotated[
    list[str] | None,
    typer.Option(
        "--kernel", metavar="NAME", help="Only this kernel; repeatable.", show_default=False
    ),
]
ConstantB = Annotated[
    bool,
    typer.Option(
        "--constant-b", help="For calls that promise constant_b: no queued work writes the weight."
    ),
]
ArchOfGpu = Annotated[
    str, typer.Option("--arch", metavar="ARCH", help="Architecture; auto: that of the GPU here.")
]
GpuName = Annotated[
    str,
    typer.Option(
        "--gpu", metavar="NAME", help="The GPU's name; by default the one here, or an H200."
    ),
]
Multiprocessors = Annotated[
    int | None,
    typer.Option("--sms", min=1, metavar="COUNT", help="Its multiprocessors.", show_default=False),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")]


def source_of(path: Path | None) -> Path:
    """Return the file or folder that is meant: ``path``, or the kernels that come along."""
    from gemmsmith.resources import configs_dir

    return path if path is not None else configs_dir() / "kernels"


def architectures(words: Sequence[str] | None) -> list[str] | None:
    """Return the architectures asked for, ``auto`` replaced by that of the GPU; None for all."""
    if not words:
        return None
    from gemmsmith.nvml import detect_architecture

    return [detect_architecture().name if word == "auto" else word for word in words]


def specs_of(
    path: Path | None, archs: Sequence[str] | None, names: Sequence[str] | None = None
) -> tuple[KernelSpec, ...]:
    """Return the GEMM kernels that a verb is about.

    Raises:
        ConfigError: where the files cannot be used.
        NoKernelError: where there is no kernel of one of ``names``.
        BundleError: where ``path`` is a bundle: there is no YAML file in it.
    """
    from gemmsmith.config import load_specs

    _refuse_bundle(path)
    specs = load_specs(source_of(path), arch=architectures(archs))
    return tuple(_named(specs, name) for name in names) if names else specs


def attention_specs_of(path: Path | None, archs: Sequence[str] | None) -> tuple[AttentionSpec, ...]:
    """Return the attention kernels that a verb is about.

    Raises:
        ConfigError, BundleError: as :func:`specs_of` does.
    """
    from gemmsmith.attn.config import load_attention

    _refuse_bundle(path)
    return load_attention(source_of(path), arch=architectures(archs))


def all_specs_of(
    path: Path | None,
    archs: Sequence[str] | None,
    names: Sequence[str] | None = None,
    *,
    rows: bool = True,
) -> tuple[AnySpec, ...]:
    """Return the GEMM and attention kernels that a verb is about; of the default ones row kernels
    too, unless ``rows`` is false.

    Raises:
        ConfigError, NoKernelError, BundleError: as :func:`specs_of` does.
    """
    from gemmsmith.config import load_kernels
    from gemmsmith.rowspec import row_specs

    _refuse_bundle(path)
    gemms, attention = load_kernels(source_of(path), arch=architectures(archs))
    specs: tuple[AnySpec, ...] = (*gemms, *attention)
    if path is None and rows:
        archs_here = dict.fromkeys(spec.arch for spec in specs)
        rows_of = (row for arch in archs_here for row in row_specs(arch))
        specs = (*gemms, *rows_of, *attention)
    return tuple(_named(specs, name) for name in names) if names else specs


def compiled_of(
    path: Path | None, archs: Sequence[str] | None, names: Sequence[str] | None = None
) -> tuple[tuple[AnySpec, ...], dict[AnySpec, CachedKernel]]:
    """Return the kernels of files or of a bundle, and those of them that are compiled.

    Raises:
        ConfigError, NoKernelError: as :func:`specs_of` does.
        BundleError: where a bundle cannot be used here.
    """
    from gemmsmith.bundle import is_bundle, read_bundle
    from gemmsmith.lookup import find_cached

    if path is None or not is_bundle(path):
        specs = all_specs_of(path, archs, names)
        return specs, find_cached(specs)
    from gemmsmith.arch import parse_architecture

    bundle, words = read_bundle(path), architectures(archs)
    rows = None if words is None else [parse_architecture(word) for word in words]
    specs = tuple(spec for spec in bundle.all_specs() if rows is None or spec.arch in rows)
    if names:
        specs = tuple(_named(specs, name) for name in names)
    return specs, {spec: bundle.kernel(spec) for spec in specs}


def _refuse_bundle(path: Path | None) -> None:
    from gemmsmith.bundle import is_bundle
    from gemmsmith.errors import BundleError

    if path is not None and is_bundle(path):
        raise BundleError(
            f"{path} is a bundle of compiled kernels without their YAML file: "
            "gemmsmith inspect, run and bench take it"
        )


def _named(specs: Sequence[SpecT], name: str) -> SpecT:
    import difflib

    from gemmsmith.errors import NoKernelError

    names = {spec.name: spec for spec in specs}
    if name in names:
        return names[name]
    near = difflib.get_close_matches(name, names, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    raise NoKernelError(f"no kernel is called {name}{hint} (gemmsmith list shows all)")


def check_output(option: str, path: Path, *, makes_folders: bool = False) -> None:
    """Refuse a file that cannot be written, before the work whose result it is for.

    ``makes_folders`` says that folders on the way to it are made where they are missing.
    """
    if _there(path) and path.is_dir():
        raise typer.BadParameter(f"{option} {path}: is a folder; name a file in it")
    place = path if _there(path) else path.parent
    while makes_folders and not _there(place):
        place = place.parent
    if place != path and not (_there(place) and place.is_dir()):
        why = f"{place} is a file" if _there(place) else f"there is no folder {place}"
        raise typer.BadParameter(f"{option} {path}: {why}; name a file in a folder that is there")
    if not os.access(place, os.W_OK if place == path else os.W_OK | os.X_OK):
        raise typer.BadParameter(f"{option} {path}: {place} cannot be written; name another file")


def _there(place: Path) -> bool:
    """Whether a path is there; false, and no error as of Path, where it cannot be looked at."""
    return os.access(place, os.F_OK)


def print_json(value: Any) -> None:
    """Print ``value`` as indented JSON."""
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))


def print_table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print left-aligned columns as wide as they need to be, so that lines can be searched."""
    lines = [list(head), *([str(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        padded = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        typer.echo("  ".join(padded).rstrip())
