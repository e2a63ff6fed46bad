"""One checked attention call, carried out; and what was run."""

from __future__ import annotations

import logging
from functools import cache
from typing import Any

import torch
from torch import Tensor

from gemmsmith import direct
from gemmsmith.arch import architecture_of
from gemmsmith.attn.arguments import Attention, Newest, PackedAttention
from gemmsmith.attn.choose import AttentionProblem
from gemmsmith.attn.counters import zeros
from gemmsmith.attn.kernels import default_attention_kernels, plan_of
from gemmsmith.attn.selection import attention_selection
from gemmsmith.attn.with_torch import attend, attend_packed
from gemmsmith.autocast import without_autocast
from gemmsmith.choose import Tuning
from gemmsmith.errors import LaunchError, NoKernelError, UnknownArchitectureError
from gemmsmith.launch import LaunchRecord, on_device_of, raw_stream
from gemmsmith.launcher import AttentionCall, AttentionKernel
from gemmsmith.operands import TORCH_DTYPES
from gemmsmith.shelf import AttentionShelf

_log = logging.getLogger(__name__)


def run(call: Attention | PackedAttention, out: Tensor) -> None:
    """Write the result of a checked call to ``out``, and note what ran.

    Raises:
        NoKernelError: where the call names kernels that do not take it.
        LaunchError: where CUDA refuses.
    """
    if out.numel() == 0:
        _record("none", "the output is empty")
    elif not out.is_cuda:
        _in_torch(call, out)
        _record("cpu", "the tensors are on the CPU")
    else:
        with on_device_of(out):
            _on_gpu(call, out)


def _on_gpu(call: Attention | PackedAttention, out: Tensor) -> None:
    reason = _queued(call, out)
    if not reason:
        return
    if call.kernels:
        raise NoKernelError(f"{attention_selection(call.kernels).label}: {reason}")
    _say_once(reason)
    _in_torch(call, out)
    _record("torch", reason)


def append_and_attend(call: Attention, out: Tensor) -> bool:
    """Write the result of a checked call that appends to ``out``, by one kernel; note what ran.

    False where no kernel does, and nothing is done.

    Raises:
        NoKernelError: where the call names kernels that do not append so.
        LaunchError: where CUDA refuses.
    """
    with on_device_of(out):
        if _queued(call, out):
            return False
    for written in (call.k, call.v):
        if not written.is_inference():
            torch.autograd.graph.increment_version(written)
    return True


def _queued(call: Attention | PackedAttention, out: Tensor) -> str:
    """Queue the kernel for a call and note what ran; or return why there is none."""
    # Kept until the launch: what it copied must not be memory for others.
    laid_out = _laid_out(_promised(call))
    found = _planned(laid_out, out, out.get_device())
    if isinstance(found, str):
        return found
    launch_attention(*found, out.device)
    _record(found[0].name)
    return ""


def launch_attention(kernel: AttentionKernel, filled: AttentionCall, device: torch.device) -> None:
    """Queue ``kernel`` on the current stream of ``device``, which is the current one.

    Raises:
        LaunchError: where the kernel or CUDA refuses.
    """
    index = filled.device
    status, size, counters = kernel.needs(filled)
    _check(kernel, status, filled)
    workspace = torch.empty(size, dtype=torch.uint8, device=device) if size else None
    stream = raw_stream(index)
    zeroed = zeros(index, stream, counters) if counters else None
    if zeroed is not None:
        filled = filled._replace(counters=zeroed.data_ptr())
    address = 0 if workspace is None else workspace.data_ptr()
    _check(kernel, kernel.launch(filled, address, stream), filled)


