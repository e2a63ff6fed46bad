from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence

import pytest
import torch

from gemmsmith.bench.measure import SelfTest, compare, rotating
from gemmsmith.bench.rounds import Comparison, Policy, Ratio, interval_cut, ratio_of, run_rounds
from gemmsmith.errors import NoDeviceError
from gemmsmith.nvml import Reading

READING = Reading(sm_clock_mhz=1755, memory_clock_mhz=3201, power_watts=500.0, temperature_c=50)


class FakeTimer:
    """A GPU whose arms take what a function of (arm, replays so far) says, in µs."""

    def __init__(self, cost: Callable[[str, int], float]) -> None:
        self.cost = cost
        self.orders: list[tuple[str, ...]] = []
        self.replays = 0
        self.spent = 0.0

    def replay(self, order: Sequence[str]) -> list[float]:
        self.orders.append(tuple(order))
        times = []
        for arm in order:
            times.append(self.cost(arm, self.replays))
            self.replays += 1
        self.spent += sum(times) * 1e-6
        return times

    def elapsed(self) -> float:
        return self.spent

    def readings(self) -> tuple[Reading, ...]:
        return (READING, READING)


def constant(**costs: float) -> Callable[[str, int], float]:
    return lambda arm, _: costs[arm]


def run(
    cost: Callable[[str, int], float],
    arms: Sequence[str],
    policy: Policy,
    keep: Sequence[str] = (),
) -> tuple[Comparison, FakeTimer]:
    timer = FakeTimer(cost)
    return run_rounds(arms, timer, policy=policy, baseline=arms[0], keep=keep), timer


@pytest.mark.parametrize("n", range(6, 120))
def test_interval_cut_is_the_binomial_one(n: int) -> None:
    k = interval_cut(n)
    below = [math.comb(n, i) / 2**n for i in range(n + 1)]
    assert 2 * sum(below[:k]) <= 0.05 < 2 * sum(below[: k + 1])


def test_interval_of_few_and_of_many() -> None:
    assert ratio_of([1.0, 1.2, 1.1]) == Ratio(median=1.1, low=None, high=None, rounds=3)
    assert ratio_of([1.0] * 5).width == math.inf
    # the classical table: for n = 10 the 2nd and the 9th value
    tenths = [value / 10 for value in (3, 9, 1, 10, 2, 8, 4, 7, 5, 6)]
    assert ratio_of(tenths) == Ratio(median=0.55, low=0.2, high=0.9, rounds=10)


def test_constant_arms_converge_at_once() -> None:
    found, _ = run(constant(a=1000.0, b=800.0), "ab", Policy(warm_up_seconds=0.0))
    assert found.ratio("a", "b") == Ratio(median=1.25, low=1.25, high=1.25, rounds=6)
    assert found.median("b") == 800.0
    assert found.fastest() == "b"
    assert found.converged
    assert found.readings == (READING, READING)


def test_drift_and_place_in_the_round_cancel() -> None:
    """A GPU that slows down by 1 % each replay must not look like a difference."""

    def drifting(arm: str, replay: int) -> float:
        return (1000.0 if arm == "a" else 1050.0) + 10.0 * replay

    found, _ = run(drifting, "ab", Policy(warm_up_seconds=0.0, max_rounds=6, seconds=9.0))
    first = found.samples["b"][0] - found.samples["a"][0]
    assert first == pytest.approx(50.0, abs=1e-9)


def test_each_round_is_an_order_and_its_reverse() -> None:
    _, timer = run(constant(a=1.0, b=1.0, c=1.0, d=1.0), "abcd", Policy(warm_up_seconds=0.0))
    orders = [
        order[start : start + 8] for order in timer.orders for start in range(0, len(order), 8)
    ]
    assert len(orders) == 6
    assert all(order[:4] == order[:3:-1] and set(order) == set("abcd") for order in orders)
    assert len(set(orders)) > 1


def test_noise_takes_more_rounds_and_the_interval_holds_the_truth() -> None:
    def noisy(arm: str, replay: int) -> float:
        wobble = (replay * 2654435761 % 1000) / 1000 - 0.5
        return (1050.0 if arm == "b" else 1000.0) * (1 + 0.02 * wobble)

    found, _ = run(noisy, "ab", Policy(warm_up_seconds=0.0, precision=0.002, seconds=9.0))
    ratio = found.ratio("b", "a")
    assert found.converged
    assert ratio.rounds > 20
    assert ratio.width <= 0.0021
    assert ratio.low is not None
    assert ratio.high is not None
    assert ratio.low <= 1.05 <= ratio.high


