"""Use of the memory's bandwidth: what steps had to read at least, next to a bandwidth that was measured.

A step reads every weight once and the KV of its sequences.  Activations, adapters and what a cache spares are left out,
so the use is a lower bound; it is what decides the speed of decode on a GPU.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from stratos.engine.contract.results import EngineStatus
from stratos.engine.contract.runner import RunnerInfo
from stratos.rpc.instruments import counter, gauge

MEMORY_READ = counter("stratos_memory_read_bytes", "Bytes of weights and KV that steps had to read at least.")
MEMORY_PEAK = gauge("stratos_memory_peak_bytes_per_second", "Measured bandwidth of the memory, as set.")


class MemoryMeter:
    """Belongs to the event loop.

    Args:
        registry: of the process.
        info: of the loaded model.
        peak_bytes_per_s: measured; 0 leaves every series out, because without it nothing follows from the bytes.
    """

    def __init__(self, registry: CollectorRegistry, info: RunnerInfo, peak_bytes_per_s: float) -> None:
        self._info = info
        self._is_on = peak_bytes_per_s > 0 and info.step_weight_bytes > 0
        self._last_step: int | None = None
        if not self._is_on:
            return
        self._read = MEMORY_READ.open(registry)
        MEMORY_PEAK.open(registry).set(peak_bytes_per_s)

    def observe(self, status: EngineStatus) -> None:
        """Count the steps since the last call, each with the KV that is held now."""
        if not self._is_on:
            return
        last, self._last_step = self._last_step, status.step
        if last is not None and status.step > last:
            kv_bytes = status.num_kv_tokens * self._info.geometry.token_bytes
            self._read.inc((status.step - last) * (self._info.step_weight_bytes + kv_bytes))
