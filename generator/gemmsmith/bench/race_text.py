"""Reports of races as text: tables that read alike in a terminal and as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from gemmsmith.bench.race import Race, RaceReport, Rivalry
from gemmsmith.bench.report_text import power_line, table


def race_report(report: RaceReport, *, compact: bool = False) -> str:
    """Return every race with its times and ratios, then the rivalries' standings and the faults.

    ``compact`` leaves the single races out.
    """
    sections = dict.fromkeys(race.section for race in report.races)
    tables = [] if compact else [_section(report, section) for section in sections]
    parts = [
        str(report.environment),
        power_line(report.races),
        report.notes,
        *tables,
        _standings(report),
        _figures(report),
        _faults(report),
    ]
    return "\n\n".join(part for part in parts if part)


def race_line(race: Race) -> str:
    """Return one race in one line, for progress."""
    times = [f"{arm} {race.comparison.median(arm):.1f} µs" for arm in race.comparison.samples]
    times += [f"{arm}: WRONG" for arm in race.wrong]
    times += [f"{arm}: no kernel" for arm in race.missing]
    figures = [f"{name} {value:.2f}" for name, value in race.figures.items()]
    return f"{race.words}: {', '.join([*times, *figures])}"


def _section(report: RaceReport, section: str) -> str:
    races = [race for race in report.races if race.section == section]
    rivalries = [rivalry for rivalry in report.rivalries if rivalry.section == section]
    arms = list(
        dict.fromkeys(
            arm for race in races for arm in (*race.comparison.samples, *race.wrong, *race.missing)
        )
    )
    figures = list(dict.fromkeys(name for race in races for name in race.figures))
    head = [section, "M", "N", "K", *(f"{arm} µs" for arm in arms)]
    head += [_words(rivalry) for rivalry in rivalries] + figures + ["kernels"]
    return table(head, [_line(race, arms, rivalries, figures) for race in races])


def _line(
    race: Race, arms: Sequence[str], rivalries: Sequence[Rivalry], figures: Sequence[str]
) -> list[str]:
    cells = [race.label, str(race.m), str(race.n), str(race.k)]
    cells += [_time(race, arm) for arm in arms]
    for rivalry in rivalries:
        ratio = race.ratio(rivalry.over, rivalry.under)
        doubt = "" if race.comparison.converged else " ~"
        cells.append("" if ratio is None else f"{ratio}{doubt}")
    cells += [f"{race.figures[name]:.2f}" if name in race.figures else "" for name in figures]
    return [*cells, " ".join(dict.fromkeys(race.kernels.values()))]


def _time(race: Race, arm: str) -> str:
    found = race.microseconds(arm)
    if found is not None:
        return f"{found:.1f}"
    return "WRONG" if arm in race.wrong else "no kernel" if arm in race.missing else ""


def _words(rivalry: Rivalry) -> str:
    return f"{rivalry.over} / {rivalry.under}"


def _standings(report: RaceReport) -> str:
    head = ["rivals", "of", "group", "geomean", "worst", "worst at", "races"]
    lines = [
        [
            _words(standing.rivalry),
            standing.rivalry.section,
            standing.group,
            f"{standing.geomean:.3f}",
            f"{standing.worst_ratio:.3f}",
            f"{standing.worst.label} M={standing.worst.m}",
            f"{standing.count}" + (f" (+{standing.without} without)" if standing.without else ""),
        ]
        for standing in report.standings
    ]
    return table(head, lines) if lines else ""


def _figures(report: RaceReport) -> str:
    names = dict.fromkeys((race.section, name) for race in report.races for name in race.figures)
    lines = []
    for section, name in names:
        found = [
            r.figures[name] for r in report.races if r.section == section and name in r.figures
        ]
        told = [f"{value:.2f}" for value in (fmean(found), min(found), max(found))]
        lines.append([name, section, *told, str(len(found))])
    return table(["figure", "of", "mean", "least", "most", "races"], lines) if lines else ""


def _faults(report: RaceReport) -> str:
    lines = [f"- {race.words}: {arm}: {why}" for race, arm, why in report.wrong]
    lines += [
        f"- {race.words}: {arm}: no kernel: {why}"
        for race in report.races
        for arm, why in race.missing.items()
    ]
    return "Not timed:\n\n" + "\n".join(lines) if lines else ""
