"""How far a converted bf16 model may be from the original: measured, not guessed.

The yardstick is the original's own rounding noise, its logits' distance from those of the same
(bf16) weights computed in fp32. A conversion changes the order of sums, hence which way each of
the model's bf16 roundings goes, so that it makes a fresh sample of that noise:

* rms(converted - fp32) is that of the original; 1.5 times is allowed, as it varied from 0.9 to 1.1
  over the prompts here;
* max|converted - fp32|, one extreme among millions of logits, varies more: 2 times is allowed;
* rms(converted - original) is a difference of two such samples, 1.4 times the noise if they are
  independent: 2 times is allowed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, kw_only=True)
class Noise:
    """Distances between the logits of fp32, original and converted model over one text."""

    original_rms: float
    original_max: float
    converted_rms: float
    converted_max: float
    between_rms: float

    def __str__(self) -> str:
        return (
            f"rms to fp32: original {self.original_rms:.4f}, converted {self.converted_rms:.4f};"
            f" max: {self.original_max:.3f}, {self.converted_max:.3f};"
            f" rms between the two {self.between_rms:.4f}"
        )

    def check(self) -> None:
        """Fail where the converted model is farther off than the module's text allows."""
        assert self.original_rms > 0, "the original equals fp32, so it is not a bf16 model"
        assert self.converted_rms <= 1.5 * self.original_rms, str(self)
        assert self.converted_max <= 2 * self.original_max, str(self)
        assert self.between_rms <= 2 * self.original_rms, str(self)


def measure(in_fp32: Any, original: Any, converted: Any, ids: torch.Tensor) -> Noise:
    """Return the noise over the text ``ids`` (1, S), each model given the same tokens."""
    with torch.inference_mode():
        exact, before, after = (
            model(ids.to(model.device)).logits[0].double()
            for model in (in_fp32, original, converted)
        )
    return Noise(
        original_rms=_rms(before - exact),
        original_max=float((before - exact).abs().max()),
        converted_rms=_rms(after - exact),
        converted_max=float((after - exact).abs().max()),
        between_rms=_rms(after - before),
    )


def _rms(difference: torch.Tensor) -> float:
    return float(difference.square().mean().sqrt())
