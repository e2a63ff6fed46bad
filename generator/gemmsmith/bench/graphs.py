"""Times functions on the GPU as CUDA graphs, between CUDA events."""

from __future__ import annotations

import itertools
import math
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import torch

from gemmsmith import nvml
from gemmsmith.bench.gpu import require_gpu
from gemmsmith.errors import MeasureError

Arm: TypeAlias = Sequence[Callable[[], object]]
"""One function over its rotated inputs: a closure for each input set, all of equal work."""

_CALIBRATIONS = 3  # a GPU that was idle is slow at first, which makes a pass look long
_MOST_NODES = 1024  # calls in one graph: past that, launching it stops being cheap


class GraphTimer:
    """Replays each arm as one CUDA graph; a :class:`gemmsmith.bench.rounds.Timer`.

    A graph runs its arm over all input sets, as often as it takes to last ``replay_us``, so that
    the gap between two graphs does not count. Replays are enqueued without waiting, behind an
    untimed one: the GPU never waits for the host, and no launch is timed.

    Raises:
        NoDeviceError: where torch has no CUDA device.
        MeasureError: where an arm has no input set, or cannot be captured; it is never timed
            outside a graph instead.
    """

    def __init__(self, arms: Mapping[str, Arm], *, replay_us: float = 1000.0) -> None:
        require_gpu("measuring")
        self._device = _nvml_device()
        self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._stream.wait_stream(torch.cuda.current_stream())
        self._arms = arms  # the graphs read the tensors that these closures hold
        self._graphs: dict[str, torch.cuda.CUDAGraph] = {}
        self._calls: dict[str, int] = {}
        for name, arm in arms.items():
            self._capture(name, arm, replay_us)
        self._readings = [*self._read()]
        self._start = time.perf_counter()

    def replay(self, order: Sequence[str]) -> list[float]:
        """Run these arms back to back and return the µs of one call of each."""
        marks = self._marks([self._graphs[order[0]], *(self._graphs[arm] for arm in order)])
        self._readings += self._read()  # the GPU is at work on what was just enqueued
        self._stream.synchronize()
        spans = itertools.pairwise(marks[1:])
        return [
            1000 * start.elapsed_time(end) / self._calls[arm]
            for arm, (start, end) in zip(order, spans, strict=True)
        ]

    def elapsed(self) -> float:
        """Return the seconds since everything was captured."""
        return time.perf_counter() - self._start

    def readings(self) -> tuple[nvml.Reading, ...]:
        """Return the GPU's sensors: before, once during each batch of replays, and now."""
        return (*self._readings, *self._read())

    def calls(self, arm: str) -> int:
        """Return how many calls one replay of ``arm`` makes."""
        return self._calls[arm]

    def _read(self) -> tuple[nvml.Reading, ...]:
        return () if self._device is None else (nvml.reading(self._device),)

    def _marks(self, graphs: Sequence[torch.cuda.CUDAGraph]) -> list[torch.cuda.Event]:
        """Enqueue the graphs and return the events before, between and behind them."""
        marks = [
            torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            for _ in range(len(graphs) + 1)
        ]
        with torch.cuda.stream(self._stream):
            marks[0].record()
            for graph, mark in zip(graphs, marks[1:], strict=True):
                graph.replay()
                mark.record()
        return marks

    def _capture(self, name: str, arm: Arm, replay_us: float) -> None:
        if not arm:
            raise MeasureError(f"arm {name!r} has no input set to run on")
        with torch.cuda.stream(self._stream):
            for call in arm:  # compiles, loads and allocates what a first call does
                call()
        passes = 1
        graph = _graph(name, arm, self._stream)
        for _ in range(_CALIBRATIONS):
            marks = self._marks([graph, graph, graph])
            self._stream.synchronize()
            pass_us = max(1000 * marks[2].elapsed_time(marks[3]) / passes, 1.0)
            wanted = max(1, min(math.ceil(replay_us / pass_us), _MOST_NODES // len(arm)))
            if wanted <= 1.25 * passes:
                break
            passes = wanted
            graph = _graph(name, [*arm] * passes, self._stream)
        self._graphs[name] = graph
        self._calls[name] = passes * len(arm)


def _graph(name: str, calls: Arm, stream: torch.cuda.Stream) -> torch.cuda.CUDAGraph:
    """Return the calls captured as one graph, uploaded by a first replay.

    ``torch.cuda.graph`` is not used: it collects garbage and empties the allocator's cache for
    each graph, which costs more than the timing does.
    """
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    try:
        with warnings.catch_warnings(), torch.cuda.stream(stream):
            warnings.filterwarnings("error", message="The CUDA Graph is empty")
            graph.capture_begin()
            try:
                for call in calls:
                    call()
            finally:
                graph.capture_end()
            graph.replay()
    except (RuntimeError, UserWarning) as error:
        raise MeasureError(
            f"arm {name!r} cannot be captured in a CUDA graph, so it is not timed: {error}"
        ) from error
    stream.synchronize()
    return graph


def _nvml_device() -> nvml.Device | None:
    """Return the driver's view of torch's current device; None where the driver has none."""
    uuid = str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid)
    named = [device for device in nvml.devices() if device.uuid.removeprefix("GPU-") == uuid]
    return named[0] if named else None
