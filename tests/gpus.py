"""What is known of GPUs that tests choose kernels for, and kernels that count as loaded on them."""

from __future__ import annotations

import pytest

from gemmsmith.kernelset import KernelSet
from gemmsmith.selection import DeviceFacts
from gemmsmith.spec import KernelSpec

H200 = DeviceFacts(name="NVIDIA H200", capability=(9, 0), sm_count=132)
A100 = DeviceFacts(name="NVIDIA A100", capability=(8, 0), sm_count=108)
T4 = DeviceFacts(name="Tesla T4", capability=(7, 5), sm_count=40)
ANCIENT = DeviceFacts(name="a GPU of 1999", capability=(1, 0), sm_count=1)

# No tuned table knows these.
SOME_HOPPER = DeviceFacts(name="a Hopper GPU", capability=(9, 0), sm_count=132)
SOME_AMPERE = DeviceFacts(name="an Ampere GPU", capability=(8, 0), sm_count=108)


class _Shelf:
    """Kernels that count as loaded."""

    def __init__(self, *specs: KernelSpec) -> None:
        self._specs = specs

    def kernels(self) -> dict[KernelSpec, str]:
        return {spec: f"loaded {spec.name}" for spec in self._specs}


def count_as_loaded(
    monkeypatch: pytest.MonkeyPatch, kernels: KernelSet, *specs: KernelSpec
) -> None:
    """Let ``specs`` be what a set has loaded."""
    monkeypatch.setattr(kernels, "_shelves", dict.fromkeys(kernels._shelves, _Shelf(*specs)))
