"""Times a pool of kernels, with run-time knobs, at the shapes of a model; writes JSON.

    python benchmarks/sweep.py candidates.yaml llama3-8b -m 1 16 512 -o sweep.json

Kernels of one kind (16 bit or int8, with a gate or without) are timed together, beside torch's way:
``F.linear`` for plain 16 bit, else ``F.linear`` or ``torch._int_mm`` with all that follows it
compiled. Each kernel must first be right on NaN-poisoned memory. Kernels are timed interleaved with
torch; then the leading persistent ones once more, with raster orders and swizzles. Gated kernels
run at the shapes whose op is gate_up.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch

import gemmsmith
from gemmsmith.bench.gpu import exit_without_gpu
from gemmsmith.bench.graphs import Arm
from gemmsmith.bench.measure import compare
from gemmsmith.bench.model_shapes import load_model
from gemmsmith.bench.rivals import compiled_arm, eager_arm, fault_of, forget_compiled
from gemmsmith.bench.rounds import Comparison, Policy
from gemmsmith.bench.tasks import Task, make_task
from gemmsmith.choose import Tuning
from gemmsmith.dtypes import BF16, FP16, INT8, DType
from gemmsmith.kernelset import ExactKernel, KernelSet

KNOBS = [Tuning(raster=raster, swizzle=swizzle) for raster in (1, 2) for swizzle in (1, 2, 4, 8)]
SPLITS = [Tuning(splits=splits) for splits in (2, 3, 4, 6, 8)]
POLICY = Policy(seconds=1.5, min_rounds=8, max_rounds=60, retire_above=1.1, precision=0.003)
MOST_VARIANTS = 4  # of a compiled peer, each for one row and for several: dynamo keeps eight
TORCH_DTYPES = {BF16: torch.bfloat16, FP16: torch.float16, INT8: torch.int8}


class Kind(NamedTuple):
    """What kernels have in common that are timed together."""

    dtype: DType
    """Of A and B; int8 has scales and gives bf16."""
    gate: str

    def __str__(self) -> str:
        return self.dtype.name if self.gate == "none" else f"{self.dtype.name} {self.gate}"


def kinds(kernels: KernelSet) -> dict[Kind, list[ExactKernel]]:
    """Return the kernels by kind, those that are for something else left out."""
    found: dict[Kind, list[ExactKernel]] = {}
    for name in kernels.names:
        kernel = kernels[name]
        spec = kernel.spec
        whole = spec.a == INT8
        if spec.scaled == whole and spec.d == (BF16 if whole else spec.a):
            found.setdefault(Kind(dtype=spec.a, gate=spec.gate), []).append(kernel)
    return found


def measure(
    pool: Sequence[ExactKernel], kind: Kind, m: int, n: int, k: int, *, tuned: bool = True
) -> dict[str, object]:
    """Return medians in µs of torch and of every right kernel at one shape."""
    task = make_task(m, n, k, TORCH_DTYPES[kind.dtype], gate=kind.gate)
    plain = kind.dtype != INT8 and kind.gate == "none"
    peer = eager_arm(task) if plain else compiled_arm(task)
    right, wrong = right_kernels(pool, task)
    if message := fault_of(task, peer):
        wrong["torch"] = message
    arms = {kernel.name: task.arm(kernel.handle, task.out) for kernel in right}
    first = timed({"torch": peer, **arms})
    by_name = {kernel.name: kernel for kernel in right}
    leaders = [by_name[name] for name in sorted(first, key=first.__getitem__) if name in by_name]
    second = {}
    if tuned:
        turned = {
            name: task.arm(kernel.handle, task.out) for name, kernel in knobs(leaders).items()
        }
        second = timed({"torch": peer, **turned})
    shape = {"kind": str(kind), "m": m, "n": n, "k": k}
    return {**shape, "us": first, "tuned_us": second, "wrong": wrong}


def right_kernels(
    pool: Sequence[ExactKernel], task: Task
) -> tuple[list[ExactKernel], dict[str, str]]:
    """Sort the kernels that fit into right ones and, with their fault, wrong ones."""
    right, wrong = [], {}
    for kernel in pool:
        if task.misfit(kernel):
            continue
        if message := task.run(kernel.handle):
            wrong[kernel.name] = message
        else:
            right.append(kernel)
    return right, wrong


def knobs(leaders: Sequence[ExactKernel]) -> dict[str, ExactKernel]:
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


def timed(arms: dict[str, Arm]) -> dict[str, float]:
    """Return the time of each arm, ``torch`` the first, in µs.

    An arm's time is the median of torch's over the median of their ratio in the same rounds: arms
    that retire early ran on a cooler GPU, so that their own medians would flatter them.
    """
    found: Comparison = compare(arms, baseline="torch", policy=POLICY, replay_us=400)
    peer = found.median("torch")
    own = [name for name in arms if name != "torch"]
    return {"torch": peer, **{name: peer / found.ratio("torch", name).median for name in own}}


def plan(
    models: Sequence[str], tokens: Sequence[int], of: Sequence[Kind]
) -> Iterator[tuple[Kind, str, int, int, int]]:
    """Yield kind, op, m, n and k of each measurement, each weight of the models once."""
    shapes = {(s.n, s.k): s.op for name in models for s in load_model(name).shapes}
    for kind in of:
        for m in tokens:
            for (n, k), op in shapes.items():
                if kind.gate == "none" or op == "gate_up":
                    yield kind, op, m, n, k


def main() -> None:
    """Run the sweep that the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("pool", help="YAML file of the kernels")
    parser.add_argument("models", nargs="+", help="names of configs/models")
    parser.add_argument("-m", type=int, nargs="+", required=True, help="tokens")
    parser.add_argument("-o", type=Path, required=True, help="JSON file to write")
    parser.add_argument("--seconds", type=float, default=480.0, help="stop after so long")
    parser.add_argument("--no-knobs", action="store_true", help="time kernels as chosen, once")
    options = parser.parse_args()
    exit_without_gpu()
    started = time.monotonic()
    kernels = gemmsmith.load(options.pool)
    ready = kernels.build().built
    print(f"{len(ready)} kernels ready after {time.monotonic() - started:.0f} s", flush=True)
    rows = []
    pools = kinds(kernels)
    compiled: set[tuple[Kind, int, int]] = set()
    for kind, op, m, n, k in plan(options.models, options.m, list(pools)):
        if time.monotonic() - started > options.seconds:
            print("out of time", flush=True)
            return
        if {variant[0] for variant in compiled} - {kind} or len(compiled) == MOST_VARIANTS:
            forget_compiled()
            compiled.clear()
        compiled.add((kind, n, k))
        row = measure(pools[kind], kind, m, n, k, tuned=not options.no_knobs)
        rows.append(row)
        options.o.write_text(json.dumps(rows))
        print(summary(op, row), flush=True)
        torch.cuda.empty_cache()


def summary(op: str, row: dict[str, object]) -> str:
    """Return one line: the peer, the best kernel, the best knobs."""
    us, tuned = dict(row["us"]), dict(row["tuned_us"])  # type: ignore[call-overload]
    peer = us.pop("torch")
    line = f"{row['kind']} {op} {row['m']}x{row['n']}x{row['k']}: torch {peer:.1f}"
    if us:
        name = min(us, key=us.__getitem__)
        line += f" {name} {us[name]:.1f} ({peer / us[name]:.3f})"
    tuned_peer = tuned.pop("torch", peer)
    if tuned:
        best = min(tuned, key=tuned.__getitem__)
        line += f"; {best} {tuned[best]:.1f} ({tuned_peer / tuned[best]:.3f})"
    for wrong, message in dict(row["wrong"]).items():  # type: ignore[call-overload]
        line += f"\n  WRONG {wrong}: {message}"
    return line


if __name__ == "__main__":
    main()
