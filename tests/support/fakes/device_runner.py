"""The hand-computable engine with pages in the memory of a device that files play, for hand-offs between workers.

Run as a program it is the engine process of such a worker; the device is the folder beside its shared memory.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from stratos.core.device.checksum import mixed_sum
from stratos.core.device.facts import DeviceFacts
from stratos.core.device.payload import DevicePayload
from stratos.core.kv import KvRange
from stratos.engine.fake.runner import FakeConfig, FakeRunner
from stratos.kv_transfer import registry
from stratos.worker.engine_client import factory
from stratos.worker.engine_client.child import make_from_settings, run_engine_process
from stratos.worker.engine_client.thread import ThreadEngine
from stratos.worker.settings import WorkerSettings
from tests.support.kv.segment_memory import SegmentMemory, span_of


class DeviceFakeRunner(FakeRunner):
    has_device_pages = True

    def __init__(self, config: FakeConfig) -> None:
        super().__init__(config)
        self.info = replace(self.info, device=DeviceFacts(uuid=SegmentMemory.device))
        self.num_packed = self.num_unpacked = 0

    def pack(self, block_table: Sequence[int], kv_range: KvRange) -> tuple[DevicePayload, int]:
        self.num_packed += 1
        payload = super().gather(block_table, kv_range).cast("B")
        return span_of(np.frombuffer(payload, dtype=np.uint8), payload), mixed_sum(payload)

    def unpack(self, block_table: Sequence[int], kv_range: KvRange, payload: DevicePayload) -> int:
        self.num_unpacked += 1
        seen = ctypes.string_at(payload.address, payload.nbytes)
        super().scatter(block_table, kv_range, memoryview(seen))
        return mixed_sum(seen)

    def gather(self, block_table: Sequence[int], kv_range: KvRange) -> memoryview:
        raise AssertionError("KV was copied to host memory")

    def scatter(self, block_table: Sequence[int], kv_range: KvRange, payload: memoryview) -> None:
        raise AssertionError("KV came through host memory")


def use_host_memory(patch: pytest.MonkeyPatch) -> None:
    """From now on KV may pass through host memory as well."""
    for name in ("gather", "scatter"):
        patch.setattr(DeviceFakeRunner, name, getattr(FakeRunner, name))


def use_devices(patch: pytest.MonkeyPatch, folder: Path) -> SegmentMemory:
    """From now on workers of this process compute on the device, and their transport ``cuda_ipc`` moves its memory."""
    patch.setattr(factory, "FakeRunner", DeviceFakeRunner)
    patch.setattr(registry, "CudaMemory", lambda ordinal, device: SegmentMemory(folder))
    return SegmentMemory(folder)


def _make(settings: bytes) -> ThreadEngine:
    directory = WorkerSettings.model_validate_json(settings).transport.shm_directory
    use_devices(pytest.MonkeyPatch(), directory.parent / "device")  # for as long as this process lives
    return make_from_settings(settings)


if __name__ == "__main__":
    run_engine_process(_make)
