"""Split-KV attention kernels as functions of the CPU: their own C++, compiled by g++."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Sequence
from pathlib import Path

import torch

from gemmsmith.attn.arguments import Attention
from gemmsmith.attn.execute import attention_call
from gemmsmith.attn.spec import AttentionSpec
from gemmsmith.launcher import AttentionCall
from gemmsmith.launcher.with_ctypes import CtypesAttentionKernel, CtypesLauncher
from gemmsmith.render import include_dirs, render
from gemmsmith.toolchain import find_toolchain

SMS = 5
"""Multiprocessors of the GPU that is played."""


class Emulator:
    """The kernels of a translation unit, by name, and the knobs of the machine that runs them."""

    def __init__(self, specs: Sequence[AttentionSpec], folder: Path) -> None:
        toolchain = find_toolchain()
        includes = (
            Path(__file__).with_name("on_cpu"),
            *include_dirs(),
            *([toolchain.root / "include"] if toolchain.root else []),
            *toolchain.include_dirs,
        )
        library = folder / "emulated.so"
        source = library.with_suffix(".cpp")
        source.write_text(
            '#include <cuda_runtime.h>\n#include "gemmsmith/warp_instructions.h"\n'
            + render(specs).text
            + "static bool const ready ="
            " (emulated::body = emulated::call<gemmsmith::DecodeParams>, true);\n"
        )
        options = "-std=c++17 -O1 -w -ffp-contract=off -shared -fPIC -fno-gnu-unique"
        folders = [f"-I{include}" for include in includes]
        command = ["g++", *options.split(), *folders, "-o", str(library), str(source)]
        subprocess.run(command, check=True)
        loaded = CtypesLauncher().load_attention(str(library))
        self.kernels = {kernel.name: kernel for kernel in loaded}
        self._library = ctypes.CDLL(str(library))

    def set(self, **knobs: int) -> None:
        """Choose the order of blocks (``seed``) and whether copies land at once (``eager``)."""
        for name, value in knobs.items():
            ctypes.c_int.in_dll(self._library, f"emulated_{name}").value = value

    @property
    def early_launches(self) -> int:
        """Launches so far that might start before the kernel ahead had ended."""
        return ctypes.c_int.in_dll(self._library, "emulated_early").value


def call_of(call: Attention, out: torch.Tensor, splits: int = 0) -> AttentionCall:
    """Return a call on tensors of the CPU, for the GPU that is played."""
    call.check()
    return attention_call(call, out, 0, SMS)._replace(splits=splits)


def launch(kernel: CtypesAttentionKernel, filled: AttentionCall) -> torch.Tensor:
    """Run a call that the kernel takes, its workspace NaN; return its counters afterwards."""
    status, size, count = kernel.needs(filled)
    assert status == 0, kernel.explain(status)
    workspace = torch.full((size // 4 + 1,), float("nan"))
    counters = torch.zeros(count, dtype=torch.int32)
    filled = filled._replace(counters=counters.data_ptr() if count else 0)
    status = kernel.launch(filled, workspace.data_ptr() if size else 0, 0)
    assert status == 0, kernel.explain(status)
    return counters
