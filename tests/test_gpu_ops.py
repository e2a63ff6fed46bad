"""The op on a GPU: views, streams, graphs, devices, compilation, and what it says it ran."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import gemmsmith  # noqa: E402
from gemm_data import rounded, small_integers  # noqa: E402
from gemmsmith.errors import ArgumentError, ArgumentTypeError, NoKernelError  # noqa: E402
from gemmsmith.execute import LaunchRecord  # noqa: E402
from gemmsmith.kernelset import KernelSet  # noqa: E402
from kernel_sets import default_gemms  # noqa: E402

pytestmark = pytest.mark.gpu
BF16 = torch.bfloat16


def last_kernel() -> LaunchRecord:
    record = gemmsmith.last_kernel()
    assert record is not None
    return record


@pytest.fixture(scope="module")
def kernels() -> KernelSet:
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    loaded = default_gemms()
    loaded.build()
    return loaded


def operands(m, n, k, dtype=BF16, device="cuda"):  # type: ignore[no-untyped-def]
    a = small_integers(m, k, dtype=dtype, device=device)
    w = small_integers(n, k, dtype=dtype, device=device)
    return a, w, rounded(a.double() @ w.double().t(), dtype)


def kernel_events(call) -> list[str]:  # type: ignore[no-untyped-def]
    """Return the names of the device kernels that ``call`` runs."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        call()
        torch.cuda.synchronize()
    return [event.key for event in profiler.key_averages()]


def test_the_named_kernel_is_the_one_that_ran(kernels: KernelSet) -> None:
    a, w, right = operands(200, 4096, 1024)
    tested = 0
    for name in kernels.names:
        if kernels[name].misfit(a, w.t()) or kernels[name].spec.d.name != "bf16":
            continue
        events = kernel_events(lambda kernel=kernels[name]: kernel(a, w.t()))
        assert any(f"::{name}>" in event for event in events), (name, events)
        record = last_kernel()
        assert record.name == name
        assert torch.equal(kernels[name](a, w.t()), right)
        tested += 1
    assert tested >= 5


def test_the_default_choice_names_what_it_ran(kernels: KernelSet) -> None:
    a, w, right = operands(64, 6144, 4096)
    assert torch.equal(gemmsmith.gemm(a, w.t()), right)
    record = last_kernel()
    assert record.name in kernels.names
    assert record.reason == ""
    events = kernel_events(lambda: gemmsmith.gemm(a, w.t()))
    assert any(f"::{record.name}>" in event for event in events), events


@pytest.mark.parametrize("dtype", [BF16, torch.float16])
def test_x04_corners_of_larger_tensors_are_read_in_place(kernels: KernelSet, dtype) -> None:  # type: ignore[no-untyped-def]
    big_a = small_integers(1024, 1024, dtype=dtype, device="cuda")
    big_w = small_integers(1024, 1024, dtype=dtype, device="cuda")
    a, w = big_a[:512, 512:], big_w[512:, :512]
    result = gemmsmith.gemm(a, w.t())
    assert last_kernel().name in kernels.names
    assert last_kernel().copied == ()
    assert torch.equal(result, gemmsmith.gemm(a.contiguous(), w.contiguous().t()))
    assert torch.equal(result, rounded(a.double() @ w.double().t(), dtype))


def test_x02_misaligned_addresses_are_right_or_refused_by_name(kernels: KernelSet) -> None:
    m = n = k = 256
    store_a = small_integers(m * k + 1, dtype=BF16, device="cuda")
    store_w = small_integers(n * k + 1, dtype=BF16, device="cuda")
    a, w = store_a[1:].view(m, k), store_w[1:].view(n, k)
    right = rounded(a.double() @ w.double().t(), BF16)
    assert torch.equal(gemmsmith.gemm(a, w.t()), right)
    taking = [name for name in kernels.names if not kernels[name].misfit(a, w.t())]
    if taking:  # sm_80 has kernels for any address
        assert last_kernel().name in taking
    else:
        assert last_kernel().name == "torch"
        assert "a: address, row stride or batch stride divides by 2" in last_kernel().reason
    named = next(name for name in kernels.names if "_bf16_rcr_" in name)
    with pytest.raises(NoKernelError, match=r"a: address, row stride or batch stride divides by 2"):
        kernels[named](a, w.t())
    good_a, good_w, good = operands(m, n, k)
    assert torch.equal(gemmsmith.gemm(good_a, good_w.t()), good)
    assert last_kernel().name in kernels.names


