"""Collaborators that all parts of one worker share: made once, when its engine is open, and handed to all of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from stratos.common.clock import Clock
from stratos.core.placement import WorkerRef
from stratos.rpc.tracing import Tracing
from stratos.worker.adapter_cache import AdapterCache
from stratos.worker.drain_gate import DrainGate
from stratos.worker.engine_client.base import EngineClient
from stratos.worker.kv_loads import KvLoads
from stratos.worker.metrics import WorkerMetrics


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerContext:
    """Shared by requests, embedding calls and both sides of hand-offs."""

    me: Callable[[], WorkerRef]
    """This process, as others know it; its address is known only once the server listens."""
    engine: EngineClient
    adapters: AdapterCache
    kv_loads: KvLoads
    gate: DrainGate
    metrics: WorkerMetrics
    clock: Clock
    tracing: Tracing
    features: frozenset[str]
    """Features that this worker offers beyond what every build can."""
