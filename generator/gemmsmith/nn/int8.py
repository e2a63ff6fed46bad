"""A linear layer with int8 weights and int8 activations (W8A8)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from gemmsmith.direct import linear
from gemmsmith.errors import ArgumentError, ArgumentTypeError
from gemmsmith.nn.linear import check_is_linear, parameter
from gemmsmith.nn.prepared import P, Pair, PreparedLinear
from gemmsmith.ops import gemm
from gemmsmith.row_ops import quantize_rows, quantize_weight
from gemmsmith.smoothing import check_column_scale, smooth
from gemmsmith.weight_parts import Part
from gemmsmith.weights import Order, Preparation, join, prepare

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Int8Linear", "QuantizedRows"]

_OUTPUTS = (torch.bfloat16, torch.float16)


class QuantizedRows(NamedTuple):
    """Rows that were quantised by what made them, as a norm does, for an int8 layer to read."""

    q: Tensor
    """int8 (..., padded K)."""
    scale: Tensor
    """f32 (...)."""
    dtype: torch.dtype
    """Of the numbers that they stand for, and of what the layer gives."""


class Int8Linear(PreparedLinear):
    """``y = x @ weight.T + bias`` of int8 numbers, for inference; int32 sums are exact.

    ``weight`` is int8, one byte an element, with one f32 scale for each output feature in
    ``weight_scale``; each row of the input is quantised by its own largest magnitude. The product
    is multiplied by both scales in f32, the bias is added, and the result is rounded once to the
    input's dtype, bf16 or fp16. A zero row gives the bias; NaN and infinity stay in their row.

    With a ``column_scale`` the input is multiplied by it before it is quantised and the weight was
    divided by it (:mod:`gemmsmith.smoothing`).

    ``.to(dtype)`` casts the bias and, without loss, the column scale: the others stay f32. A
    ``state_dict`` holds ``weight`` (N, K), ``weight_scale`` (N,), ``bias`` and ``column_scale``
    (K,), without padding, and comes back bit by bit.
    """

    weight_scale: Tensor
    """(padded N,) f32."""
    input_scale: Tensor | None
    """(), f32: what every row of the input is divided by, if that is not found anew for each."""

    column_scale: Tensor | None
    """(K,), powers of two: what the input is multiplied by before it is quantised."""

    @classmethod
    def from_torch(cls, linear: torch.nn.Linear, inputs: Tensor | None = None) -> Self:
        """Return a layer of the numbers of ``linear``, which stays as it is.

        Args:
            linear: the layer.
            inputs: (..., K), samples of what the layer reads. With them :func:`gemmsmith.smooth`
                looks for a column scale that makes the layer more exact; rows with NaN or infinity
                are left out.

        Raises:
            ArgumentTypeError: where ``linear`` is not exactly a ``torch.nn.Linear``.
            ArgumentError: where ``inputs`` do not fit.
        """
        check_is_linear(linear=linear)
        found = None if inputs is None else smooth(linear.weight, inputs).column_scale
        layer = cls.from_weight(linear.weight, linear.bias, column_scale=found)
        return layer.train(linear.training)

    @classmethod
    def from_weight(
        cls,
        weight: Pair,
        bias: Pair | None = None,
        *,
        order: Order = "",
        transposed: bool = False,
        column_scale: Tensor | None = None,
    ) -> Self:
        """Return the layer of a weight (N, K), which is divided by ``column_scale`` and quantised.

        Args:
            weight: (N, K), or the pair (gate, up).
            bias: (N,), or a pair.
            order: what a single weight of gate and up holds first: ``gate_up`` or ``up_gate``.
            transposed: the weight is stored [K, N].
            column_scale: (K,), powers of two; the layer multiplies its input by it.

        Raises:
            ArgumentError: naming the argument, the value found and what is legal.
        """
        prepared = PreparedLinear.from_weight(weight, bias, order=order, transposed=transposed)
        return cls.of_prepared(prepared, column_scale)

    @classmethod
    def of_prepared(cls, layer: PreparedLinear, column_scale: Tensor | None = None) -> Self:
        """Return the int8 layer of one that is prepared, with a column scale (K,) or none.

        Raises:
            ArgumentError: where the layer is a part of one.
        """
        if layer.ranks > 1:
            raise ArgumentError(
                f"the layer is divided over {layer.ranks} ranks: quantise first, then parallelize"
            )
        made = cls._of_size(layer.preparation)
        made.part_names = layer.part_names
        made.hold(layer.weight, layer.bias, layer.preparation, column_scale)
        return made.train(layer.training)

    @classmethod
    def joined(cls, layers: Mapping[str, torch.nn.Linear]) -> Self:
        """Return one layer that makes the outputs of several int8 ones, one after the other.

        Their numbers stay as they are, so that the outputs do too.

        Args:
            layers: by the name under which a ``state_dict`` holds each.

        Raises:
            ArgumentTypeError: where one is no ``Int8Linear``.
            ArgumentError: where they are not alike in K, column scale or having a bias.
        """
        parts = _alike(layers)
        made = cls._of_parts(parts, join([part.restored("weight") for part in parts])[1])
        made.part_names = tuple(layers)
        return made

    @classmethod
    def interleaved(cls, gate: Int8Linear, up: Int8Linear) -> Self:
        """Return the layer of gate and up in turns, as a gated product reads them.

        Raises:
            ArgumentError: where they are not alike in size, column scale or having a bias.
        """
        parts = _alike({"gate": gate, "up": up})
        return cls._of_parts(parts, prepare(*(part.restored("weight") for part in parts))[1])

    @classmethod
    def _of_parts(cls, parts: Sequence[Int8Linear], preparation: Preparation) -> Self:
        def together(name: str) -> Tensor:
            return preparation.apply(*(part.restored(name) for part in parts))

        first = parts[0]
        made = cls._of_size(preparation)
        with torch.no_grad():
            bias = None if first.bias is None else together("bias")
            PreparedLinear.hold(made, together("weight"), bias, preparation)
            made._hold_scales(together("weight_scale"), first.column_scale)
        return made.train(first.training)

    def part(self, part: Part, kind: type[P], ranks: int, *, bias: bool = True) -> P:
        """Return the layer of some of the features, a copy: see :meth:`PreparedLinear.part`.

        Weights keep their scales; what a part reads is quantised by what it has of a row.
        """
        made = super().part(part, kind, ranks, bias=bias)
        assert isinstance(made, Int8Linear)
        columns = self.column_scale
        if columns is not None and part.columns is not None:
            columns = columns.narrow(0, *part.columns).clone()
        made._hold_scales(part.take(self.preparation, self.weight_scale), columns)
        return made if self.input_scale is None else made.use_input_scale(self.input_scale)

    def restored(self, name: str) -> Tensor:
        """Return the weight, bias or weight scale without what the kernels need added to it."""
        (tensor,) = self.preparation.restore(parameter(self, name).detach())
        return tensor

    def hold(
        self,
        weight: Tensor,
        bias: Tensor | None,
        preparation: Preparation,
        column_scale: Tensor | None = None,
    ) -> None:
        """Make the prepared weight, quantised, bias and column scale those of the layer."""
        divisor = None
        if column_scale is not None:
            check_column_scale(column_scale, preparation.features[1])
            column_scale = column_scale.detach().to(weight.device)
            divisor = functional.pad(column_scale, (0, preparation.padding[1]), value=1.0)
        q, scale = quantize_weight(weight.detach(), divisor)
        super().hold(q, bias, preparation)
        self._hold_scales(scale, column_scale)

    def _hold_scales(self, weight_scale: Tensor, column_scale: Tensor | None) -> None:
        self.weight_scale = torch.nn.Parameter(weight_scale, requires_grad=False)
        self.register_parameter("input_scale", None)
        self._hold_column_scale(column_scale)

    def _hold_column_scale(self, scale: Tensor | None) -> None:
        held = None if scale is None else torch.nn.Parameter(scale, requires_grad=False)
        self.register_parameter("column_scale", held)

    def use_input_scale(self, scale: float | Tensor | None) -> Self:
        """Return the layer itself, which from now on divides its input by ``scale``.

        A static scale saves the search for each row's largest magnitude and costs accuracy: a value
        beyond 127 times the scale, after the column scale, is clipped. None goes back to one scale
        for each row.

        Raises:
            ArgumentError: where it is not one positive finite number.
        """
        if scale is None:
            self.register_parameter("input_scale", None)
            return self
        value = float(scale)
        if not 0 < value < float("inf"):
            raise ArgumentError(f"scale is {value}; a positive finite number is needed")
        tensor = torch.tensor(value, dtype=torch.float32, device=self.weight.device)
        self.register_parameter("input_scale", torch.nn.Parameter(tensor, requires_grad=False))
        return self

    def quantize(self, x: Tensor | QuantizedRows) -> tuple[Tensor, Tensor]:
        """Return ``x`` (..., K) as int8 (..., padded K) and the scale of each row (...)."""
        if isinstance(x, QuantizedRows):
            return x.q, x.scale
        columns = self.column_scale_of(x.shape[-1], x.dtype)
        if self.input_scale is None:
            return quantize_rows(x, column_scale=columns)
        values = x.float() if columns is None else x.float() * columns.float()
        missing = self.weight.shape[1] - x.shape[-1]
        q = (values / self.input_scale).round().clamp(-128, 127).nan_to_num(0.0)
        # int8 has no NaN, so that the row's scale says it
        scale = torch.where(values.isfinite().all(-1), self.input_scale, torch.nan)
        return functional.pad(q.to(torch.int8), (0, missing)), scale

    def column_scale_of(self, columns: int, dtype: torch.dtype) -> Tensor | None:
        """Return the column scale for inputs of a dtype, padded or not: the same numbers."""
        held: Tensor | None = parameter(self, "column_scale")
        if held is None:
            return None
        scale = held if held.dtype == dtype else held.to(dtype)
        more = columns - self.in_features
        return functional.pad(scale, (0, more), value=1.0) if more > 0 else scale

    def quantized(self, q: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
        """Return (..., N) of ``dtype`` from int8 rows (..., padded K) and their scales (...).

        What several layers without a column scale read is quantised once:
        ``q, scale = gemmsmith.quantize_rows(x)``.
        """
        return self.unpadded(self.quantized_product(q, scale, dtype))

    def product(
        self, x: Tensor | QuantizedRows, gate: str = "none", residual: Tensor | None = None
    ) -> Tensor:
        """Return all columns that the prepared weight makes of ``x`` (..., K), in its dtype."""
        q, scale = self.quantize(x)
        return self.quantized_product(q, scale, x.dtype, gate, residual)

    def quantized_product(
        self,
        q: Tensor,
        scale: Tensor,
        dtype: torch.dtype,
        gate: str = "none",
        residual: Tensor | None = None,
    ) -> Tensor:
        """Return all columns that the prepared weight makes of int8 rows, in ``dtype``."""
        weight, bias = parameter(self, "weight"), parameter(self, "bias")
        if bias is not None and bias.dtype != dtype:
            bias = bias.to(dtype)
        scales = (scale, parameter(self, "weight_scale"))
        return linear(q, weight, bias, self.kernels, gate, *scales, dtype, residual)

    def activated(self, input: Tensor, activation: str) -> Tensor:  # noqa: A002  torch's name
        """Return ``activation(forward(input))``, rounded once (:func:`gemmsmith.gemm`)."""
        x, bias = self.padded(input), parameter(self, "bias")
        q, scale = self.quantize(x)
        y = gemm(
            q,
            parameter(self, "weight").t(),
            bias if bias is None or bias.dtype == x.dtype else bias.to(x.dtype),
            activation=activation,
            a_scale=scale,
            b_scale=parameter(self, "weight_scale"),
            out_dtype=x.dtype,
            kernels=self.kernels,
        )
        return self.unpadded(y)

    def padded(self, x: Any) -> Any:
        """Return ``x`` (..., K), checked: quantising adds the zero columns."""
        if isinstance(x, QuantizedRows):
            if x.q.shape[-1] != self.weight.shape[1]:
                raise ArgumentError(
                    f"input has {x.q.shape[-1]} int8 columns; {self.weight.shape[1]} fit"
                )
            return x
        if x.shape[-1] != self.in_features:
            raise ArgumentError(f"input has {x.shape[-1]} columns; {self.in_features} fit")
        if x.dtype not in _OUTPUTS:
            raise ArgumentTypeError(f"input is {x.dtype}; an int8 layer takes bfloat16 or float16")
        return x

    def extra_repr(self) -> str:
        """Return sizes, what was done to the weight, and how inputs are quantised."""
        how = "each row's own" if self.input_scale is None else "static"
        scaled = "" if self.column_scale is None else ", columns scaled"
        return f"{super().extra_repr()}, int8, input scale: {how}{scaled}"

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        scales = (self.weight_scale, self.input_scale)

        def keep_f32(tensor: Tensor) -> Tensor:
            moved = fn(tensor)
            if moved.dtype == tensor.dtype or not any(tensor is scale for scale in scales):
                return moved
            return tensor.to(moved.device)

        super()._apply(keep_f32, recurse)  # type: ignore[no-untyped-call]
        return self

    def _prepared_names(self) -> tuple[str, ...]:
        return (*super()._prepared_names(), "weight_scale")

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *rest: Any, **named: Any
    ) -> None:
        static = state_dict.get(f"{prefix}input_scale")
        if static is not None and self.input_scale is None:
            self.use_input_scale(1.0)  # room for the stored one
        columns = state_dict.get(f"{prefix}column_scale")
        if columns is not None and self.column_scale is None:
            room = torch.ones(self.in_features, dtype=columns.dtype, device=self.weight.device)
            self._hold_column_scale(room)
        super()._load_from_state_dict(state_dict, prefix, *rest, **named)


def _alike(layers: Mapping[str, torch.nn.Linear]) -> list[Int8Linear]:
    """Return layers that may become one.

    Raises:
        ArgumentTypeError: where one is no int8 layer.
        ArgumentError: where they read their input differently.
    """
    names, parts = ", ".join(layers), []
    for name, layer in layers.items():
        if not isinstance(layer, Int8Linear):
            raise ArgumentTypeError(f"{name} is a {type(layer).__qualname__}, not an Int8Linear")
        parts.append(layer)
    first = parts[0]
    if any(part.input_scale is not None for part in parts):
        raise ArgumentError(f"{names}: an input scale is static; use_input_scale(None) first")
    if len({part.bias is None for part in parts}) > 1:
        raise ArgumentError(f"of {names} some have a bias: give the others zeros")
    for part in parts:
        same = part.column_scale is first.column_scale
        if part.column_scale is not None and first.column_scale is not None:
            same = same or torch.equal(part.column_scale, first.column_scale)
        if not same:
            raise ArgumentError(f"{names} have unlike column scales")
    return parts
