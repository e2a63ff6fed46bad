"""Which linear layers of a model have kernels."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

import torch

from gemmsmith.arch import ARCHITECTURES, architecture_of
from gemmsmith.dtypes import INT8, DType
from gemmsmith.errors import NoDeviceError, UnknownArchitectureError
from gemmsmith.fit import misfits
from gemmsmith.kernelset import default_kernels
from gemmsmith.nvml import devices
from gemmsmith.problem import GemmProblem, alignment_of
from gemmsmith.row_math import padded
from gemmsmith.selection import output_letter

if TYPE_CHECKING:
    from gemmsmith.kernelset import KernelSet
    from gemmsmith.spec import KernelSpec

__all__ = ["kernel_dtypes", "misfit_of_layer"]

TOKENS = (1, 16)
"""Rows of x that a layer's kernels must take: one row has every layout, several have one."""


@cache
def kernel_dtypes() -> frozenset[DType]:
    """Return the types of layers that any architecture has kernels for."""
    every = frozenset(dtype for arch in ARCHITECTURES for dtype in arch.inputs)
    return every - {INT8}  # weights of whole numbers have scales, which nn.Linear has not


def misfit_of_layer(
    kernels: KernelSet | None,
    device: torch.device,
    n: int,
    k: int,
    dtype: DType,
    bias: bool,
    int8: bool,
    *,
    gate: str = "none",
    activation: str = "none",
) -> str:
    """Return why no kernel takes x (M, k) @ weight (n, k).T on ``device``; empty where one does.

    With ``int8`` both factors are that, padded and scaled, and ``dtype`` is what is written.

    Args:
        kernels: the kernels asked for; None for the default ones that the layer may meet.
        device: that of the weight.
        n: output features.
        k: input features.
        dtype: of what the layer reads and writes.
        bias: whether it has one.
        int8: whether its products are of int8.
        gate: function of one half of the outputs.
        activation: function of the outputs.
    """
    a = INT8 if int8 else dtype
    if int8:
        n, k = padded(n), padded(k)
    try:
        sets = _default_specs(device) if kernels is None else (kernels.specs,)
    except UnknownArchitectureError as error:
        return str(error)
    letter = output_letter("" if kernels is None else kernels.handle, a)
    promised = kernels is not None and kernels.constant_b
    problem = GemmProblem(
        m=1,
        n=n,
        k=k,
        a=a,
        b=a,
        d=dtype,
        layout=f"rc{letter}",
        bias=bias,
        activation=activation,
        gate=gate,
        scaled=int8,
        constant_b=promised,
    )
    reasons = [_why_none_takes(specs, problem) for specs in sets]
    return "" if "" in reasons else "; ".join(dict.fromkeys(reasons))


def _default_specs(device: torch.device) -> tuple[tuple[KernelSpec, ...], ...]:
    """Return the default kernels of each architecture that a layer on ``device`` may meet.

    Raises:
        UnknownArchitectureError: where ``device`` is a GPU that there are no kernels for.
    """
    if device.type == "cuda":
        arch = architecture_of(torch.cuda.get_device_capability(device))
        return (default_kernels(arch.name).specs,)
    try:
        here = devices()
    except NoDeviceError:  # a driver without a working GPU is no hindrance to a model elsewhere
        here = ()
    known = [arch for arch in ARCHITECTURES if here and arch.capability == here[0].capability]
    return tuple(default_kernels(arch.name).specs for arch in known or ARCHITECTURES)


def _why_none_takes(specs: tuple[KernelSpec, ...], layer: GemmProblem) -> str:
    a, d, letter = layer.a, layer.d, layer.layout[-1]
    # of another type or layout says nothing of this layer, unless all are
    alike = [spec for spec in specs if (spec.a, spec.d, spec.layout) == (a, d, layer.layout)]
    for m in TOKENS:
        problem = replace(
            layer,
            m=m,
            a_align=alignment_of(layer.k * a.bytes),
            b_align=alignment_of(layer.k * a.bytes),
            d_align=alignment_of((layer.columns if letter == "r" else m) * d.bytes),
        )
        reasons = misfits(alike or specs, problem)
        if reasons or not specs:
            return "; ".join(reasons) or "the set has no kernels"
    return ""
