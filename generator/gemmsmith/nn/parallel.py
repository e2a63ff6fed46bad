"""Decoders and their blocks over several GPUs: tensor parallelism on torch.distributed."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, TypeVar

import torch

from gemmsmith.errors import ArgumentError, ArgumentTypeError
from gemmsmith.nn.attention import Attention
from gemmsmith.nn.decoder import Decoder
from gemmsmith.nn.division import why_heads_stay, why_inner_stays
from gemmsmith.nn.feed_forward import FeedForward

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

__all__ = ["parallelize"]

_log = logging.getLogger(__name__)
M = TypeVar("M", bound=torch.nn.Module)


def parallelize(module: M, mesh: DeviceMesh) -> M:
    """Return ``module`` itself, its blocks divided over the ranks of ``mesh`` (tensor parallel).

    Every rank calls this with the same weights, cuts out its part and drops the rest; nothing is
    sent. That may be on the CPU, for a model that one GPU cannot hold: ``.to("cuda")`` after it.
    Each :class:`Attention` keeps its share of heads and each :class:`FeedForward` its share of
    inner features; what a block returns is summed over the ranks once, by one all-reduce, and the
    residual is added by rank 0. A :class:`Decoder`'s head makes a share of the logits, which are
    gathered, where the ranks divide the vocabulary; otherwise it stays whole, as embedding and
    norms do. Where there are fewer KV heads than ranks, several ranks hold the same one. All ranks
    call the result with the same input and get the same output; ``Decoder.cache`` makes a cache of
    the rank's own heads.

    A ``state_dict`` has the names of before and the rank's part of each weight: rows of q, k, v,
    gate, up and head, columns of o and down, whose biases rank 0 alone has. Quantise first
    (``Decoder.to_int8``), then parallelize: each rank then scales what o and down read by its own
    part of a row.

    Collectives are torch's (`all_reduce`, `all_gather_into_tensor`) on the mesh's group; the plan
    is carried out by ``torch.distributed.tensor.parallel.parallelize_module``.

    Args:
        module: a decoder, or any module that holds such blocks. bf16, fp16 or int8.
        mesh: one dimension; of a larger mesh pass that dimension, as ``mesh["tp"]``.

    Raises:
        ArgumentError: where something cannot be divided, naming all of it, as attention blocks of
            :func:`gemmsmith.convert`; nothing is changed then.
    """
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor.parallel import parallelize_module

    from gemmsmith.nn.parallel_styles import plan_of

    if not isinstance(mesh, DeviceMesh):
        raise ArgumentTypeError(f"mesh is a {type(mesh).__name__}, not a DeviceMesh")
    if mesh.ndim != 1:
        raise ArgumentError(
            f"mesh has {mesh.ndim} dimensions: pass the one to divide over, as mesh['tp']"
        )
    ranks = mesh.size()
    _check(module, ranks)
    if ranks == 1:
        return module
    _tell(module, ranks)
    own, plan = plan_of(module, ranks)
    parallelize_module(module, mesh, plan, src_data_rank=None)
    if own is not None:
        parallelize_module(module, mesh, own, src_data_rank=None)
    return module


def _check(module: torch.nn.Module, ranks: int) -> None:
    from gemmsmith.blocks import Block  # which is made of these layers

    reasons: dict[str, str] = {}  # the first block of which each is true
    blocks = 0
    for name, block in module.named_modules():
        if isinstance(block, Block) and "qkv" in block._modules:
            reason = (
                f"a {type(block).__name__} of gemmsmith.convert, which would stay whole:"
                " parallelize a gemmsmith.nn.Decoder of the model as it was loaded"
            )
            reasons.setdefault(reason, name or type(block).__name__)
        if isinstance(block, Attention | FeedForward):
            blocks += 1
            for reason in _reasons(block, ranks):
                reasons.setdefault(reason, name or type(block).__name__)
    if not blocks:
        raise ArgumentError(
            f"{type(module).__name__} holds no gemmsmith.nn.Attention or FeedForward: make a"
            " gemmsmith.nn.Decoder of the model"
        )
    if reasons:
        raise ArgumentError("; ".join(f"{name}: {reason}" for reason, name in reasons.items()))


def _reasons(block: Attention | FeedForward, ranks: int) -> Iterator[str]:
    last = block.o if isinstance(block, Attention) else block.down
    if last.ranks > 1:
        yield f"divided over {last.ranks} ranks already"
    elif isinstance(block, Attention):
        yield from filter(None, [why_heads_stay(block.heads, block.kv_heads, ranks)])
    else:
        yield from filter(None, [why_inner_stays(last.in_features, ranks)])


def _tell(module: torch.nn.Module, ranks: int) -> None:
    """Log what is not divided evenly."""
    counts = {each.kv_heads for each in module.modules() if isinstance(each, Attention)}
    for count in sorted(count for count in counts if count < ranks):
        _log.info("%d KV heads on %d ranks: %d hold the same one", count, ranks, ranks // count)
    if isinstance(module, Decoder) and module.head.out_features % ranks:
        size = module.head.out_features
        _log.info("%d logits do not divide by %d ranks: each computes all", size, ranks)
