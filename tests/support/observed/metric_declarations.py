"""Every metric that the services declare: name on the wire, type, labels, help, and who shows it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.metrics import MetricWrapperBase

from stratos.core.kv import KvGeometry, KvIdentity
from stratos.core.placement import WorkerRef, WorkerRole
from stratos.engine.contract.runner import RunnerInfo
from stratos.rpc.metrics import LoopMetrics, RpcMetrics
from stratos.rpc.serving.tls import register_expiry
from stratos.store.records.followed_snapshot import SnapshotState
from stratos.worker.meters.gpu import GpuCollector
from stratos.worker.meters.meters import open_meters
from stratos.worker.meters.settings import WorkerObserveConfig
from stratos.worker.metrics import WorkerMetrics
from stratos_autoscaler.metrics import AutoscalerMetrics
from stratos_gateway.access.snapshot_metrics import SnapshotMetrics
from stratos_gateway.metrics import GatewayMetrics
from stratos_router.metrics import RouterMetrics
from tests.support.fakes.nvml import FakeNvml

INFO = RunnerInfo(
    identity=KvIdentity(model_digest="m", kv_dtype="float32", rope_variant="r", numerics_id="n"),
    geometry=KvGeometry(num_layers=2, num_kv_heads=2, head_dim=8, block_size=16, element_bytes=4),
    num_blocks=8,
    vocab_size=100,
    max_model_len=128,
    eos_token_ids=(4,),
    step_weight_bytes=1000,
)
ME = WorkerRef(worker_id="decode-0", incarnation="i", address="", role=WorkerRole.DECODE)


@dataclasses.dataclass(frozen=True)
class Declared:
    """One family."""

    section: str
    name: str
    type: str
    labels: tuple[str, ...]
    text: str


def declared_metrics() -> list[Declared]:
    """All of them, in the order of docs/metrics.md."""
    found: list[Declared] = []
    for section, declare in _SECTIONS.items():
        found += _recorded(section, declare)
    return found


def _everywhere(registry: CollectorRegistry) -> list[Metric]:
    RpcMetrics(registry, "router")
    LoopMetrics(registry)
    register_expiry(registry, SimpleNamespace())
    return []


def _worker(registry: CollectorRegistry) -> list[Metric]:
    WorkerMetrics(registry)
    config = WorkerObserveConfig(device_hour_price=1.0, peak_memory_bytes_per_s=1e9)
    open_meters(registry, config, INFO, me=ME, model="base", device="cpu", environ={})
    nvml = FakeNvml()
    return list(GpuCollector(nvml, nvml.gpus[0], "0").collect())


def _gateway(registry: CollectorRegistry) -> list[Metric]:
    metrics = GatewayMetrics(registry, "base")
    metrics.show_model("digest")
    metrics.show_certificate_expiry(lambda: 0.0)
    snapshot = SimpleNamespace(state=SnapshotState.FOLLOWING, malformed=[], num_missing=0, num_records=lambda: 0)
    follower = SimpleNamespace(snapshot=snapshot, age_s=0.0, is_past_bound=False, num_full_reads=1)
    return list(SnapshotMetrics(follower).collect())


def _router(registry: CollectorRegistry) -> list[Metric]:
    RouterMetrics(registry)
    return []


def _autoscaler(registry: CollectorRegistry) -> list[Metric]:
    AutoscalerMetrics(registry)
    return []


_SECTIONS: dict[str, Callable[[CollectorRegistry], list[Metric]]] = {
    "All services": _everywhere,
    "Workers": _worker,
    "Gateway": _gateway,
    "Router": _router,
    "Autoscaler": _autoscaler,
}


def _recorded(section: str, declare: Callable[[CollectorRegistry], list[Metric]]) -> list[Declared]:
    found: list[Declared] = []
    original = MetricWrapperBase.__init__

    def record(self: Any, name: str, documentation: str, labelnames: Any = (), *rest: Any, **more: Any) -> None:
        if not more.get("_labelvalues"):  # a child of a family has them
            found.append(_declared(section, name, type(self).__name__.lower(), tuple(labelnames), documentation))
        original(self, name, documentation, labelnames, *rest, **more)

    with patch.object(MetricWrapperBase, "__init__", record):
        families = declare(CollectorRegistry())
    for family in families:
        labels = tuple(dict.fromkeys(label for sample in family.samples for label in sample.labels))
        found.append(_declared(section, family.name, family.type, labels, family.documentation))
    return list(dict.fromkeys(found))


def _declared(section: str, name: str, kind: str, labels: tuple[str, ...], text: str) -> Declared:
    wire = name + "_total" if kind == "counter" and not name.endswith("_total") else name
    return Declared(section, wire, kind, labels, text)
