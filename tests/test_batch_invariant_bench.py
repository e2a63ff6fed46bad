"""The benchmark of the batch-invariant mode, with invented times."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gemmsmith.bench.race import Entrants
from gemmsmith.bench.tasks import make_task
from race_data import ENVIRONMENT, without_gpu

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"


def test_both_choices_race_beside_torch(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import batch_invariant

    us = {"torch": 12.0, "gemmsmith": 10.0, "batch invariant": 15.0}
    timed = without_gpu(monkeypatch, us.__getitem__)
    monkeypatch.setattr(
        batch_invariant, "make_task", lambda m, n, k, dtype: make_task(m, n, k, dtype, device="cpu")
    )
    monkeypatch.setattr(batch_invariant, "exit_without_gpu", lambda: None)
    monkeypatch.setattr(batch_invariant, "environment_here", lambda: ENVIRONMENT)
    monkeypatch.setattr(Entrants, "ours", _as_a_gpu_would)
    monkeypatch.setattr(sys, "argv", ["x", "smollm2-135m", "-m", "3"])
    batch_invariant.main()
    printed = capsys.readouterr().out
    assert timed == [["torch", "gemmsmith", "batch invariant"]] * 4
    assert "batch invariant / gemmsmith | bf16" in printed
    assert "1.500" in printed


def _as_a_gpu_would(self: Entrants, name: str, task: object, kernels: str = "") -> None:
    """Enter the arm though the CPU has no kernels; its result is checked as on a GPU."""
    fault = task.run(kernels)  # type: ignore[attr-defined]
    self.enter(name, task.arm(kernels), fault)  # type: ignore[attr-defined]