def test_time_ends_it_without_convergence() -> None:
    chance = random.Random(5)

    def wild(arm: str, replay: int) -> float:
        return 1000.0 * chance.lognormvariate(0.0, 0.5)

    found, timer = run(wild, "ab", Policy(warm_up_seconds=0.0, seconds=0.5, max_rounds=10**6))
    assert not found.converged
    assert 0.5 < timer.spent < 0.7
    assert len(found.samples["a"]) >= 6


def test_six_rounds_even_where_the_time_is_long_over() -> None:
    found, _ = run(constant(a=1e6, b=1e6), "ab", Policy(warm_up_seconds=0.0, seconds=0.1))
    assert len(found.samples["a"]) == 6


def test_warm_up_is_not_counted() -> None:
    def cold(arm: str, replay: int) -> float:
        return 5000.0 if replay < 20 else 1000.0

    found, timer = run(cold, "ab", Policy(warm_up_seconds=0.1))
    assert set(found.samples["a"]) == {1000.0}
    assert timer.orders[0] == ("a", "b")


def test_slow_arms_are_retired_but_not_those_to_keep() -> None:
    costs = {"base": 1000.0, "best": 900.0, "near": 920.0, "far": 1100.0, "slow": 1300.0}
    costs["kept"] = 4000.0
    policy = Policy(
        warm_up_seconds=0.0, retire_above=1.3, scout_rounds=2, precision=0.0, max_rounds=12
    )
    found, _ = run(constant(**costs), tuple(costs), policy, keep=("kept",))
    rounds = {arm: len(samples) for arm, samples in found.samples.items()}
    # precision 0 is reached by constants, so measuring ends once the finalists are known
    assert rounds == {"base": 6, "best": 6, "near": 6, "far": 6, "slow": 2, "kept": 6}
    assert found.fastest() == "best"
    assert found.fastest(["near", "far"]) == "near"
    assert found.ratio("base", "slow") == Ratio(median=1000 / 1300, low=None, high=None, rounds=2)


def test_finalists_alone_get_the_last_rounds() -> None:
    costs = {"base": 1000.0, "best": 900.0, "near": 920.0, "far": 1100.0}

    def noisy(arm: str, replay: int) -> float:
        return costs[arm] * (1 + 1e-3 * (replay * 2654435761 % 7))

    policy = Policy(
        warm_up_seconds=0.0, retire_above=1.3, precision=1e-9, max_rounds=20, seconds=9.0
    )
    found, _ = run(noisy, tuple(costs), policy)
    rounds = {arm: len(samples) for arm, samples in found.samples.items()}
    assert rounds == {"base": 20, "best": 20, "near": 20, "far": 6}


def test_as_json_holds_every_sample() -> None:
    found, _ = run(constant(a=1000.0, b=500.0), "ab", Policy(warm_up_seconds=0.0))
    data = found.as_json()
    assert data["arms"]["b"] == {"median_us": 500.0, "samples_us": [500.0] * 6}
    assert data["readings"][0] == {
        "sm_clock_mhz": 1755,
        "memory_clock_mhz": 3201,
        "power_watts": 500.0,
        "temperature_c": 50,
    }


@pytest.mark.parametrize(("size", "count"), [(50e6, 4), (120e6, 2), (235e6, 2), (1e6, 121)])
def test_rotating_makes_enough_sets(size: float, count: int) -> None:
    made = iter(range(1000))
    assert rotating(lambda: next(made), size) == tuple(range(count))


def test_sets_that_need_not_leave_the_cache_do_not_rotate() -> None:
    assert rotating(object, 50e6, 0.0)[1:] == ()


def ratio(median: float) -> Ratio:
    return Ratio(median=median, low=median, high=median, rounds=9)


@pytest.mark.parametrize(
    ("same", "slower", "passed"),
    [(1.003, 1.046, True), (1.02, 1.05, False), (1.0, 1.03, False), (1.0, 1.0, False)],
)
def test_self_test_judges(same: float, slower: float, passed: bool) -> None:
    result = SelfTest(same=ratio(same), slower=ratio(slower), converged=True)
    assert result.passed is passed
    assert ("passed" if passed else "FAILED") in str(result)


@pytest.mark.skipif(torch.cuda.is_available(), reason="is about machines without a GPU")
def test_no_gpu_is_told() -> None:
    arms: Mapping[str, list[Callable[[], object]]] = {"a": [lambda: None]}
    with pytest.raises(NoDeviceError, match="needs a GPU"):
        compare(arms)
