from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import gemmsmith
from attention_data import exact, tokens
from gemmsmith.bench import attention, attention_cases, judged
from gemmsmith.bench.attention_cases import CASES, AttentionCase, decode, exact_attention, prefill
from gemmsmith.bench.race import Race, RaceReport
from gemmsmith.bench.race_text import race_line, race_report
from gemmsmith.errors import LaunchError, MeasureError, NoDeviceError
from race_data import ENVIRONMENT, without_gpu

US = {
    "torch views": 20.0,
    "torch contiguous": 18.0,
    "gemmsmith": 16.0,
    "gemmsmith constant_cache": 12.0,
}
TINY = tuple(
    AttentionCase(
        batch=batch,
        queries=queries,
        keys=keys,
        heads=4,
        kv_heads=2,
        head_dim=head_dim,
        causal=causal,
    )
    for batch, queries, keys, head_dim, causal in (
        (1, 40, 40, 128, True),
        (1, 40, 40, 128, False),
        (1, 33, 33, 64, True),
        (1, 1, 50, 128, True),
        (3, 1, 20, 128, True),
    )
)


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    torch.manual_seed(1)
    record = SimpleNamespace(name="chosen", reason="")
    monkeypatch.setattr(gemmsmith, "last_kernel", lambda: record, raising=False)
    monkeypatch.setattr(
        attention,
        "rotating",
        lambda make, size, between: (make(), make()) if between else (make(),),
    )
    return without_gpu(monkeypatch, US.__getitem__)


def races(cases: tuple[AttentionCase, ...] = TINY) -> tuple[Race, ...]:
    return tuple(attention.race_attention(cases, seconds=0.1, device="cpu"))


def test_every_case_is_raced(timed: list[list[str]]) -> None:
    found = races()
    assert timed == [list(US)[:3]] * 3 + [list(US)] * 2
    assert [race.words for race in found] == [
        "prefill d128 causal 40x40x128",
        "prefill d128 full 40x40x128",
        "prefill d64 causal 33x33x64",
        "decode d128 50 keys 1x50x128",
        "decode d128 20 keys 3x20x128",
    ]
    for race in found:
        assert race.wrong == race.missing == {}
        assert race.microseconds("best torch") == 18.0
        assert set(race.kernels.values()) == {"chosen"}
        errors = [race.figures[f"{arm} error %"] for arm in race.kernels]
        assert all(0 < error < 1 for error in errors)


