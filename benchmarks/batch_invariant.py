"""What one order of summing for every M costs, beside the fastest and beside torch.

    python benchmarks/batch_invariant.py llama3-8b -m 1 64 512 8192

Above 1, the first of two rivals takes longer.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import torch

from gemmsmith.bench.environment import environment_here
from gemmsmith.bench.gpu import exit_without_gpu
from gemmsmith.bench.model_shapes import load_model
from gemmsmith.bench.race import Entrants, Race, Rivalry
from gemmsmith.bench.race_run import run_races
from gemmsmith.bench.race_text import race_report
from gemmsmith.bench.rivals import eager_arm
from gemmsmith.bench.tasks import make_task
from gemmsmith.invariant import HANDLE

SECTION = "bf16"
BATCH = "batch invariant"
OURS = "gemmsmith"
TORCH = "torch"
RIVALRIES = (
    Rivalry(section=SECTION, over=BATCH, under=OURS),
    Rivalry(section=SECTION, over=TORCH, under=BATCH),
)


def races(models: Sequence[str], tokens: Sequence[int], seconds: float) -> Iterator[Race]:
    """Yield each weight at each number of tokens, computed by all three."""
    for name in models:
        for m in tokens:
            for shape in load_model(name).shapes:
                task = make_task(m, shape.n, shape.k, torch.bfloat16)
                entrants = Entrants()
                entrants.torch(TORCH, task, eager_arm(task))
                entrants.ours(OURS, task)
                entrants.ours(BATCH, task, HANDLE)
                label = f"{name} {shape.op}"
                yield entrants.race(SECTION, label, (m, shape.n, shape.k), seconds=seconds)
                torch.cuda.empty_cache()


def main() -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="+", help="names of configs/models")
    parser.add_argument("-m", type=int, nargs="+", default=[1, 64, 512, 8192], help="tokens")
    parser.add_argument("-o", type=Path, help="JSON file to write")
    parser.add_argument("--seconds", type=float, default=0.7, help="time for each shape")
    options = parser.parse_args()
    exit_without_gpu()
    report = run_races(
        races(options.models, options.m, options.seconds),
        environment=environment_here(),
        notes="One kernel for every M (deterministic='batch') beside the choice for each M.",
        rivalries=RIVALRIES,
        json_path=options.o,
        progress=partial(print, flush=True),
    )
    print(race_report(report))


if __name__ == "__main__":
    main()
