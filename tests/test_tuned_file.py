"""Tuned tables as files: how they are written and read, and what is told of wrong ones."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from gemmsmith.choose import Tuning
from gemmsmith.errors import ConfigError
from gemmsmith.tuned import Timing, identified
from gemmsmith.tuned_file import add_entry, entry_line, read_table
from tuned_data import FAST, SPLIT, entry, table, timing


def test_a_table_comes_back_from_its_file_one_line_an_entry(tmp_path: Path) -> None:
    rows = [
        timing(FAST, 1.25, raster=1, swizzle=8, low=1.24, high=1.26),
        timing(SPLIT, 0.9, splits=3),
    ]
    won = entry(rows)
    path = table(tmp_path / "t.yaml", won, entry(m=128))
    read = read_table(path)
    assert read.entries == (won, entry(m=128))
    assert read.made.gpu == "NVIDIA H200"
    assert entry_line(won) in path.read_text()
    assert entry_line(won).count("\n") == 1
    later = entry(rows[1:], m=128)
    add_entry(path, later)
    assert read_table(path).entries == (won, later)


def test_a_table_without_entries_is_a_table(tmp_path: Path) -> None:
    path = table(tmp_path / "t.yaml")
    assert read_table(path).entries == ()
    add_entry(path, entry())
    assert read_table(path).entries == (entry(),)


def test_what_is_wrong_with_a_file_is_told_with_its_line(tmp_path: Path) -> None:
    path = table(tmp_path / "t.yaml", entry())
    good = path.read_text()
    for old, new, words in [
        ("format: 1", "format: 7", "is of format 7, this gemmsmith reads 1"),
        ("n: 4096", "n: many", r"t\.yaml:14: n: 'many' is not a whole number"),
        ("winner: torch", "victor: torch", r"t\.yaml:14: key 'winner' is missing"),
        ("winner: torch", "victor: torch", r"t\.yaml:14: unknown key 'victor'.* Legal keys: n, k,"),
        ("driver:", "drive:", r"t\.yaml:10: made: unknown key 'drive'; did you mean driver\?"),
        ("entries:", "entry:", r"t\.yaml:13: unknown key 'entry'; did you mean entries\?"),
        ("made:", "made: [", "is not valid YAML"),
        (
            "sm_count: 132",
            "sm_count: 132\n  sm_count: x",
            r"t\.yaml:7: key 'sm_count' is given twice",
        ),
    ]:
        assert old in good
        path.write_text(good.replace(old, new))
        with pytest.raises(ConfigError, match=words):
            read_table(path)
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        read_table(tmp_path / "gone.yaml")


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (
            "winner: gemm",
            "winner: other",
            r"winner: 'other_.* is neither torch nor a kernel of the",
        ),
        ("torch: 20.0", "torch: 0", r"torch: 0(\.0)? is not above 0"),
        ("us: 16.0", "us: -1.5", r"us: -1\.5 is not above 0"),
        ("ratio: 1.25", "ratio: 0.0", r"ratio: 0\.0 is not above 0"),
        ("ratio: 1.25", "ratio: .inf", r"ratio: .* does not fit here: .*finite"),
        ("m: 64", "m: 65", r"m: 65 is no bucket of M; use 1, 2, 4, .*, 8192"),
        ("n: 4096", "n: 4096, bias: true", r"unknown key 'bias'\. Legal keys: n, k, m,"),
        ("us: 16.0", "ms: 16.0", r"unknown key 'ms'.* Legal keys: kernel, raster,"),
        (
            "a: bf16",
            "a: bf15",
            r"a: 'bf15' is no element type of a; did you mean bf16\? Legal: fp16",
        ),
        ("a: bf16", "a: half", r"a: 'half' is no element type of a.* Legal: fp16, bf16, int8$"),
        (
            "d: bf16",
            "d: fp8",
            r"d: 'fp8' is no element type of d.*: fp16, bf16, fp32, int8, int32$",
        ),
        ("layout: rcr", "layout: xyz", r"layout: 'xyz' is no layout\. Legal: rcr, rrr, ccr, crr,"),
        (
            "epilogue: plain",
            "epilogue: plian",
            r"epilogue: 'plian' is no epilogue; did you mean plain\? Legal: plain, scaled, .*\+",
        ),
        (
            "epilogue: plain",
            "epilogue: residual+scaled",
            r"epilogue: 'residual\+scaled' is spelt scaled\+residual",
        ),
        ("us: 16.0", "us: 16.0, raster: 7", r"raster: 7 is not tried; use 1, 2, or rem"),
        ("us: 16.0", "us: 16.0, swizzle: 3", r"swizzle: 3 is not tried; use 1, 2, 4, 8,"),
        ("us: 16.0", "us: 16.0, splits: -1", r"splits: -1 is not tried; use 2, 3, 4, 6,"),
        (
            "us: 16.0",
            "us: 16.0, splits: 3",
            rf"splits: 3 goes with stream_k kernels; {FAST.name}@.* is none, remove the key",
        ),
        ("us: 16.0", "us: 16.0, low: 1.3", r"low: 1\.3 is above the ratio, 1\.25"),
        ("us: 16.0", "us: 16.0, low: .nan", r"low: .* does not fit here: .*finite"),
        ("us: 16.0", "us: 16.0, high: 1.2", r"high: 1\.2 is below the ratio, 1\.25"),
        ("n: 4096", "n: 4096, n: 8192", r"key 'n' is given twice, on line 14 and on line 14; rem"),
    ],
)
def test_values_that_no_tuning_gives_are_refused(
    tmp_path: Path, old: str, new: str, words: str
) -> None:
    path = table(tmp_path / "t.yaml", entry([timing(FAST, 1.25)]))
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    with pytest.raises(ConfigError, match=rf"t\.yaml:14: {words}") as caught:
        read_table(path)
    assert "pydantic" not in str(caught.value)


def test_knobs_go_with_kernels_that_have_them() -> None:
    lean = "gemm_bf16_rcr_8x64x128_c1x1_lean_swap_pdl_sm90a@33ddc443"
    for kernel, knobs, words in [
        (lean, {"raster": 1, "swizzle": 8}, "raster: 1 goes with pingpong and cooperative kernels"),
        (lean, {"swizzle": 8}, "swizzle: 8 goes with pingpong and cooperative kernels"),
        (identified(FAST), {"splits": 2}, "splits: 2 goes with stream_k kernels"),
    ]:
        with pytest.raises(ValidationError, match=f"{words}; {kernel} is n"):
            Timing(kernel=kernel, us=1.0, ratio=1.0, **knobs)
    assert timing(SPLIT, 1.0, splits=2, raster=1).tuning == Tuning(raster=1, splits=2)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty: one has the keys made and entries"),
        ("# nothing\n", "is empty: one has the keys made and entries"),
        ("some words\n", "is no tuned table: one has the keys made and entries"),
        ("- 1\n", "is no tuned table: one has the keys made and entries"),
        ("made:\nentries:\n", "made: no value; give one or remove the key"),
        ("{}\n", "key 'made' is missing"),
    ],
)
def test_a_file_that_is_no_table_is_told_so(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "t.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_table(path)
    assert str(caught.value).startswith(f"{path}:1: {words}")
    assert "\n" not in str(caught.value)
