"""A trial accepts what is right and finds what is not: a wrong element, epilogue or second run."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from typer.testing import CliRunner  # noqa: E402

from gemmsmith.bench.trial import try_kernel, verify  # noqa: E402
from gemmsmith.cli.app import app  # noqa: E402
from gemmsmith.kernelset import ExactKernel, load  # noqa: E402

KERNELS = """\
families:
  - name: all
    arch: sm_90a
    schedule: cooperative
    kernels:
      - {dtype: bf16, tile: [128, 128, 64]}
      - {dtype: fp16, tile: [128, 128, 64], layout: rrr, epilogue: {bias: true, residual: true}}
      - {dtype: {a: bf16, d: fp32}, tile: [128, 64, 64], layout: ccr, epilogue: {bias: false}}
"""
CHECKS = ["integers, exactly", "random normal data, against float64"]
BIAS, RESIDUAL = "integers with bias, exactly", "integers with residual, exactly"
SHAPE = (24, 40, 136)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "kernels.yaml"
    path.write_text(KERNELS)
    return path


@pytest.fixture
def kernels(file: Path) -> list[ExactKernel]:
    found = load(file, arch="sm_90a")
    return [found[name] for name in found.names]


class Damaged:
    """A kernel whose results pass through ``damage`` (call number, arguments, result)."""

    def __init__(self, kernel: Any, damage: Any) -> None:
        self.spec = kernel.spec
        self._kernel, self._damage, self._calls = kernel, damage, itertools.count()

    def __call__(self, *arguments: Any, out: Any) -> Any:
        self._kernel(*arguments, out=out)
        self._damage(next(self._calls), arguments, out)
        return out


def faults(kernel: ExactKernel, damage: Any) -> dict[str, str]:
    damaged: Any = Damaged(kernel, damage)
    return {check: wrong for check, wrong in verify(damaged, SHAPE, device="cpu") if wrong}


def test_right_kernels_pass_each_check_that_their_epilogue_has(kernels: list[ExactKernel]) -> None:
    results = [dict(verify(kernel, SHAPE, device="cpu")) for kernel in kernels]
    assert [list(result) for result in results] == [
        [CHECKS[0], BIAS, CHECKS[1]],
        [CHECKS[0], BIAS, RESIDUAL, CHECKS[1]],
        CHECKS,
    ]
    assert {wrong for result in results for wrong in result.values()} == {""}


def test_one_element_off_by_one_is_found_with_its_place(kernels: list[ExactKernel]) -> None:
    def damage(call: int, arguments: Any, out: Any) -> None:
        out[23, 39] += 1

    found = faults(kernels[0], damage)
    assert next(iter(found)) == CHECKS[0]
    assert found[CHECKS[0]].startswith("1 of 960 elements are wrong")
    assert "row 23, column 39" in found[CHECKS[0]]


def test_element_left_unwritten_is_found(kernels: list[ExactKernel]) -> None:
    def damage(call: int, arguments: Any, out: Any) -> None:
        out[0, 0] = torch.nan

    assert set(faults(kernels[2], damage)) == set(CHECKS)


def test_runs_that_differ_are_found(kernels: list[ExactKernel]) -> None:
    def damage(call: int, arguments: Any, out: Any) -> None:
        out[3, 3] += call % 2

    found = faults(kernels[2], damage)
    assert found[CHECKS[0]].startswith("960 of 960 elements are wrong")


def test_wrong_residual_is_found_by_its_check_alone(kernels: list[ExactKernel]) -> None:
    def damage(call: int, arguments: Any, out: Any) -> None:
        residual = arguments[3]
        if residual is not None:
            out += residual

    assert list(faults(kernels[1], damage)) == [RESIDUAL]


def test_run_without_a_gpu_is_a_sentence(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    result = CliRunner().invoke(app, ["run", "64", "64", "64", str(file)])
    assert result.exit_code == 1
    assert result.stderr.startswith("error: running a kernel needs a GPU")


@pytest.mark.gpu
@pytest.mark.nvcc
def test_default_kernel_of_this_gpu_is_right_and_timed(file: Path) -> None:
    trial = try_kernel((200, 512, 256), path=file)
    assert trial.faults == ()
    assert trial.checks == (CHECKS[0], BIAS, CHECKS[1])
    assert trial.ours_us is not None
    assert trial.torch_us is not None
    assert 0.1 < trial.ours_us < 1000
    assert 0.1 < trial.torch_us < 1000
