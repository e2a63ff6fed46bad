"""Kernels for a machine without a compiler: exported here, loaded as if there.

The folder can be copied anywhere; with --wheel it is a wheel, which gemmsmith finds by itself.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import gemmsmith

file = Path(__file__).with_name("own_kernel.yaml")
with tempfile.TemporaryDirectory() as scratch:
    folder = Path(scratch) / "kernels"
    command = [sys.executable, "-m", "gemmsmith", "export", file, "--arch", "sm_90a", "-o", folder]
    subprocess.run(command, check=True)

    # What the other machine has: the folder, no cache, no nvcc, no YAML file, perhaps no torch.
    os.environ.update(GEMMSMITH_CACHE_DIR=f"{scratch}/empty", GEMMSMITH_NEVER_COMPILE="1", PATH="")
    kernels = gemmsmith.load(folder, arch="sm_90a")  # "auto" where the GPU is
    for kernel in kernels.build().built:  # checks each file, compiles nothing
        print(f"{kernel.spec.name}: {kernel.card.registers} registers", end=", ")
        print(f"compiled by nvcc {kernel.built_with['nvcc']}")
