"""The fleet as several routers see it, in one: each router has queues of its own, workers are the same for all."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from stratos.core.fleet import Fleet, FleetWorker, QueueDepth
from stratos.core.gateway_load import GatewayLoad


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSum:
    """The fleet as the routers that answered know it together."""

    fleet: Fleet
    num_missing: int = 0
    """Routers that did not answer; their queues are not in it."""


def sum_fleets(fleets: Sequence[Fleet]) -> Fleet:
    """Queues are added; of a worker the freshest report counts, with the bookings of all routers.

    A gateway sends every router the same, so its freshest report counts, too.
    """
    queues: dict[tuple[object, ...], list[QueueDepth]] = {}
    workers: dict[str, list[FleetWorker]] = {}
    gateways: dict[tuple[str, str], GatewayLoad] = {}
    for fleet in fleets:
        for queue in fleet.queues:
            queues.setdefault((queue.model_digest, queue.priority_class, queue.work), []).append(queue)
        for worker in fleet.workers:
            workers.setdefault(worker.ref.worker_id, []).append(worker)
        for load in fleet.gateways:
            key = load.gateway, load.model_digest
            if key not in gateways or load.age_s < gateways[key].age_s:
                gateways[key] = load
    return Fleet(
        queues=tuple(_add_queues(same) for same in queues.values()),
        workers=tuple(_merge(same) for same in workers.values()),
        gateways=tuple(gateways.values()),
    )


def _add_queues(same: Sequence[QueueDepth]) -> QueueDepth:
    return replace(
        same[0],
        num_requests=sum(queue.num_requests for queue in same),
        num_tokens=sum(queue.num_tokens for queue in same),
        oldest_s=max(queue.oldest_s for queue in same),
    )


def _merge(reports: Iterable[FleetWorker]) -> FleetWorker:
    """One worker; it may be chosen where any router may choose it."""
    known = sorted(reports, key=lambda report: (report.status is None, report.age_s))
    # bookings for a process that has been replaced are not load of this one
    of_process = [report for report in known if report.ref.incarnation == known[0].ref.incarnation]
    live = [report for report in of_process if report.is_live]
    return replace(
        (live or of_process)[0],
        num_booked=sum(report.num_booked for report in of_process),
        is_clear=any(report.is_clear for report in of_process),
    )
