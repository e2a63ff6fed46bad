"""Row kernels as functions of the CPU: their own C++, compiled by g++."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from gemmsmith.render import include_dirs, render
from gemmsmith.rowspec import RowSpec


def emulated(specs: Sequence[RowSpec], call: str, header: str, folder: Path) -> Path:
    """Return a library of kernels whose one argument is a ``call``, which ``header`` declares."""
    from gemmsmith.toolchain import find_toolchain

    toolchain = find_toolchain()
    includes = (
        *include_dirs(),
        Path(__file__).parent,
        *([toolchain.root / "include"] if toolchain.root else []),
        *toolchain.include_dirs,
    )
    source = folder / f"{specs[0].name}.cpp"
    head = f'#include "gemmsmith/{header}"\n#define EMULATED_CALL {call}\n'
    source.write_text(f'{head}#include "cuda_on_cpu.h"\n{render(specs).text}')
    library = source.with_suffix(".so")
    command = ["g++", "-std=c++17", "-O1", "-w", "-ffp-contract=off", "-shared", "-fPIC"]
    command += ["-fno-gnu-unique", *(f"-I{path}" for path in includes)]
    subprocess.run([*command, "-o", str(library), str(source)], check=True)
    return library
