"""One checked attention call, carried out; and what was run."""

from __future__ import annotations

import logging
from functools import cache

from torch import Tensor

from gemmsmith import direct
from gemmsmith.attn.arguments import Attention, PackedAttention
from gemmsmith.attn.with_torch import attend, attend_packed
from gemmsmith.choose import Tuning
from gemmsmith.launch import LaunchRecord

_log = logging.getLogger(__name__)


def run(call: Attention | PackedAttention, out: Tensor) -> None:
    """Write the result of a checked call to ``out``, and note what ran."""
    if out.numel() == 0:
        _record("none", "the output is empty")
    elif not out.is_cuda:
        _in_torch(call, out)
        _record("cpu", "the tensors are on the CPU")
    else:
        reason = "there is no attention kernel for this GPU"
        _say_once(reason)
        _in_torch(call, out)
        _record("torch", reason)


def _in_torch(call: Attention | PackedAttention, out: Tensor) -> None:
    out.copy_(attend(call) if isinstance(call, Attention) else attend_packed(call))


def _record(name: str, reason: str = "") -> None:
    direct.last[0] = LaunchRecord(name=name, reason=reason, tuning=Tuning(), copied=())


@cache
def _say_once(reason: str) -> None:
    _log.warning("torch computes this attention: %s", reason)
