"""Load of a pool: whether it needs more workers or fewer, and how many more."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass

from stratos.core.placement import WorkerRole
from stratos.planning.observation import PoolObservation, WorkerLoad
from stratos.planning.settings import PlannerConfig, PoolConfig


class Reason(enum.StrEnum):
    """Why a decision was taken; the values are metric labels."""

    BATCH_SLOTS = "batch_slots"
    KV_BLOCKS = "kv_blocks"
    QUEUE = "queue"
    TTFT = "ttft"
    PREFILL_TOKENS = "prefill_tokens"
    BATCHES = "batches"
    BELOW_MIN = "below_min"
    ABOVE_MAX = "above_max"
    QUIET = "quiet"
    STEADY = "steady"
    AT_MAX = "at_max"
    NO_DATA = "no_data"
    PARTIAL_DATA = "partial_data"
    STANDBY = "standby"
    NO_LIVE_WORKER = "no_live_worker"
    STARTING = "starting"
    START_FAILED = "start_failed"
    DRAIN_IN_PROGRESS = "drain_in_progress"
    STABILISING = "stabilising"
    COOLDOWN = "cooldown"
    WAKE = "wake"
    IDLE = "idle"
    ASLEEP = "asleep"
    HPA = "hpa"
    EXTERNAL = "external"
    NOT_MANAGED = "not_managed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Numbers that decisions about a pool look at."""

    backlog: int
    """Requests that wait, at routers and at workers."""
    ttft_p95_s: float | None
    """``None`` where nothing was answered in the last minute."""
    utilisation: float
    """Share of batch slots or of KV blocks in use, the larger; for prefill also of the prompt tokens it may queue."""
    scarcest: Reason
    """Which of them it is."""
    num_spare: int | None = None
    """Workers beyond those that batches take to keep their windows, none left where it is negative; ``None`` where
    batches take whatever there is."""


def measure(pool: PoolObservation, config: PoolConfig) -> Load:
    """The load of a moment; without live workers the utilisation is 0."""
    live = [worker for worker in pool.staying if worker.is_live]
    shares = {Reason.BATCH_SLOTS: _slot_share(pool, live, config), Reason.KV_BLOCKS: _block_share(pool, live)}
    if config.bounds.role is WorkerRole.PREFILL:
        tokens = sum(worker.num_queued_tokens for worker in pool.workers) + pool.queued_tokens
        shares[Reason.PREFILL_TOKENS] = _share(tokens, config.planner.prefill_tokens_per_worker * len(live))
    scarcest = max(shares, key=lambda reason: shares[reason])
    for_batches = num_for_batches(pool, config)
    return Load(
        backlog=pool.backlog,
        ttft_p95_s=pool.ttft_p95_s,
        utilisation=shares[scarcest],
        scarcest=scarcest,
        num_spare=pool.num_present - for_batches if for_batches else None,
    )


def num_for_batches(pool: PoolObservation, config: PoolConfig) -> int:
    """Workers that answer open batches within their windows, if they do nothing else, and those that leave batches."""
    per_worker = config.planner.batch_lines_per_worker
    if not per_worker or config.bounds.role is not WorkerRole.DECODE:
        return 0
    num_wanted = math.ceil(pool.num_batch_lines_due / per_worker)
    return num_wanted + sum(worker.is_clear for worker in pool.staying) if num_wanted else 0


def pressure(load: Load, config: PlannerConfig) -> Reason | None:
    """Why a worker more is wanted; ``None`` when none is."""
    if load.backlog > config.up_queue_depth:
        return Reason.QUEUE
    if load.utilisation > config.up_utilisation:
        return load.scarcest
    if load.backlog and load.ttft_p95_s is not None and load.ttft_p95_s > config.up_ttft_s:
        return Reason.TTFT
    return Reason.BATCHES if load.num_spare is not None and load.num_spare < 0 else None


def is_quiet(load: Load, config: PlannerConfig) -> bool:
    """Everything is below the lower marks, and nothing above an upper one, should the marks overlap."""
    is_quick = load.ttft_p95_s is None or load.ttft_p95_s < config.down_ttft_s
    is_low = load.backlog < config.down_queue_depth and is_quick and load.utilisation < config.down_utilisation
    return is_low and pressure(load, config) is None and load.num_spare != 0


def num_wanted(pool: PoolObservation, config: PoolConfig) -> int:
    """Workers that would carry running and waiting load with each of them at ``up_utilisation`` at most."""
    utilisation = config.planner.up_utilisation
    if config.bounds.role is WorkerRole.PREFILL:
        tokens = sum(worker.num_queued_tokens for worker in pool.workers) + pool.queued_tokens
        return math.ceil(tokens / (config.planner.prefill_tokens_per_worker * utilisation))
    live = [worker for worker in pool.staying if worker.is_live]
    slots = _num_slots(live, config) / len(live) if live else config.planner.default_batch_slots
    seqs = sum(worker.num_seqs for worker in pool.workers) + pool.queue_depth
    by_load = max(math.ceil(seqs / (slots * utilisation)), _blocks_wanted(pool, live, utilisation))
    return max(by_load, num_for_batches(pool, config))


def _blocks_wanted(pool: PoolObservation, live: list[WorkerLoad], utilisation: float) -> int:
    known = [worker for worker in live if worker.num_total_blocks]
    if not known:
        return 0
    per_worker = sum(worker.num_total_blocks for worker in known) / len(known)
    blocks = sum(worker.num_used_blocks for worker in pool.workers) + pool.queued_tokens / known[0].block_size
    return math.ceil(blocks / (per_worker * utilisation))


def _slot_share(pool: PoolObservation, live: list[WorkerLoad], config: PoolConfig) -> float:
    return _share(sum(worker.num_seqs for worker in pool.workers), _num_slots(live, config))


def _num_slots(live: list[WorkerLoad], config: PoolConfig) -> int:
    return sum(worker.max_num_seqs or config.planner.default_batch_slots for worker in live)


def _block_share(pool: PoolObservation, live: list[WorkerLoad]) -> float:
    used = sum(worker.num_used_blocks for worker in pool.workers)
    return _share(used, sum(worker.num_total_blocks for worker in live))


def _share(used: float, total: float) -> float:
    return used / total if total else 0.0
