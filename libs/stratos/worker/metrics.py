"""Metrics of a worker. Names and meanings are listed in docs/metrics.md."""

from __future__ import annotations

import math
from collections import Counter as Counts

from prometheus_client import CollectorRegistry, Counter

from stratos.common.errors import AdapterMismatch, AdapterUnavailable, BadRequest, WorkerLost
from stratos.core.generation import PrefillPath
from stratos.core.kv import StagingLedger
from stratos.core.requests import limits
from stratos.engine.contract.results import DiskTierStatus, EngineStatus
from stratos.engine.kv_cache.pins import REASONS
from stratos.engine.kv_disk.counts import KEEP_REFUSALS, LOAD_REFUSALS
from stratos.engine.kv_disk.disk_index import DROP_REASONS
from stratos.rpc.instruments import Instruments, counter, gauge, histogram
from stratos.worker.engine_client.device_time import DeviceTime
from stratos.worker.meters.device_series import DeviceSeries

_STAGE_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class WorkerMetrics(Instruments):
    """Counters and gauges of one worker process.

    Args:
        registry: of the process.
        device: a label.
        max_tenants: with series of their own.
    """

    # fmt: off
    kv_blocks = gauge("stratos_kv_blocks", "KV blocks by state.", "state")
    host_blocks = gauge("stratos_kv_host_blocks", "KV blocks in host memory by state.", "state")
    swapped_blocks = counter("stratos_kv_swapped_blocks", "KV blocks copied to and from host memory.", "direction")
    evicted_blocks = counter(
        "stratos_kv_evicted_blocks", "Cached KV blocks that made room for others, by tier.", "tier",
        zeros=("device", "host"),
    )
    pinned_blocks = gauge("stratos_kv_pinned_blocks", "Cached KV blocks that clients asked to keep, by tier.", "tier")
    pinned_bytes = gauge(
        "stratos_kv_pinned_bytes", "Size of the KV blocks that clients asked to keep, by tier.", "tier"
    )
    dropped_pins = counter(
        "stratos_kv_pins_dropped", "KV blocks that are kept no more, or were not, by tier and reason.",
        "tier", "reason", zeros=tuple((tier, reason) for tier in ("device", "host") for reason in REASONS),
    )
    preemptions = counter(
        "stratos_preemptions", "Sequences that gave their KV blocks back, by what became of it.", "kv"
    )
    admission_refusals = counter(
        "stratos_admission_refusals",
        "Waits that met a full KV pool at the head of the queue, each once, and hand-offs that found no room.",
    )
    ledger_audits = counter(
        "stratos_kv_ledger_audits", "Recounts of the KV block ledger of an idle engine.", "outcome"
    )
    waiting_by_class = gauge(
        "stratos_requests_waiting_by_class", "Sequences waiting for a step, by the class they came with.",
        "priority_class",
    )
    cost_error = gauge(
        "stratos_step_cost_error_ratio",
        "Relative error of the predicted duration of a step, over the last 256; NaN while nothing is predicted.",
        "quantile",
    )
    state_slots = gauge(
        "stratos_kv_state_slots",
        "Slots for recurrent states; available: free, or a snapshot that nothing reads; snapshots: kept for prefixes.",
        "state",
    )
    staging_slots = gauge("stratos_kv_staging_slots", "KV staging slots by state.", "state")
    transfer_bytes = counter(
        "stratos_kv_transfer_bytes", "KV payload bytes, repeats included.", "direction", "transport"
    )
    handoffs = counter(
        "stratos_kv_handoffs", "Ended legs of hand-offs.", "side", "outcome",
        zeros=(("receiver", "committed"), ("receiver", "damaged"), ("receiver", WorkerLost.code)),
    )
    integrity_failures = counter(
        "stratos_kv_integrity_failures", "KV frames that failed a check at the receiver.", "cause",
        zeros=("order", "truncated", "checksum"),
    )
    damaged_requests = counter(
        "stratos_kv_damaged_requests",
        "Requests that computed their KV again: a row was not finite, or KV came damaged from host memory.",
    )
    damaged_host_blocks = counter(
        "stratos_kv_host_damaged_blocks", "KV blocks that had changed in host memory when they were loaded."
    )
    disk_blocks = gauge("stratos_kv_disk_blocks", "KV blocks on disk; free: as many more fit.", "state")
    disk_bytes = gauge("stratos_kv_disk_bytes", "Size of the KV blocks on disk.")
    disk_moved_blocks = counter(
        "stratos_kv_disk_moved_blocks", "KV blocks written to disk, read from there and verified, and then loaded.",
        "direction", zeros=("out", "verified", "in"),
    )
    disk_moved_bytes = counter(
        "stratos_kv_disk_moved_bytes", "Bytes of KV blocks written to disk, and loaded from there.", "direction",
        zeros=("out", "in"),
    )
    disk_hits = counter("stratos_kv_disk_hit_blocks", "KV blocks that requests found on disk.")
    disk_not_loaded = counter(
        "stratos_kv_disk_not_loaded_blocks", "KV blocks that requests found on disk and that were computed, by reason.",
        "reason", zeros=LOAD_REFUSALS,
    )
    disk_not_kept = counter(
        "stratos_kv_disk_not_kept_blocks", "KV blocks in host memory that did not go to disk, by reason.", "reason",
        zeros=KEEP_REFUSALS,
    )
    disk_dropped = counter(
        "stratos_kv_disk_dropped_blocks", "KV blocks that left the disk, by reason.", "reason", zeros=DROP_REASONS
    )
    disk_timeouts = counter(
        "stratos_kv_disk_timeouts", "Requests that gave up waiting for a disk and were computed."
    )
    recalled_blocks = counter(
        "stratos_kv_recalled_blocks",
        "KV blocks that were forgotten here because another worker said that they may be damaged.",
    )
    probes = counter(
        "stratos_engine_probes", "Digests of known tokens, compared with the first one; failed: none came.", "outcome",
        zeros=("sound", "wrong", "failed"),
    )
    weight_bytes_checked = counter("stratos_weight_bytes_checked", "Bytes of weights that were read again.")
    sleep_state = gauge("stratos_worker_sleep_state", "1 for the state that the worker is in.", "state")
    sleeps = counter(
        "stratos_worker_sleeps", "Changes between waking and sleep by outcome.", "outcome",
        zeros=("asleep", "refused", "awake", "failed"),
    )
    slept_bytes = gauge("stratos_worker_slept_bytes", "Memory that the worker gave back as it fell asleep.")
    wake_seconds = histogram("stratos_worker_wake_seconds", "Time to load the model again.", buckets=_STAGE_BUCKETS_S)
    convicted = gauge(
        "stratos_worker_convicted", "1 when a worker is out: known tokens give, or its weights are, not what they were."
    )
    handoff_stage = histogram(
        "stratos_kv_handoff_stage_seconds", "Seconds of one stage of a committed hand-off.", "stage",
        buckets=_STAGE_BUCKETS_S,
    )
    local_prefills = counter(
        "stratos_local_prefills", "Prompts computed at the decode worker.", "reason",
        zeros=(
            PrefillPath.LOCAL_SHORT_TAIL, PrefillPath.LOCAL_NO_ENDPOINT, PrefillPath.LOCAL_FALLBACK,
            PrefillPath.LOCAL_TAIL, PrefillPath.LOCAL_SPILL,
        ),
    )
    embed_calls = counter("stratos_embed_calls", "Ended calls for embeddings.", "outcome")
    adapter_loads = counter(
        "stratos_adapter_loads", "Fetches of adapters.", "outcome",
        zeros=("fetched", AdapterUnavailable.code, AdapterMismatch.code, BadRequest.code, "bug"),
    )
    adapter_holds = counter(
        "stratos_adapter_requests", "Requests for an adapter, by where it was found.", "found",
        zeros=("engine", "disk", "store"),
    )
    adapter_evictions = counter("stratos_adapter_evictions", "Adapters removed from disk to make room.")
    adapter_disk_bytes = gauge(
        "stratos_adapter_disk_bytes", "Size of the adapters on disk, at the last fetch."
    )
    adapters_resident = gauge("stratos_adapters_resident", "Adapters in the engine.")
    kv_utilization = gauge(
        "stratos_kv_utilization_ratio",
        "Part of the KV pool of a device that requests hold; what is only cached counts as free.", "device",
    )
    usage_held = gauge(
        "stratos_usage_counts_held", "Counts of ended attempts that no gateway has acknowledged."
    )
    usage_dropped = counter(
        "stratos_usage_counts_dropped",
        "Counts of ended attempts that were given up before a gateway acknowledged them.",
    )
    device_seconds = counter(
        "stratos_device_seconds", "Seconds of the device by whose they were: tenant, platform, idle.",
        "state", "tenant",
    )
    engine_steps = counter("stratos_engine_steps", "Steps of the engine.")
    requests_running = gauge("stratos_requests_running", "Sequences in the running batch.")
    requests_waiting = gauge("stratos_requests_waiting", "Sequences waiting for a step.")
    # fmt: on

    def __init__(self, registry: CollectorRegistry, device: str = "cpu", max_tenants: int = 200) -> None:
        super().__init__(registry)
        self._device_series = DeviceSeries(self.device_seconds, max_tenants)
        self._device = device
        self._seen: Counts[str] = Counts()

    def observe_status(self, status: EngineStatus, staging: StagingLedger, block_bytes: int = 0) -> None:
        """Copy a snapshot into the gauges; ``block_bytes`` is the size of a KV block."""
        blocks, host = status.blocks, status.host
        for state in ("free", "cached", "allocated", "reserved", "fenced"):
            self.kv_blocks.labels(state).set(getattr(blocks, state))
        for state in ("free", "granted", "quarantined"):
            self.staging_slots.labels(state).set(getattr(staging, state))
        for state in ("free", "cached", "held", "moving"):
            self.host_blocks.labels(state).set(getattr(host.slots, state))
        self.state_slots.labels("available").set(status.states.num_available)
        self.state_slots.labels("held").set(status.states.num_slots - status.states.num_available)
        self.state_slots.labels("snapshots").set(status.states.num_snapshots)
        disk = status.disk
        self.disk_blocks.labels("stored").set(disk.blocks.stored)
        self.disk_blocks.labels("free").set(disk.blocks.total - disk.blocks.stored)
        self.disk_bytes.set(disk.blocks.stored * disk.block_bytes)
        for tier, pins in status.pins.items():
            self.pinned_blocks.labels(tier).set(pins.num_blocks)
            self.pinned_bytes.labels(tier).set(pins.num_blocks * block_bytes)
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
        self._device_series.show(device_time.by_tenant, device_time.platform_ns, idle_ns)

    def _count(self, status: EngineStatus) -> None:
        """Add to the counters what happened since the last snapshot."""
        host = status.host
        totals = {
            "steps": (self.engine_steps, status.step),
            "out": (self.swapped_blocks.labels("out"), host.num_blocks_out),
            "in": (self.swapped_blocks.labels("in"), host.num_blocks_in),
            "evicted": (self.evicted_blocks.labels("device"), status.num_evicted),
            "evicted host": (self.evicted_blocks.labels("host"), host.num_evicted),
            "swapped": (self.preemptions.labels("swapped"), host.num_swapped_out),
            "damaged": (self.damaged_host_blocks, host.num_damaged),
            "recomputed": (self.preemptions.labels("recomputed"), status.num_preemptions - host.num_swapped_out),
            "refused": (self.admission_refusals, status.num_admission_refusals),
            "sound": (self.ledger_audits.labels("sound"), status.audits.num_sound),
            "broken": (self.ledger_audits.labels("broken"), status.audits.num_broken),
        }
        for tier, pins in status.pins.items():
            for reason, total in pins.dropped.items():
                totals[f"pins {tier} {reason}"] = (self.dropped_pins.labels(tier, reason), total)
        totals |= self._disk_totals(status.disk)
        for name, (instrument, total) in totals.items():
            instrument.inc(max(total - self._seen[name], 0))
            self._seen[name] = total

    def _disk_totals(self, disk: DiskTierStatus) -> dict[str, tuple[Counter, int]]:
        moved = {"out": disk.num_written, "verified": disk.num_verified, "in": disk.num_loaded}
        totals = {f"disk {way}": (self.disk_moved_blocks.labels(way), total) for way, total in moved.items()}
        for way in ("out", "in"):
            totals[f"disk bytes {way}"] = (self.disk_moved_bytes.labels(way), moved[way] * disk.block_bytes)
        totals["disk hits"] = (self.disk_hits, disk.num_hits)
        reasons = (
            ("not loaded", self.disk_not_loaded, disk.not_loaded),
            ("not kept", self.disk_not_kept, disk.not_kept),
            ("dropped", self.disk_dropped, disk.dropped),
        )
        for name, instrument, counts in reasons:
            for reason, total in counts.items():
                totals[f"disk {name} {reason}"] = (instrument.labels(reason), total)
        return totals
