"""``gemmsmith tune`` with invented times: its table, its exit codes, several GPUs."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from typer.testing import CliRunner

from gemmsmith.choose import Choice
from gemmsmith.cli.app import app
from gemmsmith.config import load_specs
from gemmsmith.dtypes import BF16
from gemmsmith.errors import MeasureError
from gemmsmith.resources import configs_dir
from gemmsmith.tables import forget_tables, own_tables, tables_for
from gemmsmith.tune import start
from gemmsmith.tune.start import Request
from gemmsmith.tune.work import Job, Weight
from gemmsmith.tuned import TORCH, identified
from gemmsmith.tuned_file import read_table
from gpus import H200
from tune_data import JOB, FakeBenches

pytestmark = pytest.mark.usefixtures("empty_cache")


def test_tuning_needs_a_gpu() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    result = CliRunner().invoke(app, ["tune", "--model", "llama3-8b", "--budget", "60s"])
    assert result.exit_code == 1
    assert result.output.startswith("error: tuning needs a GPU and a CUDA build of torch; ")
    for words, part in [
        (["--weight", "4096"], "write N and K as in 6144x4096"),
        (["--weight", "64x64", "--budget", "soon"], "write 90, 90s or 5min"),
    ]:
        result = CliRunner().invoke(app, ["tune", *words], env={"COLUMNS": "200"})
        assert result.exit_code == 2
        assert part in result.output


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--file", "nope.yaml"), "nope.yaml: cannot be read: No such file"),
        (("--only-files",), "--only-files leaves no kernel: name some with --file"),
        (("--without", "nope"), "--without nope: no kernel of these is called that"),
        (
            ("--without", "gemm_bf16_rcr_128x128x64_c2x1_coop"),
            "is called that; did you mean gemm_bf16_r",
        ),
        (("--out", "taken/x.yaml"), "taken is a file; name a file in a folder that is there"),
        (("--out", "taken"), "taken: is no tuned table"),
    ],
)
def test_what_is_wrong_with_the_arguments_is_told_where_there_is_no_gpu_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], told: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(start, "device_here", lambda: pytest.fail("asked for the GPU first"))
    (tmp_path / "taken").write_text("mine")
    command = ["tune", "--weight", "4096x4096", *words]
    result = CliRunner().invoke(app, command, env={"COLUMNS": "200"})
    assert result.exit_code in (1, 2)
    assert told in result.output.replace("taken:1:", "taken:")


@pytest.fixture
def a_gpu(monkeypatch: pytest.MonkeyPatch) -> FakeBenches:
    """An H200 on which every kernel is built and wider tiles are faster."""
    benches = FakeBenches(lambda job, each: 1000.0 / each.spec.tile.n, noise=0.0)
    monkeypatch.setattr(start, "device_here", lambda: H200)
    monkeypatch.setattr(start, "GpuBenches", lambda: benches)
    monkeypatch.setattr(start, "find_built", lambda specs: dict.fromkeys(specs, Path("x.so")))
    monkeypatch.setattr(start, "find_cached", lambda specs: {})
    monkeypatch.delenv("GEMMSMITH_TUNED", raising=False)
    forget_tables()
    return benches


def test_the_verb_writes_a_table_that_later_choices_obey(
    a_gpu: FakeBenches, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["tune", "--weight", "4096x4096", "--m", "64", "--m", "256", "--json"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    facts = json.loads(result.stdout)
    assert (facts["measured"], facts["left"], facts["own_share"]) == (2, 0, 1.0)
    assert Path(facts["table"]).parent == own_tables()
    forget_tables()
    named = {spec.name: spec for spec in load_specs(configs_dir() / "kernels", arch=["sm_90a"])}
    tables = tables_for("NVIDIA H200", 132, (9, 0))
    chosen = next(tables.choices(JOB.problem, named, torch=True))
    assert isinstance(chosen, Choice)
    assert facts["entries"][1]["winner"] == identified(chosen.spec)
    again = CliRunner().invoke(app, words)
    assert json.loads(again.stdout)["measured"] == 0
    assert len(a_gpu.jobs) == 2
    promised = json.loads(CliRunner().invoke(app, [*words, "--constant-b"]).stdout)
    assert promised["measured"] == 2
    assert {each["epilogue"] for each in promised["entries"]} == {"constant"}
    text = CliRunner().invoke(app, [*words[:-1], "--again", "--budget", "1min"]).stdout
    assert "2 entries measured" in text
    assert "| 4096x4096 bf16 plain |" in text
    forget_tables()


def test_a_wrong_kernel_ends_the_verb_with_1(a_gpu: FakeBenches, tmp_path: Path) -> None:
    a_gpu.fault = lambda each: "NaN"
    out = tmp_path / "t.yaml"
    words = ["tune", "--weight", "4096x4096", "--m", "64", "--out", str(out)]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 1
    assert "WRONG at 64x4096x4096 bf16 rcr plain: gemm_bf16_" in result.stdout
    (entry,) = read_table(out).entries
    assert (entry.winner, entry.timings) == (TORCH, ())


def test_several_gpus_must_be_there_and_alike(
    a_gpu: FakeBenches, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds = [("NVIDIA H200", 132), ("NVIDIA H200", 132), ("NVIDIA T4", 40)]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr(
        torch.cuda,
        "get_device_properties",
        lambda index: SimpleNamespace(name=kinds[index][0], multi_processor_count=kinds[index][1]),
    )
    with pytest.raises(MeasureError, match="--gpus 3: 2 GPUs like the first are visible"):
        start.tune_here([JOB], Request(gpus=3))
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    other = Job(weight=Weight(n=64, k=64, dtype=BF16), m=16)  # the processes find no GPU here
    with pytest.raises(MeasureError, match=r"tuning ended early on GPU 0, 1 .* run again to go on"):
        start.tune_here([JOB, other], Request(gpus=2))
