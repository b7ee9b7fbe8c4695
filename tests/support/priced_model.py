"""A model that takes the time of the random one of 213 M parameters, and computes nothing: prices of the full form.

Costs are those of two cores with bf16 instructions: 25 ms for a step, 1 ms more for each row of one token, 0.8 ms for
each token of a prompt (benchmarks/results/decode-steps-*.json and peer-2core-cpu.json), 2.3 ms for a sort of 32,000
logits (row ``sampling`` of the committed report).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from stratos.common.clock import FakeClock
from stratos.engine.core import EngineCore
from stratos.engine.sampling.sampler import Sampler
from stratos.engine.settings import SchedulerConfig
from stratos.reproduce.load.asks import LoadAsk
from stratos.reproduce.load.driving import DrivenRun, OnStep, drive
from stratos.reproduce.load.loaded import POOL_BYTES
from stratos.reproduce.load.sorting_sampler import SortingSampler
from stratos.reproduce.load.virtual import BLOCK_SIZE, run_virtual
from stratos.sim.runner import SimRunner, StepCosts

COSTS = StepCosts(step_s=0.025, sequence_s=0.001, prompt_token_s=0.0008)
SORT_S = 0.0023
WEIGHT_BYTES = 2 * 213_000_000
TOKEN_BYTES = 16 * 2 * 4 * 64 * 2
"""KV of a token: layers, keys and values, heads, their size, bytes."""


class PricedModel:
    """In place of ``LoadedModel``; ``seconds`` says what all its loads took."""

    name = "a model that is priced"

    def __init__(self, max_model_len: int = 4096, kv_pool_bytes: int = POOL_BYTES) -> None:
        self._clock, self._num_blocks = FakeClock(start=0.0), kv_pool_bytes // (BLOCK_SIZE * TOKEN_BYTES)
        self._max_model_len = max_model_len
        self.runner = self._runner(COSTS)

    @property
    def seconds(self) -> float:
        return self._clock.now()

    def run(
        self, scheduler: SchedulerConfig, asks: Sequence[LoadAsk], *, seed: int = 0, on_step: OnStep | None = None
    ) -> DrivenRun:
        return drive(self.engine(scheduler), asks, self._clock, self._clock.advance, seed=seed, on_step=on_step)

    def run_on(self, engine: EngineCore, asks: Sequence[LoadAsk], *, seed: int = 0) -> DrivenRun:
        return drive(engine, asks, self._clock, self._clock.advance, seed=seed)

    def engine(self, scheduler: SchedulerConfig) -> EngineCore:
        return EngineCore(self.runner, replace(scheduler, step_time_budget_ms=0.0), self._clock)

    @contextmanager
    def sampling_by(self, sampler: type[Sampler]) -> Iterator[None]:
        own = self.runner
        if sampler is SortingSampler:
            self.runner = self._runner(replace(COSTS, sequence_s=COSTS.sequence_s + SORT_S))
        yield
        self.runner = own

    def _runner(self, costs: StepCosts) -> SimRunner:
        runner = SimRunner(self._num_blocks, BLOCK_SIZE, costs, self._clock, self._max_model_len)
        runner.info = replace(runner.info, step_weight_bytes=WEIGHT_BYTES)
        return runner


def priced_models(module: Any, monkeypatch: Any) -> list[PricedModel]:
    """Give a row's module such models, and a few requests of each simulated load; returns the models that it takes."""
    taken: list[PricedModel] = []
    if hasattr(module, "run_virtual"):
        monkeypatch.setattr(module, "run_virtual", lambda config, asks, **more: run_virtual(config, asks[:5], **more))

    def load_model(_: Any, **changes: Any) -> PricedModel:
        taken.append(PricedModel(**changes))
        return taken[-1]

    monkeypatch.setattr(module, "load_model", load_model)
    return taken
