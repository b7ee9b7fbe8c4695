"""The GPU of a worker as NVML sees it, read at every scrape in the scrape's own thread.

A worker shows the device that it computes on and no other, since two workers on one machine would count each GPU twice.
Without NVML, without a GPU, or where a driver does not answer, there is no series: a zero would look like an idle GPU.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Gauge, Metric
from prometheus_client.registry import Collector

from stratos.rpc.instruments import MetricRow, gauge

_log = logging.getLogger(__name__)
MEMORY = gauge(
    "stratos_gpu_memory_bytes", "Memory of the worker's GPU by state; other processes' use is in it.", "gpu", "state"
)
UTILIZATION = gauge(
    "stratos_gpu_utilization_ratio", "Part of the last sample period in which a kernel ran on the GPU.", "gpu"
)
POWER = gauge("stratos_gpu_power_watts", "Power that the GPU draws.", "gpu")
TEMPERATURE = gauge("stratos_gpu_temperature_celsius", "Temperature of the GPU.", "gpu")
GPU_ROWS = (MEMORY, UTILIZATION, POWER, TEMPERATURE)


class GpuCollector(Collector):
    """Series of one GPU.

    Args:
        nvml: the module ``pynvml``, initialised.
        handle: of the device.
        gpu: its label.
    """

    def __init__(self, nvml: Any, handle: Any, gpu: str) -> None:
        self._nvml = nvml
        self._handle = handle
        self._gpu = gpu

    def describe(self) -> Iterator[Metric]:
        """Names and labels, without a call to the driver."""
        return (row.family() for row in GPU_ROWS)

    def collect(self) -> Iterator[Metric]:
        """Values that the driver returns now; one that this GPU does not have is left out."""
        nvml, handle = self._nvml, self._handle
        families = {row.name: row.family() for row in GPU_ROWS}
        reads: tuple[tuple[MetricRow[Gauge], tuple[str, ...], Callable[[], Any]], ...] = (
            (MEMORY, ("used",), lambda: nvml.nvmlDeviceGetMemoryInfo(handle).used),
            (MEMORY, ("total",), lambda: nvml.nvmlDeviceGetMemoryInfo(handle).total),
            (UTILIZATION, (), lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100),
            (POWER, (), lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000),
            (TEMPERATURE, (), lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),
        )
        for row, labels, read in reads:
            try:
                families[row.name].add_metric((self._gpu, *labels), float(read()))
            except nvml.NVMLError as error:
                _log.debug("NVML has no %s: %s", row.name, error)
        yield from (family for family in families.values() if family.samples)


def register_gpu(registry: CollectorRegistry, environ: Mapping[str, str], nvml: Any | None = None) -> bool:
    """Show the GPU that this process computes on, the first that CUDA may see.

    Args:
        registry: of the process.
        environ: with ``CUDA_VISIBLE_DEVICES``.
        nvml: instead of the package ``nvidia-ml-py``.

    Returns:
        Whether there are such series.
    """
    try:
        nvml = nvml or importlib.import_module("pynvml")
    except ImportError:
        _log.warning("no metrics of the GPU: the package nvidia-ml-py is not installed")
        return False
    try:
        nvml.nvmlInit()
        handle = _first_visible(nvml, environ.get("CUDA_VISIBLE_DEVICES", ""))
        gpu = str(nvml.nvmlDeviceGetIndex(handle))
    except nvml.NVMLError as error:
        _log.warning("no metrics of the GPU: %s", error)
        return False
    registry.register(GpuCollector(nvml, handle, gpu))
    return True


def _first_visible(nvml: Any, visible: str) -> Any:
    """The device that CUDA calls 0: by UUID or by index, as the variable has it."""
    first = visible.split(",")[0].strip()
    if first.startswith(("GPU-", "MIG-")):
        return nvml.nvmlDeviceGetHandleByUUID(first)
    return nvml.nvmlDeviceGetHandleByIndex(int(first) if first.isdigit() else 0)
