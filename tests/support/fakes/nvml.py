"""NVML without a GPU: the functions that the worker calls, over devices that a test sets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace


class NVMLError(Exception):
    """What the driver refuses."""


@dataclass
class FakeGpu:
    """One device."""

    uuid: str = "GPU-0"
    used_bytes: int = 3 << 30
    total_bytes: int = 80 << 30
    utilization_percent: int = 40
    watts: float = 250.0
    celsius: int = 55
    lacking: frozenset[str] = frozenset()
    """Functions that this device does not support."""


@dataclass
class FakeNvml:
    """Stands in for the module ``pynvml``."""

    gpus: Sequence[FakeGpu] = field(default_factory=lambda: [FakeGpu()])
    has_driver: bool = True
    NVMLError = NVMLError
    NVML_TEMPERATURE_GPU = 0

    def nvmlInit(self) -> None:
        if not self.has_driver:
            raise NVMLError("Driver Not Loaded")

    def nvmlDeviceGetHandleByIndex(self, index: int) -> FakeGpu:
        if index >= len(self.gpus):
            raise NVMLError("Invalid Argument")
        return self.gpus[index]

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> FakeGpu:
        return next(gpu for gpu in self.gpus if gpu.uuid == uuid)

    def nvmlDeviceGetIndex(self, gpu: FakeGpu) -> int:
        return self.gpus.index(gpu)

    def nvmlDeviceGetMemoryInfo(self, gpu: FakeGpu) -> SimpleNamespace:
        return SimpleNamespace(used=gpu.used_bytes, total=gpu.total_bytes)

    def nvmlDeviceGetUtilizationRates(self, gpu: FakeGpu) -> SimpleNamespace:
        return SimpleNamespace(gpu=gpu.utilization_percent, memory=0)

    def nvmlDeviceGetPowerUsage(self, gpu: FakeGpu) -> int:
        if "power" in gpu.lacking:
            raise NVMLError("Not Supported")
        return round(gpu.watts * 1000)

    def nvmlDeviceGetTemperature(self, gpu: FakeGpu, sensor: int) -> int:
        return gpu.celsius
