"""What `make demo` shows, with a stand-in for nvcc and the real model on the CPU."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch
import yaml

from fakes import FakeNvcc
from gemmsmith import demo
from gemmsmith.arch import ARCHITECTURES, SM_70, SM_75, SM_80, SM_90A, Architecture
from gemmsmith.card import Card
from gemmsmith.config import load_specs
from gemmsmith.dtypes import BF16
from gemmsmith.errors import CompileError, ConfigError
from gemmsmith.fit import misfit
from gemmsmith.nvml import Device
from gemmsmith.problem import GemmProblem
from gemmsmith.smollm2 import ModelFileError, find_gguf, kept_model

KERNELS = """\
families:
  - {name: a, arch: sm_80, dtype: bf16, tile: [128, 64, 32], warp: [64, 32, 32], stages: 3}
  - {name: h, arch: sm_90a, dtype: bf16, schedule: pingpong, tile: [64, 128, 64]}
  - {name: other, arch: sm_90a, dtype: bf16, schedule: pingpong, tile: [64, 256, 64]}
"""
AMPERE = "gemm_bf16_rcr_128x64x32_w64x32_s3_sm80"
HOPPER = "gemm_bf16_rcr_64x128x64_c1x1_pp_sm90a"


@pytest.fixture
def configs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "configs"
    (folder / "kernels").mkdir(parents=True)
    (folder / "kernels" / "all.yaml").write_text(KERNELS)
    (folder / "demo.yaml").write_text(yaml.safe_dump({"sm_80": [AMPERE], "sm_90a": [HOPPER]}))
    monkeypatch.setattr(demo, "configs_dir", lambda: folder)
    return folder


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "devices", tuple)


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache folder without kernels that has the converted model already."""
    try:
        find_gguf()
    except ModelFileError as error:
        pytest.skip(str(error))
    model = kept_model()
    cache = tmp_path / "cache"
    (cache / "models").mkdir(parents=True)
    (cache / "models" / model.name).symlink_to(model)
    monkeypatch.setenv("GEMMSMITH_CACHE_DIR", str(cache))


def test_the_shipped_selection_is_small_and_covers_the_model() -> None:
    """At most 12 kernels, and on each architecture each layer of SmolLM2 has one that takes it."""
    specs = demo.demo_specs(ARCHITECTURES)
    assert 2 <= len(specs) <= 12
    for arch in (row for row in ARCHITECTURES if BF16 in row.inputs):
        own = demo.demo_specs([arch])
        assert own
        assert set(own) <= set(specs)
        assert {spec.arch for spec in own} == {arch}
        for rows, n, k in itertools.product((1, 7, 512), (192, 576, 1536, 49152), (576, 1536)):
            call = GemmProblem(m=rows, n=n, k=k, a=BF16, b=BF16, d=BF16)
            assert any(not misfit(spec, call) for spec in own)


@pytest.mark.parametrize("arch", [SM_70, SM_75], ids=lambda arch: arch.name)
def test_an_architecture_without_bf16_has_no_demo(arch: Architecture) -> None:
    with pytest.raises(ConfigError, match=f"sm_80, .*sm_90a, none for {arch.name}"):
        demo.demo_specs([arch])


def test_specs_are_those_named(configs: Path) -> None:
    assert [spec.name for spec in demo.demo_specs([SM_90A])] == [HOPPER]
    assert [spec.name for spec in demo.demo_specs([SM_80, SM_90A])] == [AMPERE, HOPPER]
    assert len(load_specs(configs / "kernels")) == 3


def test_an_unknown_name_is_told(configs: Path) -> None:
    (configs / "demo.yaml").write_text(f"sm_80: [{AMPERE}, gemm_bf16_nothing]\nsm_90a: []\n")
    with pytest.raises(ConfigError, match=r"demo\.yaml.*gemm_bf16_nothing is not in"):
        demo.demo_specs([SM_80])


