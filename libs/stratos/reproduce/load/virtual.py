"""Engines without a model under a virtual clock: real scheduler and blocks, steps that take what a cost model says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from stratos.common.clock import FakeClock
from stratos.engine.core import EngineCore
from stratos.engine.settings import SchedulerConfig
from stratos.reproduce.load.asks import LoadAsk
from stratos.reproduce.load.driving import DrivenRun, OnStep, drive
from stratos.sim.runner import SimRunner, StepCosts

TEN_MS_STEPS = StepCosts(step_s=0.010, prompt_token_s=0.0, sequence_s=0.0)
"""A step takes 10 ms whatever is in it, as published examples of batching have it."""
BLOCK_SIZE = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtualEngine:
    """Size, speed and switches."""

    num_blocks: int = 1 << 16
    max_model_len: int = 4096
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    costs: StepCosts = TEN_MS_STEPS


def run_virtual(
    config: VirtualEngine, asks: Sequence[LoadAsk], *, seed: int = 0, on_step: OnStep | None = None
) -> DrivenRun:
    """A load on an engine of its own."""
    clock = FakeClock(start=0.0)
    runner = SimRunner(config.num_blocks, BLOCK_SIZE, config.costs, clock, config.max_model_len)
    engine = EngineCore(runner, config.scheduler, clock)
    return drive(engine, asks, clock, clock.advance, seed=seed, on_step=on_step)
