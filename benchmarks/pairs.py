"""Times each kernel of a pool that has dependent_launch beside its twin without it; writes JSON.

    python benchmarks/pairs.py benchmarks/candidates_pdl.yaml llama3-8b -m 1 16 64 -o pairs.json

Both must be right on NaN-poisoned memory, with equal bits. They are timed interleaved, in CUDA
graphs of calls that follow each other: there the option hides launch and start-up of each call.
Gated kernels run at the shapes whose op is gate_up.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from sweep import TORCH_DTYPES, Kind, kinds, plan, right_kernels

import gemmsmith
from gemmsmith.bench.gpu import exit_without_gpu
from gemmsmith.bench.measure import compare
from gemmsmith.bench.rounds import Policy
from gemmsmith.bench.tasks import Task, make_task
from gemmsmith.kernelset import ExactKernel

POLICY = Policy(seconds=0.6, min_rounds=8, max_rounds=60, precision=0.004)


def pairs(pool: Sequence[ExactKernel]) -> list[tuple[ExactKernel, ExactKernel]]:
    """Return (without, with) of each kernel that the pool has with and without the option."""
    by_spec = {kernel.spec: kernel for kernel in pool}
    twins = [(by_spec.get(replace(spec, dependent_launch=False)), spec) for spec in by_spec]
    return [(twin, by_spec[spec]) for twin, spec in twins if twin and spec.dependent_launch]


def measure(
    pool: Sequence[ExactKernel], kind: Kind, m: int, n: int, k: int
) -> list[dict[str, object]]:
    """Return, for each pair that fits the shape, both times in µs and their ratio."""
    task = make_task(m, n, k, TORCH_DTYPES[kind.dtype], gate=kind.gate)
    rows = []
    for twins in pairs(pool):
        right, wrong = right_kernels(twins, task)
        if not right and not wrong:
            continue  # neither fits
        row: dict[str, object] = {"kernel": twins[0].name, "m": m, "n": n, "k": k}
        if wrong or not equal(task, right):
            row["wrong"] = wrong or "the two differ"
        else:
            arms = {kernel.name: task.arm(kernel.handle, task.out) for kernel in twins}
            off, on = (kernel.name for kernel in twins)
            found = compare(arms, baseline=off, policy=POLICY, replay_us=400)
            ratio = found.ratio(off, on)
            row |= {"us": found.median(off), "us_on": found.median(on), "ratio": ratio.median}
            row["text"] = str(ratio)
        rows.append(row)
    return rows


def equal(task: Task, kernels: Sequence[ExactKernel]) -> bool:
    """Whether all kernels give the same bits for the task's first weight."""
    results = [task.call(0, kernel.handle, task.poisoned()).clone() for kernel in kernels]
    return all(torch.equal(result, results[0]) for result in results)


def main() -> None:
    """Time the pairs that the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("pool", help="YAML file of the kernels")
    parser.add_argument("models", nargs="+", help="names of configs/models")
    parser.add_argument("-m", type=int, nargs="+", required=True, help="tokens")
    parser.add_argument("-o", type=Path, required=True, help="JSON file to write")
    parser.add_argument("--seconds", type=float, default=480.0, help="stop after so long")
    options = parser.parse_args()
    exit_without_gpu()
    started = time.monotonic()
    kernels = gemmsmith.load(options.pool)
    ready = kernels.build().built
    print(f"{len(ready)} kernels ready after {time.monotonic() - started:.0f} s", flush=True)
    pools = kinds(kernels)
    found: list[dict[str, object]] = []
    for kind, op, m, n, k in plan(options.models, options.m, list(pools)):
        if time.monotonic() - started > options.seconds:
            print("out of time", flush=True)
            return
        for row in measure(pools[kind], kind, m, n, k):
            found.append(row)
            print(f"{op} {m}x{n}x{k} {line(row)}", flush=True)
        options.o.write_text(json.dumps(found))
        torch.cuda.empty_cache()


def line(row: dict[str, object]) -> str:
    """Return kernel, both times and their ratio in words; above 1 the option is faster."""
    if "wrong" in row:
        return f"{row['kernel']}: WRONG {row['wrong']}"
    return f"{row['kernel']}: {row['us']:.2f} -> {row['us_on']:.2f} us, {row['text']}"


if __name__ == "__main__":
    main()
