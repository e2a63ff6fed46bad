"""Counters on the device, zero before each kernel that counts in them and zero after it.

Kernels that may run at the same time must not count in the same place: each stream has a place of
its own, and so has each stream of each capture into a graph, for graphs are replayed anywhere.
"""

from __future__ import annotations

import ctypes
import threading
from functools import cache

import torch
from torch import Tensor

_SLAB = 1 << 18  # counters that are set to zero together, 1 MiB
_LEAST = 1 << 10  # of a place, so that it seldom has to grow

_lock = threading.Lock()
_slabs: dict[int, tuple[Tensor, int]] = {}  # by device: the memory, and how much of it is given
_places: dict[tuple[int, int, int], Tensor] = {}  # by device, stream and capture


def zeros(device: int, stream: int, count: int) -> Tensor:
    """Return ``count`` int32 zeros of the current stream, whose address is ``stream``.

    They are kept: a graph that is being captured gets none of its own pool, unless there is no
    other memory, and then they are set to zero each time it runs.
    """
    capture = _capture(stream) if torch.cuda.is_current_stream_capturing() else 0
    if capture is None:
        return torch.zeros(count, dtype=torch.int32, device=f"cuda:{device}")
    with _lock:
        place = _places.get((device, stream, capture))
        if place is None or len(place) < count:
            found = _taken(device, count, may_allocate=capture == 0)
            if found is None:
                return torch.zeros(count, dtype=torch.int32, device=f"cuda:{device}")
            _places[device, stream, capture] = place = found
    return place[:count]


def _taken(device: int, count: int, *, may_allocate: bool) -> Tensor | None:
    """Return zeros that nobody had before; None where they would have to be made."""
    wanted = max(_LEAST, 1 << (count - 1).bit_length())
    slab, given = _slabs.get(device, (None, 0))
    if slab is None or given + wanted > len(slab):
        if not may_allocate:
            return None
        slab = torch.zeros(max(_SLAB, wanted), dtype=torch.int32, device=f"cuda:{device}")
        torch.cuda.current_stream(device).synchronize()  # other streams will count in it too
        given = 0
    _slabs[device] = slab, given + wanted
    return slab[given : given + wanted]


def _capture(stream: int) -> int | None:
    """Return the number of the capture that the stream is part of; None where it is not told."""
    status, number = ctypes.c_int(0), ctypes.c_uint64(0)
    error = _driver().cuStreamGetCaptureInfo_v2(
        ctypes.c_void_p(stream), ctypes.byref(status), ctypes.byref(number), None, None, None
    )
    return None if error else number.value


@cache
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")
