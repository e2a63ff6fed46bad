"""What measurements say on a machine where torch has no GPU."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest
import torch

from gemmsmith.bench.gpu import require_gpu
from gemmsmith.errors import NoDeviceError

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"
NEEDS = "a benchmark needs a GPU and a CUDA build of torch; "


@pytest.mark.parametrize(
    ("devices", "cuda", "part"),
    [
        ((), None, "the driver shows no GPU and torch 2.9 is built without CUDA"),
        ((), "13.0", "the driver shows no GPU"),
        (("one",), None, "torch 2.9 is built without CUDA"),
        (("one",), "13.0", "both are here, but torch cannot use the GPU: see CUDA_VISIBLE_DEVICES"),
    ],
)
def test_the_missing_part_is_named(
    monkeypatch: pytest.MonkeyPatch, devices: tuple[str, ...], cuda: str | None, part: str
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch, "__version__", "2.9")
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr("gemmsmith.bench.gpu.devices", lambda: devices)
    with pytest.raises(NoDeviceError) as told:
        require_gpu()
    assert str(told.value) == NEEDS + part


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("batch_invariant", ["smollm2-135m"]),
        ("sweep", ["pool.yaml", "smollm2-135m", "-m", "1", "-o", "x.json"]),
        ("host_time", []),
        ("rows", []),
    ],
)
def test_scripts_end_in_the_sentence(
    script: str, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    main = importlib.import_module(script).main
    monkeypatch.setattr(sys, "argv", [script, *words])
    with pytest.raises(SystemExit) as ended:
        main()
    assert str(ended.value.code).startswith(f"error: {NEEDS}")  # a text is told, and ends with 1
