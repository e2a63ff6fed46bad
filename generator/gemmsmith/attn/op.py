"""The registered ops behind :mod:`gemmsmith.attn.ops`: schemas, shapes, CPU and CUDA.

``attention_out`` and ``attention_varlen_out`` write to a tensor of the caller's, the others
allocate their result.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gemmsmith.attn.arguments import Attention, PackedAttention, check_no_overlap, check_out
from gemmsmith.attn.execute import refuse_misfit, run
from gemmsmith.op_library import Op, register_ops


def _fake(*args: Any) -> Tensor:
    return _new(Attention(*args))


def _fake_packed(*args: Any) -> Tensor:
    return _new(PackedAttention(*args))


def _fake_out(*args: Any, out: Tensor) -> None:
    _check(Attention(*args), out)


def _fake_packed_out(*args: Any, out: Tensor) -> None:
    _check(PackedAttention(*args), out)


def _attention(*args: Any) -> Tensor:
    return _made(Attention(*args))


def _packed(*args: Any) -> Tensor:
    return _made(PackedAttention(*args))


def _attention_out(*args: Any, out: Tensor) -> None:
    _written(Attention(*args), out)


def _packed_out(*args: Any, out: Tensor) -> None:
    _written(PackedAttention(*args), out)


def _new(call: Attention | PackedAttention) -> Tensor:
    shape = call.check()
    refuse_misfit(call)
    return call.q.new_empty(shape)


def _check(call: Attention | PackedAttention, out: Tensor) -> None:
    check_out(out, call.q, call.check())
    refuse_misfit(call)


def _made(call: Attention | PackedAttention) -> Tensor:
    out = _new(call)
    run(call, out)
    return out


def _written(call: Attention | PackedAttention, out: Tensor) -> None:
    _check(call, out)
    check_no_overlap(out, call.q, call.k, call.v)
    run(call, out)
    if out.is_cuda:
        torch.autograd.graph.increment_version(out)


_COMMON = "bool causal, int? window, float? softcap, float? scale"
_DENSE = (
    f"Tensor q, Tensor k, Tensor v, {_COMMON}, Tensor? mask, Tensor? lengths, Tensor? block_table,"
    ' bool constant_cache=False, str kernels=""'
)
_PACKED = (
    "Tensor q, Tensor k, Tensor v, Tensor cu_q, Tensor cu_k, int max_q, int max_k,"
    f' {_COMMON}, str kernels=""'
)
_OPS: dict[str, Op] = {
    "attention": (f"({_DENSE}) -> Tensor", _attention, _fake),
    "attention_out": (f"({_DENSE}, *, Tensor(a!) out) -> ()", _attention_out, _fake_out),
    "attention_varlen": (f"({_PACKED}) -> Tensor", _packed, _fake_packed),
    "attention_varlen_out": (
        f"({_PACKED}, *, Tensor(a!) out) -> ()",
        _packed_out,
        _fake_packed_out,
    ),
}

_library = register_ops(_OPS)