@pytest.mark.usefixtures("configs", "no_gpu", "kept")
def test_the_demo_builds_shows_cards_and_generates(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nvcc = FakeNvcc(tmp_path / "toolkit")
    demo.main(prompt="The capital of France is", tokens=4, toolchain=nvcc.toolchain)
    assert sorted(name for run in nvcc.runs() for name in run) == [AMPERE, HOPPER]
    out = capsys.readouterr().out
    head = "2 kernels of configs/kernels for sm_80 and sm_90a (no GPU here)"
    assert out.splitlines()[0] == head
    assert f"{AMPERE}\n    77 registers · 40 B spilled · 1,536 B shared memory" in out
    assert "2 compiled, 0 from the cache" in out
    assert "100.0% of the linear FLOPs run on gemmsmith" in out
    assert "The capital of France is Paris" in out
    assert "4 tokens, " in out
    assert out.rstrip().splitlines()[-1] == (
        "No GPU was used: the ops' CPU path computed this text, not the kernels above."
    )

    demo.main(prompt="The capital of France is", tokens=4, toolchain=nvcc.toolchain)
    out = capsys.readouterr().out
    assert len(nvcc.runs()) == 2
    assert "(before)" in out
    assert "0 compiled, 2 from the cache" in out
    assert "The capital of France is Paris" in out


@pytest.mark.usefixtures("configs", "no_gpu")
def test_a_kernel_that_fails_ends_the_demo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GEMMSMITH_CACHE_DIR", str(tmp_path / "cache"))
    nvcc = FakeNvcc(tmp_path / "toolkit")
    nvcc.fault("broken", *demo.demo_specs([SM_80]))
    with pytest.raises(CompileError, match=AMPERE):
        demo.main(toolchain=nvcc.toolchain)
    assert "loading" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("capability", "archs"),
    [((9, 0), (SM_90A,)), ((8, 0), (SM_80,)), ((12, 0), ARCHITECTURES)],
)
def test_the_gpu_decides_what_is_built(
    monkeypatch: pytest.MonkeyPatch,
    capability: tuple[int, int],
    archs: tuple[Architecture, ...],
) -> None:
    card = Device(
        index=0,
        name="Some GPU",
        uuid="GPU-0",
        capability=capability,
        memory_bytes=None,
        sm_count=None,
        driver="580.95.05",
        cuda=(13, 0),
    )
    monkeypatch.setattr(demo, "devices", lambda: (card,))
    words, chosen = demo._gpu()
    assert chosen == archs
    assert words.startswith("Some GPU")
    assert ("12.0" in words) == (capability == (12, 0))


def test_a_card_in_words() -> None:
    card = Card(
        name="k",
        arch="sm_90a",
        registers=168,
        spill_store_bytes=0,
        spill_load_bytes=0,
        stack_bytes=0,
        static_shared_bytes=24,
        dynamic_shared_bytes=200_000,
        threads=384,
        stages=4,
        tensor_instructions={"HGMMA.64x128x16.F32.BF16": 16},
        sass_inspected=True,
        compile_seconds=30.0,
        compiled_with=2,
        compile_peak_bytes=1,
        library_bytes=1,
    )
    assert demo._card(card, cached=False) == (
        "k\n    168 registers · no spills · 200,024 B shared memory"
        " · 16 HGMMA.64x128x16.F32.BF16 · compiled in 15.0 s"
    )


@pytest.mark.gpu
def test_on_a_gpu_the_text_comes_from_the_kernels(capsys: pytest.CaptureFixture[str]) -> None:
    demo.main(prompt="The capital of France is", tokens=4)
    out = capsys.readouterr().out
    assert torch.cuda.get_device_name() in out.splitlines()[0]
    assert "The capital of France is Paris" in out
    rows = out[out.index("kernels that computed") :].splitlines()[1:]
    assert sum(int(row.split()[0]) for row in rows) == 4 * 211
    assert all(row.split()[-1].startswith("gemm_bf16_") for row in rows)