@pytest.mark.parametrize(
    ("m", "n", "k"), [(1, 105, 107), (8, 50257, 768), (64, 64, 36), (33, 8, 8)]
)
def test_x01_odd_sizes_give_the_right_value(kernels: KernelSet, m: int, n: int, k: int) -> None:
    a, w, right = operands(m, n, k, torch.float16)
    assert torch.equal(gemmsmith.gemm(a, w.t()), right)
    if all(kernels[name].misfit(a, w.t()) for name in kernels.names):
        assert k % 8
        assert last_kernel().name == "torch"
        assert f"K={k} is not a multiple of 8" in last_kernel().reason
    else:
        assert last_kernel().name in kernels.names


def test_x08_empty_sizes(kernels: KernelSet) -> None:
    bias = small_integers(64, dtype=BF16, device="cuda")
    for shape in ((0, 32), (3, 0, 32)):
        out = gemmsmith.gemm(
            torch.empty(shape, dtype=BF16, device="cuda"),
            torch.ones(32, 64, dtype=BF16, device="cuda"),
            bias,
        )
        assert out.shape == (*shape[:-1], 64)
        assert out.dtype == BF16
        assert out.is_cuda
    nothing = gemmsmith.gemm(
        torch.ones(5, 0, dtype=BF16, device="cuda"),
        torch.ones(0, 64, dtype=BF16, device="cuda"),
        bias,
    )
    assert torch.equal(nothing, bias.expand(5, 64))
    a, w, right = operands(64, 64, 64)
    assert torch.equal(gemmsmith.gemm(a, w.t()), right)


def test_x10_leading_dimensions_and_batches(kernels: KernelSet) -> None:
    x = small_integers(2, 7, 4096, dtype=BF16, device="cuda")
    w = small_integers(11008, 4096, dtype=BF16, device="cuda")
    assert torch.equal(gemmsmith.gemm(x, w.t()), rounded(x.double() @ w.double().t(), BF16))
    a = small_integers(4, 1, 128, dtype=BF16, device="cuda")
    b = small_integers(4, 128, 1, dtype=BF16, device="cuda")
    assert torch.equal(gemmsmith.gemm(a, b), rounded(a.double() @ b.double(), BF16))
    a = small_integers(3, 2, 40, 128, dtype=BF16, device="cuda")
    b = small_integers(3, 2, 256, 128, dtype=BF16, device="cuda").mT
    assert torch.equal(gemmsmith.gemm(a, b), rounded(a.double() @ b.double(), BF16))
    assert last_kernel().name in kernels.names


def test_x12_outputs_beyond_two_to_the_31_elements(kernels: KernelSet) -> None:
    m, n, k = 70_000, 32_768, 64
    a = small_integers(m, k, dtype=torch.float16, device="cuda")
    w = small_integers(n, k, dtype=torch.float16, device="cuda")
    torch.cuda.synchronize()  # naming the set promises that w is written
    result = kernels.gemm(a, w.t())  # by estimate torch would be the choice
    assert last_kernel().name in kernels.names
    for row in (0, 65_535, 65_536, 69_999):
        exact = a[row].double() @ w.double().t()
        assert torch.equal(result[row], rounded(exact, torch.float16)), row


def test_x16_the_current_stream_is_used(kernels: KernelSet) -> None:
    a, w, _ = operands(256, 256, 1024)
    gemmsmith.gemm(a, w.t())
    fresh, _, _ = operands(256, 256, 1024)
    right = rounded(fresh.double() @ w.double().t(), BF16)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(200_000_000)
        a.copy_(fresh)
        result = gemmsmith.gemm(a, w.t())
        copied = result.clone()
    torch.cuda._sleep(1_000_000)
    stream.synchronize()
    assert torch.equal(copied, right)


def test_x17_graph_capture_replays_with_new_inputs(kernels: KernelSet) -> None:
    names = [None, *(name for name in kernels.names if "streamk" in name and "_bf16_rcr" in name)]
    for name in names:
        call = gemmsmith.gemm if name is None else kernels[name]
        a, w, _ = operands(64, 4096, 4096)
        call(a, w.t())
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = call(a, w.t())
        for _ in range(100):
            a.copy_(small_integers(*a.shape, dtype=BF16, device="cuda"))
            result.fill_(float("nan"))
            graph.replay()
            assert torch.equal(result, rounded(a.double() @ w.double().t(), BF16)), name


