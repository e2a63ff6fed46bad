"""The kernels that ship: how many, for what, and that each file is read alone."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from gemmsmith.arch import ARCHITECTURES, Architecture
from gemmsmith.bench.model_shapes import load_model, model_names
from gemmsmith.choose import choose
from gemmsmith.config import inspect_file, load_specs
from gemmsmith.dtypes import BF16, INT8, DType
from gemmsmith.problem import GemmProblem
from gemmsmith.resources import configs_dir

KERNELS = configs_dir() / "kernels"
FILES = {
    "volta.yaml": {"sm_70": 4},
    "turing.yaml": {"sm_75": 6},
    "ampere.yaml": {"sm_80": 17, "sm_86": 3, "sm_87": 3},
    "ada.yaml": {"sm_89": 3},
    "hopper.yaml": {"sm_90a": 285},
    "hopper_constant.yaml": {"sm_90a": 47},
    "hopper_epilogues.yaml": {"sm_90a": 56},
}


def test_how_many_kernels_ship() -> None:
    specs = load_specs(KERNELS)
    assert len(specs) == len({spec.name for spec in specs}) == 424
    assert (
        sum(spec.gate == spec.activation == "none" and not spec.zero_point for spec in specs) == 360
    )
    assert {file.name for file in KERNELS.iterdir()} == {*FILES, "attention.yaml"}


@pytest.mark.parametrize("name", FILES)
def test_each_file_holds_its_generation(name: str) -> None:
    assert Counter(spec.arch.name for spec in load_specs(KERNELS / name)) == FILES[name]


def test_every_kernel_that_is_asked_for_is_legal_and_asked_for_once() -> None:
    entries = inspect_file(KERNELS)
    assert [entry.title for entry in entries if entry.spec is None] == []
    assert max(Counter(entry.spec for entry in entries).values()) == 1


@pytest.mark.parametrize("arch", ARCHITECTURES, ids=lambda arch: arch.name)
def test_every_input_type_of_every_architecture_has_kernels(arch: Architecture) -> None:
    specs = load_specs(KERNELS, arch=[arch.name])
    assert {spec.a for spec in specs} == set(arch.inputs)
    for spec in specs:  # the residual or bias of a layer, and x @ w.T
        assert spec.bias
    assert {spec.layout for spec in specs} >= {"rcr"}


def test_each_file_says_why() -> None:
    for name in FILES:
        text = Path(KERNELS / name).read_text(encoding="utf-8")
        families = [line for line in text.splitlines() if line.startswith("  - name: ")]
        comments = [line for line in text.splitlines() if "# " in line]
        assert len(comments) > len(families), name


@pytest.mark.parametrize("model", model_names())
@pytest.mark.parametrize("dtype", [BF16, INT8], ids=lambda dtype: dtype.name)
def test_steps_of_decoding_fetch_weights_early(model: str, dtype: DType) -> None:
    """Every product of a layer whose weights are promised, for up to 16 sequences, by estimate."""
    specs = load_specs(KERNELS, arch=["sm_90a"])
    for shape in load_model(model).shapes:
        if shape.op not in ("qkv", "attn_out", "gate_up", "down"):
            continue
        gate = "silu" if shape.op == "gate_up" else "none"
        added = shape.op in ("attn_out", "down")
        for m in (1, 4, 16):
            call = GemmProblem(
                m=m,
                n=shape.n,
                k=shape.k,
                a=dtype,
                b=dtype,
                d=BF16,
                scaled=dtype == INT8,
                gate=gate,
                residual=added,
                constant_b=True,
            )
            chosen = choose(specs, call, 132)
            assert chosen is not None
            assert chosen.spec.constant_b, (shape, m, chosen.spec.name)
