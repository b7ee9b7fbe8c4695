"""How full a KV pool runs under a load, as means over the time in which requests wait.

Without a backlog a pool is as full as its load, which says nothing; so only steps count after which a request waits,
from the first refusal or preemption on.  Steps are weighted with their duration.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from stratos.engine.contract.results import EngineStatus
from stratos.reproduce.load.asks import LoadAsk
from stratos.reproduce.load.virtual import BLOCK_SIZE, VirtualEngine, run_virtual


@dataclass(frozen=True, slots=True)
class PoolSample:
    """One step: how long it took, and what there was after it."""

    seconds: float
    status: EngineStatus

    @property
    def is_backlogged(self) -> bool:
        """A request waits, and not only for the tokens of the first steps."""
        was_short = self.status.num_admission_refusals + self.status.num_preemptions > 0
        return was_short and self.status.num_waiting > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolUse:
    """Shares are of the pool's tokens; all 0 where no request ever waited."""

    live: float
    """Tokens whose KV is computed and held by a running sequence."""
    waste: float
    """Places of allocated blocks without one."""
    running: float
    """Sequences in the batch."""
    most_running: int
    """The same at its highest, backlog or not."""
    backlog_s: float
    recomputed: float
    """Share of all computed tokens that were computed again after preemptions."""
    preemptions: int
    total_s: float


def measure_pool(config: VirtualEngine, asks: Sequence[LoadAsk], *, seed: int = 0) -> PoolUse:
    """Run a load to its end on an engine without a model."""
    samples: list[PoolSample] = []
    run = run_virtual(
        config, asks, seed=seed, on_step=lambda seconds, status: samples.append(PoolSample(seconds, status))
    )
    backlog, pool_tokens = [sample for sample in samples if sample.is_backlogged], config.num_blocks * BLOCK_SIZE
    return PoolUse(
        live=_mean(backlog, lambda s: s.num_kv_tokens) / pool_tokens,
        waste=_mean(backlog, lambda s: s.blocks.allocated * BLOCK_SIZE - s.num_kv_tokens) / pool_tokens,
        running=_mean(backlog, lambda s: s.num_running),
        most_running=max(sample.status.num_running for sample in samples),
        backlog_s=sum(sample.seconds for sample in backlog),
        recomputed=1 - useful_tokens(asks) / run.num_computed,
        preemptions=samples[-1].status.num_preemptions,
        total_s=run.duration_s,
    )


def useful_tokens(asks: Sequence[LoadAsk]) -> int:
    """Tokens that have to be computed: every one but the last of each request."""
    return sum(ask.num_prompt_tokens + ask.num_output_tokens - 1 for ask in asks)


def _mean(samples: Sequence[PoolSample], value: Callable[[EngineStatus], float]) -> float:
    total_s = sum(sample.seconds for sample in samples)
    return sum(sample.seconds * value(sample.status) for sample in samples) / total_s if total_s else 0.0
