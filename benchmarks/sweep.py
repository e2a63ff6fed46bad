"""Times a pool of kernels, with run-time knobs, at the shapes of a model; writes JSON.

    python benchmarks/sweep.py candidates.yaml llama3-8b -m 1 16 512 -o sweep.json

Each kernel must first be right on NaN-poisoned memory. Kernels are timed interleaved with torch's
``F.linear``; then the leading persistent kernels once more, with raster orders and swizzles.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch

import gemmsmith
from gemmsmith.bench.measure import compare
from gemmsmith.bench.model_shapes import load_model
from gemmsmith.bench.peers import Inputs, fault, kernel_arm, make_inputs, reference, torch_arm
from gemmsmith.bench.rounds import Comparison, Policy
from gemmsmith.choose import Tuning
from gemmsmith.kernelset import ExactKernel, KernelSet

KNOBS = [Tuning(raster=raster, swizzle=swizzle) for raster in (1, 2) for swizzle in (1, 2, 4, 8)]
SPLITS = [Tuning(splits=splits) for splits in (2, 3, 4, 6, 8)]
POLICY = Policy(seconds=1.5, min_rounds=8, max_rounds=60, retire_above=1.1, precision=0.003)


def measure(kernels: KernelSet, m: int, n: int, k: int, dtype: torch.dtype) -> dict[str, object]:
    """Return medians in µs of torch and of every right kernel at one shape."""
    inputs = make_inputs(m, n, k, dtype)
    right, wrong = right_kernels(kernels, inputs)
    arms = {kernel.name: kernel for kernel in right}
    first = timed(arms, inputs)
    leaders = [arms[name] for name in sorted(first, key=first.__getitem__) if name in arms]
    second = timed(knobs(leaders), inputs)
    return {"m": m, "n": n, "k": k, "us": first, "tuned_us": second, "wrong": wrong}


def right_kernels(kernels: KernelSet, inputs: Inputs) -> tuple[list[ExactKernel], dict[str, str]]:
    """Sort the kernels that fit into right ones and, with their fault, wrong ones."""
    w = inputs.weights[0]
    expected = reference(inputs.x, w)
    right, wrong = [], {}
    for name in kernels.names:
        kernel = kernels[name]
        if kernel.misfit(inputs.x, w.t(), out=inputs.out):
            continue
        kernel(inputs.x, w.t(), out=inputs.poisoned())
        message = fault(inputs.out, expected)
        if message:
            wrong[name] = message
        else:
            right.append(kernel)
    return right, wrong


def knobs(leaders: list[ExactKernel]) -> dict[str, ExactKernel]:
    """Return the leading persistent kernels with each setting of their run-time knobs."""
    persistent = [kernel for kernel in leaders if kernel.spec.schedule != "warp_specialized"]
    arms = {
        f"{kernel.name} raster={tuning.raster} swizzle={tuning.swizzle}": kernel.with_tuning(tuning)
        for kernel in persistent[:4]
        for tuning in KNOBS
    }
    split = [kernel for kernel in leaders if kernel.spec.scheduler == "stream_k"]
    for kernel in split[:2]:
        for tuning in SPLITS:
            arms[f"{kernel.name} splits={tuning.splits}"] = kernel.with_tuning(tuning)
    return arms


def timed(arms: dict[str, ExactKernel], inputs: Inputs) -> dict[str, float]:
    """Return the time of each arm and of ``torch``, in µs.

    An arm's time is the median of torch's over the median of their ratio in the same rounds: arms
    that retire early ran on a cooler GPU, so that their own medians would flatter them.
    """
    callables = {name: kernel_arm(kernel, inputs) for name, kernel in arms.items()}
    found: Comparison = compare(
        {"torch": torch_arm(inputs), **callables}, policy=POLICY, replay_us=400
    )
    peer = found.median("torch")
    return {"torch": peer, **{name: peer / found.ratio("torch", name).median for name in callables}}


def main() -> None:
    """Run the sweep that the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pool", help="YAML file of the kernels")
    parser.add_argument("models", nargs="+", help="names of configs/models")
    parser.add_argument("-m", type=int, nargs="+", required=True, help="tokens")
    parser.add_argument("-o", type=Path, required=True, help="JSON file to write")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--seconds", type=float, default=480.0, help="stop after so long")
    options = parser.parse_args()
    started = time.monotonic()
    kernels = gemmsmith.load(options.pool)
    ready = kernels.build().built
    print(f"{len(ready)} kernels ready after {time.monotonic() - started:.0f} s", flush=True)
    rows = []
    shapes = {(s.n, s.k): s.op for name in options.models for s in load_model(name).shapes}
    for m in options.m:
        for (n, k), op in shapes.items():
            if time.monotonic() - started > options.seconds:
                print("out of time", flush=True)
                return
            row = measure(kernels, m, n, k, getattr(torch, options.dtype))
            rows.append(row)
            options.o.write_text(json.dumps(rows))
            print(summary(op, row), flush=True)


def summary(op: str, row: dict[str, object]) -> str:
    """Return one line: the peer, the best kernel, the best knobs."""
    us, tuned = dict(row["us"]), dict(row["tuned_us"])  # type: ignore[call-overload]
    peer, tuned_peer = us.pop("torch"), tuned.pop("torch")
    name = min(us, key=us.__getitem__)
    line = f"{op} {row['m']}x{row['n']}x{row['k']}: torch {peer:.1f} {name} {us[name]:.1f}"
    line += f" ({peer / us[name]:.3f})"
    if tuned:
        best = min(tuned, key=tuned.__getitem__)
        line += f"; {best} {tuned[best]:.1f} ({tuned_peer / tuned[best]:.3f})"
    for wrong, message in dict(row["wrong"]).items():  # type: ignore[call-overload]
        line += f"\n  WRONG {wrong}: {message}"
    return line


if __name__ == "__main__":
    main()
