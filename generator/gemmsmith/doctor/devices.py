"""Findings about what runs kernels: torch, the driver and the GPUs."""

from __future__ import annotations

import importlib.metadata

from gemmsmith.arch import architecture_of
from gemmsmith.cuda import dotted
from gemmsmith.doctor.report import Finding
from gemmsmith.doctor.tools import toolchain
from gemmsmith.errors import NoDeviceError, ToolchainError, UnknownArchitectureError
from gemmsmith.nvml import Device, detect_architecture, devices
from gemmsmith.settings import settings
from gemmsmith.software import made_here
from gemmsmith.tables import tables_for
from gemmsmith.torch_cuda import mismatch, torch_cuda
from gemmsmith.wording import counted


def torch() -> Finding:
    """torch's version and CUDA, read from its files, and whether that fits nvcc."""
    try:
        version = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return Finding(
            name="torch",
            status="warning",
            found="not installed: kernels can be built, not called",
            fix="pip install 'gemmsmith[torch]'",
        )
    cuda = torch_cuda()
    if cuda is None:
        return Finding(
            name="torch",
            status="warning",
            found=f"{version}, built without CUDA: kernels can be built, not called",
            fix="install a build of torch for CUDA",
        )
    tools = toolchain()
    found = f"{version}, for CUDA {cuda}"
    objection = mismatch(cuda, tools) if tools is not None else None
    if tools is not None and objection is not None:
        return Finding(
            name="torch",
            status="warning",
            found=f"{version}; {objection}",
            fix=f"set GEMMSMITH_NVCC to an nvcc of CUDA {cuda.split('.')[0]}, or install torch "
            f"for CUDA {tools.version[0]}",
        )
    return Finding(name="torch", status="ok", found=found)


def gpus() -> Finding:
    """The visible GPUs, and whether they and their driver run what would be built."""
    try:
        found = devices()
        if not found:
            detect_architecture()  # says why none is visible
    except NoDeviceError as error:
        return Finding(
            name="GPU",
            status="warning",
            found=str(error),
            fix="name the architecture when building here, and run on a machine with a GPU",
        )
    listed = ", ".join(
        f"{device.name} (sm_{device.capability[0]}{device.capability[1]})" for device in found
    )
    text = f"{listed}; driver {found[0].driver}, up to CUDA {dotted(found[0].cuda)}"
    wrong = [problem for problem in map(_problem, found) if problem]
    if wrong:
        return Finding(
            name="GPU", status="warning", found=f"{text}; {wrong[0][0]}", fix=wrong[0][1]
        )
    return Finding(name="GPU", status="ok", found=text)


def tuned() -> Finding:
    """The tuned tables for the first GPU, and in what software they differ from it."""
    device = next(iter(devices()), None)
    if device is None or device.sm_count is None:
        return Finding(name="tuned tables", status="ok", found="none asked for: no GPU to match")
    if settings().tuned is None:
        found = "none: GEMMSMITH_TUNED is none, so that estimates alone choose"
        return Finding(name="tuned tables", status="ok", found=found)
    tables = tables_for(device.name, device.sm_count, device.capability)
    texts = []
    for path, table in tables.used:
        here = made_here(device.name, device.sm_count, table.made.arch)
        differing = table.made.differences(here).items()
        told = ", ".join(f"{name} {then}, here {now}" for name, (then, now) in differing)
        texts.append(
            f"{path}: {counted(len(table.entries), 'entry', 'entries')}"
            + (f" (with {told})" if told else "")
        )
    found = "; ".join([*texts, *tables.unread]) or f"none for {device.name}: estimates choose"
    if tables.unread:
        fix = "correct or remove the file; other tables and estimates choose meanwhile"
        return Finding(name="tuned tables", status="warning", found=found, fix=fix)
    return Finding(name="tuned tables", status="ok", found=found)


def _problem(device: Device) -> tuple[str, str] | None:
    """Why a kernel built here would not run on ``device``, and what to do; None where it would."""
    try:
        arch = architecture_of(device.capability)
    except UnknownArchitectureError as error:
        return str(error), "use a GPU of another generation"
    tools = toolchain()
    if tools is None:
        return None
    try:
        tools.check_target(arch)
    except ToolchainError as error:
        return str(error), "install such a toolkit"
    if tools.version[0] > device.cuda[0]:
        return (
            f"the driver is too old for kernels of CUDA {dotted(tools.version)}",
            f"update the driver, or set GEMMSMITH_NVCC to an nvcc of CUDA {device.cuda[0]}",
        )
    return None
