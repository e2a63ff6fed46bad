from __future__ import annotations

import ctypes
from typing import Any

import pytest

from gemmsmith import nvml
from gemmsmith.errors import NoDeviceError, UnknownArchitectureError

UUIDS = ["GPU-aaaa-1", "GPU-aabb-2", "GPU-cccc-3"]


def no_parent(uuid: str) -> str | None:
    return None


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        (None, [0, 1, 2]),
        ("2,0", [2, 0]),
        (" 1 , 2 ", [1, 2]),
        ("", []),
        ("-1", []),
        ("0,-1,1", [0]),
        ("0,7,1", [0]),
        ("0,0", []),
        ("GPU-cccc", [2]),
        ("GPU-cccc-3,0", [2, 0]),
        ("GPU-aa", []),
        ("GPU-aabb,1", []),
        ("NoDevFiles", []),
    ],
)
def test_visible_follows_cuda(order: str | None, expected: list[int]) -> None:
    shown = nvml.visible(order, UUIDS, no_parent)
    assert shown == [(index, UUIDS[index]) for index in expected]


def test_visible_mig_instances_of_one_gpu() -> None:
    owners = {"MIG-x": "GPU-aabb-2", "MIG-y": "GPU-aabb-2"}
    shown = nvml.visible("MIG-y,MIG-x,MIG-z,0", UUIDS, owners.get)
    assert shown == [(1, "MIG-y"), (1, "MIG-x")]


class FakeDriver:
    """The C functions of libnvidia-ml.so.1 over a table of GPUs (capability, cores)."""

    def __init__(self, *gpus: tuple[tuple[int, int], int]) -> None:
        self.gpus = gpus

        def error_string(code: int) -> bytes:
            return b"Not Supported"

        self.nvmlErrorString = error_string

    def nvmlInit_v2(self) -> int:
        return 0

    def nvmlDeviceGetCount_v2(self, out: Any) -> int:
        return self._put(out, len(self.gpus))

    def nvmlDeviceGetHandleByIndex_v2(self, index: Any, out: Any) -> int:
        return self._put(out, index.value + 100)

    def nvmlDeviceGetHandleByUUID(self, uuid: bytes, out: Any) -> int:
        return self._put(out, int(uuid.removeprefix(b"GPU-")) + 100)

    def nvmlDeviceGetUUID(self, handle: Any, buffer: Any, length: Any) -> int:
        buffer.value = b"GPU-%d" % (handle.value - 100)
        return 0

    def nvmlDeviceGetName(self, handle: Any, buffer: Any, length: Any) -> int:
        buffer.value = b"NVIDIA Test %d" % (handle.value - 100)
        return 0

    def nvmlSystemGetDriverVersion(self, buffer: Any, length: Any) -> int:
        buffer.value = b"580.95.05"
        return 0

    def nvmlSystemGetCudaDriverVersion_v2(self, out: Any) -> int:
        return self._put(out, 12080)

    def nvmlDeviceGetCudaComputeCapability(self, handle: Any, major: Any, minor: Any) -> int:
        capability, _ = self.gpus[handle.value - 100]
        self._put(major, capability[0])
        return self._put(minor, capability[1])

    def nvmlDeviceGetMemoryInfo(self, handle: Any, out: Any) -> int:
        out._obj.total = 80 << 30
        return 0

    def nvmlDeviceGetNumGpuCores(self, handle: Any, out: Any) -> int:
        return self._put(out, self.gpus[handle.value - 100][1])

    def nvmlDeviceGetClockInfo(self, handle: Any, kind: Any, out: Any) -> int:
        return self._put(out, {1: 1755, 2: 3201}[kind.value])

    def nvmlDeviceGetPowerUsage(self, handle: Any, out: Any) -> int:
        return self._put(out, 412_500)

    def nvmlDeviceGetTemperature(self, handle: Any, sensor: Any, out: Any) -> int:
        return 3

    @staticmethod
    def _put(out: Any, value: int) -> int:
        out._obj.value = value
        return 0


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> None:
    library = nvml.Nvml(FakeDriver(((9, 0), 16896), ((8, 0), 6912), ((6, 1), 3840)))
    monkeypatch.setattr(nvml, "_open", lambda: (library, ""))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.mark.usefixtures("driver")
def test_devices_tell_the_facts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,0")
    ampere, hopper = nvml.devices()
    assert hopper == nvml.Device(
        index=1,
        name="NVIDIA Test 0",
        uuid="GPU-0",
        capability=(9, 0),
        memory_bytes=80 << 30,
        sm_count=132,
        driver="580.95.05",
        cuda=(12, 8),
    )
    assert (ampere.index, ampere.uuid, ampere.sm_count) == (0, "GPU-1", 108)


@pytest.mark.usefixtures("driver")
def test_reading_in_units_and_none_where_refused() -> None:
    assert nvml.reading(nvml.devices()[0]) == nvml.Reading(
        sm_clock_mhz=1755, memory_clock_mhz=3201, power_watts=412.5, temperature_c=None
    )


@pytest.mark.usefixtures("driver")
def test_detects_the_first_visible_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    assert nvml.detect_architecture().name == "sm_90a"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert nvml.detect_architecture().name == "sm_80"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2")
    with pytest.raises(UnknownArchitectureError, match=r"6\.1"):
        nvml.detect_architecture()


@pytest.mark.usefixtures("driver")
def test_hidden_gpus_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(
        NoDeviceError, match=r"no GPU to detect; set arch, .* \(CUDA_VISIBLE_DEVICES=''"
    ):
        nvml.detect_architecture()


def test_no_driver_is_no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", missing)
    nvml._open.cache_clear()
    try:
        assert nvml.devices() == ()
        with pytest.raises(NoDeviceError, match=r"no GPU to detect; set arch, .* \(.*libnvidia-ml"):
            nvml.detect_architecture()
    finally:
        nvml._open.cache_clear()
