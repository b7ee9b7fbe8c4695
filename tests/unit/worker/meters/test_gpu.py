"""The series of a GPU are what NVML says, of the worker's own device, and are not there where it says nothing."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from stratos.worker.meters.gpu import register_gpu
from tests.support.fakes.nvml import FakeGpu, FakeNvml

TWO = [FakeGpu("GPU-a"), FakeGpu("GPU-b", used_bytes=1 << 30, utilization_percent=93, watts=610.5, celsius=71)]


@pytest.mark.parametrize("visible", ["1", "1,0", "GPU-b"])
def test_a_worker_shows_the_device_that_it_computes_on(visible: str) -> None:
    registry = CollectorRegistry()
    assert register_gpu(registry, {"CUDA_VISIBLE_DEVICES": visible}, FakeNvml(TWO))
    values = {(s.name, s.labels.get("state", "")): s.value for f in registry.collect() for s in f.samples}
    assert values == {
        ("stratos_gpu_memory_bytes", "used"): 1 << 30,
        ("stratos_gpu_memory_bytes", "total"): 80 << 30,
        ("stratos_gpu_utilization_ratio", ""): 0.93,
        ("stratos_gpu_power_watts", ""): 610.5,
        ("stratos_gpu_temperature_celsius", ""): 71,
    }
    assert {s.labels["gpu"] for f in registry.collect() for s in f.samples} == {"1"}


def test_what_the_device_lacks_has_no_series() -> None:
    registry = CollectorRegistry()
    register_gpu(registry, {}, FakeNvml([FakeGpu(lacking=frozenset({"power"}))]))
    text = generate_latest(registry).decode()
    assert "stratos_gpu_power_watts" not in text
    assert 'stratos_gpu_temperature_celsius{gpu="0"} 55.0' in text


@pytest.mark.parametrize("nvml", [FakeNvml(has_driver=False), FakeNvml([])], ids=["no driver", "no device"])
def test_without_a_gpu_there_is_no_series(nvml: FakeNvml) -> None:
    registry = CollectorRegistry()
    assert not register_gpu(registry, {}, nvml)
    assert list(registry.collect()) == []