def test_x20_a_second_gpu_is_used_where_the_tensors_are(kernels: KernelSet) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("one GPU")
    if torch.cuda.get_device_capability(0) != torch.cuda.get_device_capability(1):
        pytest.skip("the second GPU is of another kind")
    assert torch.cuda.current_device() == 0
    a, w, right = operands(200, 512, 256, device="cuda:1")
    assert torch.equal(gemmsmith.gemm(a, w.t()), right)
    assert last_kernel().name in kernels.names
    assert torch.cuda.current_device() == 0
    split = [name for name in kernels.names if "streamk" in name and "_bf16_rcr" in name]
    assert split or kernels.arch.api == "2.x"
    for name in split:  # their workspace must be on the second GPU too
        assert torch.equal(kernels[name](a, w.t()), right), name
        assert last_kernel().name == name
        assert torch.cuda.current_device() == 0
    misaligned = small_integers(200 * 256 + 1, dtype=BF16, device="cuda:1")[1:].view(200, 256)
    named = next(name for name in kernels.names if "_bf16_rcr_" in name)
    wrong = {
        ArgumentError: lambda: gemmsmith.gemm(a, w),
        ArgumentTypeError: lambda: gemmsmith.gemm(a, w.t().to("cuda:0")),
        NoKernelError: lambda: kernels[named](misaligned, w.t()),
    }
    for error, call in wrong.items():
        with pytest.raises(error):
            call()
        assert torch.cuda.current_device() == 0
        assert torch.equal(gemmsmith.gemm(a, w.t()), right)
    with torch.cuda.device(1):  # and the first GPU, while the second is the current one
        a, w, right = operands(200, 512, 256, device="cuda:0")
        assert torch.equal(gemmsmith.gemm(a, w.t()), right)
        assert last_kernel().name in kernels.names
        assert torch.cuda.current_device() == 1


def test_x22_and_x23_bad_arguments_are_named_and_the_next_call_works(kernels: KernelSet) -> None:
    a, w, right = operands(64, 64, 64)
    bad = {
        "bias is torch.float32": lambda: gemmsmith.gemm(a, w.t(), torch.zeros(64, device="cuda")),
        "bias is on cpu": lambda: gemmsmith.gemm(a, w.t(), torch.zeros(64, dtype=BF16)),
        r"bias is \(65,\)": lambda: gemmsmith.gemm(
            a, w.t(), torch.zeros(65, dtype=BF16, device="cuda")
        ),
        r"bias is \(64, 1\)": lambda: gemmsmith.gemm(
            a, w.t(), torch.zeros(64, 1, dtype=BF16, device="cuda")
        ),
        "b is on cuda:0, a is on cpu": lambda: gemmsmith.gemm(a.cpu(), w.t()),
        "a is torch.complex64": lambda: gemmsmith.gemm(a.to(torch.complex64), w.t()),
        "b is torch.float16": lambda: gemmsmith.gemm(a, w.t().half()),
        "a is a NoneType": lambda: gemmsmith.gemm(None, w.t()),  # type: ignore[arg-type]
        "forward only": lambda: gemmsmith.gemm(a.clone().requires_grad_(), w.t()),
    }
    for message, call in bad.items():
        with pytest.raises((ArgumentError, ArgumentTypeError), match=message):
            call()
        assert torch.equal(gemmsmith.gemm(a, w.t()), right)
    strided = small_integers(128, dtype=BF16, device="cuda")[::2]
    exact = a.double() @ w.double().t() + strided.double()
    assert torch.equal(gemmsmith.gemm(a, w.t(), strided), rounded(exact, BF16))
    assert torch.equal(gemmsmith.gemm(a, w.t(), strided.view(1, 64)), rounded(exact, BF16))
    with torch.inference_mode():
        assert torch.equal(gemmsmith.gemm(a, w.t()), right)


def test_float32_inputs_are_computed_by_torch_and_that_is_said(kernels: KernelSet) -> None:
    a, w, _ = operands(16, 64, 32, torch.float32)
    assert torch.equal(gemmsmith.gemm(a, w.t()), (a.double() @ w.double().t()).float())
    assert last_kernel().name == "torch"
    assert "float32" in last_kernel().reason


def test_x24_compiled_without_breaks_for_all_sizes(kernels: KernelSet) -> None:
    from torch._dynamo.testing import CompileCounterWithBackend

    w = small_integers(256, 128, dtype=BF16, device="cuda")
    counter = CompileCounterWithBackend("inductor")

    def layer(x):  # type: ignore[no-untyped-def]
        return torch.nn.functional.silu(gemmsmith.gemm(x, w.t()))

    compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend=counter)
    for m in (1, 2, 7, 16, 129, 4096):
        x = small_integers(m, 128, dtype=BF16, device="cuda")
        torch.testing.assert_close(compiled(x), layer(x))
    assert counter.frame_count <= 2


