"""A linear layer that holds its weight in the form that kernels read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor
from torch.nn import functional

from gemmsmith.direct import linear
from gemmsmith.errors import ArgumentError
from gemmsmith.nn.linear import Linear, check_is_linear, check_is_tensor, parameter
from gemmsmith.weight_parts import Part
from gemmsmith.weights import Order, Preparation, join, prepare

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Pair", "PreparedLinear"]

P = TypeVar("P", bound="PreparedLinear")

Pair = Tensor | tuple[Tensor, Tensor]
"""A weight or bias, or those of gate and up."""


class PreparedLinear(Linear):
    """``y = x @ weight.T + bias`` with any layout and size of checkpoint, prepared once at load.

    ``weight`` and ``bias`` are what :func:`gemmsmith.weights.prepare` makes of the given ones:
    padded, K-major, gate and up interleaved; ``preparation`` says what was done and
    ``in_features`` and ``out_features`` are those without padding. A ``state_dict`` holds them as
    they were given: under ``weight`` and ``bias``, or ``gate.weight``, ``up.weight`` and so on;
    several layers that were joined, each under its name.

    Where N was padded, what it returns are rows of a wider tensor.
    """

    preparation: Preparation
    """What was done to the given weight."""
    ranks: int = 1
    """Processes that the layer is divided over (:func:`gemmsmith.nn.parallelize`), each of which
    holds a part."""
    part_names: tuple[str, ...] = ()
    """Names of the layers that were joined to this one (:meth:`joined`); else empty."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(in_features, out_features, bias=bias, device=device, dtype=dtype)
        weight, preparation = prepare(self.weight.detach())
        vector = None if self.bias is None else preparation.apply(self.bias.detach())
        self.hold(weight, vector, preparation)

    @classmethod
    def from_torch(cls, linear: torch.nn.Linear) -> Self:
        """Return a layer of the numbers of ``linear``, which stays as it is.

        Raises:
            ArgumentTypeError: where ``linear`` is not exactly a ``torch.nn.Linear``.
        """
        check_is_linear(linear=linear)
        return cls.from_weight(linear.weight, linear.bias).train(linear.training)

    @classmethod
    def from_weight(
        cls,
        weight: Pair,
        bias: Pair | None = None,
        *,
        order: Order = "",
        transposed: bool = False,
    ) -> Self:
        """Return the layer of a weight (N, K); nothing is copied where nothing has to be done.

        Args:
            weight: (N, K), or the pair (gate, up).
            bias: (N,), or a pair.
            order: what a single weight of gate and up holds first: ``gate_up`` or ``up_gate``.
            transposed: the weight is stored [K, N].

        Raises:
            ArgumentError: naming the argument, the value found and what is legal.
        """
        weights, biases = _tuple(weight), None if bias is None else _tuple(bias)
        with torch.no_grad():
            prepared, preparation = prepare(*weights, order=order, transposed=transposed)
            n = preparation.features[0]
            if biases is not None and len(biases) != len(weights):
                raise ArgumentError(f"{len(weights)} weights with {len(biases)} biases")
            for each in biases or ():
                if tuple(each.shape) != (n // len(weights),):
                    raise ArgumentError(f"bias is {tuple(each.shape)}; ({n // len(weights)},) fits")
            vector = None if biases is None else preparation.apply(*biases)
        layer = cls._of_size(preparation)
        layer.hold(prepared, vector, preparation)
        return layer

    @classmethod
    def joined(cls, layers: Mapping[str, torch.nn.Linear]) -> Self:
        """Return one layer that makes the outputs of several, one after the other.

        Args:
            layers: by the name under which a ``state_dict`` holds each: all with K input features,
                of one dtype and device, all with a bias or none.

        Raises:
            ArgumentTypeError: where one is not exactly a ``torch.nn.Linear``, or one of ours.
            ArgumentError: where they are not alike.
        """
        check_is_linear(**layers)
        biases = [layer.bias for layer in layers.values() if layer.bias is not None]
        if len(biases) not in (0, len(layers)):
            raise ArgumentError(f"of {', '.join(layers)} some have a bias: give the others zeros")
        with torch.no_grad():
            prepared, preparation = join([layer.weight for layer in layers.values()])
            vector = preparation.apply(*biases) if biases else None
        layer = cls._of_size(preparation)
        layer.part_names = tuple(layers)
        layer.hold(prepared, vector, preparation)
        return layer.train(all(each.training for each in layers.values()))

    @classmethod
    def _of_size(cls, preparation: Preparation) -> Self:
        """Return a layer that holds nothing yet."""
        n, k = preparation.features
        layer = cls.__new__(cls)
        torch.nn.Linear.__init__(layer, k, n, bias=False, device="meta")
        return layer

    def part(self, part: Part, kind: type[P], ranks: int, *, bias: bool = True) -> P:
        """Return the layer of some of the features, a copy, prepared as this one is.

        Args:
            part: which.
            kind: class of the result, int8 where this one is.
            ranks: how many parts there are.
            bias: whether the part has the bias, if there is one.
        """
        whole = self.preparation
        preparation = part.preparation(whole)
        made = kind._of_size(preparation)
        vector = part.take(whole, self.bias) if bias and self.bias is not None else None
        PreparedLinear.hold(made, part.take(whole, self.weight), vector, preparation)
        made.part_names, made.ranks = self.part_names, ranks
        if self.constant_weight:
            made.constant_weight = True  # which waits for the copy
        else:
            made.kernels = self.kernels
        return made.train(self.training)

    def hold(self, weight: Tensor, bias: Tensor | None, preparation: Preparation) -> None:
        """Make the prepared tensors those of the layer."""
        self.preparation = preparation
        self.weight = _frozen(weight)
        self.register_parameter("bias", None if bias is None else _frozen(bias))

    def forward(self, input: Tensor, residual: Tensor | None = None) -> Tensor:  # noqa: A002
        """Return (..., N) from (..., K); a residual (..., N) is added before it is rounded."""
        check_is_tensor(input)
        if input.dim() == 1:
            row = None if residual is None else residual.unsqueeze(0)
            return self.forward(input.unsqueeze(0), row).squeeze(0)
        return self.unpadded(self.product(self.padded(input), residual=self.widened(residual)))

    def product(self, x: Tensor, gate: str = "none", residual: Tensor | None = None) -> Tensor:
        """Return all columns that the prepared weight makes of ``x`` (..., padded K)."""
        weight, bias = parameter(self, "weight"), parameter(self, "bias")
        return linear(x, weight, bias, self.kernels, gate, residual=residual)

    def activated(self, input: Tensor, activation: str) -> Tensor:  # noqa: A002  torch's name
        """Return ``activation(forward(input))``, rounded once (:func:`gemmsmith.gemm`)."""
        return self.unpadded(super().activated(self.padded(input), activation))

    def extra_repr(self) -> str:
        """Return sizes, and what was done to the weight."""
        words = super().extra_repr()
        return f"{words}, {self.preparation}" if self.preparation.changes else words

    def padded(self, x: Any) -> Any:
        """Return ``x`` (..., K) with the zero columns that the weight has."""
        columns = self.preparation.padding[1]
        if x.shape[-1] != self.in_features:
            raise ArgumentError(f"input has {x.shape[-1]} columns; {self.in_features} fit")
        return functional.pad(x, (0, columns)) if columns else x

    def widened(self, residual: Tensor | None) -> Tensor | None:
        """Return a residual (..., N) with the columns that the weight's zero rows make."""
        columns = self.preparation.padding[0]
        if residual is None or not columns:
            return residual
        return functional.pad(residual, (0, columns))

    def unpadded(self, y: Tensor) -> Tensor:
        """Return the columns of a product that are the layer's outputs."""
        return y[..., : self.out_features] if y.shape[-1] != self.out_features else y

    def _prepared_names(self) -> tuple[str, ...]:
        """Return the parameters that are stored in another form than they are held."""
        return ("weight", "bias")

    def _keys(self, name: str) -> tuple[str, ...]:
        if self.preparation.interleaved == "separate":
            return f"gate.{name}", f"up.{name}"
        if self.part_names:
            return tuple(f"{part}.{name}" for part in self.part_names)
        return (name,)

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if not self.preparation.changes:
            return
        for name in self._prepared_names():
            held = destination.pop(prefix + name, None)
            if held is not None:
                stored = self.preparation.restore(held)
                for key, tensor in zip(self._keys(name), stored, strict=True):
                    destination[prefix + key] = tensor

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: dict[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        given = dict(state_dict)
        for name in self._prepared_names():
            own = self._parameters.get(name)
            keys = [prefix + key for key in self._keys(name)]
            if own is None:
                continue  # torch tells what is too much
            stored = [given.pop(key) for key in keys if key in given]
            if len(stored) < len(keys):
                continue  # and what is missing
            wanted = self.preparation.restore(own)
            fault = _misfit(stored, wanted)
            if fault:
                error_msgs.append(f"{', '.join(keys)}: {fault}")
            given[prefix + name] = own if fault else self.preparation.apply(*stored)
        super()._load_from_state_dict(
            given, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )


def _misfit(stored: list[Tensor], wanted: tuple[Tensor, ...]) -> str:
    """Return why tensors of a ``state_dict`` cannot be taken: torch would cast them silently."""
    for found, own in zip(stored, wanted, strict=True):
        if found.shape != own.shape:
            return f"the checkpoint has {tuple(found.shape)}, the layer {tuple(own.shape)}"
        if found.dtype != own.dtype and torch.int8 in (found.dtype, own.dtype):
            return f"the checkpoint has {found.dtype}, the layer {own.dtype}: quantise it first"
    return ""


def _tuple(given: Pair) -> tuple[Tensor, ...]:
    return given if isinstance(given, tuple) else (given,)


def _frozen(tensor: Tensor) -> torch.nn.Parameter:
    if isinstance(tensor, torch.nn.Parameter):
        return tensor
    return torch.nn.Parameter(tensor.detach(), requires_grad=False)
