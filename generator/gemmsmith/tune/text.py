"""What a tuning run came to, as text and as plain types."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gemmsmith.bench.report import geomean
from gemmsmith.bench.report_text import table
from gemmsmith.tune.run import Outcome
from gemmsmith.tuned import FAIR, TORCH, Entry
from gemmsmith.wording import counted

BANDS: tuple[tuple[str, int, int], ...] = (
    ("M 1..32", 1, 32),
    ("M 64..96", 64, 96),
    ("M 128..1024", 128, 1024),
    ("M >= 2048", 2048, 1 << 40),
)


def outcome_json(outcome: Outcome, path: Path) -> dict[str, Any]:
    """Return everything in plain types."""
    return {
        "table": str(path),
        "seconds": round(outcome.seconds, 1),
        "measured": outcome.measured,
        "left": outcome.left,
        "skipped": list(outcome.skipped),
        "geomean": outcome.geomean,
        "own_share": outcome.own_share,
        "entries": [entry.model_dump(exclude_defaults=True) for entry in outcome.entries],
    }


def outcome_text(outcome: Outcome, path: Path) -> str:
    """Return a line for each weight and band of M, and where the table is."""
    weights = dict.fromkeys((e.n, e.k, e.a, e.epilogue) for e in outcome.entries)
    lines = [
        [f"{n}x{k} {a} {epilogue}"]
        + [
            _cell([e for e in outcome.entries if _of(e, n, k, a, epilogue) and low <= e.m <= high])
            for _, low, high in BANDS
        ]
        for n, k, a, epilogue in weights
    ]
    lines.append(
        ["all"]
        + [_cell([e for e in outcome.entries if low <= e.m <= high]) for _, low, high in BANDS]
    )
    head = ["torch / best kernel", *(f"{name}: geomean (worst)" for name, _, _ in BANDS)]
    summary = (
        f"{counted(outcome.measured, 'entry', 'entries')} measured in {outcome.seconds:.0f} s,"
        f" {len(outcome.entries)} in all; {outcome.own_share:.0%} won by our kernels (torch where"
        f" it is ahead by more than {1 - FAIR:.1%})"
    )
    parts = [table(head, lines), summary, f"table: {path}"]
    if outcome.left:
        left = counted(outcome.left, "entry", "entries")
        parts.append(f"the budget did not reach {left}: run it again to go on")
    parts += [f"skipped: {line}" for line in outcome.skipped]
    parts += [
        f"WRONG at {entry.key}: {', '.join(entry.wrong)}"
        for entry in outcome.entries
        if entry.wrong
    ]
    return "\n\n".join(parts[:2]) + "\n" + "\n".join(parts[2:])


def _of(entry: Entry, n: int, k: int, a: str, epilogue: str) -> bool:
    return (entry.n, entry.k, entry.a, entry.epilogue) == (n, k, a, epilogue)


def _cell(entries: Sequence[Entry]) -> str:
    ratios = [entry.timings[0].ratio for entry in entries if entry.timings]
    if not ratios:
        return ""
    torch = sum(entry.winner == TORCH for entry in entries)
    stays = f", torch {torch}x" if torch else ""
    return f"{geomean(ratios):.3f} ({min(ratios):.3f}{stays})"
