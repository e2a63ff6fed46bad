"""How well a causal language model predicts a text."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.nn import functional

from gemmsmith.errors import ArgumentError

__all__ = ["perplexity"]


def perplexity(model: Any, ids: torch.Tensor, *, window: int = 512) -> float:
    """Return the perplexity of ``model``, one of transformers, on a text.

    The text is cut into windows that the model sees one by one; each token after the first of its
    window is predicted from those before it there. Logits are taken in f32, sums in f64.

    Args:
        model: a causal language model.
        ids: token ids (T,) or (1, T).
        window: tokens that the model sees at once.

    Raises:
        ArgumentError: where there is nothing to predict.
    """
    tokens = ids.reshape(-1).to(model.device)
    total, count = 0.0, 0
    with torch.inference_mode():
        for part in torch.split(tokens, window):
            if len(part) < 2:
                continue
            logits = model(part[None]).logits[0, :-1].float()
            losses = functional.cross_entropy(logits, part[1:], reduction="none")
            total += float(losses.double().sum())
            count += len(part) - 1
    if not count:
        raise ArgumentError(f"{tokens.numel()} tokens in windows of {window}: nothing to predict")
    return math.exp(total / count)