def test_rates_are_work_over_time(timed: list[list[str]]) -> None:
    causal, full, _, step, steps = races()
    assert len(timed) == 5
    assert causal.figures["gemmsmith TFLOP/s"] == 4 * 4 * 128 * (40 * 41 // 2) / 16 / 1e6
    assert full.figures["gemmsmith TFLOP/s"] == 4 * 4 * 128 * 40 * 40 / 16 / 1e6
    assert full.figures["best torch TFLOP/s"] == pytest.approx(0.18204444444)
    moved = 2 * (2 * 50 * 2 * 128 + 2 * 4 * 128)
    assert step.figures["gemmsmith TB/s"] == moved / 16 / 1e6
    assert step.figures["gemmsmith constant_cache TB/s"] == moved / 12 / 1e6
    assert steps.figures["best torch TB/s"] == 3 * 2 * (2 * 20 * 2 * 128 + 2 * 4 * 128) / 18 / 1e6
    assert "gemmsmith TB/s" not in full.figures
    assert "best torch 18.0 µs" in race_line(full)


def test_groups_are_summed_up(timed: list[list[str]]) -> None:
    report = RaceReport(
        environment=ENVIRONMENT,
        notes=attention.NOTES,
        rivalries=attention.RIVALRIES,
        races=races(),
    )
    found = {(s.rivalry.section, s.group, s.rivalry.under): s for s in report.standings}
    assert {key: (round(s.geomean, 3), s.count) for key, s in found.items()} == {
        ("prefill d128", "all", "gemmsmith"): (1.125, 2),
        ("prefill d64", "all", "gemmsmith"): (1.125, 1),
        ("decode d128", "all", "gemmsmith"): (1.125, 2),
        ("decode d128", "M = 1", "gemmsmith"): (1.125, 1),
        ("decode d128", "all", "gemmsmith constant_cache"): (1.5, 2),
        ("decode d128", "M = 1", "gemmsmith constant_cache"): (1.5, 1),
    }
    assert len(timed) == 5
    text = race_report(report)
    assert "| best torch / gemmsmith constant_cache |" in text
    assert "| 20 keys " in text


def test_what_is_wrong_is_not_timed(
    timed: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    right = gemmsmith.attention

    def spoiled(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **how: Any) -> torch.Tensor:
        if how.pop("constant_cache", False):
            raise LaunchError("refused")
        out = right(q, k, v, **how)
        out[0, -1, 2, 5] += 0.5
        return out

    monkeypatch.setattr(gemmsmith, "attention", spoiled)
    (race,) = races(TINY[4:])
    assert timed == [["torch views", "torch contiguous"]]
    assert race.wrong["gemmsmith"].startswith("row 2, column 5: ")
    assert race.wrong["gemmsmith constant_cache"] == "LaunchError: refused"
    assert set(race.figures) == {
        "best torch TB/s",
        "torch views error %",
        "torch contiguous error %",
    }


def test_what_torch_computes_is_missing(
    timed: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    record = SimpleNamespace(name="torch", reason="there is no kernel")
    monkeypatch.setattr(gemmsmith, "last_kernel", lambda: record)
    (race,) = races(TINY[:1])
    assert timed == [["torch views", "torch contiguous"]]
    assert race.missing == {"gemmsmith": "there is no kernel"}


def test_without_torch_there_is_no_best(
    timed: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        attention,
        "scaled_dot_product_attention",
        lambda q, k, v, **how: torch.full_like(q, math.nan),
    )
    (race,) = races(TINY[:1])
    assert timed == [["gemmsmith"]]
    assert race.wrong["torch views"] == "20480 of 20480 elements are NaN or were not written"
    assert race.ratio("best torch", "gemmsmith") is None


@pytest.mark.usefixtures("timed")
def test_nothing_to_time_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judged, "judge", lambda *given: ("off", math.nan))
    with pytest.raises(MeasureError, match="nothing can be timed at prefill d128 causal 40x40"):
        races(TINY[:1])


def test_cases_are_those_of_llama() -> None:
    assert len(set(CASES)) == len(CASES) == 37
    assert sum(case.decodes for case in CASES) == 13
    assert {case.head_dim for case in CASES if case.decodes} == {128, 64}
    case = prefill(16384, 128, causal=True)
    assert case.flops == 2 * 32 * 128 * 16384 * 16385
    assert prefill(16384, 128, causal=False).flops == 4 * 32 * 128 * 16384**2
    step = decode(16, 16384)
    assert step.cache_bytes == 2 * 16 * 16384 * 8 * 128 * 2
    assert step.bytes == step.cache_bytes + 2 * 16 * 32 * 128 * 2
    assert step.pairs == 16 * 16384
    q, k, v = attention_cases.new_operands(decode(2, 7), "cpu")
    assert (q.shape, k.shape) == ((2, 1, 32, 128), (2, 7, 8, 128))
    assert k.data_ptr() != v.data_ptr()


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("queries", "keys"), [(9, 9), (1, 13), (4, 11)])
def test_the_reference_is_right_in_pieces(
    monkeypatch: pytest.MonkeyPatch, queries: int, keys: int, causal: bool
) -> None:
    q, k, v = tokens(2, queries, keys, 6, 2, 16)
    right = exact(q, k, v, causal=causal)
    for scores in (1, 3 * keys * 2, 1 << 20):
        monkeypatch.setattr(attention_cases, "_SCORES", scores)
        found = exact_attention(q, k, v, causal=causal)
        torch.testing.assert_close(found.double(), right, rtol=1e-5, atol=1e-6)


@pytest.mark.skipif(torch.cuda.is_available(), reason="is about machines without a GPU")
def test_no_gpu_is_told() -> None:
    with pytest.raises(NoDeviceError, match="a benchmark needs a GPU"):
        attention.run_attention()
