from __future__ import annotations

from pathlib import Path

import pytest

from gemmsmith.bench.model_shapes import LinearShape, load_model, model_names
from gemmsmith.errors import ConfigError

SHIPPED = {
    "llama3-8b": [(6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336)],
    "llama3-70b": [(10240, 8192), (8192, 8192), (57344, 8192), (8192, 28672)],
    "qwen2.5-7b": [(4608, 3584), (3584, 3584), (37888, 3584), (3584, 18944)],
    "qwen2.5-14b": [(7168, 5120), (5120, 5120), (27648, 5120), (5120, 13824)],
    "llama3.2-3b": [(5120, 3072), (3072, 3072), (16384, 3072), (3072, 8192)],
    "yi-34b": [(9216, 7168), (7168, 7168), (40960, 7168), (7168, 20480)],
    "smollm2-135m": [(960, 576), (576, 576), (3072, 576), (576, 1536)],
}


def test_shipped_models_are_these() -> None:
    assert model_names() == tuple(sorted(SHIPPED))


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_shapes(name: str) -> None:
    model = load_model(name)
    assert model.model == name
    assert [shape.op for shape in model.shapes] == ["qkv", "attn_out", "gate_up", "down"]
    assert [(shape.n, shape.k) for shape in model.shapes] == SHIPPED[name]


def test_unknown_model_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"did you mean llama3-8b\?"):
        load_model("llama-8b")


def test_own_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("model: mine\nshapes:\n  - {op: head, n: 50257, k: 768}\n")
    assert load_model(file).shapes == (LinearShape(op="head", n=50257, k=768),)
    assert load_model(file).head_dim == 0
    file.write_text("model: mine\nhead_dim: 80\nshapes:\n  - {op: head, n: 50257, k: 768}\n")
    assert load_model(file).head_dim == 80


def test_all_problems_of_a_file_at_once(tmp_path: Path) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text(
        "model: bad\nshapes:\n  - {op: a, n: 0, k: 8}\n  - {op: b, m: 4, k: 8}\nshape: 1\n"
    )
    with pytest.raises(ConfigError) as caught:
        load_model(str(file))
    assert [(p.line, p.message.split(" (")[0]) for p in caught.value.problems] == [
        (5, "key 'shape' is not known; did you mean shapes?"),
        (3, "n must be a whole number from 1 up, not '0'"),
        (4, "key 'm' is not known"),
        (4, "a shape has no n"),
    ]


@pytest.mark.parametrize(
    "text", ["", "- 1\n", "model: x\nshapes: []\n", "model: [\n", "model: x\nshapes: 3\n"]
)
def test_what_is_no_model_file_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError):
        load_model(file)


def test_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load_model(tmp_path / "none.yaml")
