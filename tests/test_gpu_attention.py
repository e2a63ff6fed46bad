"""Attention of many queries on Hopper: every kernel by its name, then what the op chooses."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import gemmsmith  # noqa: E402
from attention_data import exact, tokens  # noqa: E402
from gemmsmith.arch import architecture_of  # noqa: E402
from gemmsmith.attn.config import load_attention  # noqa: E402
from gemmsmith.attn.spec import AttentionSpec  # noqa: E402
from gemmsmith.bench.layer_parts import launches  # noqa: E402
from gemmsmith.build import build  # noqa: E402
from gemmsmith.dtypes import FP16  # noqa: E402
from gemmsmith.errors import NoKernelError  # noqa: E402
from gemmsmith.kernelset import KernelSet  # noqa: E402
from gemmsmith.resources import configs_dir  # noqa: E402
from prefill_cases import (  # noqa: E402
    CASES,
    GROUPS,
    Case,
    check_case,
    check_packed,
    guarded,
    judge,
    operands,
)

pytestmark = pytest.mark.gpu
BF16 = torch.bfloat16
each_dtype = pytest.mark.parametrize("dtype", [BF16, torch.float16], ids=str)


def shipped() -> tuple[AttentionSpec, ...]:
    """The kernels of many queries on wgmma for this GPU; none where there are none."""
    if not torch.cuda.is_available():
        return ()
    arch = architecture_of(torch.cuda.get_device_capability())
    specs = load_attention(configs_dir() / "kernels", arch=[arch.name])
    return tuple(spec for spec in specs if spec.schedule in ("pingpong", "cooperative"))


@pytest.fixture(scope="module", autouse=True)
def kernels() -> KernelSet:
    """The shipped kernels, those of :func:`shipped` built."""
    if not shipped():
        pytest.skip("no attention kernel on wgmma is for this GPU")
    build(shipped()).raise_if_failed()
    return gemmsmith.load(configs_dir() / "kernels")


def ran() -> str:
    record = gemmsmith.last_kernel()
    assert record is not None
    return record.name


def element(dtype: Any) -> Any:
    return torch.empty(0, dtype=dtype, device="cuda")


each_kernel = pytest.mark.parametrize("spec", shipped(), ids=lambda spec: str(spec.name))


def dtype_of(spec: AttentionSpec) -> Any:
    return torch.float16 if spec.dtype == FP16 else BF16


@each_kernel
def test_kernels_write_what_float64_says_and_nothing_else(
    spec: AttentionSpec, kernels: KernelSet
) -> None:
    narrow = (spec.head_dim - 8, spec.head_dim - 24)
    calls = [(case, spec.head_dim) for case in CASES]
    calls += [(Case(queries=257, keys=257, causal=True), size) for size in narrow]
    for case, size in calls:
        try:
            check_case(kernels[spec.name], case, size, element(dtype_of(spec)))
        except AssertionError as error:
            raise AssertionError(f"{case} head_dim {size}: {error}") from error
        assert ran() == spec.name
    for causal in (False, True):
        check_packed(
            kernels[spec.name].varlen, spec.head_dim, element(dtype_of(spec)), causal=causal
        )
        assert ran() == spec.name


@each_kernel
def test_the_named_kernel_is_what_the_gpu_ran(spec: AttentionSpec, kernels: KernelSet) -> None:
    shape = (1, 300, 300, 4, 2, spec.head_dim)
    q, k, v = tokens(*shape, dtype=dtype_of(spec), device="cuda")
    names = launches(lambda: kernels[spec.name](q, k, v, causal=True))
    assert len(names) == 1
    assert spec.name in names[0]


MODELS = {  # head_dim and the call
    "llama_decode": (128, Case(queries=1, keys=4097, heads=32, kv_heads=8, causal=True)),
    "qwen": (128, Case(queries=513, keys=513, heads=28, kv_heads=4, causal=True)),
    "falcon": (64, Case(queries=257, keys=257, heads=71, kv_heads=1, causal=True)),
    "qwen_long": (64, Case(queries=1, keys=131072, heads=14, kv_heads=2, causal=True)),
    "smollm2": (64, Case(queries=33, keys=33, heads=9, kv_heads=3, causal=True)),
    "phi2": (80, Case(queries=2048, keys=2048, heads=32, kv_heads=32, causal=True)),
    "phi3": (96, Case(queries=2047, keys=2047, heads=32, kv_heads=32, causal=True, window=2048)),
    "gemma2": (
        256,
        Case(queries=4100, keys=4100, heads=8, kv_heads=4, causal=True, window=4096, softcap=50.0),
    ),
    "vit": (80, Case(queries=257, keys=257, heads=16, kv_heads=16)),
    "bert": (64, Case(queries=197, keys=197, heads=12, kv_heads=12)),
    "whisper_cross": (64, Case(queries=448, keys=1500, heads=20, kv_heads=20)),
}


@each_dtype
@pytest.mark.parametrize("model", MODELS)
def test_shapes_of_real_models_run_on_our_kernels(model: str, dtype: Any) -> None:
    size, case = MODELS[model]
    check_case(gemmsmith.attention, case, size, element(dtype))
    name = ran()
    assert name.startswith("attention_")
    assert case.queries <= 64 or "_split_" not in name
    q, k, v = operands(case, size, dtype, "cuda")
    names = launches(lambda: gemmsmith.attention(q, k, v, **case.how))
    assert any(name in each for each in names)
    assert not any("flash" in each or "cudnn" in each or "fmha" in each for each in names)


@pytest.mark.parametrize(
    ("size", "reason"), [(100, "multiple of 8"), (264, "64, 80, 96, 128, 256")]
)
def test_y05_head_sizes_without_a_kernel_go_to_torch_and_say_so(
    size: int, reason: str, kernels: KernelSet
) -> None:
    case = Case(queries=200, keys=200, heads=32, kv_heads=32, causal=True)
    check_case(gemmsmith.attention, case, size, element(BF16))
    record = gemmsmith.last_kernel()
    assert record is not None
    assert record.name == "torch"
    assert reason in record.reason
    q, k, v = operands(case, size, BF16, "cuda")
    with pytest.raises(NoKernelError, match=f"{size}"):
        kernels.attention(q, k, v)


@each_dtype
@pytest.mark.parametrize("size", [64, 80, 96, 128, 256])
def test_y05_every_head_size_has_its_own_scale(size: int, dtype: Any) -> None:
    for causal in (False, True):
        case = Case(batch=2, queries=257, keys=257, heads=6, kv_heads=3, causal=causal)
        check_case(gemmsmith.attention, case, size, element(dtype))
        assert f"_d{size}_" in ran()


@pytest.mark.parametrize("copies", [1, 40])
def test_y01_causal_is_bottom_right_aligned_and_a_row_without_keys_is_zero(
    copies: int, kernels: KernelSet
) -> None:
    queries, keys = 5 * copies, 2 * copies
    q, k, v = tokens(1, queries, keys, 2, 1, 64, device="cuda")
    blind = queries - keys
    by_name = [
        kernels[spec.name] for spec in shipped() if spec.name.startswith("attention_bf16_d64")
    ]
    for attention in (gemmsmith.attention, *by_name):
        room, out = guarded(q)
        attention(q, k, v, causal=True, out=out)
        assert ran().startswith("attention_")
        assert not out[:, :blind].any()
        assert torch.equal(out[0, blind], v[0, 0].expand(2, 64))
        judge(room, out, exact(q, k, v, causal=True))


@each_dtype
def test_y03_nan_beyond_the_lengths_has_no_effect(dtype: Any, kernels: KernelSet) -> None:
    case = Case(batch=2, queries=3, keys=256, heads=8, kv_heads=8, causal=True, lengths=(1, 200))
    check_case(gemmsmith.attention, case, 64, element(dtype))
    many = Case(batch=2, queries=200, keys=256, heads=8, kv_heads=8, lengths=(1, 200))
    q, k, v = operands(many, 64, dtype, "cuda")
    assert k[0, 1:].isnan().all()
    lengths = torch.tensor(many.lengths, dtype=torch.int32, device="cuda")
    short = "bf16" if dtype == BF16 else "fp16"
    for spec in (spec for spec in shipped() if spec.name.startswith(f"attention_{short}_d64_")):
        out = kernels[spec.name](q, k, v, lengths=lengths)
        for b, length in enumerate(many.lengths or ()):
            part = slice(b, b + 1)
            cut = kernels[spec.name](q[part], k[part, :length], v[part, :length])
            assert torch.equal(out[part], cut)


@pytest.mark.parametrize("heads", [*GROUPS, (32, 32)], ids=str)
def test_y07_head_h_reads_kv_head_h_over_the_group(heads: tuple[int, int]) -> None:
    q, k, v = tokens(1, 257, 257, *heads, 128, device="cuda")
    v[:] = torch.arange(heads[1], device="cuda")[:, None]
    out = gemmsmith.attention(q, k, v, causal=True)
    assert "_d128_" in ran()
    expected = torch.arange(heads[0], device="cuda") // (heads[0] // heads[1])
    assert torch.equal(out.float().round(), expected[:, None].expand_as(out).float())


def test_packed_sequences_run_on_our_kernels() -> None:
    for causal in (False, True):
        check_packed(gemmsmith.attention_varlen, 128, element(BF16), causal=causal)
        assert "_d128_" in ran()


def test_results_are_the_same_every_time(kernels: KernelSet) -> None:
    for spec in shipped():
        q, k, v = tokens(2, 1000, 1000, 8, 2, spec.head_dim, dtype=dtype_of(spec), device="cuda")
        first = kernels[spec.name](q, k, v, causal=True)
        for _ in range(10):
            assert torch.equal(kernels[spec.name](q, k, v, causal=True), first)


def parts(buffer: Any) -> Any:
    """Return q, k and v of 8 heads, 2 of them of k and v, that are parts of one projection."""
    split = buffer.split([1024, 256, 256], -1)
    return tuple(part.unflatten(-1, (-1, 128)) for part in split)


def projection() -> Any:
    torch.manual_seed(3)
    return torch.randn(2, 300, 1536, device="cuda").to(BF16)


def test_a_graph_is_replayed_with_new_tokens() -> None:
    buffer = projection()
    gemmsmith.attention(*parts(buffer), causal=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        first = gemmsmith.attention(*parts(buffer), causal=True)
        second = gemmsmith.attention(first, *parts(buffer)[1:], causal=True)
    for factor in (1, -2):
        buffer.copy_(projection() * factor)
        first.fill_(float("nan"))
        second.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        right = gemmsmith.attention(*parts(buffer), causal=True)
        assert "_pp_" in ran()
        assert torch.equal(first, right)
        assert torch.equal(second, gemmsmith.attention(right, *parts(buffer)[1:], causal=True))


FIRST_CALL = """
import torch, gemmsmith
from attention_data import check_near, exact, tokens
for queries in (300, 1):
    q, k, v = tokens(1, queries, 4096, 8, 2, 128, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = gemmsmith.attention(q, k, v, causal=True)
    for _ in range(2):
        out.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        check_near(out, exact(q, k, v, causal=True))
    print(gemmsmith.last_kernel().name)
"""


def test_the_first_call_of_a_process_may_be_captured() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FIRST_CALL],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    prefill, decode = done.stdout.split()
    assert "_pp_" in prefill
    assert "_split_" in decode


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_compiled_it_is_what_it_is_eagerly(mode: str) -> None:
    def layer(buffer: Any) -> Any:
        return gemmsmith.attention(*parts(buffer * 2), causal=True) + 1

    buffer = projection()
    right = layer(buffer)
    step = torch.compile(layer, mode=mode, fullgraph=True)
    for _ in range(4):
        torch.testing.assert_close(step(buffer).clone(), right)
    names = launches(lambda: step(buffer))
    assert any("attention_bf16_d128_" in name for name in names)
