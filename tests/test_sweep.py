"""Kernels drawn at random: what the predicate accepts compiles, what it refuses would fail."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

import gemmsmith.plan
from fake_calls import call_of
from gemmsmith.build import BuildReport, build
from gemmsmith.cli.app import app
from gemmsmith.errors import IllegalKernelError
from gemmsmith.launcher.with_ctypes import CtypesLauncher
from gemmsmith.legality import check_spec
from gemmsmith.spec import KernelSpec
from sweep_limits import CHOICES, LIMITS
from sweep_specs import FAMILIES, Limit, accepted, as_yaml, beyond, draw

SEED = 0
_REFUSAL = r"include/((?:cutlass|cute|gemmsmith)/.*error: .*)|ptxas .*(?:error|fatal) *: (.*)"
_FEW_BYTES = 16  # of spills: no loop of a kernel waits for a handful of registers


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEMMSMITH_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("GEMMSMITH_NEVER_COMPILE", raising=False)


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Iterator[list[str]]:
    """Lines that are printed at the end of a test, whatever came of it."""
    lines: list[str] = []
    yield lines
    with capsys.disabled():
        print("", *lines, sep="\n")


def test_the_sweep_reaches_every_architecture_and_schedule_and_40_kernels() -> None:
    specs = accepted(SEED, 45)
    assert len(specs) == len({spec.name for spec in specs}) == 45
    assert {(spec.arch, spec.schedule) for spec in specs} == set(FAMILIES)
    assert {spec.store for spec in specs} == {"smem", "tma", "direct", "strip"}
    assert {spec.scheduler for spec in specs} == {"static", "stream_k"}
    assert {spec.swap for spec in specs if spec.arch.clusters} == {True, False}
    assert {spec.a.name for spec in specs} == {"fp16", "bf16", "int8"}
    assert len({spec.layout for spec in specs}) == 8
    assert any(spec.residual for spec in specs)
    assert any(spec.alignment.a < 16 // spec.a.bytes for spec in specs)
    assert accepted(SEED, 45) == specs


@pytest.mark.parametrize("limit", [*LIMITS, *CHOICES], ids=lambda limit: limit.name)
def test_a_step_beyond_a_limit_is_refused_by_its_field(limit: Limit) -> None:
    with pytest.raises(IllegalKernelError) as caught:
        check_spec(_step(limit))
    assert {objection.key for objection in caught.value.objections} == {limit.key}
    assert all(objection.fix for objection in caught.value.objections)


def test_every_step_beyond_a_limit_is_refused_before_a_compiler_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From a file, by every verb that compiles; a sound file gets as far as the compiler."""
    mark = tmp_path / "started"
    nvcc = tmp_path / "bin" / "nvcc"
    nvcc.parent.mkdir()
    nvcc.write_text(f"#!/bin/sh\ntouch '{mark}'\n")
    nvcc.chmod(0o755)
    monkeypatch.setenv("GEMMSMITH_NVCC", str(nvcc))
    sound = tmp_path / "sound.yaml"
    sound.write_text("families:\n" + as_yaml("f", draw(random.Random(SEED), *FAMILIES[-1])))
    CliRunner().invoke(app, ["build", str(sound)])
    assert mark.exists()
    mark.unlink()
    limits = dict(enumerate([*LIMITS, *CHOICES]))
    wrong = tmp_path / "wrong.yaml"
    families = [as_yaml(str(n), _step(each)) for n, each in limits.items()]
    wrong.write_text("\n".join(["families:", *families]))
    for verb in ("build", "matrix", "export"):
        told = CliRunner().invoke(app, [verb, str(wrong)])
        assert told.exit_code != 0
        refused = re.findall(r"family '(\d+)', kernel on line \d+ \(.*?\): (\w+): ", told.output)
        assert {int(n): key for n, key in refused} == {n: each.key for n, each in limits.items()}
    assert not mark.exists()


@pytest.mark.nvcc
def test_some_accepted_kernels_compile(say: list[str]) -> None:
    some = [spec for spec in accepted(SEED, 45) if spec.arch.name != "sm_70"]
    _accepted(some[:10], say)


@pytest.mark.nvcc
def test_some_refused_kernels_fail(monkeypatch: pytest.MonkeyPatch, say: list[str]) -> None:
    some = [limit for limit in LIMITS if limit.arch.name != "sm_70"]
    _refused(some[::4], monkeypatch, say)


