"""The verb ``export``: compiled kernels for other machines."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gemmsmith.cli.options import (
    Archs,
    AsJson,
    Names,
    Source,
    all_specs_of,
    architectures,
    print_json,
)

if TYPE_CHECKING:
    from gemmsmith.manifest import Manifest


def export_kernels(
    source: Source = None,
    arch: Archs = None,
    kernel: Names = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="DIR",
            help="Folder to make of them, or to put the wheel in; by default ./gemmsmith-kernels,"
            " or the folder here.",
            show_default=False,
        ),
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(min=1, metavar="COUNT", help="Compilers at once.", show_default=False),
    ] = None,
    *,
    wheel: Annotated[
        bool, typer.Option("--wheel", help="Write a wheel for pip in place of a folder.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Write compiled kernels for other machines: a folder with a manifest, or a wheel.

    What is not compiled yet is compiled first. No GPU is needed here, no compiler there.

    \b
    gemmsmith export --arch sm_80 --arch sm_90a --wheel
    pip install gemmsmith_kernels_sm80_sm90a-*.whl  # there; it is found by itself

    \b
    gemmsmith export my.yaml --arch sm_80 -o kernels
    gemmsmith.load("kernels")  # there, in Python
    GEMMSMITH_BUNDLES=kernels  # or there, beside my.yaml: nothing is compiled

    \b
    The libraries load on machines of this host architecture, with any Python
    and torch. GEMMSMITH_NEVER_COMPILE=1 there makes a missing kernel an error.
    """
    from gemmsmith.arch import parse_architecture
    from gemmsmith.bundle_export import export, exportable
    from gemmsmith.bundle_wheel import export_wheel
    from gemmsmith.progress import ConsoleProgress

    asked = [parse_architecture(word).name for word in architectures(arch) or ()]
    wanted = exportable(all_specs_of(source, arch, kernel), asked=asked)
    progress = ConsoleProgress()
    if wheel:
        folder = output or Path()
        made, manifest = export_wheel(wanted, folder, file=source, jobs=jobs, progress=progress)
    else:
        made, named = output or Path("gemmsmith-kernels"), "" if source is None else str(source)
        manifest = export(wanted, made, source=named, jobs=jobs, progress=progress)
    for arch_name, reason in manifest.left_out.items():
        typer.echo(f"warning: {arch_name} is left out: {reason}", err=True)
    size = sum(file.bytes for file in manifest.files.values())
    if as_json:
        print_json(_summary(made, manifest, size))
    else:
        kernels = f"{len(manifest.kernels)} kernel{'s' if len(manifest.kernels) > 1 else ''}"
        typer.echo(
            f"{made}: {kernels} for {', '.join(manifest.archs)}, {size / 2**20:.1f} MiB,"
            f" for {manifest.host} hosts"
            + (f" with glibc {manifest.needs['GLIBC']}" if "GLIBC" in manifest.needs else "")
        )


def _summary(made: Path, manifest: Manifest, size: int) -> dict[str, Any]:
    return {
        "path": str(made),
        "host": manifest.host,
        "abi": manifest.abi,
        "needs": dict(manifest.needs),
        "archs": list(manifest.archs),
        "left_out": dict(manifest.left_out),
        "kernels": [kernel.name for kernel in manifest.kernels],
        "bytes": size,
    }


VERBS = {"export": export_kernels}
