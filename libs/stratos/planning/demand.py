"""How many workers the load of a moment asks for, at a given utilisation."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass

from stratos.core.placement import WorkerRole
from stratos.planning.observation import PoolObservation
from stratos.planning.settings import PoolConfig


class Reason(enum.StrEnum):
    """Why a decision was taken; the values are metric labels."""

    BATCH_SLOTS = "batch_slots"
    KV_BLOCKS = "kv_blocks"
    QUEUE = "queue"
    PREFILL_TOKENS = "prefill_tokens"
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


@dataclass(frozen=True, slots=True)
class Demand:
    """Workers wanted, and what asks for most of them."""

    num_workers: int
    reason: Reason


def demand(pool: PoolObservation, config: PoolConfig, utilisation: float) -> Demand:
    """Workers that would carry running and waiting load with each of them at ``utilisation`` at most."""
    if config.bounds.role is WorkerRole.PREFILL:
        wanted = [_prefill_demand(pool, config, utilisation)]
    else:
        wanted = [_slot_demand(pool, config, utilisation), _block_demand(pool, utilisation)]
    return max(wanted, key=lambda found: found.num_workers)


def queue_demand(pool: PoolObservation, config: PoolConfig) -> Demand:
    """A backlog asks for one worker more than there are, without asking which resource they lack."""
    num_live = sum(worker.is_live for worker in pool.staying)
    is_backlogged = pool.queue_depth >= config.planner.queue_per_worker * max(1, num_live)
    return Demand(num_live + 1 if is_backlogged else 0, Reason.QUEUE)


def _slot_demand(pool: PoolObservation, config: PoolConfig, utilisation: float) -> Demand:
    live = [worker for worker in pool.staying if worker.is_live]
    slots = [worker.max_num_seqs or config.planner.default_batch_slots for worker in live]
    per_worker = sum(slots) / len(slots) if slots else config.planner.default_batch_slots
    load = sum(worker.num_seqs for worker in pool.workers) + pool.queue_depth
    return Demand(math.ceil(load / (per_worker * utilisation)), Reason.BATCH_SLOTS)


def _block_demand(pool: PoolObservation, utilisation: float) -> Demand:
    live = [worker for worker in pool.staying if worker.is_live and worker.num_total_blocks]
    if not live:
        return Demand(0, Reason.KV_BLOCKS)
    per_worker = sum(worker.num_total_blocks for worker in live) / len(live)
    load = sum(worker.num_used_blocks for worker in pool.workers) + pool.queued_tokens / live[0].block_size
    return Demand(math.ceil(load / (per_worker * utilisation)), Reason.KV_BLOCKS)


def _prefill_demand(pool: PoolObservation, config: PoolConfig, utilisation: float) -> Demand:
    load = sum(worker.num_queued_tokens for worker in pool.workers) + pool.queued_tokens
    return Demand(math.ceil(load / (config.planner.prefill_tokens_per_worker * utilisation)), Reason.PREFILL_TOKENS)
