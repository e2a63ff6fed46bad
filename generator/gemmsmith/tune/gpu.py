"""The data of a tuning job on the current GPU, and kernels that run on it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property

import torch

from gemmsmith.bench.gpu import require_gpu
from gemmsmith.bench.graphs import GraphTimer
from gemmsmith.bench.rivals import eager_arm
from gemmsmith.bench.tasks import Expected, Task, make_task
from gemmsmith.errors import MeasureError
from gemmsmith.kernelset import ExactKernel, KernelSet
from gemmsmith.operands import TORCH_DTYPES
from gemmsmith.selection import DeviceFacts
from gemmsmith.spec import KernelSpec
from gemmsmith.tune.candidates import Candidate
from gemmsmith.tune.work import Job
from gemmsmith.tuned import TORCH

_REPLAY_US = 300.0  # a replay's least length: the gap between two graphs is 1 µs
_MOST_RESERVED = 40e9  # bytes that torch's allocator may keep between two jobs
_TORCH_DTYPES = {dtype: torch_dtype for torch_dtype, dtype in TORCH_DTYPES.items()}


def device_here() -> DeviceFacts:
    """Return the facts of torch's current GPU.

    Raises:
        NoDeviceError: where there is none.
    """
    require_gpu("tuning")
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    return DeviceFacts(
        name=properties.name,
        capability=(properties.major, properties.minor),
        sm_count=properties.multi_processor_count,
    )


class GpuBench:
    """Random data of one job; a :class:`gemmsmith.tune.contest.Bench`."""

    def __init__(self, task: Task, kernels: GpuBenches) -> None:
        self._task = task
        self._kernels = kernels

    @cached_property
    def _known(self) -> tuple[Expected, ...]:
        return self._task.expected()

    def fault(self, candidate: Candidate) -> str:
        """Return what is wrong with what it writes over NaN; empty where it is right.

        Raises:
            MeasureError: where it leaves CUDA unusable, so that nothing more can be timed.
        """
        try:
            return self._task.run(self._kernels.handle(candidate), self._known)
        except RuntimeError as error:
            if not str(error).startswith("CUDA error"):
                raise
            raise MeasureError(
                f"{candidate.label} ended CUDA in this process ({str(error).splitlines()[0]}):"
                f" run again with --without {candidate.spec.name}; entries so far are kept"
            ) from error

    def timer(self, candidates: Sequence[Candidate]) -> GraphTimer:
        """Return what times torch and the candidates, interleaved, on rotated weights."""
        arms = {
            each.label: self._task.arm(self._kernels.handle(each), self._task.out)
            for each in candidates
        }
        return GraphTimer({TORCH: eager_arm(self._task), **arms}, replay_us=_REPLAY_US)


class GpuBenches:
    """Makes the data of jobs on torch's current GPU; a :class:`gemmsmith.tune.contest.Benches`."""

    def __init__(self) -> None:
        self._sets: dict[KernelSpec, ExactKernel] = {}
        self._tuned: dict[Candidate, ExactKernel] = {}

    def handle(self, candidate: Candidate) -> str:
        """Return what a call names to run exactly this kernel with these knobs."""
        spec = candidate.spec
        if spec not in self._sets:
            alone = KernelSet([spec], arch=spec.arch, source=spec.name)
            self._sets[spec] = alone[spec.name]
        if candidate not in self._tuned:
            self._tuned[candidate] = self._sets[spec].with_tuning(candidate.tuning)
        return self._tuned[candidate].handle

    @contextmanager
    def open(self, job: Job) -> Iterator[GpuBench]:
        """Return a job's bench; its memory is free again afterwards."""
        weight = job.weight
        task = make_task(
            job.m,
            weight.n,
            weight.k,
            _TORCH_DTYPES[weight.dtype],
            gate="silu" if weight.epilogue == "gate" else "none",
            activation="gelu" if weight.epilogue == "activation" else "none",
            residual=weight.epilogue == "residual",
        )
        yield GpuBench(task, self)
        if torch.cuda.memory_reserved() > _MOST_RESERVED:
            del task
            torch.cuda.empty_cache()
