"""What a model's conversion did: its layers, swapped or left, with proofs and reasons."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gemmsmith.bench.report_text import table
from gemmsmith.proof import Proof

__all__ = ["BlockLeft", "Conversion", "Layer", "Left", "SwappedBlock"]


@dataclass(frozen=True, kw_only=True)
class Layer:
    """One linear layer of a model: y (..., N) = x (..., K) @ weight.T."""

    name: str
    """Path of the module inside the model; empty for the model itself."""
    n: int
    """Output features."""
    k: int
    """Input features."""
    tied_to: str = ""
    """Path of another parameter that is the same tensor as the weight; empty where none is."""
    proof: Proof | None = None
    """How an int8 layer compares with this one; None for other types, and for one on ``meta``."""
    preparation: str = ""
    """What was done to the weight of an int8 layer, padding for example."""

    @property
    def flops_per_token(self) -> int:
        """Floating-point operations of the product for one row of x."""
        return 2 * self.n * self.k

    def left(self, reason: str) -> Left:
        """Return that the layer stays as it is, and why."""
        return Left(**vars(self), reason=reason)


@dataclass(frozen=True, kw_only=True)
class Left(Layer):
    """A linear layer that still runs on torch."""

    reason: str
    """Why, and what to change where something can be changed."""


@dataclass(frozen=True, kw_only=True)
class SwappedBlock:
    """An attention or feed-forward block of transformers that now is one of gemmsmith."""

    name: str
    """Path of the module inside the model."""
    kind: str
    """Its class in transformers."""
    does: str
    """What beside its linear layers runs on gemmsmith, in words."""


@dataclass(frozen=True, kw_only=True)
class BlockLeft:
    """A block of a known kind that stays; its linear layers are swapped or left like others."""

    name: str
    """Path of the module inside the model."""
    kind: str
    """Its class in transformers."""
    reason: str
    """Why, and what to change where something can be changed."""


@dataclass(frozen=True, kw_only=True)
class Conversion:
    """What :func:`gemmsmith.convert` did to a model."""

    swapped: tuple[Layer, ...]
    """Layers that now run on gemmsmith, alone or as part of a block."""
    already: tuple[Layer, ...]
    """Layers that did before."""
    left: tuple[Left, ...]
    """Layers that still run on torch, with the reason."""
    blocks: tuple[SwappedBlock, ...] = ()
    """Blocks that are swapped as a whole."""
    blocks_left: tuple[BlockLeft, ...] = ()
    """Blocks of known kinds that are not, with the reason."""

    @property
    def converted_flops_share(self) -> float:
        """Share of the linear layers' FLOPs per token that runs on gemmsmith, 0 to 1."""
        ours = sum(layer.flops_per_token for layer in (*self.swapped, *self.already))
        total = ours + sum(layer.flops_per_token for layer in self.left)
        return ours / total if total else 0.0

    def __str__(self) -> str:
        share = f"{self.converted_flops_share:.1%} of the linear FLOPs run on gemmsmith"
        noun = "linear layer" if len(self.swapped) == 1 else "linear layers"
        lines = [f"{len(self.swapped)} {noun} swapped, {len(self.left)} left: {share}"]
        if self.already:
            lines.append(f"  {len(self.already)} ran on gemmsmith before")
        shapes: dict[tuple[int, int], list[Layer]] = {}
        for layer in self.swapped:
            shapes.setdefault((layer.n, layer.k), []).append(layer)
        for (n, k), layers in shapes.items():
            leaves = ", ".join(dict.fromkeys(_leaf(layer) for layer in layers))
            lines.append(f"  swapped {len(layers):>3} of N={n} K={k}: {leaves}{_worst(layers)}")
        lines += [f"  left {layer.name or '(the model)'}: {layer.reason}" for layer in self.left]
        return "\n".join([*lines, *self._block_lines()])

    def _block_lines(self) -> Iterator[str]:
        kinds: dict[tuple[str, str], int] = {}
        for block in self.blocks:
            kinds[block.kind, block.does] = kinds.get((block.kind, block.does), 0) + 1
        for (kind, does), count in kinds.items():
            yield f"  swapped {count:>3} {kind} as a block: {does}"
        reasons: dict[tuple[str, str], list[str]] = {}
        for each in self.blocks_left:
            reasons.setdefault((each.kind, each.reason), []).append(each.name or "(the model)")
        for (kind, reason), names in reasons.items():
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            yield f"  no block for {kind} {names[0]}{more}: {reason}"

    def proofs(self) -> str:
        """Return a table of what was proven of each int8 layer, swapped or left."""
        layers = [layer for layer in (*self.swapped, *self.left) if layer.proof is not None]
        proofs = [layer.proof for layer in layers if layer.proof is not None]
        timed = sorted({timing.tokens for proof in proofs for timing in proof.timings})
        head = ["layer", "N", "K", "smoothed", "relative", "largest", "of"]
        rows = []
        for layer, proof in zip(layers, proofs, strict=True):
            speedups = {timing.tokens: f"{timing.speedup:.2f}x" for timing in proof.timings}
            rows.append(
                [
                    layer.name or "(the model)",
                    str(layer.n),
                    str(layer.k),
                    "" if proof.smoothing is None else f"{proof.smoothing:g}",
                    f"{proof.relative_error:.2%}",
                    f"{proof.largest_error:.3g}",
                    f"{proof.largest_output:.3g}",
                    *(speedups.get(m, "") for m in timed),
                    proof.kernel + (" (left)" if isinstance(layer, Left) else ""),
                ]
            )
        return table([*head, *(f"M {m}" for m in timed), "kernel"], rows)


def _worst(layers: Sequence[Layer]) -> str:
    proofs = [layer.proof for layer in layers if layer.proof is not None]
    if not proofs:
        return ""
    errors = [proof.relative_error for proof in proofs]
    speedups = [proof.speedup for proof in proofs if proof.speedup is not None]
    faster = f", {min(speedups):.2f} times as fast" if speedups else ""
    made = "random inputs" if proofs[0].random else "samples"
    padded = f", {layers[0].preparation}" if layers[0].preparation != "as given" else ""
    return f"; off by {min(errors):.2%} to {max(errors):.2%} on {made}{faster}{padded}"


def _leaf(layer: Layer) -> str:
    leaf = layer.name.rpartition(".")[2] or "(the model)"
    return f"{leaf} (tied to {layer.tied_to})" if layer.tied_to else leaf
