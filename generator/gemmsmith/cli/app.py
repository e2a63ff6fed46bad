"""The application that the verbs belong to, and how it tells errors."""

from __future__ import annotations

import logging
import warnings
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import gemmsmith
from gemmsmith.cli import (
    attending,
    bundles,
    choosing,
    configurations,
    kernels,
    machine,
    matrix,
    reducing,
)
from gemmsmith.errors import ConfigError, GemmsmithError, SettingError, UnknownArchitectureError

_USER_INPUT = (ConfigError, SettingError, UnknownArchitectureError)
_EXTRAS = {"torch": "torch", "transformers": "models", "gguf": "models", "safetensors": "models"}


class _Group(TyperGroup):
    """Tells an error of the package as its sentence: exit code 2 for input, 1 for all else."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except GemmsmithError as error:
            if ctx.params["debug"]:
                raise
            typer.echo(f"error: {error}", err=True)
            raise typer.Exit(2 if isinstance(error, _USER_INPUT) else 1) from error
        except ModuleNotFoundError as error:
            extra = _EXTRAS.get(error.name or "")
            if ctx.params["debug"] or extra is None:
                raise
            typer.echo(
                f"error: this needs {error.name}: pip install 'gemmsmith[{extra}]'", err=True
            )
            raise typer.Exit(1) from error


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"gemmsmith {gemmsmith.__version__}")
        raise typer.Exit


def _global_options(
    *,
    debug: Annotated[bool, typer.Option(help="Show the traceback of an error.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log what is done.")] = False,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Tensor-core GEMMs from YAML files: generated as CUTLASS kernels, called from PyTorch."""
    logging.basicConfig(
        format="%(levelname)s: %(message)s",
        level=logging.DEBUG if debug else logging.INFO if verbose else logging.WARNING,
    )
    warnings.showwarning = lambda message, *_: typer.echo(f"warning: {message}", err=True)


app = typer.Typer(
    name="gemmsmith",
    cls=_Group,
    callback=_global_options,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for module in (machine, choosing, attending, reducing, configurations, kernels, matrix, bundles):
    for verb, command in module.VERBS.items():
        app.command(verb)(command)


def main() -> None:
    """Run the command line with the arguments of this process."""
    app(prog_name="gemmsmith")
