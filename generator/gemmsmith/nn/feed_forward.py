"""Gated feed-forward blocks, ``down(function(gate(x)) * up(x))``, gate and up in one product."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from gemmsmith.arch import architecture_of
from gemmsmith.dtypes import INT8
from gemmsmith.errors import ArgumentError, UnknownArchitectureError
from gemmsmith.fit import misfits
from gemmsmith.kernelset import default_kernels
from gemmsmith.nn.int8 import Int8Linear, QuantizedRows
from gemmsmith.nn.linear import check_is_linear, check_is_tensor
from gemmsmith.nn.prepared import Pair, PreparedLinear
from gemmsmith.operands import TORCH_DTYPES
from gemmsmith.problem import GemmProblem
from gemmsmith.row_ops import gate as gate_op
from gemmsmith.row_ops import gate_quantize
from gemmsmith.rowspec import GATE_KINDS, GateKind
from gemmsmith.smoothing import MOST_ROWS, smooth, spread
from gemmsmith.weights import Order

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["HALF_TYPES", "FeedForward", "Int8FeedForward", "why_apart"]

_log = logging.getLogger(__name__)
HALF_TYPES = (torch.bfloat16, torch.float16)
"""What layers of 16-bit numbers read and write."""
_TOKENS = (1, 16)


class FeedForward(torch.nn.Module):
    """``down(function(gate(x)) * up(x))`` of a transformer, in bf16 or fp16, for inference.

    The weights of gate and up are interleaved once, a copy of their own. Where the GPU has a gated
    kernel, one product makes the gated values; elsewhere a product and one further kernel do, which
    :attr:`apart` and the log say. A ``state_dict`` holds the weights as they were given.

    Args:
        gate: K to H features.
        up: the same.
        down: H to N features.
        kind: function of the gate, ``silu``, ``gelu`` or ``gelu_tanh``.

    Raises:
        ArgumentError: where the layers do not fit each other.
    """

    gate_up: PreparedLinear
    down: PreparedLinear
    kind: GateKind
    """Function of the gate."""
    apart: dict[torch.dtype, str]
    """Input types for which gate and up are not made in one kernel, and why."""

    def __init__(
        self,
        gate: torch.nn.Linear,
        up: torch.nn.Linear,
        down: torch.nn.Linear,
        kind: GateKind = "silu",
    ) -> None:
        super().__init__()
        self._hold_apart(gate, up, down, kind)

    @classmethod
    def from_fused(
        cls, gate_up: torch.nn.Linear, down: torch.nn.Linear, order: Order, kind: GateKind = "silu"
    ) -> Self:
        """Return the block of one layer (K to 2H) that holds both halves.

        Args:
            gate_up: the layer.
            down: H to N features.
            order: which half comes first: ``gate_up`` (Phi-3, merged Llama weights, xformers) or
                ``up_gate`` (diffusers' GEGLU, flash-attn's GatedMlp).
            kind: function of the gate.

        Raises:
            ArgumentError: where the layers do not fit each other.
        """
        return cls._of_fused(gate_up, down, order, kind)

    @classmethod
    def _of_fused(
        cls,
        gate_up: torch.nn.Linear,
        down: torch.nn.Linear,
        order: Order,
        kind: GateKind,
        inputs: Tensor | None = None,
    ) -> Self:
        check_is_linear(gate_up=gate_up, down=down)
        if order not in ("gate_up", "up_gate"):
            raise ArgumentError(f"order is {order!r}; gate_up or up_gate: which half comes first")
        block = cls.__new__(cls)
        torch.nn.Module.__init__(block)
        block._hold(gate_up.weight, gate_up.bias, down, kind, order, inputs)
        return block.train(gate_up.training)

    @classmethod
    def of_layers(cls, gate_up: PreparedLinear, down: PreparedLinear, kind: GateKind) -> Self:
        """Return the block of two layers that are prepared: gate and up interleaved, and down."""
        block = cls.__new__(cls)
        torch.nn.Module.__init__(block)
        block.kind = kind
        block.hold(gate_up, down)
        return block.train(gate_up.training)

    def hold(self, gate_up: PreparedLinear, down: PreparedLinear) -> None:
        """Make the prepared layers those of the block."""
        self.gate_up, self.down = gate_up, down
        self._decide()

    def _hold_apart(
        self,
        gate: torch.nn.Linear,
        up: torch.nn.Linear,
        down: torch.nn.Linear,
        kind: GateKind,
        inputs: Tensor | None = None,
    ) -> None:
        check_is_linear(gate=gate, up=up, down=down)
        if (gate.bias is None) != (up.bias is None):
            raise ArgumentError("gate and up: one has a bias, the other none; give it a zero bias")
        bias = None if gate.bias is None else (gate.bias, up.bias)
        self._hold((gate.weight, up.weight), bias, down, kind, "", inputs)
        self.train(gate.training)

    def _hold(
        self,
        weight: Pair,
        bias: Pair | None,
        down: torch.nn.Linear,
        kind: GateKind,
        order: Order,
        inputs: Tensor | None,
    ) -> None:
        if kind not in GATE_KINDS:
            raise ArgumentError(f"kind is {kind!r}; {', '.join(GATE_KINDS)} are legal")
        self.kind = kind
        gate_up = PreparedLinear.from_weight(weight, bias, order=order)
        if 2 * down.in_features != gate_up.out_features:
            raise ArgumentError(
                f"down takes {down.in_features} features, gate and up give"
                f" {gate_up.out_features // 2}"
            )
        self.hold(*self._layers(gate_up, down, inputs))

    def _layers(
        self, gate_up: PreparedLinear, down: torch.nn.Linear, inputs: Tensor | None
    ) -> tuple[PreparedLinear, PreparedLinear]:
        """Return the two layers of the block; ``inputs`` are samples of what it reads."""
        del inputs  # nothing depends on them here
        bias = None if down.bias is None else down.bias.detach()
        return gate_up, PreparedLinear.from_weight(down.weight.detach(), bias)

    @property
    def constant_weight(self) -> bool:
        """Whether both layers promise that no queued work writes their weights
        (:attr:`gemmsmith.nn.Linear.constant_weight`)."""
        return self.gate_up.constant_weight and self.down.constant_weight

    @constant_weight.setter
    def constant_weight(self, promised: bool) -> None:
        self.gate_up.constant_weight = self.down.constant_weight = promised

    def forward(
        self,
        input: Tensor | QuantizedRows,  # noqa: A002  torch's name
        residual: Tensor | None = None,
    ) -> Tensor:
        """Return (..., N) from (..., K); a residual (..., N) is added before it is rounded."""
        if not isinstance(input, QuantizedRows):
            check_is_tensor(input)
            if input.dim() == 1:
                row = None if residual is None else residual.unsqueeze(0)
                return self.forward(input.unsqueeze(0), row).squeeze(0)
        x = self.gate_up.padded(input)
        return self.down.unpadded(self._padded_result(x, self.down.widened(residual)))

    def _padded_result(self, x: Tensor, residual: Tensor | None) -> Tensor:
        if x.dtype in self.apart:
            inner = gate_op(self.gate_up.product(x), self.kind, interleaved=True)
        else:
            inner = self.gate_up.product(x, gate=self.kind)
        return self.down.product(inner, residual=residual)

    def extra_repr(self) -> str:
        """Return the gate's function."""
        return f"kind={self.kind}"

    def _decide(self) -> None:
        layer = self.gate_up
        n, k = layer.preparation.padded
        self.apart = {}
        for dtype in HALF_TYPES:
            reason = why_apart(
                layer.weight.device,
                dtype,
                layer.weight.dtype == torch.int8,
                n,
                k,
                layer.bias is not None,
                self.kind,
            )
            if reason:
                self.apart[dtype] = reason

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self._decide()
        return self

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._decide()  # it may have come from a machine with another GPU


