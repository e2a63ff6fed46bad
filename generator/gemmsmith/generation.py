"""Greedy text generation that can be compared step by step, and a count of the kernels that ran."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from gemmsmith import nn, ops

__all__ = ["Difference", "Generated", "count_kernels", "first_difference", "greedy"]


@dataclass(frozen=True, kw_only=True)
class Generated:
    """What a causal language model says after a prompt."""

    ids: torch.Tensor
    """Token ids (T,), int64, on the CPU; without the prompt's."""
    logits: torch.Tensor
    """Logits (T, V), float32, on the CPU: row t made ``ids[t]``."""
    text: str
    """The decoded ids."""
    seconds: float
    """Wall time of the prompt's and all tokens' forward passes."""

    @property
    def tokens_per_second(self) -> float:
        """Tokens made per second of wall time, the prompt's pass included."""
        return len(self.ids) / self.seconds


@dataclass(frozen=True, kw_only=True)
class Difference:
    """The first step at which two runs chose different tokens."""

    step: int
    """0-based index of the token."""
    gap: float
    """Logit of the first run's choice less that of the second's, in the first run's logits."""

    def __str__(self) -> str:
        return f"token {self.step} differs, its two candidates' logits by {self.gap:.4f}"


def greedy(
    model: Any, tokenizer: Any, prompt: str, tokens: int, *, stop: bool = False
) -> Generated:
    """Return the tokens that ``model`` finds likeliest after ``prompt``, one after another.

    ``model`` is a transformers causal language model. With ``stop`` the end-of-text token ends the
    text early; without, it is passed over, so that two runs have one length.
    """
    ids = tokenizer(prompt, return_tensors="pt").input_ids.to(model.device)
    start = time.perf_counter()
    with torch.inference_mode():
        made = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=tokens,
            min_new_tokens=1 if stop else tokens,
            output_logits=True,
            return_dict_in_generate=True,
        )
    chosen = made.sequences[0, ids.shape[1] :].cpu()
    logits = torch.cat(made.logits).float().cpu()
    seconds = time.perf_counter() - start
    text = tokenizer.decode(chosen, skip_special_tokens=True)
    return Generated(ids=chosen, logits=logits, text=text, seconds=seconds)


def first_difference(first: Generated, second: Generated) -> Difference | None:
    """Return where two runs of one prompt part; None where they agree to the shorter's end."""
    length = min(len(first.ids), len(second.ids))
    unequal = (first.ids[:length] != second.ids[:length]).nonzero()
    if not len(unequal):
        return None
    step = int(unequal[0])
    row = first.logits[step]
    return Difference(step=step, gap=float(row[first.ids[step]] - row[second.ids[step]]))


@contextlib.contextmanager
def count_kernels(model: torch.nn.Module) -> Iterator[Counter[str]]:
    """Give a counter of the kernels that make the products of the model's layers within.

    The name is ``torch`` for a call that no kernel took, ``cpu`` for one on CPU tensors
    (:func:`gemmsmith.ops.last_kernel`).
    """
    counts: Counter[str] = Counter()

    def count(*_: object) -> None:
        record = ops.last_kernel()
        counts[record.name if record else "nothing"] += 1

    with contextlib.ExitStack() as stack:
        for module in model.modules():
            if not isinstance(module, nn.Linear):
                continue
            if not isinstance(module, nn.PreparedLinear):
                stack.callback(module.register_forward_hook(count).remove)
            for name in _products(module):
                stack.enter_context(_counted(module, name, count))
        yield counts


def _products(layer: nn.Linear) -> tuple[str, ...]:
    """Return the methods that make a product of a layer; blocks call them past its forward."""
    if isinstance(layer, nn.Int8Linear):
        return "quantized_product", "activated"
    return ("product", "activated") if isinstance(layer, nn.PreparedLinear) else ("activated",)


@contextlib.contextmanager
def _counted(layer: nn.Linear, name: str, count: Callable[[], None]) -> Iterator[None]:
    method = getattr(layer, name)

    def counted(*args: Any, **named: Any) -> Any:
        made = method(*args, **named)
        count()
        return made

    vars(layer)[name] = counted
    try:
        yield
    finally:
        del vars(layer)[name]
