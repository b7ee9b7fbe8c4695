"""The load of a moment as named numbers: what an HPA, KEDA or a person asks the autoscaler for.

    stratos_queue_depth          model, role   requests that wait, at routers and at workers
    stratos_queued_tokens        model, role   their prompt tokens
    stratos_running_sequences    model, role   sequences in batches
    stratos_batch_load           model, role   batch slots in use, each worker's as a share of its own, added up
    stratos_kv_load              model, role   KV blocks in use, the same way
    stratos_kv_utilisation       model, role   KV blocks in use, of those of live workers; none without a live worker
    stratos_sla_violations       model         part of the last minute's answers that broke a time of their plan
    stratos_open_streams         model         requests open at gateways
    stratos_batch_lines          model         lines of open batches that are not answered
    stratos_batch_lines_due      model         lines of them to be answered within an hour, so that windows are kept

What is not known has no number: a missing one must never look like 0, which would shrink a pool.  The loads are in
units of workers: two whose batches are full and one that is half full are 2.5, and at a target of 0.75 ask for four.
Waiting requests alone tell nothing of a pool that carries its load: its queue is empty however full its batches are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from stratos.core.fleet import Fleet
from stratos.core.gateway_load import num_batch_lines, num_batch_lines_due
from stratos.planning.observation import PoolObservation, observe
from stratos.planning.settings import PoolKey

QUEUE_DEPTH = "stratos_queue_depth"
QUEUED_TOKENS = "stratos_queued_tokens"
RUNNING_SEQUENCES = "stratos_running_sequences"
BATCH_LOAD = "stratos_batch_load"
KV_LOAD = "stratos_kv_load"
KV_UTILISATION = "stratos_kv_utilisation"
SLA_VIOLATIONS = "stratos_sla_violations"
OPEN_STREAMS = "stratos_open_streams"
BATCH_LINES = "stratos_batch_lines"
BATCH_LINES_DUE = "stratos_batch_lines_due"
METRIC_NAMES = (
    QUEUE_DEPTH, QUEUED_TOKENS, RUNNING_SEQUENCES, BATCH_LOAD, KV_LOAD, KV_UTILISATION, SLA_VIOLATIONS, OPEN_STREAMS,
    BATCH_LINES, BATCH_LINES_DUE,
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadMetric:
    """One number."""

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    value: float


def load_metrics(fleet: Fleet, pools: Sequence[PoolKey]) -> tuple[LoadMetric, ...]:
    """The numbers of all pools.

    Args:
        fleet: sum over the routers.
        pools: which are asked for; the name of a pool's model becomes the label.
    """
    found: list[LoadMetric] = []
    for pool in pools:
        found += _of_pool(pool, observe(fleet, pool))
    for pool in {pool.model_name: pool for pool in pools}.values():
        found += _of_model(fleet, pool)
    return tuple(found)


def _of_pool(pool: PoolKey, seen: PoolObservation) -> list[LoadMetric]:
    labels = {"model": pool.model_name, "role": pool.role.value}
    numbers = {
        QUEUE_DEPTH: float(seen.backlog),
        QUEUED_TOKENS: float(seen.queued_tokens + sum(worker.num_queued_tokens for worker in seen.workers)),
        RUNNING_SEQUENCES: float(sum(worker.num_running for worker in seen.workers)),
    }
    slots = [worker for worker in seen.workers if worker.is_live and worker.max_num_seqs]
    if slots:
        numbers[BATCH_LOAD] = sum(min(1.0, worker.num_running / worker.max_num_seqs) for worker in slots)
    live = [worker for worker in seen.workers if worker.is_live and worker.num_total_blocks]
    if live:
        numbers[KV_LOAD] = sum(worker.num_used_blocks / worker.num_total_blocks for worker in live)
        numbers[KV_UTILISATION] = sum(w.num_used_blocks for w in live) / sum(w.num_total_blocks for w in live)
    return [LoadMetric(name=name, labels=labels, value=value) for name, value in numbers.items()]


def _of_model(fleet: Fleet, pool: PoolKey) -> list[LoadMetric]:
    loads = [load for load in fleet.gateways if pool.holds_model(load.model_digest)]
    if not loads:
        return []
    labels = {"model": pool.model_name}
    numbers = {
        OPEN_STREAMS: sum(load.num_open for load in loads),
        BATCH_LINES: num_batch_lines(loads),
        BATCH_LINES_DUE: num_batch_lines_due(loads),
    }
    known = {name: float(number) for name, number in numbers.items() if number is not None}
    found = [LoadMetric(name=name, labels=labels, value=number) for name, number in known.items()]
    num_judged = sum(load.num_judged for load in loads)
    num_violations = sum(load.num_violations for load in loads)
    ratio = num_violations / num_judged if num_judged else 0.0
    return [*found, LoadMetric(name=SLA_VIOLATIONS, labels=labels, value=ratio)]
