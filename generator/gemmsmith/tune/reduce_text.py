"""A reduced set of kernels, as text and as plain types."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from gemmsmith.bench.report_text import table
from gemmsmith.spec import KernelSpec
from gemmsmith.tune.reduce import Reduction
from gemmsmith.tuned import Key
from gemmsmith.wording import counted


def reduction_json(found: Reduction) -> dict[str, Any]:
    """Return everything in plain types."""
    return {
        "kernels": list(found.kernels),
        "candidates": found.candidates,
        "loss": found.loss,
        "worst": found.worst.loss,
        "torch": found.torch,
        "shapes": [
            {"shape": str(each.entry.key), "kernel": each.kernel, "loss": each.loss}
            for each in found.losses
        ],
    }


def about_set(found: Reduction, kernels: Sequence[KernelSpec], gpus: Sequence[str]) -> str:
    """Return what the head of a file with these kernels says: loss, GPUs, and what using it means.

    ``gpus`` are those that the timings are of.
    """
    one = len(found.kernels) == 1
    text = (
        f"{counted(len(found.kernels), 'kernel')} that {'loses' if one else 'lose'}"
        f" {found.loss:.2%}, {found.worst.loss:.1%} at worst,\nagainst the best of"
        f" {counted(found.candidates, 'kernel')} at {counted(len(found.losses), 'shape')}"
        f" on {' and '.join(gpus)}."
    )
    if any(spec.constant_b for spec in kernels):
        text += (
            "\nSome have constant_b: a call that names this set promises that no queued work"
            "\nwrites the weight B. Where that is not so, reduce without --constant-b."
        )
    return text


def reduction_text(found: Reduction) -> str:
    """Return the kernels with how often each is the best of them, and the loss at each shape."""
    best_at = Counter(each.kernel for each in found.losses)
    names = [[kernel.partition("@")[0], str(best_at[kernel])] for kernel in found.kernels]
    sizes = sorted({each.entry.m for each in found.losses})
    cells = {(_weight(each.entry.key), each.entry.m): each.loss for each in found.losses}
    weights = dict.fromkeys(weight for weight, _ in cells)
    lines = [
        [weight] + [f"{cells[weight, m]:.1%}" if (weight, m) in cells else "" for m in sizes]
        for weight in weights
    ]
    worst = found.worst
    summary = (
        f"{len(found.kernels)} of {counted(found.candidates, 'kernel')}"
        f" {'loses' if len(found.kernels) == 1 else 'lose'} {found.loss:.2%} in the geometric mean"
        f" of {counted(len(found.losses), 'shape')}, {worst.loss:.1%} at worst"
        f" ({worst.entry.key}); torch wins {found.torch} more, which ask for no kernel"
    )
    head = ["loss", *(f"M={m}" for m in sizes)]
    return "\n\n".join([table(["kernel", "best at"], names), table(head, lines), summary])


def _weight(key: Key) -> str:
    types = key.a if key.a == key.d else f"{key.a} -> {key.d}"
    return f"{key.n}x{key.k} {types} {key.epilogue}"
