"""Memory of transports that an engine's sizes leave free."""

from __future__ import annotations

from stratos.kv_transfer.device.rings import planned_bytes
from stratos.kv_transfer.settings import StagingConfig, TransportConfig
from stratos.worker.engine_client.factory import STAGING_PAIRS, transport_bytes
from stratos.worker.settings import WorkerSettings

TRANSPORT = TransportConfig(names=("cuda_ipc", "shm"), staging=StagingConfig(slot_bytes=1 << 20, slots_per_pair=3))


def test_staging_lies_in_host_memory_and_rings_in_that_of_a_gpu() -> None:
    assert transport_bytes(WorkerSettings(transport=TRANSPORT)) == STAGING_PAIRS * 3 << 20
    assert transport_bytes(WorkerSettings(transport=TRANSPORT, device="cuda")) == planned_bytes(TRANSPORT) > 0
