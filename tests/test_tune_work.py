"""What there is to tune, of which kernels, and how GPUs share it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from gemmsmith.arch import SM_90A
from gemmsmith.buckets import BUCKETS
from gemmsmith.config import load_specs
from gemmsmith.dtypes import BF16, INT8
from gemmsmith.errors import ConfigError, MeasureError
from gemmsmith.resources import configs_dir
from gemmsmith.tune.start import Request, dealt, pool_of
from gemmsmith.tune.work import Job, Weight, jobs_of, weights_of
from tune_data import WEIGHT

pytestmark = pytest.mark.usefixtures("empty_cache")


def test_jobs_are_each_weight_of_the_models_once_at_every_bucket() -> None:
    weights = weights_of(["llama3-8b", "llama3-8b"], [(4096, 4096), (512, 256)])
    assert [(each.n, each.k) for each in weights] == [
        (6144, 4096),
        (4096, 4096),
        (28672, 4096),
        (4096, 14336),
        (512, 256),
    ]
    jobs = jobs_of(weights)
    assert [(job.weight.n, job.m) for job in jobs[:6]] == [
        *((each.n, 1) for each in weights),
        (6144, 4),
    ]
    mine = [job.m for job in jobs if job.weight.n == 6144]
    assert mine == [
        1,
        4,
        16,
        64,
        128,
        256,
        512,
        1024,
        2048,
        8192,
        2,
        8,
        32,
        96,
        192,
        384,
        768,
        4096,
    ]
    assert set(mine) == set(BUCKETS)
    assert len(jobs) == len({job.key for job in jobs}) == 5 * 18
    gates = weights_of(["llama3-8b"], epilogues=["gate"])
    assert [(each.n, each.problem(8).gate, each.problem(8).columns) for each in gates] == [
        (28672, "silu", 14336)
    ]
    (whole, *_) = weights_of(["llama3-8b"], dtype="int8")
    assert str(Job(weight=whole, m=16).key) == "16x6144x4096 int8 -> bf16 rcr scaled"
    assert whole.dtype is INT8


def test_weights_that_nothing_writes_have_entries_of_their_own() -> None:
    (weight,) = weights_of([], [(64, 32)], epilogues=["residual"], constant=True)
    job = Job(weight=weight, m=16)
    assert job.problem.constant_b
    assert job.key.epilogue == "residual+constant"
    assert job.key != Job(weight=dataclasses.replace(weight, constant=False), m=16).key


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"epilogues": ["gelu"]}, "epilogue 'gelu' is not known; use plain, residual"),
        ({"dtype": "fp32"}, "dtype 'fp32' cannot be tuned; use one of bf16, fp16, int8"),
        ({"dtype": "x"}, "dtype 'x' cannot be tuned"),
        ({}, "nothing to tune: name a --model or a --weight NxK"),
    ],
)
def test_what_cannot_be_tuned_is_refused(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(MeasureError, match=words):
        weights_of([], **wrong)
    with pytest.raises(MeasureError, match="M = 17 is no bucket; use 1, 2, 4"):
        jobs_of([WEIGHT], [16, 17])


def test_the_pool_is_the_default_kernels_and_those_of_files(tmp_path: Path) -> None:
    own = tmp_path / "own.yaml"
    own.write_text("families: [{name: x, arch: sm_90a, dtype: bf16, tile: [128, 80, 64]}]\n")
    usual = pool_of(SM_90A, Request())
    assert usual == load_specs(configs_dir() / "kernels", arch=["sm_90a"])
    more = pool_of(SM_90A, Request(files=(own,)))
    assert more[: len(usual)] == usual
    assert [spec.tile.n for spec in more[len(usual) :]] == [80]
    alone = pool_of(SM_90A, Request(files=(own,), only_files=True))
    assert alone == more[len(usual) :]
    assert pool_of(SM_90A, Request(files=(own,), without=(alone[0].name,))) == usual
    with pytest.raises(ConfigError, match="cannot be read"):
        pool_of(SM_90A, Request(files=(tmp_path / "gone.yaml",)))


def test_weights_are_dealt_to_gpus_whole_and_evenly() -> None:
    weights = [Weight(n=n, k=4096, dtype=BF16) for n in (57344, 4096, 6144, 28672, 8192)]
    parts = dealt(jobs_of(weights), 2)
    assert [{job.weight.n for job in part} for part in parts] == [
        {57344, 6144},
        {28672, 8192, 4096},
    ]
    assert sum(map(len, parts)) == 5 * len(BUCKETS)
    assert len(dealt(jobs_of(weights[:1]), 4)) == 1
