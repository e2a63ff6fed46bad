"""Which kernels of a set are at hand: built ones, what a build on use made, and no others."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gemmsmith import shelf
from gemmsmith.arch import SM_90A
from gemmsmith.build import BuildReport, FailedKernel
from gemmsmith.dtypes import BF16
from gemmsmith.errors import CompileError, LoadError, NoKernelError, ToolchainError
from gemmsmith.kernelset import KernelSet
from gemmsmith.problem import GemmProblem
from gemmsmith.spec import KernelSpec, Tile
from gpus import SOME_HOPPER

SPECS = tuple(
    KernelSpec(arch=SM_90A, tile=Tile(m, 128, 64), schedule="cooperative") for m in (128, 256)
)
CALL = GemmProblem(m=512, n=512, k=512, a=BF16, b=BF16, d=BF16)


class World:
    """What the cache holds and what a build would do, in place of a compiler."""

    def __init__(self) -> None:
        self.built: set[KernelSpec] = set()
        self.outcome: list[Any] = []
        self.builds = 0

    def find(self, specs: Any) -> dict[Any, Path]:
        return {spec: Path(spec.name) for spec in specs if spec in self.built}

    def build(self, specs: Any, **_: Any) -> BuildReport:
        self.builds += 1
        (outcome,) = self.outcome
        if isinstance(outcome, Exception):
            raise outcome
        failed = (FailedKernel(spec=SPECS[1], error=CompileError("it is Monday")),)
        return BuildReport(built=(), failed=failed, seconds=0.0)

    def how_to_get(self, specs: Any) -> str:
        return f"make {len(specs)} of them"


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    made = World()
    monkeypatch.setattr(shelf, "load_library", lambda path: {str(path): f"loaded {path}"})
    return made


def default_set(world: World) -> KernelSet:
    return KernelSet(
        SPECS, arch=SM_90A, source="d", build_on_use=True, torch_may_run=True, supply=world
    )


@pytest.mark.parametrize("outcome", ["a failed kernel", ToolchainError("there is no nvcc")])
def test_defaults_go_on_with_what_is_built_and_try_once(
    world: World, outcome: Any, caplog: pytest.LogCaptureFixture
) -> None:
    world.built, world.outcome = {SPECS[0]}, [outcome]
    kernels = default_set(world)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            plan = kernels.plan(CALL, SOME_HOPPER)
            assert not isinstance(plan, str)
            assert plan.spec == SPECS[0]
    assert world.builds == 1
    assert ("it is Monday" in caplog.text) == (outcome == "a failed kernel")
    assert ("there is no nvcc" in caplog.text) == (outcome != "a failed kernel")


def test_without_any_default_kernel_torch_takes_the_call(world: World) -> None:
    world.outcome = [ToolchainError("there is no nvcc")]
    assert default_set(world).plan(CALL, SOME_HOPPER) == "no default kernel for sm_90a is built"


def test_a_first_call_builds_the_kernels_of_its_kind_alone(world: World) -> None:
    """A bf16 call does not wait for int8 or gated kernels to be compiled."""
    gated = replace(SPECS[0], gate="silu", store="strip")
    able = replace(SPECS[0], activation="any")
    world.outcome = [ToolchainError("there is no nvcc")]
    asked: list[set[KernelSpec]] = []

    class Asked(World):
        def build(self, specs: Any, **_: Any) -> BuildReport:
            asked.append(set(specs))
            return super().build(specs)

    noting = Asked()
    noting.outcome = world.outcome
    kernels = KernelSet(
        (*SPECS, gated, able),
        arch=SM_90A,
        source="d",
        build_on_use=True,
        torch_may_run=True,
        supply=noting,
    )
    kernels.plan(CALL, SOME_HOPPER)
    assert asked[0] == set(SPECS)
    kernels.plan(replace(CALL, gate="silu"), SOME_HOPPER)
    assert asked[-1] == {gated}
    odd = replace(CALL, n=513, d_align=2)
    assert "N=513 is not a multiple of 8" in str(kernels.plan(odd, SOME_HOPPER))


def test_a_kernel_of_any_activation_takes_a_call_without_one(world: World) -> None:
    able = replace(SPECS[0], activation="any")
    world.built = {able}
    kernels = KernelSet([able], arch=SM_90A, source="my.yaml", supply=world)
    plan = kernels.plan(CALL, SOME_HOPPER)
    assert not isinstance(plan, str)
    assert plan.spec == able


def test_a_set_of_the_user_is_never_built_unasked(world: World) -> None:
    kernels = KernelSet(SPECS, arch=SM_90A, source="my.yaml", supply=world)
    with pytest.raises(NoKernelError, match=r"no kernel of my\.yaml is built: make 2 of them"):
        kernels.plan(CALL, SOME_HOPPER)
    assert world.builds == 0


def test_a_named_kernel_is_found_once_another_process_built_it(world: World) -> None:
    world.built = {SPECS[0]}
    kernels = KernelSet(SPECS, arch=SM_90A, source="my.yaml", supply=world)
    assert str(kernels.loaded(SPECS[0])) == f"loaded {SPECS[0].name}"
    with pytest.raises(NoKernelError, match=f"{SPECS[1].name} is not built: make 1 of them"):
        kernels.loaded(SPECS[1])
    world.built.add(SPECS[1])
    assert str(kernels.loaded(SPECS[1])) == f"loaded {SPECS[1].name}"


def test_never_compile_says_once_what_builds_the_defaults(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("GEMMSMITH_NEVER_COMPILE", "1")
    kernels = default_set(world)
    for _ in range(2):
        reason = kernels.plan(CALL, SOME_HOPPER)
        assert reason == "no default kernel for sm_90a is built: make 2 of them"
    assert caplog.messages == ["2 default kernels for sm_90a missing: make 2 of them"]
    assert world.builds == 0


def test_a_library_without_its_kernel_is_a_load_error(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.built = {SPECS[0]}
    monkeypatch.setattr(shelf, "load_library", lambda path: {})
    with pytest.raises(LoadError, match=f"holds no kernel called {SPECS[0].name}"):
        KernelSet(SPECS, arch=SM_90A, source="my.yaml", supply=world).plan(CALL, SOME_HOPPER)
