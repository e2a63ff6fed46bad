"""A set of kernels obeys the tuned table where it holds, and the estimate elsewhere."""

from __future__ import annotations

import dataclasses

import pytest

from gemmsmith.choose import WAITS, Choice, Tuning, choose
from gemmsmith.config import load_specs
from gemmsmith.dtypes import BF16
from gemmsmith.kernelset import KernelSet
from gemmsmith.problem import GemmProblem, packed_problem
from gemmsmith.resources import configs_dir
from gemmsmith.selection import Plan
from gemmsmith.spec import Alignment, KernelSpec
from gemmsmith.tables import forget_tables, own_tables
from gemmsmith.tuned import TORCH, identified, left_to_torch
from gemmsmith.which import explain_choice
from gpus import H200, count_as_loaded
from real_kernels import LEAN_CONSTANT
from tuned_data import CALL, FAST, SLOW, SPLIT, entry, table, timing

pytestmark = pytest.mark.usefixtures("no_tables")


def planned(
    monkeypatch: pytest.MonkeyPatch,
    *built: KernelSpec,
    torch: bool = True,
    call: GemmProblem = CALL,
) -> tuple[str, Tuning] | str:
    forget_tables()
    kernels = KernelSet([FAST, SLOW], arch=FAST.arch, source="x.yaml", torch_may_run=torch)
    count_as_loaded(monkeypatch, kernels, *built)
    found = kernels.plan(call, H200)
    return (found.spec.name, found.tuning) if isinstance(found, Plan) else found


def usual_and_other(call: GemmProblem = CALL) -> tuple[KernelSpec, KernelSpec]:
    """The kernel that the estimate takes for a call, and the other one."""
    chosen = choose([FAST, SLOW], call, 132)
    assert chosen is not None
    return (FAST, SLOW) if chosen.spec == FAST else (SLOW, FAST)


