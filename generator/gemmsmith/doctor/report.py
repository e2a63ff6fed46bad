"""The form of what ``examine`` finds."""

from __future__ import annotations

import textwrap
from dataclasses import asdict, dataclass
from typing import Any, Literal

import gemmsmith

Status = Literal["ok", "warning", "error"]

_WIDTH = 100
_COLUMN = 24  # where the findings' text begins


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The state of one thing that building or calling kernels needs."""

    name: str
    """What was examined, for example ``nvcc``."""
    status: Status
    """``error`` where a build would fail, ``warning`` where something else would."""
    found: str
    """What there is, with versions and paths, or what is wrong."""
    fix: str = ""
    """What to do about it; empty where all is well."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """All findings about this machine."""

    findings: tuple[Finding, ...]

    @property
    def can_build(self) -> bool:
        """Whether a build of kernels would find all that it needs."""
        return all(finding.status != "error" for finding in self.findings)

    def as_dict(self) -> dict[str, Any]:
        """Return the report as plain values, for JSON."""
        return {
            "gemmsmith": gemmsmith.__version__,
            "can_build": self.can_build,
            "findings": [asdict(finding) for finding in self.findings],
        }


def render_text(report: Report) -> str:
    """Return the report for a terminal or an issue: one paragraph a finding, fixes below."""
    lines: list[str] = []
    for finding in report.findings:
        head = f"{finding.status:<8} {finding.name}"
        lines += _paragraph(f"{head:<{_COLUMN}}", finding.found)
        if finding.fix:
            lines += _paragraph(" " * _COLUMN, f"fix: {finding.fix}")
    errors = [finding.name for finding in report.findings if finding.status == "error"]
    verdict = f"a build would fail: {', '.join(errors)}" if errors else "ready to build"
    return "\n".join([f"gemmsmith {gemmsmith.__version__}", *lines, verdict])


def _paragraph(head: str, text: str) -> list[str]:
    return textwrap.wrap(
        text,
        width=_WIDTH,
        initial_indent=head,
        subsequent_indent=" " * _COLUMN,
        break_long_words=False,
        break_on_hyphens=False,
    )
