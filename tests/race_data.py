"""Races with invented times, and a stand-in for the GPU's clock."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from gemmsmith.bench import race, tasks
from gemmsmith.bench.graphs import Arm
from gemmsmith.bench.race import Race
from gemmsmith.bench.report import Environment
from gemmsmith.bench.rounds import Comparison

ENVIRONMENT = Environment(
    gpu="NVIDIA H200",
    sm_count=132,
    driver="580.95",
    torch="2.11.0",
    cuda="13.0",
    cutlass="4.2.0.0",
    gemmsmith="0.1.0",
    commit="abc123",
    copy_gbs=4000.0,
    matmul_tflops=790.0,
)


def compared(times: Mapping[str, float]) -> Comparison:
    return Comparison(
        samples={arm: (us,) * 6 for arm, us in times.items()},
        baseline=next(iter(times)),
        converged=True,
        seconds=1.0,
    )


def race_of(m: int, times: Mapping[str, float], **more: Any) -> Race:
    given = {"section": "int8", "label": "tiny qkv", "n": 1000, "k": 500, **more}
    return Race(m=m, comparison=compared(times), **given)


def without_gpu(monkeypatch: pytest.MonkeyPatch, us: Callable[[str], float]) -> list[list[str]]:
    """Run each arm once on the CPU in place of timing it; return the arms of each race."""
    timed: list[list[str]] = []

    def compare(arms: Mapping[str, Arm], **options: object) -> Comparison:
        for arm in arms.values():
            for call in arm:
                call()
        timed.append(list(arms))
        return compared({arm: us(arm) for arm in arms})

    monkeypatch.setattr(race, "compare", compare)
    monkeypatch.setattr(tasks, "rotating", lambda make, size: (make(), make()))
    return timed
