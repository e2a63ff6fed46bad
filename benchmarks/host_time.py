"""Prints the host time of one eager call, ours beside torch's, in µs.

Needs a GPU, whose work is so small that it is never the slower side: 1 x 512 x 512. Arms take turns
in rounds of 200 calls; medians over 25 rounds are printed, and of the ratios to ``F.linear`` within
a round. ``--emulated`` needs none: our arms alone, on CPU tensors, down to a kernel that does
nothing, so that it shows what gemmsmith itself takes.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

import gemmsmith
from gemmsmith.arch import architecture_of
from gemmsmith.bench.gpu import exit_without_gpu
from gemmsmith.kernelset import default_kernels
from gemmsmith.launch import prepare, raw_stream
from gemmsmith.operands import operands
from gemmsmith.selection import DeviceFacts

ROUNDS, CALLS = 25, 200
PEER = "F.linear"


def arms(device: str) -> dict[str, Callable[[], object]]:
    """Return the calls by name."""
    linear = torch.nn.Linear(512, 512, device=device, dtype=torch.bfloat16)
    ours = gemmsmith.nn.Linear.from_torch(linear)
    x = torch.randn(1, 512, device=device).to(torch.bfloat16)
    w, bias, out = linear.weight, linear.bias, x.new_empty(1, 512)
    return {
        PEER: lambda: torch.nn.functional.linear(x, w, bias),
        "torch.mm(out=)": lambda: torch.mm(x, w.t(), out=out),
        "torch.nn.Linear": lambda: linear(x),
        "gemmsmith.gemm": lambda: gemmsmith.gemm(x, w.t(), bias=bias),
        "gemmsmith.gemm(out=)": lambda: gemmsmith.gemm(x, w.t(), out=out),
        "gemmsmith.nn.Linear": lambda: ours(x),
    }


def launch_alone() -> Callable[[], object]:
    """Return the launch of such a product by itself: what CUTLASS and CUDA take of a call."""
    x, w, out = (torch.zeros(s, device="cuda").bfloat16() for s in ((1, 512), (512, 512), (1, 512)))
    given = operands(x, w.t(), None, None, out)
    properties = torch.cuda.get_device_properties(0)
    facts = DeviceFacts(
        name=properties.name,
        capability=(properties.major, properties.minor),
        sm_count=properties.multi_processor_count,
    )
    plan = default_kernels(architecture_of(facts.capability).name).plan(given.problem(), facts)
    assert not isinstance(plan, str), plan
    ready = prepare(plan, given, facts, 0)
    workspace = torch.empty(max(1, ready.workspace), dtype=torch.uint8, device="cuda")
    stream = raw_stream(0)
    return lambda: (ready.kernel.launch(ready.call, workspace.data_ptr(), stream), x, w, out)


def microseconds(call: Callable[[], object]) -> float:
    """Return the host time of one call, averaged over a round."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(CALLS):
        call()
    seconds = time.perf_counter() - start
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return 1e6 * seconds / CALLS


def measure(calls: dict[str, Callable[[], object]]) -> dict[str, dict[str, float]]:
    """Return median and least µs of each call, and the median of its ratios to the peer's."""
    for call in calls.values():
        microseconds(call)
    rounds = [{name: microseconds(call) for name, call in calls.items()} for _ in range(ROUNDS)]
    result = {}
    for name in calls:
        times = [each[name] for each in rounds]
        result[name] = {"us": statistics.median(times), "least_us": min(times)}
        if PEER in calls:
            result[name]["of_peer"] = statistics.median(each[name] / each[PEER] for each in rounds)
    return result


def emulate(stack: ExitStack) -> None:
    """Send calls of CPU tensors the way of CUDA tensors until ``stack`` is left."""
    sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
    import pytest

    from fake_gpu import build_kernel, fake_gpu

    folder = stack.enter_context(tempfile.TemporaryDirectory())
    patch = stack.enter_context(pytest.MonkeyPatch.context())
    fake_gpu(build_kernel(Path(folder), "pybind11", quiet=True), patch)


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--emulated", action="store_true", help="our arms alone, without a GPU")
    parser.add_argument("--json", action="store_true", help="print JSON")
    chosen = parser.parse_args()
    if not chosen.emulated:
        exit_without_gpu()
    with ExitStack() as stack:
        if chosen.emulated:
            emulate(stack)
        calls = arms("cpu" if chosen.emulated else "cuda")
        if chosen.emulated:
            calls = {name: call for name, call in calls.items() if name.startswith("gemmsmith")}
        else:
            calls["kernel.launch alone"] = launch_alone()
        result = measure(calls)
    if chosen.json:
        where = "none" if chosen.emulated else torch.cuda.get_device_name()
        facts: dict[str, Any] = {"gpu": where, "torch": torch.__version__, "shape": [1, 512, 512]}
        print(json.dumps({**facts, "peer": PEER, "arms": result}, indent=1))
        return
    for name, found in result.items():
        ratio = f"{found['of_peer']:7.2f} of {PEER}" if "of_peer" in found else ""
        print(f"{name:<22}{found['us']:7.1f} µs{ratio}")


if __name__ == "__main__":
    main()
