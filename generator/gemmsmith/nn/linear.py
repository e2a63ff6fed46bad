"""A linear layer on gemmsmith's kernels whose parameters are torch's own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from gemmsmith import constant
from gemmsmith.direct import linear
from gemmsmith.errors import ArgumentTypeError
from gemmsmith.invariant import HANDLE, WORD, handle_of
from gemmsmith.ops import gemm

if TYPE_CHECKING:
    from gemmsmith.kernelset import ExactKernel, KernelSet

__all__ = ["Linear", "check_is_linear", "check_is_tensor", "parameter"]


def check_is_linear(**layers: object) -> None:
    """Raise ArgumentTypeError where one is not exactly a ``torch.nn.Linear``, or one of ours."""
    for name, layer in layers.items():
        if type(layer) not in (torch.nn.Linear, Linear):
            raise ArgumentTypeError(
                f"{name} is a {type(layer).__module__}.{type(layer).__qualname__};"
                " from_torch takes exactly a torch.nn.Linear"
            )


def check_is_tensor(input: object) -> None:  # noqa: A002  torch's name
    """Raise ArgumentTypeError where a layer's input is not a tensor."""
    if not isinstance(input, torch.Tensor):
        raise ArgumentTypeError(f"input is a {type(input).__name__}, not a torch.Tensor")


def parameter(layer: torch.nn.Module, name: str) -> Any:
    """Return ``layer.name``, a parameter: a module's attributes are searched for at length."""
    parameters = layer._parameters
    return parameters[name] if name in parameters else getattr(layer, name)


def _constant_handle(kernels: str) -> str:
    return constant.handle_of(kernels, "constant_weight")


class Linear(torch.nn.Linear):
    """``y = x @ weight.T + bias`` on gemmsmith's kernels, for inference.

    A :class:`torch.nn.Linear` in all but the forward: the same constructor, parameters
    (``weight`` (N, K), ``bias`` (N,)) and ``state_dict``. Takes (..., K) and gives (..., N) of the
    same dtype; fp16 and bf16 have kernels.

    A layer may be tied to kernels of the caller's own (:meth:`use`); such a layer is good for this
    process only, because the handle that it holds is.

    Raises:
        ArgumentTypeError: where the input is not a tensor.
        ArgumentError: from the op: a gradient is asked for ("forward only": call under
            ``torch.no_grad()`` or freeze the parameters), or dtypes or sizes do not fit.
    """

    kernels = ""
    """Handle of what may run; empty for the default kernels of the input's GPU."""

    @classmethod
    def from_torch(cls, linear: torch.nn.Linear) -> Linear:
        """Return a layer that shares the parameters of ``linear``; nothing is copied.

        Raises:
            ArgumentTypeError: where ``linear`` is not exactly a ``torch.nn.Linear``: a subclass may
                compute something else (LoRA, quantised weights).
        """
        check_is_linear(linear=linear)
        layer = cls(
            linear.in_features,
            linear.out_features,
            bias=linear.bias is not None,
            device="meta",
            dtype=linear.weight.dtype,
        )
        layer.weight = linear.weight
        layer.bias = linear.bias
        return layer.train(linear.training)

    def use(self, kernels: KernelSet | ExactKernel) -> Linear:
        """Return the layer itself, from now on run by ``kernels`` alone: a set, or exactly one."""
        self.kernels = kernels.handle
        return self

    @property
    def deterministic(self) -> str:
        """``batch`` for one order of summing at every number of rows, so that a row's bits do not
        depend on the others (:func:`gemmsmith.gemm`); empty for the fastest."""
        return WORD if self.kernels == HANDLE else ""

    @deterministic.setter
    def deterministic(self, word: str) -> None:
        kernels = handle_of(word) if word else ""
        self.kernels = _constant_handle(kernels) if self.constant_weight else kernels

    @property
    def constant_weight(self) -> bool:
        """Whether calls promise that no queued work writes the weight (``constant_b`` of
        :func:`gemmsmith.gemm`).

        Setting it waits for what is queued on the weight's GPU. After the weight is written again,
        as by ``load_state_dict``, ``.to`` or an update in place, wait before the next call:
        ``torch.cuda.synchronize()``.

        Raises:
            ArgumentTypeError: where it is set to neither True nor False.
            ArgumentError: where the layer is deterministic, or tied to kernels.
        """
        return self.kernels == constant.HANDLE

    @constant_weight.setter
    def constant_weight(self, promised: bool) -> None:
        if constant.is_promised("constant_weight", promised):
            self.kernels = _constant_handle(self.kernels)
            if self.weight.is_cuda:
                torch.cuda.synchronize(self.weight.device)
        elif self.constant_weight:
            self.kernels = ""

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002  torch's name
        """Return (..., N) from (..., K)."""
        if not isinstance(input, torch.Tensor) or input.dim() == 1:
            check_is_tensor(input)
            return self.forward(input.unsqueeze(0)).squeeze(0)
        weight, bias = parameter(self, "weight"), parameter(self, "bias")
        return linear(input, weight, bias, self.kernels)

    def activated(self, input: torch.Tensor, activation: str) -> torch.Tensor:  # noqa: A002
        """Return ``activation(forward(input))``, rounded once (:func:`gemmsmith.gemm`)."""
        weight, bias = parameter(self, "weight"), parameter(self, "bias")
        return gemm(input, weight.t(), bias, activation=activation, kernels=self.kernels)
