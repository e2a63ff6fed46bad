"""What the NVIDIA driver tells about the GPUs, without starting CUDA.

Goes through NVML (libnvidia-ml.so.1), so a process that asks may still fork and use CUDA in its
children. A machine without a driver has no devices; that is no error here.
"""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from gemmsmith.arch import Architecture, architecture_of
from gemmsmith.errors import NoDeviceError

_SM_CLOCK, _MEMORY_CLOCK = 1, 2  # nvmlClockType_t
_CORE_TEMPERATURE = 0  # nvmlTemperatureSensors_t
_FP32_LANES_PER_SM = {(7, 0): 64, (7, 5): 64, (8, 0): 64, (8, 6): 128, (8, 9): 128, (9, 0): 128}


@dataclass(frozen=True, kw_only=True)
class Device:
    """One GPU that CUDA would show to this process."""

    index: int
    """CUDA's ordinal: the position among the visible devices."""
    name: str
    """Marketing name, for example ``NVIDIA H200``."""
    uuid: str
    """The driver's identifier: ``GPU-…``, or ``MIG-…`` for an instance of a GPU."""
    capability: tuple[int, int]
    """CUDA compute capability (major, minor)."""
    memory_bytes: int | None
    """Device memory; None for MIG instances and where the driver does not tell."""
    sm_count: int | None
    """Streaming multiprocessors; None for MIG instances and where the driver does not tell."""
    driver: str
    """Driver version, for example ``580.95.05``."""
    cuda: tuple[int, int]
    """Newest CUDA version (major, minor) that the driver runs."""


@dataclass(frozen=True, kw_only=True)
class Reading:
    """Clocks, power and temperature of one GPU at one moment; None where it does not tell."""

    sm_clock_mhz: int | None
    memory_clock_mhz: int | None
    power_watts: float | None
    temperature_c: int | None


