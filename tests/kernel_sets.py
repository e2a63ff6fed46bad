"""The kernels that a GPU can run, and one call of a kernel on memory that shows what it writes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import gemmsmith
from gemm_data import GuardedOutput
from gemmsmith.arch import ARCHITECTURES, parse_architecture, portable
from gemmsmith.config import inspect_file
from gemmsmith.kernelset import ExactKernel, KernelSet
from gemmsmith.operands import TORCH_DTYPES
from gemmsmith.resources import configs_dir
from gemmsmith.spec import KernelSpec

TORCH_OF = {dtype: torch_dtype for torch_dtype, dtype in TORCH_DTYPES.items()}
SETS = [
    "default",
    "unusual",
    *(f"{row.name} on sm_90" for row in ARCHITECTURES if row.api == "2.x"),
]


def default_gemms() -> KernelSet:
    """Return the default kernels of this GPU without those of attention, which have their tests."""
    loaded = gemmsmith.load(configs_dir() / "kernels")
    return KernelSet(loaded.specs, arch=loaded.arch, source=loaded.source)


def kernel_set(name: str) -> KernelSet:
    """Return the built default kernels of this GPU, unusual ones, or an older architecture's.

    What the latter prove on Hopper, where they are emulated, is what ``arch.portable`` says.
    """
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    unusual = Path(__file__).with_name("unusual.yaml")
    if name == "default":
        loaded = default_gemms()
    elif name == "unusual":
        loaded = gemmsmith.load(unusual)
    elif torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("the GPU is no Hopper")
    else:
        arch = name.split()[0]
        files = (configs_dir() / "kernels", unusual)
        here = portable(parse_architecture(arch))
        asked = [entry.spec for file in files for entry in inspect_file(file)]
        specs = [replace(spec, arch=here) for spec in asked if spec and spec.arch.name == arch]
        loaded = KernelSet(specs, arch=here, source=name)
    loaded.build()
    return loaded


def plain_names(kernels: KernelSet) -> list[str]:
    """Return the kernels that can leave out every function: no gate, no fixed activation."""
    specs = {name: kernels[name].spec for name in kernels.names}
    return [
        name
        for name, spec in specs.items()
        if spec.gate == "none" and spec.activation in ("none", "any")
    ]


def unit(spec: KernelSpec) -> int:
    """Return what every size and stride of a call must be a multiple of: 16 B of its smallest type.

    Sizes are odd multiples of it.
    """
    return 16 if spec.a.name == "int8" else 8


def run_twice(kernel: ExactKernel, a: Tensor, b: Tensor, padding: int = 0, **extra: Any) -> Tensor:
    """Return the result on poisoned, guarded memory; both runs must give equal bits."""
    spec = kernel.spec
    columns = b.shape[-1] // (1 if spec.gate == "none" else 2)
    results = []
    for _ in range(2):
        shape = (*a.shape[:-1], columns)
        guarded = GuardedOutput(shape, spec.layout[2], TORCH_OF[spec.d], "cuda", padding)
        gemmsmith.gemm(a, b, out=guarded.out, kernels=kernel.handle, **extra)
        assert not guarded.overrun(), f"{kernel.name} wrote outside its output"
        results.append(guarded.out)
    assert torch.equal(results[0].nan_to_num(), results[1].nan_to_num()), (
        f"{kernel.name} differs from run to run"
    )
    return results[0]