def test_a_set_obeys_the_table_then_the_estimate(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = choose([FAST, SLOW], CALL, 132)
    assert isinstance(chosen, Choice)
    usual, other = (FAST, SLOW) if chosen.spec == FAST else (SLOW, FAST)
    assert planned(monkeypatch, FAST, SLOW) == (usual.name, chosen.tuning)
    knobs = {"raster": 2, "swizzle": 4}
    path = table(own_tables() / "t.yaml", entry([timing(other, 1.2, **knobs)]))
    assert planned(monkeypatch, FAST, SLOW) == (other.name, Tuning(**knobs))
    assert planned(monkeypatch, usual) == (usual.name, chosen.tuning)  # the winner is not built
    table(path, entry([timing(other, 0.9, **knobs)], winner=TORCH))
    assert planned(monkeypatch, FAST, SLOW) == (
        "torch is faster here, as the tuned table t.yaml says"
    )
    assert planned(monkeypatch, FAST, SLOW, torch=False) == (other.name, Tuning(**knobs))


def test_default_kernels_leave_untimed_calls_that_do_not_suit_them_to_torch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where torch can do the whole call: a bias or a residual would cost it more than it gains."""
    call = packed_problem(300, 7168, 5120, BF16)
    told = planned(monkeypatch, FAST, SLOW, call=call)
    assert isinstance(told, str)
    assert told.startswith("by estimate no kernel here suits 300x7168x5120")
    for kept, torch in ((dataclasses.replace(call, bias=True), True), (call, False)):
        found = planned(monkeypatch, FAST, SLOW, call=kept, torch=torch)
        assert found[0] in (FAST.name, SLOW.name)


def test_an_entry_holds_where_its_tiles_are_as_full(monkeypatch: pytest.MonkeyPatch) -> None:
    """At 300 rows two tiles of 128 have become three, at 230 they are emptier than others would be;
    torch's lead at 256 is none there."""
    at = dataclasses.replace(CALL, m=256)
    usual, other = usual_and_other(at)
    made = entry([timing(other, 1.2)], m=256)
    table(own_tables() / "t.yaml", made)
    assert planned(monkeypatch, FAST, SLOW, call=at)[0] == other.name
    for m, name in ((250, other.name), (230, usual.name), (300, usual.name)):
        call = dataclasses.replace(CALL, m=m)
        assert planned(monkeypatch, FAST, SLOW, call=call, torch=False)[0] == name, m
    table(own_tables() / "t.yaml", entry([timing(other, 0.9)], winner=TORCH, m=256))
    told = "torch is faster here, as the tuned table t.yaml says"
    assert planned(monkeypatch, FAST, SLOW, call=dataclasses.replace(CALL, m=260)) == told
    assert planned(monkeypatch, FAST, SLOW, call=dataclasses.replace(CALL, m=300)) != told


def test_kernels_far_behind_one_that_is_gone_leave_calls_to_a_better_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """113 µs where the winner, since replaced by its twin, had 33."""
    usual, other = usual_and_other()
    for behind, name in ((1.1, other.name), (1.3, usual.name)):
        timings = [timing(SPLIT, 1.5), timing(other, 1.5 / behind)]
        table(own_tables() / "t.yaml", entry(timings))
        assert planned(monkeypatch, FAST, SLOW)[0] == name
    explained = explain_choice([FAST, SLOW], CALL, gpu="NVIDIA H200", sm_count=132)
    assert explained.notes[0] == (
        "the entry does not count: of its kernels those that are here take 1.30 times as long as"
        " its fastest, and by estimate one is better that was not timed"
    )


def test_kernels_far_behind_stay_where_the_entry_knows_the_estimates_best(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    usual, other = usual_and_other()
    timings = [timing(SPLIT, 1.5), timing(other, 1.1)]
    table(own_tables() / "t.yaml", entry([*timings, timing(usual, 0.5)]))
    assert planned(monkeypatch, FAST, SLOW)[0] == other.name  # it was timed, and is slower
    table(own_tables() / "t.yaml", entry(timings, wrong=(identified(usual),)))
    assert planned(monkeypatch, FAST, SLOW)[0] == other.name  # it was wrong
    table(own_tables() / "t.yaml", entry([timing(SPLIT, 1.5), timing(other, 0.9)]))
    assert planned(monkeypatch, FAST, SLOW) == (
        "torch is faster here, as the tuned table t.yaml says"
    )


def test_what_waits_for_a_promised_weight_must_be_ahead_by_what_that_costs() -> None:
    """Of residuals and gates: in a model the norm or the attention is ahead, not the same call."""
    late, early = (
        dataclasses.replace(LEAN_CONSTANT, constant_b=constant) for constant in (False, True)
    )
    call = dataclasses.replace(CALL, m=4, residual=True, constant_b=True)
    for ahead, name in ((WAITS - 0.1, early.name), (WAITS + 0.1, late.name)):
        timings = [timing(late, 20 / (15 - ahead)), timing(early, 20 / 15)]
        made = entry(timings, m=4, epilogue="residual+constant")
        table(own_tables() / "t.yaml", made)
        forget_tables()
        explained = explain_choice([late, early], call, gpu="NVIDIA H200", sm_count=132)
        assert explained.choice == name
        assert ("those that were faster wait" in explained.reason) == (name == early.name)


@pytest.mark.parametrize("m", [1, 16, 65, 112, 150, 300])
def test_a_promise_sends_no_call_to_torch(m: int) -> None:
    specs = load_specs(configs_dir() / "kernels", arch=["sm_90a"])
    for n, k in ((6144, 4096), (4096, 4096), (3072, 3072), (7168, 5120)):
        call = packed_problem(m, n, k, BF16)
        promised = dataclasses.replace(call, constant_b=True)
        alone, early = (choose(specs, each, 132) for each in (call, promised))
        assert alone is not None
        assert early is not None
        if not left_to_torch(alone, call, 132):
            assert not left_to_torch(early, promised, 132), (m, n, k)


def test_widths_that_only_direct_stores_take_stay_with_our_kernels() -> None:
    odd = packed_problem(8, 50257, 768, BF16)
    direct = dataclasses.replace(
        FAST, store="direct", schedule="warp_specialized", alignment=Alignment(8, 8, 1)
    )
    choice = choose([FAST, direct], odd, 132)
    assert choice is not None
    assert choice.spec == direct
    assert left_to_torch(choice, odd, 132) == ""
    assert left_to_torch(dataclasses.replace(choice, spec=FAST), odd, 132)