class _Memory(ctypes.Structure):
    _fields_ = [
        ("total", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    ]


class _Refused(Exception):
    """NVML answered a question with an error."""


class Nvml:
    """An initialised NVML library; ``library`` holds its C functions."""

    def __init__(self, library: Any) -> None:
        self._library = library
        library.nvmlErrorString.restype = ctypes.c_char_p
        self._ask("nvmlInit_v2")

    def _ask(self, function: str, *arguments: Any) -> None:
        code = getattr(self._library, function)(*arguments)
        if code:
            raise _Refused(f"{function}: {self._library.nvmlErrorString(code).decode()}")

    def _text(self, function: str, *handle: Any) -> str:
        buffer = ctypes.create_string_buffer(96)
        self._ask(function, *handle, buffer, ctypes.c_uint(len(buffer)))
        return buffer.value.decode()

    def _number(self, function: str, *arguments: Any) -> int:
        value = ctypes.c_uint()
        self._ask(function, *arguments, ctypes.byref(value))
        return value.value

    def handles(self) -> list[ctypes.c_void_p]:
        """Return the handles of all GPUs, in PCI bus order."""
        found = []
        for index in range(self._number("nvmlDeviceGetCount_v2")):
            handle = ctypes.c_void_p()
            self._ask("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(handle))
            found.append(handle)
        return found

    def handle(self, uuid: str) -> ctypes.c_void_p:
        """Return the handle of the GPU with this UUID."""
        handle = ctypes.c_void_p()
        self._ask("nvmlDeviceGetHandleByUUID", uuid.encode(), ctypes.byref(handle))
        return handle

    def uuid(self, handle: ctypes.c_void_p) -> str:
        """Return the UUID of a GPU."""
        return self._text("nvmlDeviceGetUUID", handle)

    def parent(self, uuid: str) -> str | None:
        """Return the UUID of the GPU that holds a MIG instance; None where there is none."""
        gpu = ctypes.c_void_p()
        try:
            instance = self.handle(uuid)
            self._ask("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", instance, ctypes.byref(gpu))
        except _Refused:
            return None
        return self.uuid(gpu)

    def device(self, index: int, uuid: str, handle: ctypes.c_void_p) -> Device:
        """Return the facts of CUDA device ``index``: a GPU, or a MIG instance (``uuid``) of it."""
        whole = not uuid.startswith("MIG-")
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._ask(
            "nvmlDeviceGetCudaComputeCapability", handle, ctypes.byref(major), ctypes.byref(minor)
        )
        capability = (major.value, minor.value)
        cuda = self._number("nvmlSystemGetCudaDriverVersion_v2")
        return Device(
            index=index,
            name=self._text("nvmlDeviceGetName", handle),
            uuid=uuid,
            capability=capability,
            memory_bytes=_told(lambda: self._memory(handle)) if whole else None,
            sm_count=_told(lambda: self._sm_count(handle, capability)) if whole else None,
            driver=self._text("nvmlSystemGetDriverVersion"),
            cuda=(cuda // 1000, cuda % 1000 // 10),
        )

    def _memory(self, handle: ctypes.c_void_p) -> int:
        memory = _Memory()
        self._ask("nvmlDeviceGetMemoryInfo", handle, ctypes.byref(memory))
        return int(memory.total)

    def _sm_count(self, handle: ctypes.c_void_p, capability: tuple[int, int]) -> int | None:
        lanes = _FP32_LANES_PER_SM.get(capability)
        return self._number("nvmlDeviceGetNumGpuCores", handle) // lanes if lanes else None

    def reading(self, handle: ctypes.c_void_p) -> Reading:
        """Return what a GPU's sensors say now."""

        def number(function: str, *arguments: Any) -> int | None:
            return _told(lambda: self._number(function, handle, *arguments))

        milliwatts = number("nvmlDeviceGetPowerUsage")
        return Reading(
            sm_clock_mhz=number("nvmlDeviceGetClockInfo", ctypes.c_uint(_SM_CLOCK)),
            memory_clock_mhz=number("nvmlDeviceGetClockInfo", ctypes.c_uint(_MEMORY_CLOCK)),
            power_watts=None if milliwatts is None else milliwatts / 1000,
            temperature_c=number("nvmlDeviceGetTemperature", ctypes.c_uint(_CORE_TEMPERATURE)),
        )


def _told(question: Callable[[], int | None]) -> int | None:
    """Return the answer, or None where the driver or board has none (vGPU, old driver)."""
    try:
        return question()
    except (_Refused, AttributeError):
        return None


@functools.lru_cache(maxsize=1)
def _open() -> tuple[Nvml | None, str]:
    """Return NVML, or None and the reason."""
    try:
        return Nvml(ctypes.CDLL("libnvidia-ml.so.1")), ""
    except (OSError, _Refused) as error:
        return None, str(error)


def visible(
    order: str | None, uuids: Sequence[str], parent: Callable[[str], str | None]
) -> list[tuple[int, str]]:
    """Return (index into ``uuids``, UUID) of what CUDA_VISIBLE_DEVICES=``order`` shows, in order.

    As CUDA reads it: None shows all, the list ends at the first entry that names no device, and
    an entry given twice leaves nothing. ``parent`` gives the GPU's UUID for a MIG instance's.
    """
    if order is None:
        return list(enumerate(uuids))
    chosen = list(_entries(order, uuids, parent))
    return chosen if len(set(chosen)) == len(chosen) else []


def _entries(
    order: str, uuids: Sequence[str], parent: Callable[[str], str | None]
) -> Iterator[tuple[int, str]]:
    for entry in (word.strip() for word in order.split(",")):
        if entry.isdecimal():
            named = [(int(entry), uuids[int(entry)])] if int(entry) < len(uuids) else []
        elif entry.startswith("MIG-"):
            owner = parent(entry)
            named = [(index, entry) for index, uuid in enumerate(uuids) if uuid == owner]
        elif entry.startswith("GPU-"):
            named = [(index, uuid) for index, uuid in enumerate(uuids) if uuid.startswith(entry)]
        else:
            named = []
        if len(named) != 1:
            return
        yield named[0]


def devices() -> tuple[Device, ...]:
    """Return the GPUs that CUDA would show to this process; empty where there is none.

    Numbers in CUDA_VISIBLE_DEVICES are taken in PCI bus order, as with
    CUDA_DEVICE_ORDER=PCI_BUS_ID; where a machine mixes GPU models, CUDA's own default order may
    differ, so name GPUs by UUID there.

    Raises:
        NoDeviceError: where there is a driver that does not answer.
    """
    nvml, _ = _open()
    if nvml is None:
        return ()
    try:
        handles = nvml.handles()
        uuids = [nvml.uuid(handle) for handle in handles]
        shown = visible(os.environ.get("CUDA_VISIBLE_DEVICES"), uuids, nvml.parent)
        return tuple(
            nvml.device(place, uuid, handles[index]) for place, (index, uuid) in enumerate(shown)
        )
    except _Refused as error:
        raise NoDeviceError(f"the NVIDIA driver does not answer: {error}") from error


def reading(device: Device) -> Reading:
    """Return clocks, power and temperature of ``device`` now.

    Raises:
        NoDeviceError: where the driver no longer knows the device.
    """
    nvml, reason = _open()
    if nvml is None:
        raise NoDeviceError(f"no NVIDIA driver: {reason}")
    try:
        return nvml.reading(nvml.handle(device.uuid))
    except _Refused as error:
        raise NoDeviceError(f"no sensors of {device.name}: {error}") from error


def detect_architecture() -> Architecture:
    """Return the architecture of the first visible GPU, for ``arch: auto``.

    Raises:
        NoDeviceError: where no GPU is visible; the message says what hides it.
        UnknownArchitectureError: where gemmsmith has no kernels for the GPU.
    """
    found = devices()
    if found:
        return architecture_of(found[0].capability)
    shown = os.environ.get("CUDA_VISIBLE_DEVICES")
    reason = _open()[1] or (
        f"CUDA_VISIBLE_DEVICES={shown!r} shows none" if shown is not None else "the driver has none"
    )
    raise NoDeviceError(
        f"no GPU to detect; set arch, as in load(path, arch='sm_90a') or --arch sm_90a ({reason})"
    )
