"""Prints the host time of one eager call, ours beside torch's, in µs (needs a GPU).

The GEMMs are so small that the GPU is never the slower side: 1 x 512 x 512. Arms take turns in
rounds of 200 calls; the medians over 25 rounds are printed.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

import gemmsmith

ROUNDS, CALLS = 25, 200


def microseconds(call: Callable[[], object]) -> float:
    """Return the host time of one call, averaged over a round."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(CALLS):
        call()
    seconds = time.perf_counter() - start
    torch.cuda.synchronize()
    return 1e6 * seconds / CALLS


@torch.inference_mode()
def main() -> None:
    linear = torch.nn.Linear(512, 512, device="cuda", dtype=torch.bfloat16)
    ours = gemmsmith.nn.Linear.from_torch(linear)
    x = torch.randn(1, 512, device="cuda", dtype=torch.bfloat16)
    w, bias, out = linear.weight, linear.bias, x.new_empty(1, 512)
    arms: dict[str, Callable[[], object]] = {
        "F.linear": lambda: torch.nn.functional.linear(x, w, bias),
        "torch.mm(out=)": lambda: torch.mm(x, w.t(), out=out),
        "gemmsmith.gemm": lambda: gemmsmith.gemm(x, w.t(), bias=bias),
        "gemmsmith.gemm(out=)": lambda: gemmsmith.gemm(x, w.t(), out=out),
        "nn.Linear": lambda: linear(x),
        "gemmsmith.nn.Linear": lambda: ours(x),
    }
    for call in arms.values():
        microseconds(call)
    rounds = [{name: microseconds(call) for name, call in arms.items()} for _ in range(ROUNDS)]
    for name in arms:
        print(f"{name:<22}{statistics.median(r[name] for r in rounds):7.1f} µs")


if __name__ == "__main__":
    main()
