"""Races run one after the other, each told and written when it is done."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path

from gemmsmith.bench.race import Race, RaceReport, Rivalry
from gemmsmith.bench.race_text import race_line
from gemmsmith.bench.report import Environment


def run_races(
    races: Iterable[Race],
    *,
    environment: Environment,
    notes: str,
    rivalries: tuple[Rivalry, ...],
    json_path: Path | None,
    progress: Callable[[str], None],
) -> RaceReport:
    """Return the report of ``races``, written to ``json_path`` anew after each of them.

    ``progress`` is called with a line of each before that.
    """
    done: list[Race] = []
    if json_path is not None:
        json_path.parent.mkdir(parents=True, exist_ok=True)
    report = RaceReport(environment=environment, notes=notes, rivalries=rivalries, races=())
    for race in races:
        done.append(race)
        progress(race_line(race))
        report = RaceReport(
            environment=environment, notes=notes, rivalries=rivalries, races=tuple(done)
        )
        if json_path is not None:
            json_path.write_text(json.dumps(report.as_json(), indent=1) + "\n", encoding="utf-8")
    return report
