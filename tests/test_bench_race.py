from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import gemmsmith
from gemmsmith.bench import int8, race, rivals
from gemmsmith.bench.model_shapes import LinearShape, ModelShapes, load_model
from gemmsmith.bench.race import Entrants, RaceReport, Rivalry
from gemmsmith.bench.race_run import run_races
from gemmsmith.bench.race_text import race_line, race_report
from gemmsmith.bench.tasks import Task, make_task
from gemmsmith.errors import LaunchError, MeasureError, NoDeviceError, NoKernelError
from race_data import ENVIRONMENT, race_of, without_gpu

RIVALRIES = (
    Rivalry(section="int8", over="torch", under="gemmsmith"),
    Rivalry(section="int8", over="bf16", under="gemmsmith", groups=("M >= 512",)),
)
RACES = (
    race_of(1, {"torch": 16.0, "gemmsmith": 10.0}, kernels={"gemmsmith": "k1"}),
    race_of(64, {"torch": 9.0, "gemmsmith": 10.0}),
    race_of(512, {"torch": 40.0, "gemmsmith": 20.0, "bf16": 38.0}),
    race_of(2048, {"torch": 250.0, "gemmsmith": 100.0, "bf16": 180.0}),
    race_of(8192, {"torch": 900.0}, wrong={"gemmsmith": "row 3 is off"}, missing={"bf16": "K=7"}),
)
REPORT = RaceReport(environment=ENVIRONMENT, notes="what it is", rivalries=RIVALRIES, races=RACES)


def test_standings_have_geomean_and_worst_of_each_group() -> None:
    found = {(s.rivalry.over, s.group): s for s in REPORT.standings}
    assert list(found) == [
        ("torch", "M >= 512"),
        ("torch", "M <= 64"),
        ("torch", "all"),
        ("bf16", "M >= 512"),
    ]
    large, small = found["torch", "M >= 512"], found["torch", "M <= 64"]
    assert large.geomean == pytest.approx(math.sqrt(2.0 * 2.5))
    assert (large.worst_ratio, large.worst.m) == (2.0, 512)
    assert (large.count, large.without) == (2, 1)
    assert small.geomean == pytest.approx(math.sqrt(1.6 * 0.9))
    assert (small.worst_ratio, small.worst.m, small.without) == (0.9, 64, 0)
    assert found["torch", "all"].count == 4
    assert found["bf16", "M >= 512"].geomean == pytest.approx(math.sqrt(1.9 * 1.8))


def test_report_tells_every_race_and_what_was_not_timed() -> None:
    text = race_report(REPORT)
    assert "what it is" in text
    line = next(line for line in text.splitlines() if line.startswith("| tiny qkv |    1 |"))
    assert [cell.strip() for cell in line.strip("|").split("|")] == [
        *["tiny qkv", "1", "1000", "500", "16.0", "10.0", ""],
        *["1.600 [1.600, 1.600]", "", "k1"],
    ]
    assert "- int8 tiny qkv 8192x1000x500: gemmsmith: row 3 is off" in text
    assert "- int8 tiny qkv 8192x1000x500: bf16: no kernel: K=7" in text
    assert "2 (+1 without)" in text
    assert "2.236" in text
    assert "passed" not in text.lower()
    short = race_report(REPORT, compact=True)
    assert "2.236" in short
    assert "16.0" not in short


def test_a_line_of_progress() -> None:
    assert race_line(RACES[4]) == (
        "int8 tiny qkv 8192x1000x500: torch 900.0 µs, gemmsmith: WRONG, bf16: no kernel"
    )


def test_json_holds_standings_and_samples(tmp_path: Path) -> None:
    path = tmp_path / "new" / "out.json"
    seen: list[str] = []
    made = run_races(
        iter(RACES),
        environment=ENVIRONMENT,
        notes="",
        rivalries=RIVALRIES,
        json_path=path,
        progress=seen.append,
    )
    assert made.races == RACES
    assert seen == [race_line(one) for one in RACES]
    data = json.loads(path.read_text())
    assert data["environment"]["copy_gbs"] == 4000.0
    assert data["standings"][0]["over"] == "torch"
    assert data["standings"][0]["worst"] == 2.0
    assert data["races"][0]["us"] == {"torch": 16.0, "gemmsmith": 10.0}
    assert data["races"][0]["comparison"]["arms"]["torch"]["samples_us"] == [16.0] * 6
    assert data["races"][4]["wrong"] == {"gemmsmith": "row 3 is off"}


