"""The numbers that scalers ask for: over all routers, by model and role, and none where nothing is known."""

from __future__ import annotations

import dataclasses

from stratos.core.fleet import Fleet, FleetWorker, QueueDepth
from stratos.core.gateway_load import GatewayLoad
from stratos.core.placement import WorkerRole
from stratos.planning.external_metrics import (
    BATCH_LINES,
    BATCH_LINES_DUE,
    BATCH_LOAD,
    KV_LOAD,
    KV_UTILISATION,
    METRIC_NAMES,
    OPEN_STREAMS,
    QUEUE_DEPTH,
    QUEUED_TOKENS,
    RUNNING_SEQUENCES,
    SLA_VIOLATIONS,
    load_metrics,
)
from stratos.planning.fleet_sum import sum_fleets
from stratos.planning.observation import observe
from stratos.planning.settings import PoolKey
from tests.support.worlds.fleet_samples import MODEL, ledger, make_status

DECODE = PoolKey(role=WorkerRole.DECODE, model_digest=MODEL, model_name="base")
PREFILL = PoolKey(role=WorkerRole.PREFILL, model_digest=MODEL, model_name="base")


def worker(name: str, role: WorkerRole, **changes: object) -> FleetWorker:
    status = make_status(name, role, **changes)
    return FleetWorker(ref=status.ref, status=status, is_live=True)


def numbers(fleet: Fleet) -> dict[tuple[str, str], float]:
    found = load_metrics(fleet, [DECODE, PREFILL])
    assert {metric.name for metric in found} <= set(METRIC_NAMES)
    assert {metric.labels["model"] for metric in found} == {"base"}
    return {(metric.name, metric.labels.get("role", "")): metric.value for metric in found}


def queue(num_requests: int) -> QueueDepth:
    return QueueDepth(
        model_digest=MODEL, priority_class=0, num_requests=num_requests, num_tokens=10 * num_requests, oldest_s=1.0
    )


def test_queues_of_all_routers_and_statuses_of_workers() -> None:
    workers = (
        worker("decode-0", WorkerRole.DECODE, num_running=5, blocks=ledger(100, allocated=30)),
        worker("decode-1", WorkerRole.DECODE, num_running=2, num_waiting=1, blocks=ledger(100, allocated=50)),
        worker("prefill-0", WorkerRole.PREFILL, num_waiting=4, num_queued_tokens=900),
    )
    one, two = Fleet(queues=(queue(7),), workers=workers), Fleet(queues=(queue(2),), workers=workers)
    found = numbers(sum_fleets([one, two]))
    assert found[QUEUE_DEPTH, "decode"] == 10
    assert found[QUEUED_TOKENS, "decode"] == 90
    assert found[RUNNING_SEQUENCES, "decode"] == 7
    assert found[KV_UTILISATION, "decode"] == 0.4
    slots = make_status("decode-0", WorkerRole.DECODE).max_num_seqs
    assert found[BATCH_LOAD, "decode"] == min(1.0, 5 / slots) + 2 / slots, "each worker's share of its own slots"
    assert found[KV_LOAD, "decode"] == 0.3 + 0.5
    assert found[QUEUE_DEPTH, "prefill"] == 4
    assert found[QUEUED_TOKENS, "prefill"] == 900


def test_an_empty_pool_has_a_queue_and_no_utilisation() -> None:
    found = numbers(Fleet(queues=(queue(3),)))
    assert found[QUEUE_DEPTH, "decode"] == 3
    assert (KV_UTILISATION, "decode") not in found
    assert (OPEN_STREAMS, "") not in found, "no gateway has reported, which is not the same as none being open"


def test_gateways_are_counted_once_however_many_routers_they_tell() -> None:
    first = GatewayLoad(gateway="g1", model_digest=MODEL, num_open=4, num_judged=10, num_violations=1, age_s=0.2)
    older = dataclasses.replace(first, num_open=9, age_s=3.0)
    second = GatewayLoad(gateway="g2", model_digest=MODEL, num_open=2, num_judged=10, num_violations=4)
    other = GatewayLoad(gateway="g3", model_digest="cd" * 32, num_open=50)
    found = numbers(sum_fleets([Fleet(gateways=(older, other)), Fleet(gateways=(first, second))]))
    assert found[OPEN_STREAMS, ""] == 6
    assert found[SLA_VIOLATIONS, ""] == 0.25


def test_batches_are_counted_once_however_many_gateways_tell_of_them() -> None:
    loads = [
        GatewayLoad(gateway=f"g{number}", model_digest=MODEL, num_batch_lines=900, num_batch_lines_due=due)
        for number, due in enumerate((40, 41, 0))
    ]
    unknown = GatewayLoad(gateway="g9", model_digest=MODEL)
    assert (BATCH_LINES_DUE, "") not in numbers(Fleet(gateways=(unknown,))), "an HPA keeps what it has"
    loads.append(unknown)
    fleet = Fleet(gateways=tuple(loads))
    found = numbers(fleet)
    assert (found[BATCH_LINES, ""], found[BATCH_LINES_DUE, ""]) == (900, 41)
    assert observe(fleet, PoolKey(role=WorkerRole.DECODE, model_digest=MODEL)).num_batch_lines_due == 41
