"""Shares of this machine that the workers of one platform take, decided once before the first of them starts.

Workers that start at the same time would each see all of the memory as free; so the platform plans for all that may
run, and hands every worker the same type, pool and context.  A worker's variable that the user set stays as it is.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from pydantic import ValidationError

from stratos.common.errors import BadRequest
from stratos.engine.settings import RunnerConfig, SchedulerConfig
from stratos.engine.sizing.device import device_choices, kernels_choice
from stratos.engine.sizing.fit import cpu_room, plan_of
from stratos.engine.sizing.machine import Machine
from stratos.engine.sizing.plan import EnginePlan
from stratos.engine.sizing.report import choices_block, machine_line
from stratos.rpc.settings import ServiceSettings, env_name_of, read_environment


class WorkerEngineSettings(ServiceSettings):
    """The groups of a worker's settings that sizes depend on, as a decode worker's environment sets them."""

    env_prefix: ClassVar[str] = "STRATOS_DECODE_WORKER_"

    scheduler: SchedulerConfig = SchedulerConfig()
    runner: RunnerConfig = RunnerConfig()


class PrefillEngineSettings(WorkerEngineSettings):
    """The same of a prefill worker."""

    env_prefix: ClassVar[str] = "STRATOS_PREFILL_WORKER_"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WorkerAsk:
    """Wishes for the workers, given as flags."""

    model_path: Path
    num_workers: int
    """At most, of all roles."""
    dtype: str = "auto"
    quantization: str = "auto"
    kv_dtype: str = "auto"
    max_model_len: int = 0
    kv_pool_bytes: int = 0
    """KV pool of each worker; 0 leaves the choice."""
    host_pool_bytes: int = 0
    """Host memory of each worker that blocks go through on their way to a disk."""


def plan_workers(ask: WorkerAsk, machine: Machine, env: Mapping[str, str]) -> tuple[EnginePlan, str]:
    """Type, pool and context of every worker, and the block of text that explains them.

    Raises:
        BadRequest: a worker's variable has a value that it cannot have.
        InvalidCheckpoint: the model does not fit; the text has the numbers.
    """
    settings = worker_settings(ask, env)
    plan = plan_of(settings.runner, settings.scheduler, cpu_room(machine, ask.num_workers))
    choices = (
        *plan.choices,
        *device_choices("cpu", settings.scheduler),
        kernels_choice(settings.runner, machine.cpu_flags),
    )
    title = f"each of at most {ask.num_workers} workers on {machine_line(machine)}:"
    return plan, choices_block(title, choices)


def worker_settings(ask: WorkerAsk, env: Mapping[str, str]) -> WorkerEngineSettings:
    """Settings of all workers: flags, over them variables of prefill workers, then those of decode workers.

    Raises:
        BadRequest: a variable has a value that it cannot have.
    """
    runner = {
        "dtype": ask.dtype,
        "quantization": ask.quantization,
        "kv_dtype": ask.kv_dtype,
        "max_model_len": ask.max_model_len,
        "kv_pool_bytes": ask.kv_pool_bytes,
        "host_pool_bytes": ask.host_pool_bytes,
    }
    values: dict[str, Any] = {"runner": runner}
    for cls in (PrefillEngineSettings, WorkerEngineSettings):
        values = _merged(values, _read_groups(cls, env))
    values["runner"]["model_path"] = ask.model_path
    return WorkerEngineSettings(**values)


def unset_alone(settings: Mapping[str, str], prefix: str, env: Mapping[str, str]) -> dict[str, str]:
    """``settings`` without those that the user's environment has for this worker."""
    return {name: value for name, value in settings.items() if f"{prefix}{name}" not in env}


def _read_groups(cls: type[WorkerEngineSettings], env: Mapping[str, str]) -> dict[str, Any]:
    """The groups as the environment of one role sets them, checked and still as text."""
    tree = read_environment(cls, env)
    groups: dict[str, Any] = {name: tree[name] for name in ("scheduler", "runner") if name in tree}
    try:
        cls(**groups)
    except ValidationError as error:
        fault = error.errors()[0]
        name = env_name_of(cls, tuple(map(str, fault["loc"])))
        problem = "is not a number" if fault["type"].endswith("_parsing") else fault["msg"]
        raise BadRequest(f"{name}={fault['input']!r} {problem}", param=name) from None
    return groups


def _merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Two trees of settings in one, in which those of ``over`` win."""
    merged = dict(base)
    for name, value in over.items():
        merged[name] = _merged(merged.get(name, {}), value) if isinstance(value, dict) else value
    return merged
