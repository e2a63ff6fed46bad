"""Decoders of transformers' models, random ones, against transformers in f32."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gemmsmith.errors import ArgumentError
from gemmsmith.nn import Decoder
from gemmsmith.nn.checkpoint import config_of
from gemmsmith.nn.rotary import scaled_frequencies
from layer_data import relative

SIZES = {
    "vocab_size": 80,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def model(name: str, **more: Any) -> Any:
    transformers: Any = pytest.importorskip("transformers")
    torch.manual_seed(2)
    config = getattr(transformers, f"{name}Config")(**{**SIZES, **more})
    made = getattr(transformers, f"{name}ForCausalLM")(config).eval()
    for parameter in made.parameters():
        parameter.data.mul_(3).add_(0.01)  # far from a model that ignores its layers
    return made


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("Llama", {"tie_word_embeddings": True}),
        ("Llama", {"rope_scaling": {**LLAMA3, "rope_theta": 10000.0}, "attention_bias": True}),
        ("Llama", {"rope_scaling": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4}}),
        ("Mistral", {"sliding_window": 16, "head_dim": 32}),
        ("Qwen2", {"hidden_act": "gelu"}),
        ("Qwen2", {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 1}),
    ],
)
def test_decoders_compute_what_transformers_does(name: str, more: dict[str, Any]) -> None:
    theirs = model(name, **more)
    tokens = torch.randint(80, (2, 200), generator=torch.Generator().manual_seed(1))
    ours = Decoder.from_transformers(theirs)
    with torch.inference_mode():
        right = theirs(tokens).logits
        assert relative(ours(tokens), right.double()) < 1e-4
        cache = ours.cache(2, 201)
        ours.prefill(tokens[:, :150], cache)
        ours.prefill(tokens[:, 150:199], cache)
        assert relative(ours.step(tokens[:, 199], cache), right[:, -1].double()) < 1e-4
    assert (ours.head.weight is ours.embedding.weight) == bool(more.get("tie_word_embeddings"))


def test_other_models_are_refused() -> None:
    transformers: Any = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_embd=32, n_layer=1, n_head=2, vocab_size=80)
    with pytest.raises(ArgumentError, match="model is a GPT2LMHeadModel; LlamaForCausalLM, "):
        Decoder.from_transformers(transformers.GPT2LMHeadModel(config))
    with pytest.raises(ArgumentError, match="hidden_act is 'relu2'"):
        config_of(SimpleNamespace(hidden_act="relu2"))
    with pytest.raises(ArgumentError, match="rope scaling is 'yarn'; default, linear and llama3"):
        Decoder.from_transformers(
            model("Llama", rope_scaling={"rope_type": "yarn", "factor": 2.0, "rope_theta": 1e4})
        )


def test_frequencies_are_scaled_as_the_checkpoint_says() -> None:
    plain = scaled_frequencies(64, 5e5)
    assert torch.equal(scaled_frequencies(64, 5e5, {"rope_type": "default"}), plain)
    assert torch.equal(scaled_frequencies(64, 5e5, {"type": "linear", "factor": 4}), plain / 4)
    llama = scaled_frequencies(64, 5e5, LLAMA3)
    assert torch.equal(llama[:3], plain[:3])  # that turn often are kept
    assert torch.allclose(llama[-4:], plain[-4:] / 8, rtol=1e-15)
    with pytest.raises(ArgumentError, match="has no number low_freq_factor"):
        scaled_frequencies(64, 5e5, {"rope_type": "llama3", "factor": 8})
