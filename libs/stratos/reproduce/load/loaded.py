"""Models on this machine's engine, which runs loads in real time. The one module of this folder that imports torch."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from stratos.calculators.memory.kv import KvAsk, estimate_kv
from stratos.calculators.models.known import find_shape
from stratos.common.clock import SystemClock
from stratos.engine.core import EngineCore
from stratos.engine.runner.torch_runner import TorchRunner
from stratos.engine.sampling.sampler import Sampler
from stratos.engine.settings import RunnerConfig, SchedulerConfig
from stratos.reproduce.load.asks import LoadAsk
from stratos.reproduce.load.driving import DrivenRun, OnStep, drive
from stratos.reproduce.material.random_model import write_model
from stratos.reproduce.record.conditions import RowConditions, RowForm

POOL_BYTES = 512 << 20
LARGE_SHAPE = "llama-213m"
CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A runner that engines take one after the other."""

    name: str
    runner: TorchRunner

    def run(
        self, scheduler: SchedulerConfig, asks: Sequence[LoadAsk], *, seed: int = 0, on_step: OnStep | None = None
    ) -> DrivenRun:
        """A load on an engine of its own."""
        return drive(self.engine(scheduler), asks, SystemClock(), time.sleep, seed=seed, on_step=on_step)

    def run_on(self, engine: EngineCore, asks: Sequence[LoadAsk], *, seed: int = 0) -> DrivenRun:
        """A load on an engine that keeps what it has cached."""
        return drive(engine, asks, SystemClock(), time.sleep, seed=seed)

    @contextmanager
    def sampling_by(self, sampler: type[Sampler]) -> Iterator[None]:
        """Sample by another class for a while."""
        own, info = self.runner.sampler, self.runner.info
        self.runner.sampler = sampler(info.eos_token_ids, info.vocab_size, CPU)
        yield
        self.runner.sampler = own

    def engine(self, scheduler: SchedulerConfig) -> EngineCore:
        """An engine whose steps are cut by tokens alone, not by what they took before."""
        return EngineCore(self.runner, replace(scheduler, step_time_budget_ms=0.0))


def load_model(conditions: RowConditions, *, is_shipped: bool = False, **changes: Any) -> LoadedModel:
    """Load the model of the form: the shipped one, or in the full form a random one of 213 M parameters in bfloat16.

    Args:
        conditions: form, model, threads, and where a random model is kept.
        is_shipped: the shipped one in any form, where output has to make sense.
        changes: fields of ``RunnerConfig`` that differ.
    """
    is_large = conditions.form is RowForm.FULL and not is_shipped
    config = RunnerConfig(
        model_path=large_model(conditions) if is_large else conditions.model,
        dtype="bfloat16" if is_large else "auto",
        num_threads=conditions.threads,
        kv_pool_bytes=POOL_BYTES // (8 if conditions.form is RowForm.SMOKE else 1),
    )
    name = "a random model of 213 M parameters, bfloat16" if is_large else "the shipped model"
    return LoadedModel(name, TorchRunner.load(replace(config, **changes)))


def large_model(conditions: RowConditions) -> Path:
    """Folder of the random model, which is written once."""
    folder = conditions.folder / LARGE_SHAPE
    if not (folder / "chat_template.jinja").is_file():  # written last: a row may be stopped before
        write_model(LARGE_SHAPE, folder, conditions.model)
    return folder


def token_bytes_of(conditions: RowConditions) -> int:
    """KV of one token of the form's model."""
    is_large = conditions.form is RowForm.FULL
    folder = large_model(conditions) if is_large else conditions.model
    ask = KvAsk(kv_dtype="bfloat16" if is_large else "float32")  # the engine computes small models so on a CPU
    return int(estimate_kv(find_shape(str(folder)), ask)["token_bytes"])