def _planned(
    call: Attention | PackedAttention, out: Tensor, index: int
) -> tuple[AttentionKernel, AttentionCall] | str:
    """Return the kernel and its call, or why torch has to take it."""
    reason = _torch_alone(call)
    if reason:
        return reason
    read = {"q": call.q, "k": call.k, "v": call.v, "out": out}
    if isinstance(call, Attention) and call.newest is not None:
        read |= {"new k": call.newest.k, "new v": call.newest.v}
    for name, tensor in read.items():
        if tensor.stride(-1) != 1 and tensor.shape[-1] > 1:
            return f"the elements of a head of {name} are not next to each other"
    properties = torch.cuda.get_device_properties(index)
    capability = (properties.major, properties.minor)
    shelf = None if call.kernels else _default_shelf(capability)
    if isinstance(shelf, str):
        return shelf
    problem = problem_of(call)
    filled = attention_call(call, problem, out, index, properties.multi_processor_count)
    if shelf is None:
        return attention_selection(call.kernels).plan(problem, filled, capability), filled
    kernel = plan_of(shelf, problem, filled)
    return kernel if isinstance(kernel, str) else (kernel, filled)


def _default_shelf(capability: tuple[int, int]) -> AttentionShelf | str:
    """Return the default kernels of a GPU, or why there are none."""
    try:
        arch = architecture_of(capability)
    except UnknownArchitectureError as error:
        return str(error)
    return default_attention_kernels(arch.name)


def refuse_misfit(call: Attention | PackedAttention) -> None:
    """Raise NoKernelError where a checked call names kernels that do not take it."""
    if not call.kernels:
        return
    named = attention_selection(call.kernels)
    reason = _torch_alone(call)
    if reason:
        raise NoKernelError(f"{named.label}: {reason}; leave kernels out, torch computes it")
    named.refuse(problem_of(_promised(call)))


def _torch_alone(call: Attention | PackedAttention) -> str:
    """Return why no kernel whatever takes a call; empty where one may."""
    if isinstance(call, Attention) and call.mask is not None:
        return "a mask has no kernel"
    return "float32 inputs have no kernel" if call.q.dtype == torch.float32 else ""


def problem_of(call: Attention | PackedAttention) -> AttentionProblem:
    """Return what a checked call asks of a kernel."""
    dense = isinstance(call, Attention)
    keys = call.key_length if isinstance(call, Attention) else call.max_k
    return AttentionProblem(
        dtype=TORCH_DTYPES[call.q.dtype],
        batch=call.q.shape[0] if isinstance(call, Attention) else call.cu_q.shape[0] - 1,
        queries=call.q.shape[1] if isinstance(call, Attention) else call.max_q,
        keys=keys,
        heads=call.q.shape[-2],
        kv_heads=call.k.shape[-2],
        head_dim=call.q.shape[-1],
        causal=call.causal,
        window=min(call.window or 0, keys),  # a wider one cuts nothing, and may be of 64 bits
        paged=isinstance(call, Attention) and call.block_table is not None,
        constant_cache=isinstance(call, Attention) and call.constant_cache,
        appends=isinstance(call, Attention) and call.newest is not None,
        lengths=isinstance(call, Attention) and call.lengths is not None,
        packed=not dense,
        capped=call.softcap is not None,
    )


def _promised(call: Attention | PackedAttention) -> Attention | PackedAttention:
    """Return the call with the promise that it makes, or that its kernels' names are; without it
    where lengths, table or frequencies are copied first, for a copy is queued, and writes."""
    if isinstance(call, PackedAttention):
        return call
    named = bool(call.kernels) and attention_selection(call.kernels).constant_cache
    lengths, table, newest = call.lengths, call.block_table, call.newest
    turned = None if newest is None else newest.inv_freq
    copied = any(each is not None and not each.is_contiguous() for each in (lengths, turned))
    copied = copied or (table is not None and table.stride(-1) != 1)
    return call._replace(constant_cache=(call.constant_cache or named) and not copied)