@pytest.mark.nvcc
@pytest.mark.sm_70
@pytest.mark.sweep
def test_every_accepted_kernel_compiles_and_keeps_its_promises(say: list[str]) -> None:
    _accepted(accepted(SEED, 45), say)


@pytest.mark.nvcc
@pytest.mark.sm_70
@pytest.mark.sweep
def test_every_refused_kernel_fails_when_forced(
    monkeypatch: pytest.MonkeyPatch, say: list[str]
) -> None:
    _refused(LIMITS, monkeypatch, say)


@pytest.mark.nvcc
@pytest.mark.sweep
def test_what_is_refused_by_choice_compiles(
    monkeypatch: pytest.MonkeyPatch, say: list[str]
) -> None:
    """Not counted among the refused: these rules are about speed, or say that nothing is proven."""
    outcomes = _forced(CHOICES, monkeypatch)
    say += ["refused by choice", *outcomes.values()]
    assert [line for line in outcomes.values() if "| nothing |" not in line] == []


def _step(limit: Limit) -> KernelSpec:
    return beyond(random.Random(f"{SEED} {limit.name} {limit.arch.name}"), limit)


def _accepted(specs: Sequence[KernelSpec], say: list[str]) -> None:
    report = build(specs)
    built = {kernel.spec for kernel in report.built}
    counts = Counter((spec.arch.name, spec.schedule) for spec in specs if spec in built)
    say += [f"accepted | {arch} | {schedule} | {n}" for (arch, schedule), n in counts.items()]
    say += [
        f"spills | {kernel.spec.name} | {kernel.card.spill_store_bytes} B"
        for kernel in report.built
        if kernel.card.spill_store_bytes > _FEW_BYTES
    ]
    report.raise_if_failed()
    assert [line for line in say if line.startswith("spills")] == []
    assert [name for spec in specs if (name := _refuses_to_run(report, spec))] == []


def _refused(limits: Sequence[Limit], monkeypatch: pytest.MonkeyPatch, say: list[str]) -> None:
    outcomes = _forced(limits, monkeypatch)
    places = Counter(line.split(" | ")[2] for line in outcomes.values())
    say += [f"refused | {place} | {count}" for place, count in places.items()]
    say += outcomes.values()
    assert [line for line in outcomes.values() if "| nothing |" in line] == []


def _forced(limits: Sequence[Limit], monkeypatch: pytest.MonkeyPatch) -> dict[KernelSpec, str]:
    """Compile what lies beyond ``limits``, each alone; return a line that says where it failed."""
    monkeypatch.setattr(gemmsmith.plan, "LARGEST_GROUP", 1)
    monkeypatch.setattr(gemmsmith.plan, "LARGEST_LEAN_GROUP", 1)
    specs = {_step(limit): limit for limit in limits}
    assert len(specs) == len(limits)
    report = build(list(specs))
    failed = {failure.spec: str(failure.error).splitlines()[0] for failure in report.failed}
    cards = {kernel.spec: kernel.card for kernel in report.built}
    lines = {}
    for spec, limit in specs.items():
        if spec in failed and " compiled, but " in failed[spec]:
            where, why = "card", failed[spec].partition(" compiled, but ")[2]
        elif spec in failed:
            refusal = re.search(_REFUSAL, failed[spec])
            assert refusal, failed[spec]  # nothing that a missing file or a lack of memory ends
            where, why = "compiler", refusal[1] or refusal[2]
        elif cards[spec].spill_store_bytes:
            where, why = "card", f"spills {cards[spec].spill_store_bytes} B"
        else:
            why = _refuses_to_run(report, spec)
            where = "call" if why else "nothing"
        lines[spec] = f"{limit.name} | {spec.name} | {where} | {why[:200]}"
    return lines


def _refuses_to_run(report: BuildReport, spec: KernelSpec) -> str:
    """Say how a kernel refuses a call whose sizes and addresses suit every alignment."""
    (built,) = [kernel for kernel in report.built if kernel.spec == spec]
    (kernel,) = [
        each for each in CtypesLauncher().load(str(built.library)) if each.name == spec.name
    ]
    leading = {
        "lda": 256 if spec.layout[0] == "r" else 512,
        "ldb": 384 if spec.layout[1] == "r" else 256,
        "ldd": 384 if spec.layout[2] == "r" else 512,
    }
    status = kernel.can_run(call_of(spec, m=512, n=384, k=256, **leading))
    return f"{spec.name}: {kernel.explain(status)}" if status else ""