class Int8FeedForward(FeedForward):
    """:class:`FeedForward` with int8 weights and activations, all scales found on the way.

    Quantise, the gated product, quantise, and the second product; where no gated kernel exists,
    quantise, a product, gate and quantise in one kernel, and the second product.

    Args:
        gate: K to H features.
        up: the same.
        down: H to N features.
        kind: function of the gate, ``silu``, ``gelu`` or ``gelu_tanh``.
        inputs: (..., K), samples of what the block reads. With them both of its layers get the
            column scale, if any, that makes them most exact (:func:`gemmsmith.smooth`).

    Raises:
        ArgumentError: where the layers, or the samples, do not fit.
    """

    def __init__(
        self,
        gate: torch.nn.Linear,
        up: torch.nn.Linear,
        down: torch.nn.Linear,
        kind: GateKind = "silu",
        inputs: Tensor | None = None,
    ) -> None:
        torch.nn.Module.__init__(self)
        self._hold_apart(gate, up, down, kind, inputs)

    @classmethod
    def from_fused(
        cls,
        gate_up: torch.nn.Linear,
        down: torch.nn.Linear,
        order: Order,
        kind: GateKind = "silu",
        inputs: Tensor | None = None,
    ) -> Self:
        """Return the block of one layer (K to 2H) that holds both halves.

        Args:
            gate_up: the layer.
            down: H to N features.
            order: which half comes first: ``gate_up`` or ``up_gate``.
            kind: function of the gate.
            inputs: (..., K), samples of what the block reads.

        Raises:
            ArgumentError: where the layers, or the samples, do not fit.
        """
        return cls._of_fused(gate_up, down, order, kind, inputs)

    @classmethod
    def of(cls, block: FeedForward, inputs: Tensor | None = None) -> Self:
        """Return the int8 block of one that is prepared, which stays as it is.

        Args:
            block: the block.
            inputs: (..., K), samples of what it reads.

        Raises:
            ArgumentError: where the samples do not fit.
        """
        made = cls.__new__(cls)
        torch.nn.Module.__init__(made)
        made.kind = block.kind
        made.hold(*made._layers(block.gate_up, block.down, inputs))
        return made.train(block.training)

    def _layers(
        self, gate_up: PreparedLinear, down: torch.nn.Linear, inputs: Tensor | None
    ) -> tuple[Int8Linear, Int8Linear]:
        if not isinstance(down, PreparedLinear):
            down = PreparedLinear.from_weight(down.weight, down.bias)
        scale = down_scale = None
        if inputs is not None:
            k = gate_up.in_features
            scale = smooth(gate_up.weight[:, :k], inputs).column_scale
            weight = gate_up.weight
            x = spread(inputs.reshape(-1, k), MOST_ROWS).to(weight.device, weight.dtype)
            inner = gate_op(gate_up.product(gate_up.padded(x)), self.kind, interleaved=True)
            n, k = down.preparation.features
            down_scale = smooth(down.weight[:n, :k], inner[:, :k]).column_scale
        return Int8Linear.of_prepared(gate_up, scale), Int8Linear.of_prepared(down, down_scale)

    def _padded_result(self, x: Tensor | QuantizedRows, residual: Tensor | None) -> Tensor:
        gate_up, down = cast(Int8Linear, self.gate_up), cast(Int8Linear, self.down)
        q, scale = gate_up.quantize(x)
        if x.dtype in self.apart and down.input_scale is None:
            sums = gate_up.quantized_product(q, scale, x.dtype)
            columns = down.column_scale_of(sums.shape[-1] // 2, x.dtype)
            q, scale = gate_quantize(sums, self.kind, interleaved=True, column_scale=columns)
        elif x.dtype in self.apart:
            sums = gate_up.quantized_product(q, scale, x.dtype)
            q, scale = down.quantize(gate_op(sums, self.kind, interleaved=True))
        else:
            q, scale = down.quantize(gate_up.quantized_product(q, scale, x.dtype, self.kind))
        return down.quantized_product(q, scale, x.dtype, residual=residual)


@cache
def why_apart(
    device: torch.device,
    dtype: torch.dtype,
    int8: bool,
    n: int,
    k: int,
    bias: bool,
    gate: str = "none",
    activation: str = "none",
) -> str:
    """Return why no kernel of ``device`` gates or activates a product; empty where one does."""
    if device.type != "cuda":
        return ""
    try:
        arch = architecture_of(torch.cuda.get_device_capability(device))
    except UnknownArchitectureError as error:
        return str(error)
    d = TORCH_DTYPES[dtype]
    a = INT8 if int8 else d
    for m in _TOKENS:
        problem = GemmProblem(
            m=m, n=n, k=k, a=a, b=a, d=d, bias=bias, activation=activation, gate=gate, scaled=int8
        )
        reasons = misfits(default_kernels(arch.name).specs, problem)
        if reasons:
            reason = f"{arch.name}: {'; '.join(reasons)}"
            _log.info("a product and a further kernel instead of one: %s", reason)
            return reason
    return ""
