"""Attention kernels from Volta to Ada on their own GPUs, or compiled for a Hopper GPU.

What the latter prove is what ``arch.portable`` says.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import gemmsmith  # noqa: E402
from attention_data import exact, tokens  # noqa: E402
from gemmsmith.arch import ARCHITECTURES, Architecture, architecture_of, portable  # noqa: E402
from gemmsmith.attn.config import load_attention  # noqa: E402
from gemmsmith.attn.spec import AttentionSpec, AttentionTile  # noqa: E402
from gemmsmith.bench.layer_parts import launches  # noqa: E402
from gemmsmith.dtypes import FP16  # noqa: E402
from gemmsmith.errors import NoKernelError  # noqa: E402
from gemmsmith.kernelset import KernelSet  # noqa: E402
from gemmsmith.resources import configs_dir  # noqa: E402
from prefill_cases import CASES, Case, check_case, check_packed, guarded, judge  # noqa: E402

pytestmark = pytest.mark.gpu

UNUSUAL = ((64, 32, 64), (64, 128, 64), (80, 128, 128), (96, 64, 64), (128, 32, 128))
"""head_dim, queries and keys of kernels that do not ship, but may be asked for."""


def architectures() -> tuple[Architecture, ...]:
    """The rows whose kernels this GPU runs; on Hopper one for each code that differs there."""
    if not torch.cuda.is_available():
        return ()
    capability = torch.cuda.get_device_capability()
    if capability == (9, 0):
        return tuple(row for row in ARCHITECTURES if row.name in ("sm_70", "sm_75", "sm_80"))
    row = architecture_of(capability)
    return (row,) if row.api == "2.x" else ()


def kernels_of(row: Architecture) -> list[AttentionSpec]:
    """The shipped kernels of an architecture and, in fp16, unusual ones, for this GPU."""
    specs = load_attention(configs_dir() / "kernels", arch=[row.name])
    specs = tuple(spec for spec in specs if spec.schedule == "multistage")
    first = next(spec for spec in specs if spec.dtype == FP16)
    found = [
        *specs,
        *(
            replace(first, head_dim=head_dim, tile=AttentionTile(query, key))
            for head_dim, query, key in UNUSUAL
        ),
    ]
    own = torch.cuda.get_device_capability() == row.capability
    return [spec if own else replace(spec, arch=portable(row)) for spec in dict.fromkeys(found)]


SPECS = [spec for row in architectures() for spec in kernels_of(row)]
each_kernel = pytest.mark.parametrize("spec", SPECS, ids=lambda spec: str(spec.name))


@pytest.fixture(scope="module", autouse=True)
def sets() -> dict[str, KernelSet]:
    """The kernels of SPECS, built, by the suffix of their architecture."""
    if not SPECS:
        pytest.skip("no attention kernel on mma.sync is for this GPU")
    made = {}
    for arch in dict.fromkeys(spec.arch for spec in SPECS):
        alike = [spec for spec in SPECS if spec.arch == arch]
        made[arch.suffix] = KernelSet((), alike, arch=arch, source=arch.suffix)
        made[arch.suffix].build()
    return made


def like(spec: AttentionSpec) -> Any:
    dtype = torch.float16 if spec.dtype == FP16 else torch.bfloat16
    return torch.empty(0, dtype=dtype, device="cuda")


def refused(case: Case) -> bool:
    return case.softcap is not None or (case.window is not None and case.window < case.keys)


def widths(spec: AttentionSpec) -> tuple[int, ...]:
    """Sizes of a head that a kernel takes: its own, and some that fill it in part."""
    return (spec.head_dim, spec.head_dim - 8, spec.head_dim - 24)


@each_kernel
def test_kernels_write_what_float64_says_and_nothing_else(
    spec: AttentionSpec, sets: dict[str, KernelSet]
) -> None:
    kernel = sets[spec.arch.suffix][spec.name]
    own, *narrow = widths(spec)
    calls = [(case, own) for case in CASES]
    calls += [(Case(queries=257, keys=257, causal=True), size) for size in narrow]
    taken = 0
    for case, size in calls:
        if refused(case):
            with pytest.raises(NoKernelError, match=r"does not (cut keys|cap scores)"):
                check_case(kernel, case, size, like(spec))
            continue
        try:
            check_case(kernel, case, size, like(spec))
        except AssertionError as error:
            raise AssertionError(f"{case} head_dim {size}: {error}") from error
        record = gemmsmith.last_kernel()
        assert record is not None
        assert record.name == spec.name
        taken += 1
    assert taken >= len(CASES) - 10
    for size in widths(spec):
        for causal in (False, True):
            check_packed(kernel.varlen, size, like(spec), causal=causal)


@each_kernel
def test_y01_rows_without_keys_are_zero_and_the_first_with_one_is_its_value(
    spec: AttentionSpec, sets: dict[str, KernelSet]
) -> None:
    kernel = sets[spec.arch.suffix][spec.name]
    dtype = like(spec).dtype
    for queries, keys in ((5, 2), (200, 80), (300, 1), (257, 130), (128, 64)):
        q, k, v = tokens(2, queries, keys, 2, 1, spec.head_dim, dtype=dtype, device="cuda")
        room, out = guarded(q)
        kernel(q, k, v, causal=True, out=out)
        assert not out[:, : queries - keys].any()
        assert torch.equal(out[:, queries - keys], v[:, 0].expand(2, 2, spec.head_dim))
        judge(room, out, exact(q, k, v, causal=True))


@each_kernel
def test_y03_nan_beyond_the_lengths_has_no_effect(
    spec: AttentionSpec, sets: dict[str, KernelSet]
) -> None:
    kernel = sets[spec.arch.suffix][spec.name]
    ends = (0, 1, 31, 33, 64, 127, 129, 200, 256, 300)  # the last is more than there is
    for causal in (False, True):
        q, k, v = tokens(10, 70, 256, 4, 2, spec.head_dim, dtype=like(spec).dtype, device="cuda")
        for b, end in enumerate(ends):
            k[b, end:], v[b, end:] = float("nan"), float("nan")
        lengths = torch.tensor(ends, dtype=torch.int32, device="cuda")
        room, out = guarded(q)
        kernel(q, k, v, causal=causal, lengths=lengths, out=out)
        given = [min(end, 256) for end in ends]
        judge(room, out, exact(q, k, v, causal=causal, lengths=given))
        for b, end in enumerate(given[1:], 1):
            part = slice(b, b + 1)
            cut = kernel(q[part], k[part, :end], v[part, :end], causal=causal)
            assert torch.equal(out[part], cut)


@each_kernel
def test_packed_rows_of_no_sequence_are_zero(
    spec: AttentionSpec, sets: dict[str, KernelSet]
) -> None:
    kernel = sets[spec.arch.suffix][spec.name]
    q, k, v = (part[0] for part in tokens(1, 90, 90, 2, 2, spec.head_dim, dtype=like(spec).dtype))
    cu = torch.tensor([0, 30, 50], dtype=torch.int32, device="cuda")
    room, out = guarded(q.cuda())
    kernel.varlen(q.cuda(), k.cuda(), v.cuda(), cu, cu, 30, 30, causal=True, out=out)
    right = torch.zeros(q.shape, dtype=torch.float64)
    for part in (slice(0, 30), slice(30, 50)):
        right[part] = exact(q[None, part], k[None, part], v[None, part], causal=True)[0]
    judge(room, out, right.cuda())
    assert not out[50:].any()


@each_kernel
def test_what_the_gpu_ran_is_one_kernel_and_the_same_every_time(
    spec: AttentionSpec, sets: dict[str, KernelSet]
) -> None:
    kernel = sets[spec.arch.suffix][spec.name]
    shape = (2, 1000, 1000, 8, 2, spec.head_dim)
    q, k, v = tokens(*shape, dtype=like(spec).dtype, device="cuda")
    names = launches(lambda: kernel(q, k, v, causal=True))
    assert len(names) == 1
    assert spec.name in names[0]
    first = kernel(q, k, v, causal=True)
    for _ in range(10):
        assert torch.equal(kernel(q, k, v, causal=True), first)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = kernel(q, k, v, causal=True)
    found.fill_(float("nan"))
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(found, first)
