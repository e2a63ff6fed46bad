"""Split-KV attention kernels as functions of the CPU: their own C++, compiled by g++."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch

from gemmsmith.arch import SM_90A
from gemmsmith.attn.arguments import Attention
from gemmsmith.attn.execute import attention_call, problem_of
from gemmsmith.attn.spec import AttentionSpec, AttentionTile, AttentionWarps
from gemmsmith.dtypes import DType
from gemmsmith.launcher import AttentionCall
from gemmsmith.launcher.with_ctypes import CtypesAttentionKernel, CtypesLauncher
from gemmsmith.render import include_dirs, render
from gemmsmith.toolchain import find_toolchain

_HEADERS = "attention_decode*.h"
SMS = 5
"""Multiprocessors of the GPU that is played."""


def kernel_of(
    dtype: DType,
    head_dim: int,
    tile: tuple[int, int],
    warps: tuple[int, int],
    stages: int,
    cluster: int = 1,
    **more: Any,
) -> AttentionSpec:
    """Return a kernel of a Hopper GPU."""
    return AttentionSpec(
        arch=SM_90A,
        dtype=dtype,
        head_dim=head_dim,
        tile=AttentionTile(*tile),
        schedule="split_kv",
        stages=stages,
        warps=AttentionWarps(*warps),
        cluster=cluster,
        **more,
    )


class Case(NamedTuple):
    """Sizes of a call, what else it asks, and into how many parts its keys go."""

    queries: int
    keys: int
    heads: int
    kv_heads: int
    lengths: list[int] | None = None
    page: int = 0
    splits: int = 0
    narrower: int = 0
    how: dict[str, Any] = {}  # noqa: RUF012


CASES = (
    Case(1, 1, 2, 2),
    Case(1, 200, 7, 1, splits=5),
    Case(1, 257, 3, 1, lengths=[0, 1], splits=3),
    Case(1, 200, 8, 2, lengths=[200, 17], page=16, how={"softcap": 5.0}),
    Case(5, 130, 8, 2, lengths=[130, 3], page=64, splits=4, how={"causal": True}),
    Case(3, 200, 17, 1, lengths=[300, 64], how={"causal": True, "window": 40}),
    Case(2, 140, 4, 4, splits=2, narrower=8, how={"causal": True, "window": 3, "softcap": 2.0}),
    Case(2, 96, 9, 3, page=32, lengths=[96, 31], how={"scale": -0.3}),
)


class Emulator:
    """The kernels of a translation unit, by name, and the knobs of the machine that runs them."""

    def __init__(
        self, specs: Sequence[AttentionSpec], folder: Path, edits: Mapping[str, str] = {}
    ) -> None:
        """Compile the kernels, with ``edits`` of their headers: a text for each of another."""
        toolchain = find_toolchain()
        includes = (
            Path(__file__).with_name("on_cpu"),
            *([_edited(folder, edits)] if edits else []),
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

    @contextmanager
    def written_ahead(self, *memory: tuple[torch.Tensor, torch.Tensor | None]) -> Iterator[None]:
        """Let a grid ahead of each launch write the memory of tensors: before, there is that of
        others, which lie alike; None: whatever is there."""
        function = self._library.emulated_ahead
        function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
        for tensor, before in memory:
            after = tensor.untyped_storage()
            stale = None if before is None else before.untyped_storage()
            assert stale is None or stale.nbytes() == after.nbytes()
            function(after.data_ptr(), stale.data_ptr() if stale else None, after.nbytes())
        try:
            yield
        finally:
            function(None, None, 0)

    def fetched(self) -> list[int]:
        """Return the addresses that L2 was told to fetch since the last such call."""
        function = self._library.emulated_fetched
        function.restype = ctypes.c_size_t
        function.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        room = (ctypes.c_size_t * (1 << 16))()
        count: int = function(room, len(room))
        assert count <= len(room)
        return list(room[:count])

    @property
    def early_launches(self) -> int:
        """Launches so far that might start before the kernel ahead had ended."""
        return ctypes.c_int.in_dll(self._library, "emulated_early").value


def _edited(folder: Path, edits: Mapping[str, str]) -> Path:
    """Return a folder of the kernels' headers with ``edits``, each text of which occurs once."""
    parts = (root / "gemmsmith" for root in include_dirs())
    texts = {path.name: path.read_text() for part in parts for path in part.glob(_HEADERS)}
    edited = folder / "edited" / "gemmsmith"
    edited.mkdir(parents=True)
    for old, new in edits.items():
        (name,) = (name for name, text in texts.items() if text.count(old) == 1)
        texts[name] = texts[name].replace(old, new)
    for name, text in texts.items():
        (edited / name).write_text(text)
    return edited.parent


def call_of(call: Attention, out: torch.Tensor, splits: int = 0) -> AttentionCall:
    """Return a call on tensors of the CPU, for the GPU that is played."""
    call.check()
    return attention_call(call, problem_of(call), out, 0, SMS)._replace(splits=splits)


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