def test_opcheck(kernels: KernelSet) -> None:
    a, w, _ = operands(17, 64, 128)
    bias = small_integers(64, dtype=BF16, device="cuda")
    torch.library.opcheck(torch.ops.gemmsmith.gemm.default, (a, w.t(), bias))
    out = torch.empty(17, 64, dtype=BF16, device="cuda")
    torch.library.opcheck(torch.ops.gemmsmith.gemm_out.default, (a, w.t(), bias), {"out": out})


@pytest.mark.parametrize("m", [1, 16, 300])
def test_the_short_way_gives_the_bits_of_the_op(kernels: KernelSet, m: int) -> None:
    from gemmsmith import direct
    from gemmsmith.launcher import TRANSPOSED

    a, w, right = operands(m, 512, 256)
    bias, residual = (small_integers(*s, dtype=BF16, device="cuda") for s in ((512,), (m, 512)))
    layer = gemmsmith.nn.Linear(256, 512, dtype=BF16, device="meta")
    layer.weight, layer.bias = (torch.nn.Parameter(t, requires_grad=False) for t in (w, bias))
    op, op_out = torch.ops.gemmsmith.gemm.default, torch.ops.gemmsmith.gemm_out.default
    out, other = torch.empty_like(right), torch.empty_like(right)
    for _ in range(3):
        out.fill_(float("nan"))
        assert gemmsmith.gemm(a, w.t(), out=out) is out
        op_out(a, w.t(), out=other)
        assert torch.equal(out, right)
        assert torch.equal(other, right)
        assert torch.equal(gemmsmith.gemm(a, w.t()), right)
        assert torch.equal(layer(a), op(a, w.t(), bias))
        added = gemmsmith.gemm(a, w.t(), bias, residual, 0.5, 2.0, activation="silu")
        same = op(a, w.t(), bias, residual, 0.5, 2.0, activation="silu")
        assert torch.equal(added, same)
    settled = direct.launch(
        *(a, w, bias, None, 1.0, 0.0, "", "none", "none", None, None, None, None, 1.0),
        *(None, None, TRANSPOSED),
    )
    assert settled is not None, "the layer's call is settled"
    assert torch.equal(settled, layer(a))


def test_the_short_way_uses_the_current_stream_and_can_be_captured(kernels: KernelSet) -> None:
    a, w, right = operands(16, 512, 256)
    out = torch.empty_like(right)
    gemmsmith.gemm(a, w.t(), out=out)
    gemmsmith.gemm(a, w.t())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        gemmsmith.gemm(a, w.t(), out=out)
        made = gemmsmith.gemm(a, w.t())
    a.mul_(2)
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(out, 2 * right)
    assert torch.equal(made, 2 * right)


def test_both_launchers_give_equal_bits(kernels: KernelSet) -> None:
    from gemmsmith.launcher import Call
    from gemmsmith.launcher.with_ctypes import CtypesLauncher
    from gemmsmith.launcher.with_pybind11 import pybind11_launcher
    from gemmsmith.lookup import find_built

    a, w, right = operands(200, 512, 256)
    sm_count = torch.cuda.get_device_properties(0).multi_processor_count
    spec = next(s for s in kernels.specs if "_bf16_rcr" in s.name and s.scheduler == "static")
    library = str(find_built([spec])[spec])
    for launcher in (CtypesLauncher(), pybind11_launcher()):
        kernel = next(k for k in launcher.load(library) if k.name == spec.name)
        out = torch.full((200, 512), float("nan"), dtype=BF16, device="cuda")
        values: dict[str, float] = {
            **dict.fromkeys(Call._fields, 0),
            "m": 200,
            "n": 512,
            "k": 256,
            "batch": 1,
            "lda": 256,
            "ldb": 256,
            "ldd": 512,
            "a": a.data_ptr(),
            "b": w.data_ptr(),
            "d": out.data_ptr(),
            "alpha": 1.0,
            "beta": 0.0,
            "out_scale": 1.0,
            "sm_count": sm_count,
        }
        call = Call(**values)  # type: ignore[arg-type]
        stream = torch.cuda.current_stream().cuda_stream
        assert kernel.can_run(call) == 0
        assert kernel.launch(call, 0, stream) == 0, kernel.explain(kernel.launch(call, 0, stream))
        torch.cuda.synchronize()
        assert torch.equal(out, right)
        status, blocks = kernel.blocks_per_sm()
        assert status == 0
        assert blocks >= 1