def _laid_out(call: Attention | PackedAttention) -> Attention | PackedAttention:
    """Return the call with numbers of sequences next to each other, as kernels read them."""
    if isinstance(call, PackedAttention):
        return call._replace(cu_q=call.cu_q.contiguous(), cu_k=call.cu_k.contiguous())
    lengths, table, newest = call.lengths, call.block_table, call.newest
    if newest is not None and newest.inv_freq is not None:
        call = call._replace(newest=newest._replace(inv_freq=newest.inv_freq.contiguous()))
    if lengths is not None:
        lengths = lengths.contiguous()
    if table is not None and table.stride(-1) != 1:
        table = table.contiguous()
    return call._replace(lengths=lengths, block_table=table)


def attention_call(
    call: Attention | PackedAttention,
    problem: AttentionProblem,
    out: Tensor,
    index: int,
    sm_count: int,
) -> AttentionCall:
    """Return a checked call as the C interface takes it; lengths and tables lie as it wants.

    ``problem`` is what the call asks (:func:`problem_of`).
    """
    q, k, v = call.q, call.k, call.v
    packed, paged = problem.packed, problem.paged
    lengths = table = cu_q = cu_k = None
    if isinstance(call, Attention):
        lengths, table = call.lengths, call.block_table
    else:
        cu_q, cu_k = call.cu_q, call.cu_k
    newest = call.newest if isinstance(call, Attention) else None
    return AttentionCall(
        q=q.data_ptr(),
        k=k.data_ptr(),
        v=v.data_ptr(),
        out=out.data_ptr(),
        lengths=_address(lengths),
        cu_q=_address(cu_q),
        cu_k=_address(cu_k),
        block_table=_address(table),
        batch=problem.batch,
        queries=problem.queries,
        keys=problem.keys,
        heads=problem.heads,
        kv_heads=problem.kv_heads,
        head_dim=problem.head_dim,
        tokens_q=q.shape[0] if packed else 0,
        tokens_k=k.shape[0] if packed else 0,
        q_batch=0 if packed else q.stride(0),
        q_row=q.stride(-3),
        q_head=q.stride(-2),
        k_batch=0 if packed else k.stride(0),
        k_row=k.stride(-3),
        k_head=k.stride(-2),
        v_batch=0 if packed else v.stride(0),
        v_row=v.stride(-3),
        v_head=v.stride(-2),
        out_batch=0 if packed else out.stride(0),
        out_row=out.stride(-3),
        out_head=out.stride(-2),
        pages=k.shape[0] if paged else 0,
        page_size=k.shape[1] if paged else 0,
        table_stride=0 if table is None else table.stride(0),
        scale=call.true_scale,
        softcap=call.softcap or 0.0,
        causal=int(call.causal),
        window=problem.window,
        splits=0,
        device=index,
        sm_count=sm_count,
        counters=0,
        **({} if newest is None else _appended(newest)),
    )


def _appended(newest: Newest) -> dict[str, Any]:
    """Return the fields of a call for the key and the value that each sequence gets."""
    k, v, turned = newest.k, newest.v, newest.inv_freq
    return {
        "new_k": k.data_ptr(),
        "new_v": v.data_ptr(),
        "new_k_batch": k.stride(0),
        "new_k_head": k.stride(2),
        "new_v_batch": v.stride(0),
        "new_v_head": v.stride(2),
        "frequencies": _address(turned),
        "pairs": 0 if turned is None else turned.shape[0],
        "rope_factor": newest.attention_factor,
        "interleaved": int(newest.interleaved),
        "wide_frequencies": int(turned is not None and turned.dtype == torch.float64),
    }


def _address(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def _check(kernel: AttentionKernel, status: int, call: AttentionCall) -> None:
    if status != 0:
        raise LaunchError(f"{kernel.name}: {kernel.explain(status)} ({call})")


def _in_torch(call: Attention | PackedAttention, out: Tensor) -> None:
    with without_autocast(out.device):
        out.copy_(attend(call) if isinstance(call, Attention) else attend_packed(call))


def _record(name: str, reason: str = "") -> None:
    direct.last[0] = LaunchRecord(name=name, reason=reason, tuning=Tuning(), copied=())


@cache
def _say_once(reason: str) -> None:
    _log.warning("torch computes this attention: %s", reason)
