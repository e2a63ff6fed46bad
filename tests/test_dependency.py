"""What machine code says of waiting for other grids, and which code may not start early."""

from __future__ import annotations

import pytest

from gemmsmith.dependency import GridDependency, dependency_fault, read_dependency, weakest

_WORD = "                                                   /* 0x000fe200000001ff */\n"
GOOD = ("@P0 LDC R1, c[0x0][0x28]", "UTMACCTL.PF [UR6]", "SYNCS.EXCH.64 URZ, [UR8+0x37000], UR4")
WAIT, RELEASE = "ACQBULK", "PREEXIT"
LOAD = "@!P2 LDG.E.U16 R5, desc[UR12][R2.64]"


def sass(*instructions: str) -> str:
    lines = (f"        /*{16 * at:04x}*/   {text} ;\n" for at, text in enumerate(instructions))
    return '\t.headerflags\t@"EF_CUDA_SM90"\n' + "".join(line + _WORD for line in lines)


def test_code_that_waits_before_it_loads_may_start_early() -> None:
    found = read_dependency(sass(*GOOD, RELEASE, WAIT, LOAD, "@P0 EXIT"))
    assert found == GridDependency(waits=1, releases=1)
    assert dependency_fault(found) is None


@pytest.mark.parametrize(
    ("code", "fault"),
    [
        ((RELEASE, LOAD), "lacks ACQBULK (griddepcontrol.wait): it would not wait at all"),
        ((WAIT, LOAD), "lacks PREEXIT (griddepcontrol.launch_dependents): the kernel behind"),
        ((LOAD, RELEASE, WAIT), "has LDG.E.U16 ahead of ACQBULK"),
        (("ST.E.64 [R2], R4", RELEASE, WAIT), "has ST.E.64 ahead of ACQBULK"),
        (("UTMALDG.3D [UR8], [UR4]", RELEASE, WAIT), "has UTMALDG.3D ahead of ACQBULK"),
        (("REDG.E.ADD [R2], R4", RELEASE, WAIT), "has REDG.E.ADD ahead of ACQBULK"),
        (("LD.E R2, [R4]", RELEASE, WAIT, WAIT), "has LD.E ahead of ACQBULK"),
        ((RELEASE, WAIT, "LDG.E.128.CONSTANT R4, [R2]"), "has 1 LDG.CONSTANT, which may miss"),
    ],
)
def test_code_that_must_not_start_early_is_refused(code: tuple[str, ...], fault: str) -> None:
    found = dependency_fault(read_dependency(sass(*GOOD, *code)))
    assert found is not None
    assert f"its machine code {fault}" in found


def test_weights_that_nothing_writes_may_be_fetched_before_the_wait_and_nothing_else() -> None:
    fetch, store = "UTMALDG.3D.MULTICAST [UR8], [UR4]", "UTMASTG.3D [UR8], [UR4]"
    weights = read_dependency(sass(*GOOD, fetch, RELEASE, WAIT, LOAD))
    assert weights.early_access == "UTMALDG.3D.MULTICAST"
    assert dependency_fault(weights, constant_b=True) is None
    assert "has UTMALDG.3D.MULTICAST ahead of ACQBULK" in str(dependency_fault(weights))
    for more in (LOAD, store):
        found = read_dependency(sass(*GOOD, fetch, more, RELEASE, WAIT))
        assert "ahead of ACQBULK" in str(dependency_fault(found, constant_b=True))
        assert dependency_fault(weakest([weights, found]), constant_b=True) is not None


def test_keys_that_nothing_writes_may_be_read_before_the_wait_and_nothing_written() -> None:
    copy = "LDGSTS.E.BYPASS.LTC128B.128 [R3], desc[UR12][R4.64], P0"
    keys = read_dependency(sass(*GOOD, LOAD, copy, RELEASE, WAIT))
    assert keys.early_access == "LDG.E.U16"
    assert dependency_fault(keys, constant_cache=True) is None
    assert "has LDG.E.U16 ahead of ACQBULK" in str(dependency_fault(keys, constant_b=True))
    for more in ("STG.E [R2], R4", "REDG.E.ADD [R2], R4", "LD.E R2, [R4]"):
        found = read_dependency(sass(*GOOD, copy, more, RELEASE, WAIT))
        word = more.split(" ")[0]
        assert f"has {word} ahead of" in str(dependency_fault(found, constant_cache=True))
        assert weakest([keys, found]).early_access == word
    assert "lacks ACQBULK" in str(
        dependency_fault(read_dependency(sass(*GOOD, copy, RELEASE)), constant_cache=True)
    )


def test_shared_and_constant_memory_may_be_used_before_the_wait() -> None:
    ahead = ("LDS.128 R4, [R2]", "STS [R2], R4", "LDSM.16.M88.4 R4, [R2]", "ULDC.64 UR4, c[0x0]")
    assert read_dependency(sass(*ahead, "STL [R1], R2", WAIT)).early_access == ""


def test_l2_may_be_told_what_to_fetch_before_the_wait() -> None:
    for ahead in ("UBLKPF [UR4], UR6", "UTMAPF.L2.3D [UR8], [UR4]", "CCTL.E.PF2 [R2]"):
        assert read_dependency(sass(*GOOD, ahead, RELEASE, WAIT, LOAD)).early_access == ""
    for name in ("CCTL.E.PF1", "CCTL.DML2"):  # to L1, and what is given up
        found = read_dependency(sass(*GOOD, f"@P1 {name} [R2]", RELEASE, WAIT, LOAD))
        assert found.early_access == name
        assert dependency_fault(found, constant_cache=True) is not None


def test_code_without_a_wait_has_no_access_ahead_of_it() -> None:
    assert read_dependency(sass(LOAD, LOAD)) == GridDependency()
    assert read_dependency("") == GridDependency()


def test_of_several_functions_the_worst_counts() -> None:
    good = GridDependency(waits=2, releases=3)
    bad = GridDependency(waits=1, early_access="LDG.E", constant_loads=4)
    assert weakest([good, bad]) == GridDependency(
        waits=1, releases=0, early_access="LDG.E", constant_loads=4
    )
    assert weakest([good]) == good
    assert weakest([]) == GridDependency()
