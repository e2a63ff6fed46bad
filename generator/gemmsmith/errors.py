"""Every failure that gemmsmith can report, one class a kind of failure.

A user's mistake is told as a sentence: where, what was found, what is legal, what to do.
``assert`` elsewhere in the package is for bugs of gemmsmith itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


class GemmsmithError(Exception):
    """Base of all errors that gemmsmith raises on purpose."""


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One thing wrong in a configuration file."""

    file: str
    """Path of the file as the user gave it."""
    line: int
    """1-based line of the key or value at fault; 0 where no line is known."""
    message: str
    """A sentence that names the key, the value found, and what would be legal."""

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}" if self.line else self.file
        return f"{where}: {self.message}"


class ConfigError(GemmsmithError, ValueError):
    """A configuration cannot be used; ``problems`` holds all that is wrong with it."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


@dataclass(frozen=True, kw_only=True)
class Objection:
    """Why a kernel cannot exist: one broken rule."""

    key: str
    """The field at fault, as in YAML (``tile``, ``stages``, ``cluster`` …)."""
    reason: str
    """The rule with the numbers in it."""
    fix: str = ""
    """The nearest legal edit; empty where there is none."""

    def __str__(self) -> str:
        return f"{self.key}: {self.reason}" + (f"; {self.fix}" if self.fix else "")


class IllegalKernelError(GemmsmithError, ValueError):
    """A kernel description breaks the rules of its architecture."""

    def __init__(self, objections: Sequence[Objection]) -> None:
        self.objections = tuple(objections)
        super().__init__("\n".join(str(objection) for objection in self.objections))


class UnknownArchitectureError(GemmsmithError, ValueError):
    """A word does not name an architecture that gemmsmith has kernels for."""


class RenderError(GemmsmithError):
    """A template asked for a value that it was not given, or cannot be read."""


class ToolchainError(GemmsmithError):
    """A tool that a build needs is missing, too old or does not fit the others."""


class CompileError(GemmsmithError):
    """A kernel did not compile, link, or come out as its description promises."""


class CacheError(GemmsmithError):
    """The kernel cache cannot be read or written."""


class BundleError(GemmsmithError):
    """A bundle of compiled kernels cannot be used on this machine, or not be written."""


class LoadError(GemmsmithError):
    """A compiled kernel library cannot be loaded in this process."""


class ArgumentError(GemmsmithError, ValueError):
    """A call's tensor or scalar cannot be used; the message names the argument."""


class ArgumentTypeError(ArgumentError, TypeError):
    """A call's argument is of the wrong kind: no tensor, wrong dtype, wrong device."""


class NoKernelError(GemmsmithError, LookupError):
    """No kernel of the set answers to that name, or none fits the call."""


class LaunchError(GemmsmithError, RuntimeError):
    """CUTLASS or CUDA refused a launch."""


class NoDeviceError(GemmsmithError):
    """A GPU is needed (``arch: auto``, measuring) and none was found."""


class MeasureError(GemmsmithError, RuntimeError):
    """A time cannot be taken in a way that would be true."""


class MissingPackageError(GemmsmithError, ModuleNotFoundError):
    """A package is not installed that what was asked for needs."""


class SettingError(GemmsmithError, ValueError):
    """An environment variable of gemmsmith holds a value that is not legal."""