@pytest.fixture
def small_task(monkeypatch: pytest.MonkeyPatch) -> Task:
    without_gpu(monkeypatch, lambda arm: 1.0)
    record = SimpleNamespace(name="chosen", reason="")
    monkeypatch.setattr(gemmsmith, "last_kernel", lambda: record, raising=False)
    return make_task(20, 64, 32, torch.int8, device="cpu")


def test_only_right_arms_enter(small_task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    entrants = Entrants()
    entrants.torch("torch", small_task, rivals.eager_arm(small_task))
    entrants.ours("ours", small_task)
    entrants.torch("zeros", small_task, [lambda: torch.zeros(20, 64)])
    found = entrants.race("int8", "tiny", (20, 64, 32), seconds=0.1)
    assert list(found.comparison.samples) == ["torch", "ours"]
    assert found.kernels == {"ours": "chosen"}
    assert found.wrong["zeros"].startswith("row ")


@pytest.mark.parametrize(
    ("error", "wrong", "missing"),
    [
        (LaunchError("status 7"), {"ours": "LaunchError: status 7"}, {}),
        (NoKernelError("nothing fits"), {}, {"ours": "nothing fits"}),
    ],
)
def test_failures_and_absences_are_told_apart(
    small_task: Task,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    wrong: dict[str, str],
    missing: dict[str, str],
) -> None:
    def fail(*args: object, **options: object) -> None:
        raise error

    monkeypatch.setattr(gemmsmith, "gemm", fail, raising=False)
    entrants = Entrants()
    entrants.ours("ours", small_task)
    assert (entrants.arms, entrants.wrong, entrants.missing) == ({}, wrong, missing)
    with pytest.raises(MeasureError, match="nothing can be timed at int8 tiny 20x64x32: ours: "):
        entrants.race("int8", "tiny", (20, 64, 32), seconds=0.1)


def test_what_torch_took_is_missing(small_task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    record = SimpleNamespace(name="torch", reason="the kernel takes no scales")
    monkeypatch.setattr(gemmsmith, "last_kernel", lambda: record, raising=False)
    entrants = Entrants()
    entrants.ours("ours", small_task)
    assert entrants.missing == {"ours": "the kernel takes no scales"}
    assert not entrants.arms


def test_int8_grid_goes_weight_by_weight() -> None:
    models = [load_model("llama3-8b"), load_model("llama3-70b")]
    cases = int8.plan_int8(models, (512, 1, 1))
    assert len(cases) == 2 * 4 * 2
    assert [(c.label, c.m, c.n, c.k) for c in cases[:3]] == [
        ("llama3-8b qkv", 1, 6144, 4096),
        ("llama3-8b qkv", 512, 6144, 4096),
        ("llama3-8b attn_out", 1, 4096, 4096),
    ]
    assert (cases[-1].label, cases[-1].n, cases[-1].k) == ("llama3-70b down", 8192, 28672)


@pytest.mark.usefixtures("small_task")
def test_int8_races_torch_and_our_bf16(monkeypatch: pytest.MonkeyPatch) -> None:
    times = {"torch": 20.0, "gemmsmith": 10.0, "gemmsmith bf16": 19.0}
    timed = without_gpu(monkeypatch, times.__getitem__)
    monkeypatch.setattr(int8, "compiled_arm", rivals.eager_arm)
    shapes = (LinearShape(op="qkv", n=64, k=32), LinearShape(op="down", n=32, k=64))
    cases = int8.plan_int8([ModelShapes(model="tiny", shapes=shapes)], (1, 40))
    races = tuple(int8.race_int8(cases, seconds=0.1, device="cpu"))
    assert timed == [["torch", "gemmsmith", "gemmsmith bf16"]] * 4
    assert [race.words for race in races][:2] == ["int8 tiny qkv 1x64x32", "int8 tiny qkv 40x64x32"]
    report = RaceReport(environment=ENVIRONMENT, notes="", rivalries=int8.RIVALRIES, races=races)
    assert [round(s.geomean, 3) for s in report.standings if s.group == "all"] == [2.0, 1.9]
    assert not report.wrong


@pytest.mark.skipif(torch.cuda.is_available(), reason="is about machines without a GPU")
def test_no_gpu_is_told() -> None:
    with pytest.raises(NoDeviceError, match="a benchmark needs a GPU"):
        int8.run_int8(["smollm2-135m"])


def test_groups_are_known() -> None:
    assert {group for rivalry in int8.RIVALRIES for group in rivalry.groups} <= set(race.GROUPS)
