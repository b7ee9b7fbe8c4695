"""The router's metrics; labels come from closed sets, digests of models from the bounded queue table."""

from __future__ import annotations

import itertools
from collections import Counter as Counts
from collections.abc import Iterable, Mapping, Sequence

from prometheus_client import CollectorRegistry

from stratos.common.errors import Overloaded, QueueTimeout
from stratos.common.shed_reason import ShedReason
from stratos.core.features import PROTOCOL_VERSION, can_speak_with
from stratos.core.fleet import HELD, Fleet, FleetWorker, QueueDepth
from stratos.core.placement import PlacementRequest, Work, WorkerRole
from stratos.core.requests.limits import DEFAULT_PRIORITY_CLASS, NUM_PRIORITY_CLASSES
from stratos.routing.filters import Rejection
from stratos.routing.liveness import OutReason
from stratos.rpc.instruments import Instruments, counter, gauge, histogram

BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
MAX_QUEUE_SERIES = 512
OUTCOMES = ("placed", Overloaded.code, ShedReason.MEMORY_PRESSURE.value, QueueTimeout.code)
"""Of placements, shown from the start."""
VERSION_LABELS = ("older", "same", "newer", "unusable")


class RouterMetrics(Instruments):
    """Every series of the router."""

    # fmt: off
    _depth = gauge("stratos_router_queue_depth", "Requests that wait for a placement", "model_digest", "class", "work")
    _tokens = gauge(
        "stratos_router_queued_tokens", "Prompt tokens of the requests that wait for a placement",
        "model_digest", "class", "work",
    )
    _oldest = gauge(
        "stratos_router_queue_oldest_seconds", "Age of the oldest waiting request", "model_digest", "class", "work"
    )
    schedule_seconds = histogram(
        "stratos_router_schedule_seconds", "From the call of Schedule to its answer, by outcome",
        "outcome", buckets=BUCKETS_S,
    )
    _waits = histogram(
        "stratos_router_wait_seconds", "Time that placed requests waited for their placement",
        "model_digest", "class", buckets=BUCKETS_S,
    )
    placements = counter(
        "stratos_router_placements", "Schedule calls by outcome",
        "outcome", "class", zeros=itertools.product(OUTCOMES, map(str, range(NUM_PRIORITY_CLASSES))),
    )
    ends = counter("stratos_router_attempts_ended", "Attempts by reported outcome", "outcome")
    evictions = counter(
        "stratos_router_worker_evictions", "Times a live worker went out",
        "role", "reason", zeros=itertools.product(WorkerRole, OutReason),
    )
    _workers = gauge("stratos_router_workers", "Known workers", "role", "state")
    _pressure = gauge(
        "stratos_router_memory_pressure",
        "Part of the KV blocks of a model's live decode workers that is taken or promised",
        "model_digest",
    )
    _clear = gauge(
        "stratos_router_clear_workers",
        "Workers that take no request of the lowest class now, since others come", "role",
    )
    _bookings = gauge("stratos_router_bookings", "Placements that have not ended")
    indexed_blocks = gauge("stratos_router_indexed_blocks", "Blocks in the copies of the workers' prefix caches")
    cache_resyncs = counter(
        "stratos_router_cache_resyncs",
        "Copies of a prefix cache taken whole (dump), and ranges of changes asked for again (gap)", "kind",
    )
    _rejections = counter(
        "stratos_router_rejections",
        "Workers that a try to place a request passed over, by reason; tries that found none", "reason",
    )
    _status_age = gauge(
        "stratos_router_status_age_seconds", "Age of the oldest last status of a live worker", "role"
    )
    _by_protocol = gauge(
        "stratos_router_workers_by_protocol", "Workers by their protocol version next to this router's",
        "role", "version",
    )
    _lacking = gauge(
        "stratos_router_workers_lacking_features",
        "Workers that lack a feature which another worker of their role and model offers", "role",
    )
    # fmt: on

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__(registry)
        self._queue_series: set[tuple[str, str, str]] = set()
        self._models: set[str] = set()

    def show(self, fleet: Fleet, num_bookings: int) -> None:
        """Set the gauges to what is now."""
        self._bookings.set(num_bookings)
        statuses = [worker.status for worker in fleet.workers if worker.status is not None]
        self._show_queues(fleet.queues, {status.identity.model_digest for status in statuses})
        for role in WorkerRole:
            of_role = [worker for worker in fleet.workers if worker.ref.role is role]
            num_live, num_resting = sum(w.is_live for w in of_role), sum(w.is_resting for w in of_role)
            self._workers.labels(role, "live").set(num_live)
            self._workers.labels(role, "asleep").set(num_resting)
            self._workers.labels(role, HELD).set(sum(w.out_reason == HELD for w in of_role))
            self._workers.labels(role, "out").set(sum(not w.is_well for w in of_role))
            self._clear.labels(role).set(sum(w.is_clear for w in of_role))
            self._show_skew(role, [worker for worker in fleet.workers if worker.ref.role is role])

    def show_pressures(self, pressures: Mapping[str, float]) -> None:
        """How full the KV pools of the models are; those that no worker serves any more are not shown."""
        for model in self._models - pressures.keys():
            self._pressure.remove(model)
        self._models = set(pressures)
        for model, pressure in pressures.items():
            self._pressure.labels(model).set(pressure)

    def placed(self, request: PlacementRequest, wait_s: float) -> None:
        """A request has its placement: its model is one that a worker has, so the series are bounded."""
        self._waits.labels(request.model_digest, str(request.terms.priority_class)).observe(wait_s)

    def count_rejections(self, rejections: Mapping[Rejection, int]) -> None:
        """Refused tries since the last call."""
        for reason, count in rejections.items():
            self._rejections.labels(reason.value).inc(count)

    def _show_skew(self, role: WorkerRole, workers: Sequence[FleetWorker]) -> None:
        """How far views and builds are apart."""
        statuses = [worker.status for worker in workers if worker.status is not None]
        self._status_age.labels(role).set(max((worker.age_s for worker in workers if worker.is_live), default=0.0))
        versions = Counts(_version_label(status.protocol_version) for status in statuses)
        for label in VERSION_LABELS:
            self._by_protocol.labels(role, label).set(versions[label])
        offered: dict[str, frozenset[str]] = {}
        for status in statuses:
            model = status.identity.model_digest
            offered[model] = offered.get(model, frozenset()) | status.features
        lacking = sum(status.features < offered[status.identity.model_digest] for status in statuses)
        self._lacking.labels(role).set(lacking)

    def _show_queues(self, queues: Iterable[QueueDepth], models: Iterable[str]) -> None:
        """Queues that emptied, or of a model of some worker, stay as zeros: a scaler sees 0 and not a gap."""
        empty = {(model, str(DEFAULT_PRIORITY_CLASS), work.value) for model in models for work in Work}
        shown = {(queue.model_digest, str(queue.priority_class), queue.work.value): queue for queue in queues}
        self._queue_series |= empty
        for labels, queue in shown.items():
            self._depth.labels(*labels).set(queue.num_requests)
            self._tokens.labels(*labels).set(queue.num_tokens)
            self._oldest.labels(*labels).set(queue.oldest_s)
        for labels in self._queue_series - shown.keys():
            for series in (self._depth, self._tokens, self._oldest):
                if len(self._queue_series) > MAX_QUEUE_SERIES:
                    series.remove(*labels)
                else:
                    series.labels(*labels).set(0)
        kept = self._queue_series if len(self._queue_series) <= MAX_QUEUE_SERIES else set()
        self._queue_series = kept | shown.keys()


def _version_label(version: int) -> str:
    if not can_speak_with(version):
        return "unusable"
    return "same" if version == PROTOCOL_VERSION else "older" if version < PROTOCOL_VERSION else "newer"
