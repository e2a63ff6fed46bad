"""A tuning run without a GPU: invented times of kernels, a clock that replays move, faults."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from fakes import hopper
from gemmsmith.bench.rounds import Timer
from gemmsmith.dtypes import BF16
from gemmsmith.nvml import Reading
from gemmsmith.spec import KernelSpec
from gemmsmith.tune.building import Workshop
from gemmsmith.tune.candidates import Candidate
from gemmsmith.tune.work import Job, Weight
from gemmsmith.tuned import TORCH, Entry

A, B, C = hopper(128), hopper(192), hopper(256)
WEIGHT = Weight(n=4096, k=4096, dtype=BF16)
JOB = Job(weight=WEIGHT, m=256)
SMS = 132
TORCH_US = 20.0


def by_name(us: Mapping[KernelSpec, float]) -> Callable[[Job, Candidate], float]:
    """Times that each kernel takes, whatever the job."""
    return lambda job, candidate: us[candidate.spec]


@dataclass
class Clock:
    """Seconds that only replays, benches and waits move."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


class FakeTimer:
    """Replays whose times are invented, within some noise."""

    def __init__(self, us: Mapping[str, float], clock: Clock, noise: float) -> None:
        self._us = us
        self._clock = clock
        self._noise = noise
        self._start = clock.now
        self._random = random.Random(0)
        self.replays = 0

    def replay(self, order: Sequence[str]) -> list[float]:
        times = [self._us[arm] * self._random.gauss(1, self._noise) for arm in order]
        self._clock.now += 1e-6 * sum(max(us, 300) for us in times)
        self.replays += len(order)
        return times

    def elapsed(self) -> float:
        return self._clock.now - self._start

    def readings(self) -> tuple[Reading, ...]:
        return ()


@dataclass
class FakeBenches:
    """Benches of every job; ``us`` and ``fault`` say what candidates take and what is wrong."""

    us: Callable[[Job, Candidate], float]
    fault: Callable[[Candidate], str] = lambda candidate: ""
    clock: Clock = field(default_factory=Clock)
    noise: float = 0.002
    overhead: float = 0.05
    jobs: list[Job] = field(default_factory=list)
    timed: list[list[Candidate]] = field(default_factory=list)
    timers: list[FakeTimer] = field(default_factory=list)
    judged: list[Candidate] = field(default_factory=list)

    @contextmanager
    def open(self, job: Job) -> Iterator[_Bench]:
        self.jobs.append(job)
        self.clock.now += self.overhead
        yield _Bench(job, self)


class _Bench:
    def __init__(self, job: Job, benches: FakeBenches) -> None:
        self._job = job
        self._benches = benches

    def fault(self, candidate: Candidate) -> str:
        self._benches.judged.append(candidate)
        return self._benches.fault(candidate)

    def timer(self, candidates: Sequence[Candidate]) -> Timer:
        assert set(candidates) <= set(self._benches.judged), "timed before it was judged"
        self._benches.timed.append(list(candidates))
        us = {each.label: self._benches.us(self._job, each) for each in candidates}
        timer = FakeTimer({TORCH: TORCH_US, **us}, self._benches.clock, self._benches.noise)
        self._benches.timers.append(timer)
        return timer


class Notes:
    """Hears of a run and remembers it."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def begin(self, *, jobs: int, done: int, building: int) -> None:
        self.lines.append(f"begin {jobs} {done} {building}")

    def waiting(self, *, building: int) -> None:
        self.lines.append(f"waiting {building}")

    def measured(self, job: Job, entry: Entry, *, left: int, remaining: float) -> None:
        self.lines.append(f"measured {job.weight.n} {job.m} {left}")

    def skipped(self, job: Job, why: str) -> None:
        self.lines.append(f"skipped {why}")

    def end(self) -> None:
        self.lines.append("end")


def all_ready(specs: Sequence[KernelSpec]) -> Workshop:
    """A workshop in which all is built."""

    def build(*_: object, **__: object) -> object:
        raise AssertionError("nothing is to be built")

    return Workshop(specs, there=lambda some: some, build=build)  # type: ignore[arg-type]
