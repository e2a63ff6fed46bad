"""What the entries of a tuned table are found by: kernels by content, calls by their key."""

from __future__ import annotations

import dataclasses

from fakes import hopper
from gemmsmith.config import load_specs
from gemmsmith.dtypes import INT8, INT32
from gemmsmith.resources import configs_dir
from gemmsmith.spec import KernelSpec
from gemmsmith.tuned import content, epilogue_of, identified, key_of, torch_can
from tuned_data import CALL, FAST, SLOW, timing


def test_a_kernels_content_changes_with_every_field_and_not_with_new_ones() -> None:
    edited = [
        dataclasses.replace(FAST, stages=3),
        dataclasses.replace(FAST, residual=True),
        dataclasses.replace(FAST, layout="rrr"),
        SLOW,
    ]
    digests = {content(FAST), *map(content, edited)}
    assert len(digests) == 5
    assert content(hopper(128)) == content(FAST)

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Later(KernelSpec):
        novelty: bool = False

    values = {field.name: getattr(FAST, field.name) for field in dataclasses.fields(FAST)}
    assert content(Later(**values)) == content(FAST)
    assert content(Later(**values, novelty=True)) != content(FAST)


def test_every_default_kernel_has_a_content_of_its_own() -> None:
    specs = load_specs(configs_dir() / "kernels")
    assert len({content(spec) for spec in specs}) == len(specs)


def test_what_an_entry_is_found_by() -> None:
    assert str(key_of(dataclasses.replace(CALL, m=70))) == "64x4096x4096 bf16 rcr plain"
    whole = dataclasses.replace(CALL, a=INT8, b=INT8, d=INT32)
    assert str(key_of(whole)) == "64x4096x4096 int8 -> int32 rcr plain"
    assert epilogue_of(dataclasses.replace(CALL, bias=True)) == "plain"
    assert epilogue_of(dataclasses.replace(CALL, gate="silu")) == "gate"
    rich = dataclasses.replace(CALL, scaled=True, residual=True, activation="gelu")
    assert epilogue_of(rich) == "scaled+activation+residual"
    assert torch_can(CALL)
    assert not torch_can(dataclasses.replace(CALL, bias=True))
    assert not torch_can(dataclasses.replace(CALL, batch=2))


def test_timings_carry_the_kernel_by_content() -> None:
    row = timing(FAST, 1.2)
    assert row.kernel == f"{FAST.name}@{content(FAST)}" == identified(FAST)
    assert row.name == FAST.name
