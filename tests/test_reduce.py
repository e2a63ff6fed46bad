"""Few kernels that lose little: the cover, its limits, and the file that is written."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from fakes import ampere, hopper
from gemmsmith.arch import SM_90A
from gemmsmith.cli.app import app
from gemmsmith.config import load_specs
from gemmsmith.dtypes import BF16, FP16
from gemmsmith.errors import MeasureError
from gemmsmith.resources import configs_dir
from gemmsmith.spec_yaml import families_yaml
from gemmsmith.tables import forget_tables
from gemmsmith.tune.gather import gather
from gemmsmith.tune.reduce import reduce_set
from gemmsmith.tune.reduce_text import reduction_text
from gemmsmith.tuned import TORCH, Entry, identified
from real_kernels import LEAN, LEAN_DEPENDENT
from tuned_data import entry, table, timing

A, B, C = hopper(128), hopper(192), hopper(256)
NAME = {identified(spec): word for spec, word in ((A, "A"), (B, "B"), (C, "C"))}


def shape(m: int, a: float = 0, b: float = 0, c: float = 0, **more: Any) -> Entry:
    given = ((A, a), (B, b), (C, c))
    rows = sorted(
        (timing(spec, ratio) for spec, ratio in given if ratio), key=lambda each: -each.ratio
    )
    return entry(rows, m=m, **more)


def kept(entries: list[Entry], loss: float, worst: float = 0.5) -> str:
    found = reduce_set(entries, loss=loss, worst=worst)
    assert found.loss <= loss + 1e-9
    assert found.worst.loss <= worst + 1e-9
    return "".join(sorted(NAME[kernel] for kernel in found.kernels))


def test_the_smallest_set_for_each_loss() -> None:
    entries = [
        shape(16, a=1.20, b=1.18, c=1.00),
        shape(64, a=1.00, b=1.10, c=1.12),
        shape(256, a=0.80, b=1.05, c=1.06),
    ]
    assert kept(entries, 0.0) == "AC"
    assert kept(entries, 0.02) == "B"
    assert kept(entries, 0.001) == "AC"
    assert kept(entries, 0.5, worst=0.0) == "AC"
    assert kept(entries, 0.5, worst=0.02) == "B"


def test_a_shape_that_was_not_timed_with_a_kernel_is_not_covered_by_it() -> None:
    entries = [shape(16, a=1.2, b=1.199), shape(64, a=1.2, b=1.199), shape(256, c=1.0)]
    assert kept(entries, 0.1) in ("AC", "BC")
    assert kept([*entries, shape(512, b=1.1)], 0.1) == "BC"


def test_what_became_superfluous_is_dropped_again() -> None:
    # C alone is best at first, and A with B cover all of its shapes
    entries = [
        shape(1, a=1.0, c=0.95),
        shape(2, a=1.0, c=0.95),
        shape(4, b=1.0, c=0.95),
        shape(8, b=1.0, c=0.95),
    ]
    assert kept(entries, 0.01) == "AB"
    assert kept(entries, 0.06) == "C"


def test_entries_that_torch_wins_ask_for_nothing_and_unknown_kernels_do_not_count() -> None:
    lost = shape(64, a=0.9, winner=TORCH)
    found = reduce_set([shape(16, a=1.2, b=1.1), lost], loss=0.0, worst=0.0)
    assert (len(found.kernels), found.torch, len(found.losses)) == (1, 1, 1)
    known = {identified(B)}
    found = reduce_set([shape(16, a=1.2, b=1.1)], loss=0.0, worst=0.0, known=known)
    assert (found.kernels, found.loss) == ((identified(B),), 0.0)
    with pytest.raises(MeasureError, match="no entry of the tables is won by a kernel"):
        reduce_set([lost], loss=0.1, worst=0.1)


def test_no_kernel_of_the_set_can_be_left_out() -> None:
    rng = random.Random(1)
    specs = [hopper(16 * n) for n in range(1, 13)]
    entries = [
        entry([timing(spec, rng.uniform(0.9, 1.2)) for spec in rng.sample(specs, 8)], n=n)
        for n in range(1, 40)
    ]
    fixed = [each.model_copy(update={"winner": each.order()[0].kernel}) for each in entries]
    found = reduce_set(fixed, loss=0.02, worst=0.08)
    assert 1 < len(found.kernels) < 12
    for kernel in found.kernels:
        rest = set(found.kernels) - {kernel}
        losses = [
            max(each.ratio for each in one.timings)
            / max((each.ratio for each in one.timings if each.kernel in rest), default=1e-9)
            for one in fixed
        ]
        product = 1.0
        for factor in losses:
            product *= factor
        assert product ** (1 / len(losses)) > 1.02 or max(losses) > 1.08


def test_the_kernel_that_is_the_best_at_most_shapes_comes_first() -> None:
    """And not the one that is found first, because it can be used at all of them."""
    entries = [shape(8, c=1.0), *(shape(m, b=1.0, c=0.99) for m in (16, 32))]
    found = reduce_set(entries, loss=0.0, worst=0.0)
    assert found.kernels == (identified(B), identified(C))


def test_the_text_tells_the_loss_of_each_shape() -> None:
    text = reduction_text(
        reduce_set([shape(16, a=1.2, b=1.18), shape(64, b=1.1, a=1.0)], loss=0.02, worst=0.1)
    )
    assert f"| {B.name} |       2 |" in text
    assert "1.7% | 0.0% |" in text
    assert "1 of 2 kernels loses 0.84% in the geometric mean of 2 shapes, 1.7% at worst" in text


def test_a_written_file_describes_exactly_the_kernels(tmp_path: Path) -> None:
    every = load_specs(configs_dir() / "kernels")
    file = tmp_path / "k.yaml"
    file.write_text(families_yaml(every, "All of them.\nTwo lines."))
    assert set(load_specs(file)) == set(every)
    assert file.read_text().startswith("# All of them.\n# Two lines.\nfamilies:\n")
    file.write_text(families_yaml([A, B, hopper(64, swap=True), ampere()], "x", [FP16]))
    twins = load_specs(file)
    assert len(twins) == 8
    file.write_text(families_yaml([LEAN, LEAN_DEPENDENT, replace(LEAN, split_k=4)], "x"))
    assert "split_k: 4" in file.read_text()
    assert {spec.a.name for spec in twins} == {"bf16", "fp16"}


def test_the_verb_reads_tables_and_writes_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GEMMSMITH_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr("gemmsmith.nvml.devices", lambda: ())
    every = load_specs(configs_dir() / "kernels", arch=[SM_90A.name])
    first, second = [spec for spec in every if spec.a == BF16][:2]
    rows = [timing(first, 1.2), timing(second, 1.19)]
    path = table(
        tmp_path / "t.yaml",
        entry(rows, n=6144),
        entry([timing(second, 1.1)], m=512, n=6144),
        entry([timing(first, 1.1)], n=999),
    )
    written = tmp_path / "few.yaml"
    words = ["reduce", "--model", "llama3-8b", "--loss", "2%", "--write", str(written)]
    result = CliRunner().invoke(app, [*words, "--table", str(path), "--also", "fp16", "--json"])
    assert result.exit_code == 0, result.output
    facts = json.loads(result.stdout)
    assert facts["kernels"] == [identified(second)]
    assert [each["shape"] for each in facts["shapes"]] == [
        "64x6144x4096 bf16 rcr plain",
        "512x6144x4096 bf16 rcr plain",
    ]
    assert len(load_specs(written)) == 2
    monkeypatch.setenv("GEMMSMITH_TUNED", str(path))
    forget_tables()
    assert CliRunner().invoke(app, ["reduce", "--loss", "0.02"]).exit_code == 0
    assert CliRunner().invoke(app, ["reduce", "--loss", "x"]).exit_code == 2
    monkeypatch.setenv("GEMMSMITH_TUNED", "none")
    result = CliRunner().invoke(app, ["reduce"])
    assert (result.exit_code, "tune first" in result.output) == (1, False)
    assert "GEMMSMITH_TUNED is none, so that no table is in use" in result.output
    assert CliRunner().invoke(app, ["reduce", "--table", str(path)]).exit_code == 0


@pytest.fixture
def few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file to write, beside no table but those that are named."""
    monkeypatch.setenv("GEMMSMITH_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr("gemmsmith.nvml.devices", lambda: ())
    return tmp_path / "few.yaml"


def reduced(*words: object) -> Result:
    wide = {"COLUMNS": "400", "TERMINAL_WIDTH": "400"}
    return CliRunner().invoke(app, ["reduce", *map(str, words)], env=wide)


def test_kernels_that_rely_on_a_promise_are_written_where_it_is_asked_for(
    tmp_path: Path, few: Path
) -> None:
    every = load_specs(configs_dir() / "kernels", arch=[SM_90A.name])
    usual = next(spec for spec in every if spec.a == BF16 and not spec.constant_b)
    late = next(spec for spec in every if spec.constant_b)
    path = table(
        tmp_path / "t.yaml",
        entry([timing(usual, 1.2)]),
        entry([timing(late, 1.3), timing(usual, 1.1)], epilogue="constant"),
        entry([timing(late, 1.3)], m=16, epilogue="residual+constant"),
    )
    words = ["--table", path, "--write", few]
    plain = reduced(*words)
    assert plain.exit_code == 0, plain.output
    assert load_specs(few) == (usual,)
    assert "constant_b" not in few.read_text()
    assert "note: 2 entries of calls with constant_b left out: --constant-b" in plain.output
    promised = reduced(*words, "--constant-b")
    assert promised.exit_code == 0, promised.output
    assert set(load_specs(few)) == {usual, late}
    assert "# Some have constant_b: a call that names this set promises that" in few.read_text()
    assert "left out" not in promised.output
    one = entry([timing(late, 1.3)], epilogue="constant", n=6144)
    more = table(tmp_path / "more.yaml", entry([timing(usual, 1.2)], n=6144), one)
    of_a_model = reduced("--table", more, "--table", path, "--model", "llama3-8b")
    assert "note: 3 entries of calls with constant_b left out" in of_a_model.output
    of_another = reduced("--table", more, "--table", path, "--model", "qwen2.5-7b")
    assert "entries of calls" not in of_another.output
    of_another = reduced(*words, "--model", "yi-34b")
    assert of_another.exit_code == 1
    assert of_another.output.endswith(
        "\nno entry is of a weight of the models that --model names\n"
    )
    path = table(tmp_path / "t.yaml", entry([timing(late, 1.3)], epilogue="constant"))
    nothing = reduced("--table", path)
    assert (nothing.exit_code, "1 entry of calls with constant_b left" in nothing.output) == (
        1,
        True,
    )


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            ["--write", "nodir/x.yaml"],
            "there is no folder nodir; name a file in a folder that is there",
        ),
        (["--write", "/"], "is a folder; name a file"),
        (["--write", "x.yaml", "--also", "int8"], "--also int8: use fp16 or bf16"),
        (["--write", "x.yaml", "--also", "fp99"], "--also fp99: use fp16 or bf16"),
        (["--also", "fp16"], "name a file with --write"),
    ],
)
def test_what_cannot_be_written_is_told_before_the_work(
    words: list[str], told: str, few: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gemmsmith.tune.gather.gather", lambda *a, **k: pytest.fail("worked"))
    result = reduced(*words)
    assert result.exit_code == 2
    assert told in result.output
    assert isinstance(result.exception, SystemExit)


def test_a_table_of_another_gpu_is_named_in_the_file_and_noted(tmp_path: Path, few: Path) -> None:
    every = load_specs(configs_dir() / "kernels", arch=[SM_90A.name])
    spec = next(each for each in every if each.a == BF16 and not each.constant_b)
    row = entry([timing(spec, 1.2)])
    path = table(tmp_path / "t.yaml", row, gpu="NVIDIA H100 PCIe", sm_count=114)
    result = reduced("--table", path, "--write", few)
    assert result.exit_code == 0, result.output
    assert few.read_text().startswith(
        "# 1 kernel that loses 0.00%, 0.0% at worst,\n"
        "# against the best of 1 kernel at 1 shape on NVIDIA H100 PCIe.\n"
    )
    note = (
        f"note: {path}: is of NVIDIA H100 PCIe with 114 multiprocessors and sm_90a, not of NVIDIA"
        " H200 with 132 and capability 9.0; counted all the same"
    )
    assert note in result.output
    facts = json.loads(reduced("--table", path, "--json").stdout)
    assert [f"note: {each}" for each in facts["notes"]] == [note]
    same = reduced("--table", path, "--gpu", "NVIDIA H100 PCIe", "--sms", "114")
    assert "note:" not in same.output
    both = gather(
        [path, table(tmp_path / "u.yaml", row)], "NVIDIA H200", 132, (9, 0), constant_b=False
    )
    assert both.gpus == ("NVIDIA H100 PCIe", "NVIDIA H200")
    assert (len(both.entries), len(both.notes)) == (2, 1)
