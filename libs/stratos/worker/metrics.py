"""Metrics of a worker. Names and meanings are listed in docs/metrics.md."""

from __future__ import annotations

import math
from collections import Counter as Counts

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from stratos.common.errors import AdapterMismatch, AdapterUnavailable, WorkerLost
from stratos.core.generation import PrefillPath
from stratos.core.kv import StagingLedger
from stratos.core.requests import limits
from stratos.engine.contract.results import EngineStatus
from stratos.rpc.metrics import TenantLabels
from stratos.worker.engine_client.device_time import DeviceTime

_STAGE_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class WorkerMetrics:
    """Counters and gauges of one worker process.

    Args:
        registry: of the process.
        device: a label.
        max_tenants: with series of their own.
    """

    def __init__(self, registry: CollectorRegistry, device: str = "cpu", max_tenants: int = 200) -> None:
        self._tenants = TenantLabels(max_tenants)
        self._device = device
        self._seen: Counts[str] = Counts()
        self.kv_blocks = Gauge("stratos_kv_blocks", "KV blocks by state.", ("state",), registry=registry)
        self.host_blocks = Gauge(
            "stratos_kv_host_blocks", "KV blocks in host memory by state.", ("state",), registry=registry
        )
        self.swapped_blocks = Counter(
            "stratos_kv_swapped_blocks", "KV blocks copied to and from host memory.", ("direction",), registry=registry
        )
        self.preemptions = Counter(
            "stratos_preemptions",
            "Sequences that gave their KV blocks back, by what became of it.",
            ("kv",),
            registry=registry,
        )
        self.admission_refusals = Counter(
            "stratos_admission_refusals",
            "Waits that met a full KV pool at the head of the queue, each once, and hand-offs that found no room.",
            registry=registry,
        )
        self.ledger_audits = Counter(
            "stratos_kv_ledger_audits",
            "Recounts of the KV block ledger of an idle engine.",
            ("outcome",),
            registry=registry,
        )
        self.waiting_by_class = Gauge(
            "stratos_requests_waiting_by_class",
            "Sequences waiting for a step, by the class they came with.",
            ("priority_class",),
            registry=registry,
        )
        self.cost_error = Gauge(
            "stratos_step_cost_error_ratio",
            "Relative error of the predicted duration of a step, over the last 256; NaN while nothing is predicted.",
            ("quantile",),
            registry=registry,
        )
        self.staging_slots = Gauge(
            "stratos_kv_staging_slots", "KV staging slots by state.", ("state",), registry=registry
        )
        self.transfer_bytes = Counter(
            "stratos_kv_transfer_bytes",
            "KV payload bytes, repeats included.",
            ("direction", "transport"),
            registry=registry,
        )
        self.handoffs = Counter(
            "stratos_kv_handoffs", "Ended legs of hand-offs.", ("side", "outcome"), registry=registry
        )
        self.integrity_failures = Counter(
            "stratos_kv_integrity_failures",
            "KV frames that failed a check at the receiver.",
            ("cause",),
            registry=registry,
        )
        for cause in ("order", "truncated", "checksum"):  # a rate needs the zero before the first one
            self.integrity_failures.labels(cause)
        for outcome in ("committed", "damaged", WorkerLost.code):
            self.handoffs.labels("receiver", outcome)
        self.handoff_stage = Histogram(
            "stratos_kv_handoff_stage_seconds",
            "Seconds of one stage of a committed hand-off.",
            ("stage",),
            buckets=_STAGE_BUCKETS_S,
            registry=registry,
        )
        self.local_prefills = Counter(
            "stratos_local_prefills", "Prompts computed at the decode worker.", ("reason",), registry=registry
        )
        for path in (PrefillPath.LOCAL_SHORT_TAIL, PrefillPath.LOCAL_NO_ENDPOINT, PrefillPath.LOCAL_FALLBACK):
            self.local_prefills.labels(path)
        self.embed_calls = Counter(
            "stratos_embed_calls", "Ended calls for embeddings.", ("outcome",), registry=registry
        )
        self.adapter_loads = Counter("stratos_adapter_loads", "Fetches of adapters.", ("outcome",), registry=registry)
        for outcome in ("fetched", AdapterUnavailable.code, AdapterMismatch.code):
            self.adapter_loads.labels(outcome)
        self.adapter_holds = Counter(
            "stratos_adapter_requests",
            "Requests for an adapter, by where it was found.",
            ("found",),
            registry=registry,
        )
        for found in ("engine", "disk", "store"):
            self.adapter_holds.labels(found)
        self.adapter_evictions = Counter(
            "stratos_adapter_evictions", "Adapters removed from disk to make room.", registry=registry
        )
        self.adapter_disk_bytes = Gauge(
            "stratos_adapter_disk_bytes", "Size of the adapters on disk, at the last fetch.", registry=registry
        )
        self.adapters_resident = Gauge("stratos_adapters_resident", "Adapters in the engine.", registry=registry)
        self.kv_utilization = Gauge(
            "stratos_kv_utilization_ratio",
            "Part of the KV pool of a device that requests hold; what is only cached counts as free.",
            ("device",),
            registry=registry,
        )
        self.usage_held = Gauge(
            "stratos_usage_counts_held", "Counts of ended attempts that no gateway has acknowledged.", registry=registry
        )
        self.usage_dropped = Counter(
            "stratos_usage_counts_dropped",
            "Counts of ended attempts that were given up before a gateway acknowledged them.",
            registry=registry,
        )
        self.device_seconds = Counter(
            "stratos_device_seconds",
            "Seconds of the device by whose they were: tenant, platform, idle.",
            ("state", "tenant"),
            registry=registry,
        )
        self.engine_steps = Counter("stratos_engine_steps", "Steps of the engine.", registry=registry)
        self.requests_running = Gauge("stratos_requests_running", "Sequences in the running batch.", registry=registry)
        self.requests_waiting = Gauge("stratos_requests_waiting", "Sequences waiting for a step.", registry=registry)

    def observe_status(self, status: EngineStatus, staging: StagingLedger) -> None:
        """Copy a snapshot into the gauges."""
        blocks, host = status.blocks, status.host
        for state in ("free", "cached", "allocated", "reserved", "fenced"):
            self.kv_blocks.labels(state).set(getattr(blocks, state))
        for state in ("free", "granted", "quarantined"):
            self.staging_slots.labels(state).set(getattr(staging, state))
        for state in ("free", "cached", "held", "moving"):
            self.host_blocks.labels(state).set(getattr(host.slots, state))
        in_use = blocks.total - blocks.free - blocks.cached
        self.kv_utilization.labels(self._device).set(in_use / blocks.total if blocks.total else 0.0)
        self.adapters_resident.set(len(status.resident_adapters))
        self.requests_running.set(status.num_running)
        self.requests_waiting.set(status.num_waiting)
        for priority_class in range(limits.NUM_PRIORITY_CLASSES):
            waiting = status.waiting_by_class.get(priority_class, 0)
            self.waiting_by_class.labels(str(priority_class)).set(waiting)
        median, p90 = status.cost_errors or (math.nan, math.nan)
        self.cost_error.labels("0.5").set(median)
        self.cost_error.labels("0.9").set(p90)
        self._count(status)

    def observe_usage(self, num_held: int, device_time: DeviceTime) -> None:
        """Copy what is kept for the ledger, and whose the device's time was."""
        self.usage_held.set(num_held)
        idle_ns = device_time.idle_ns  # before the rest, which may grow at the same time
        totals: Counts[tuple[str, str]] = Counts()
        for tenant, ns in device_time.by_tenant.items():
            totals["tenant", self._tenants.of(tenant)] += ns
        totals["platform", ""], totals["idle", ""] = device_time.platform_ns, idle_ns
        for (state, tenant), ns in totals.items():
            name = f"device {state} {tenant}"
            self.device_seconds.labels(state, tenant).inc(max(ns - self._seen[name], 0) / 1e9)
            self._seen[name] = max(ns, self._seen[name])

    def _count(self, status: EngineStatus) -> None:
        """Add to the counters what happened since the last snapshot."""
        host = status.host
        totals = {
            "steps": (self.engine_steps, status.step),
            "out": (self.swapped_blocks.labels("out"), host.num_blocks_out),
            "in": (self.swapped_blocks.labels("in"), host.num_blocks_in),
            "swapped": (self.preemptions.labels("swapped"), host.num_swapped_out),
            "recomputed": (self.preemptions.labels("recomputed"), status.num_preemptions - host.num_swapped_out),
            "refused": (self.admission_refusals, status.num_admission_refusals),
            "sound": (self.ledger_audits.labels("sound"), status.audits.num_sound),
            "broken": (self.ledger_audits.labels("broken"), status.audits.num_broken),
        }
        for name, (counter, total) in totals.items():
            counter.inc(max(total - self._seen[name], 0))
            self._seen[name] = total
