"""The rules of :mod:`gemmsmith.legality` that follow from the element types."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from gemmsmith.arch import ARCHITECTURES
from gemmsmith.dtypes import BF16, FP16, INT8, INT32
from gemmsmith.errors import Objection

if TYPE_CHECKING:
    from gemmsmith.dtypes import DType
    from gemmsmith.spec import KernelSpec


def element_types(spec: KernelSpec) -> Iterator[Objection]:
    """Yield what is impossible about the element types and what follows from them."""
    arch = spec.arch
    if spec.a not in arch.inputs:
        inputs = ", ".join(dtype.name for dtype in arch.inputs)
        yield Objection(
            key="dtype",
            reason=f"{arch.name} tensor cores take {inputs}, not {spec.a}",
            fix=_first_with(spec.a),
        )
        return
    if spec.b != spec.a:
        yield Objection(
            key="dtype",
            reason=f"a is {spec.a} and b is {spec.b}: the instruction takes one type for both",
            fix=f"set b: {spec.a}",
        )
    legal = arch.accumulators[spec.a.name]
    if spec.acc not in legal:
        names = ", ".join(dtype.name for dtype in legal)
        yield Objection(
            key="dtype",
            reason=f"{spec.a} products accumulate in {names}, not {spec.acc}",
            fix=f"set acc: {legal[0]}",
        )
    outputs = arch.outputs[spec.a.name]
    if spec.d not in outputs:
        names = ", ".join(dtype.name for dtype in outputs)
        yield Objection(
            key="dtype",
            reason=f"{arch.name} stores {names} from {spec.a}, not {spec.d}",
            fix=f"set d: {outputs[0]}",
        )
    if spec.a == INT8 and spec.layout[:2] != "rc":
        yield Objection(
            key="layout",
            reason=f"{spec.layout}: int8 instructions read both operands along K",
            fix=f"{_along_k(spec.layout)}: layout: rc{spec.layout[2]}",
        )
    yield from _epilogue(spec)


def _epilogue(spec: KernelSpec) -> Iterator[Objection]:
    def refused(reason: str, fix: str) -> Objection:
        return Objection(key="epilogue", reason=reason, fix=fix)

    rich = spec.activation != "none" or spec.scaled
    if spec.d == INT8 and spec.residual:
        yield refused("a residual of 8 bits has no scale", "set epilogue: {residual: false}")
    if spec.d == INT32 and rich:
        yield refused(
            "an int32 output is the sum as it is: activations and scales work in f32",
            "set d: bf16 or fp16",
        )
    if spec.zero_point and (not spec.scaled or spec.a != INT8):
        yield refused("zero_point goes with int8 inputs and scales", "set scaled: true")
    if spec.gate != "none" and (spec.activation != "none" or spec.residual or spec.zero_point):
        yield refused(
            "a gate goes with bias and scales alone",
            "set epilogue: {activation: none, residual: false, zero_point: false}",
        )
    if spec.gate != "none" and spec.d not in (FP16, BF16, INT8):
        yield refused(f"a gated kernel writes fp16, bf16 or int8, not {spec.d}", "set d: bf16")


def _along_k(layout: str) -> str:
    """Say which operands have to be stored otherwise, so that K is contiguous in both."""
    a = "use a: row" if layout[0] == "c" else ""
    b = "use b: col (store the weight as [N, K])" if layout[1] == "r" else ""
    return " and ".join(word for word in (a, b) if word)


def _first_with(dtype: DType) -> str:
    """Name the first architecture whose tensor cores take ``dtype``."""
    rows = [row.name for row in ARCHITECTURES if dtype in row.inputs]
    return f"{dtype} needs {rows[0]} or later" if rows else "none here does"
