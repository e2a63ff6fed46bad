"""The arguments of one GEMM, as its op takes them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from gemmsmith.errors import ArgumentError
from gemmsmith.finish import PLAIN, Finish, make_finish


class Arguments(NamedTuple):
    """What a call is given, in the order of the op's schema."""

    a: Tensor
    b: Tensor
    bias: Tensor | None = None
    residual: Tensor | None = None
    alpha: float = 1.0
    beta: float = 0.0
    kernels: str = ""
    activation: str = "none"
    gate: str = "none"
    a_scale: Tensor | None = None
    b_scale: Tensor | None = None
    a_zero_point: Tensor | None = None
    b_sum: Tensor | None = None
    out_scale: float = 1.0
    out_dtype: torch.dtype | None = None

    def finish(self) -> Finish:
        """Return what the call does with its sums beside alpha, bias and residual.

        Raises:
            ArgumentError, ArgumentTypeError: naming the argument, what was found and what is legal.
        """
        vectors = (self.a_scale, self.b_scale, self.a_zero_point, self.b_sum)
        given = (self.activation, self.gate, *vectors, self.out_scale)
        if given == _PLAIN:
            return PLAIN
        if self.gate != "none" and self.residual is not None:
            raise ArgumentError(
                f"gate {self.gate} with a residual: add it to what is computed from the gate"
            )
        return make_finish(self.a, self.b, *given)

    @property
    def addresses(self) -> tuple[int, ...]:
        """Where the tensors begin that a kernel reads, in the order of its interface; 0 for none.

        That of the output comes between those of the bias and of ``a_scale``.
        """
        residual = self.residual if self.beta else None
        matrices = (self.a, self.b, residual, self.bias)
        vectors = (self.a_scale, self.b_scale, self.a_zero_point, self.b_sum)
        return tuple(0 if t is None else t.data_ptr() for t in (*matrices, *vectors))


_PLAIN = ("none", "none", None, None, None, None, 1.0)
