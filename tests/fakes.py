"""Stand-ins for builds: a quick nvcc that makes real libraries, and small CUDA sources."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Sequence
from pathlib import Path

from gemmsmith.arch import SM_70, SM_80, SM_90A
from gemmsmith.dtypes import FP16
from gemmsmith.render import RenderedSource
from gemmsmith.spec import KernelSpec, Tile
from gemmsmith.toolchain import Toolchain

_NVCC = '''#!{python}
"""Compiles the kernels that a source names to a C table with gcc, within milliseconds."""
import os, re, signal, subprocess, sys, time
from pathlib import Path

folder = Path({folder!r})
arguments = sys.argv[1:]
if "--version" in arguments:
    print("Cuda compilation tools, release {short}, V{release}")
    sys.exit()
if "--dryrun" in arguments:
    sys.exit()
source = Path(arguments[-1])
library = arguments[arguments.index("-o") + 1]
names = sorted(set(re.findall(r"gemm_[a-z0-9_]+_sm\\d+a?\\b", source.read_text())))
with (folder / "runs").open("a") as runs:
    runs.write(" ".join(names) + "\\n")
(folder / "pid").write_text(str(os.getpid()))


def wanted(what):
    file = folder / what
    return file.exists() and any(word in names for word in file.read_text().split())


if wanted("hang"):
    time.sleep(60)
if wanted("slow"):
    time.sleep(0.3)
if wanted("killed"):
    os.kill(os.getpid(), signal.SIGKILL)
if wanted("silent"):
    sys.exit(1)
if wanted("nothing"):
    sys.exit(0)
if wanted("broken"):
    print("In file included from somewhere: note: nothing yet")
    print(f"{{source.name}}(7): error: identifier \\"oops\\" is undefined")
    print("1 error detected in the compilation of a file")
    sys.exit(2)
shared = 999999 if wanted("fat") else 1024
facts = {{name: f'"{{name}}", 128, {{shared}}, 3, {{int("_pdl_" in name)}}' for name in names}}
rows = "".join(f"{{{{{{facts[name]}}, 0, 0, 0, 0, 0}}}}," for name in names)
stub = Path(library).with_suffix(".c")
stub.write_text(
    "#include <gemmsmith/abi.h>\\n"
    f"static const gemmsmith_kernel rows[] = {{{{{{rows}}}}}};\\n"
    "int32_t gemmsmith_abi_version(void) {{ return GEMMSMITH_ABI_VERSION; }}\\n"
    "const gemmsmith_kernel *gemmsmith_kernels(int32_t *count) {{"
    f" *count = {{len(names)}}; return rows; }}}}\\n"
)
includes = [word for word in arguments if word.startswith("-I")]
subprocess.run(["gcc", "-shared", "-fPIC", *includes, "-o", library, str(stub)], check=True)
for name in names:
    symbol = f"_ZN9gemmsmith{{len(name)}}{{name}}E"
    print(f"ptxas info    : Compiling entry function '{{symbol}}' for 'sm_80'")
    print(f"ptxas info    : Function properties for {{symbol}}")
    print("    8 bytes stack frame, 16 bytes spill stores, 24 bytes spill loads")
    print("ptxas info    : Used 77 registers, used 1 barriers, 512 bytes smem, 372 bytes cmem[0]")
'''


class FakeNvcc:
    """A folder with an nvcc whose runs are counted and whose faults are asked for by kernel."""

    def __init__(self, folder: Path, release: str = "13.0.88") -> None:
        self.folder = folder
        self.release = release
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / "nvcc"
        self.path.write_text(
            _NVCC.format(
                python=sys.executable,
                folder=str(folder),
                release=release,
                short=release.rpartition(".")[0],
            )
        )
        self.path.chmod(0o755)

    @property
    def toolchain(self) -> Toolchain:
        """A toolchain with this nvcc and no cuobjdump."""
        return Toolchain(
            nvcc=self.path,
            version=(13, 0),
            release="13.0.88",
            origin="argument",
            host_compiler=Path("/usr/bin/g++"),
            host_version="12.2.0",
            cuobjdump=None,
            nvdisasm=None,
        )

    def runs(self) -> list[list[str]]:
        """Return the kernels of each run so far."""
        file = self.folder / "runs"
        return [line.split() for line in file.read_text().splitlines()] if file.exists() else []

    def fault(self, what: str, *specs: KernelSpec) -> None:
        """Make runs with one of ``specs`` hang, be slow (0.3 s), or end as ``what``: killed,
        silent, nothing, broken, fat."""
        (self.folder / what).write_text(" ".join(spec.name for spec in specs))


def leftovers(cache: Path) -> list[Path]:
    """Return the scratch folders and locks that builds left in the cache folder ``cache``."""
    return [*(cache / "v1" / "scratch").iterdir(), *(cache / "v1" / "locks").iterdir()]


def volta() -> KernelSpec:
    """Return an sm_70 kernel."""
    return KernelSpec(
        arch=SM_70,
        tile=Tile(128, 128, 32),
        warp=Tile(64, 64, 32),
        stages=2,
        schedule="multistage",
        store="smem",
        a=FP16,
        b=FP16,
        d=FP16,
    )


def ampere(n: int = 128, m: int = 128) -> KernelSpec:
    """Return an sm_80 kernel of that tile."""
    return KernelSpec(
        arch=SM_80,
        tile=Tile(m, n, 32),
        warp=Tile(m // 2, min(64, n // 2), 32),
        stages=3,
        schedule="multistage",
        store="smem",
    )


def hopper(n: int = 128, *, swap: bool = False) -> KernelSpec:
    """Return an sm_90a kernel whose device tile is 128 x ``n``."""
    tile = Tile(n, 128, 64) if swap else Tile(128, n, 64)
    return KernelSpec(arch=SM_90A, tile=tile, schedule="cooperative", swap=swap)


def mma_source(specs: Sequence[KernelSpec], *, tensor_cores: bool = True) -> RenderedSource:
    """Return a source of tiny sm_80 kernels, one tensor-core instruction each, without CUTLASS."""
    text = _HEAD
    for spec in specs:
        text += _KERNEL.format(name=spec.name, body=_MMA if tensor_cores else _NO_MMA)
    rows = ", ".join(
        f'{{"{spec.name}", 32, 1024, 2, 0, nullptr, nullptr, launch_{spec.name}, nullptr, nullptr}}'
        for spec in specs
    )
    text += f"const gemmsmith_kernel kKernels[] = {{{rows}}};\n}}\n"
    text += '#include "gemmsmith/exports.h"\n'
    digest = hashlib.sha256(text.encode()).hexdigest()
    return RenderedSource(specs=tuple(specs), filename="mma.cu", text=text, digest=digest)


_HEAD = """#include <cuda_runtime.h>
#include "gemmsmith/abi.h"
namespace gemmsmith {
template <class Kernel>
__global__ void device_kernel(float *out, const unsigned *in) {
  extern __shared__ float staged[];
  __shared__ float fixed[64];
  Kernel::run(staged, in);
  fixed[threadIdx.x] = staged[threadIdx.x];
  __syncthreads();
  out[threadIdx.x] = fixed[63 - threadIdx.x];
}
"""

_KERNEL = """struct {name} {{
  __device__ static void run(float *to, const unsigned *in) {{
    float c[4] = {{0, 0, 0, 0}};
{body}
    to[threadIdx.x] = c[0] + c[1] + c[2] + c[3];
  }}
}};
int launch_{name}(const gemmsmith_gemm *call, void *, void *stream) {{
  device_kernel<{name}><<<1, 32, 1024, static_cast<cudaStream_t>(stream)>>>(
      static_cast<float *>(call->d), static_cast<const unsigned *>(call->a));
  return -static_cast<int>(cudaGetLastError());
}}
"""

_MMA = """    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(in[0]), "r"(in[1]), "r"(in[2]), "r"(in[3]), "r"(in[4]), "r"(in[5]));"""

_NO_MMA = "    c[0] = static_cast<float>(in[0]);"
