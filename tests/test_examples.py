"""Each example runs and says what it promises."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import gemmsmith
from gemmsmith.smollm2 import ModelFileError, find_gguf

EXAMPLES = Path(__file__).parents[1] / "examples"
PACKAGE = Path(gemmsmith.__file__).parents[1]
PATHS = [str(PACKAGE), *filter(None, [os.environ.get("PYTHONPATH")])]
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(PATHS)}


@pytest.fixture
def smollm2() -> None:
    """Skip where SmolLM2's weights are not here."""
    try:
        find_gguf()
    except ModelFileError as error:
        pytest.skip(str(error))


def run(name: str, *arguments: str, by: tuple[str, ...] = ()) -> str:
    done = subprocess.run(
        [sys.executable, *by, str(EXAMPLES / name), *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=ENVIRONMENT,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_linear() -> None:
    out = run("linear.py")
    assert "(2, 7, 4096) -> (2, 7, 1024) torch.bfloat16 by " in out
    ours, theirs = (float(part.split()[-1]) for part in out.splitlines()[-1].split(", "))
    assert 0 < ours <= 2 * theirs < 0.1


@pytest.mark.nvcc
def test_own_kernel() -> None:
    """Builds the example's one kernel for the GPU here, or for sm_90a."""
    if torch.cuda.is_available() and torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("the example's kernel is for sm_90a, the GPU here is another")
    out = run("own_kernel.py")
    name = out.splitlines()[0].removeprefix("built ")
    assert name == "gemm_bf16_rcr_64x128x64_c1x1_pp_sm90a"
    ran = name if torch.cuda.is_available() else "cpu"
    assert f"(200, 576) -> (200, 1024); last kernel: {ran}" in out
    assert ("No GPU here" in out) == (ran == "cpu")


@pytest.mark.nvcc
def test_other_machine() -> None:
    """Exports the one kernel that the example before compiles too."""
    lines = run("other_machine.py").splitlines()
    assert "kernels: 1 kernel for sm_90a, " in lines[0]
    name = "gemm_bf16_rcr_64x128x64_c1x1_pp_sm90a"
    assert re.fullmatch(rf"{name}: \d+ registers, compiled by nvcc \d+\.\d+\.\d+", lines[1])


@pytest.mark.usefixtures("smollm2")
def test_generate() -> None:
    out = run("generate.py", "The capital of France is", "Once", "--tokens", "4", "--compare")
    assert out.count("The capital of France is Paris") == 2
    assert re.search(r"decode: \d+\.\d tokens a second, 2 at a time; ", out)
    assert re.search(r"transformers, eager: \d+\.\d tokens a second", out)
    assert ("on the CPU, without graphs" in out) == (not torch.cuda.is_available())
    assert "both texts agree" in out or re.search(r"token \d differs", out)


@pytest.mark.gpu
@pytest.mark.usefixtures("smollm2")
def test_generate_beside_compiled_transformers() -> None:
    pytest.importorskip("transformers")
    out = run("generate.py", "The capital of France is", "--tokens", "8", "--compare")
    assert "each step one CUDA graph" in out
    assert re.search(r"transformers, torch\.compile: \d+\.\d tokens a second", out)


@pytest.mark.usefixtures("smollm2")
def test_int8_model() -> None:
    out = run("int8_model.py", "--tokens", "2", "--text-tokens", "65")
    assert "| model.layers.29.mlp.down_proj" in out
    bf16, int8 = (float(each) for each in re.findall(r"(?:bf16|int8) (\d+\.\d+)", out))
    assert 0 < abs(int8 / bf16 - 1) < 0.05
    assert "parameters: bf16 269 MB, int8 " in out
    assert "The capital of France is Paris" in out
    assert "211 linear layers swapped, 0 left: 100.0% of the linear FLOPs" in out


def said_by_two(*arguments: str) -> tuple[str, float, int]:
    """Return what the example prints, the largest difference and how many tokens are equal."""
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    out = run("tensor_parallel.py", *arguments, by=torchrun)
    assert len(re.findall(r"rank [01]: \d+\.\d+ ms whole, \d+\.\d+ ms divided", out)) == 2
    found = re.search(r"largest difference (\S+) of .*\ntokens: (\d+) of 10 equal", out)
    assert found is not None, out
    return out, float(found[1]), int(found[2])


def test_tensor_parallel() -> None:
    out, difference, equal = said_by_two("--cpu", "--layers", "1", "--tokens", "5")
    assert "float32 on 2 processes by gloo" in out
    assert "each rank: 4 heads, 2 KV heads" in out
    assert 0 < difference < 1e-4
    assert equal == 10


@pytest.mark.gpu
def test_tensor_parallel_on_gpus() -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip(f"{torch.cuda.device_count()} GPU here, 2 are needed")
    out, difference, _ = said_by_two("--layers", "2", "--tokens", "5")
    assert "bfloat16 on 2 GPUs by nccl" in out
    assert 0 < difference < 0.3


@pytest.mark.parametrize(
    ("arguments", "told"),
    [([""], "the prompt is empty"), (["Once", "--tokens", "0"], "--tokens 0: give a number")],
)
def test_generate_refuses_what_makes_no_text(arguments: list[str], told: str) -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "generate.py"), *arguments],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert told in done.stderr
