"""Shares of this machine that the workers of one platform take, decided once before the first of them starts.

Workers that start at the same time would each see all of the memory as free; so the platform plans for all that may
run, and hands every worker the same type, pool and context.  A worker's variable that the user set stays as it is.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

from stratos.common.errors import BadRequest
from stratos.engine.settings import RunnerConfig, SchedulerConfig
from stratos.engine.sizing.device import device_choices, kernels_choice
from stratos.engine.sizing.fit import cpu_room, plan_of, work_of
from stratos.engine.sizing.machine import Machine
from stratos.engine.sizing.plan import EnginePlan
from stratos.engine.sizing.report import choices_block, machine_line

WORKER_PREFIXES = ("STRATOS_DECODE_WORKER_", "STRATOS_PREFILL_WORKER_")
HEEDED = {
    "kv_pool_bytes": int,
    "max_model_len": int,
    "host_pool_bytes": int,
    "block_size": int,
    "cpu_memory_share": float,
    "gpu_memory_utilization": float,
    "native_isa": str,
}
HEEDED_STEPS = {"max_num_seqs": int, "max_num_batched_tokens": int, "kv_watermark": float}
"""Fields of a worker's runner and scheduler that sizes depend on, where its environment sets them."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WorkerAsk:
    """Wishes for the workers, given as flags."""

    model_path: Path
    num_workers: int
    """At most, of all roles."""
    dtype: str = "auto"
    max_model_len: int = 0


def plan_workers(ask: WorkerAsk, machine: Machine, env: Mapping[str, str]) -> tuple[EnginePlan, str]:
    """Type, pool and context of every worker, and the block of text that explains them.

    Raises:
        BadRequest: a worker's variable is not a number.
        InvalidCheckpoint: the model does not fit; the text has the numbers.
    """
    config, scheduler = heeded_config(ask, env), heeded_scheduler(env)
    plan = plan_of(config, cpu_room(machine, ask.num_workers), work_of(config, scheduler, device="cpu"))
    choices = (*plan.choices, *device_choices("cpu", scheduler), kernels_choice(config, machine.cpu_flags))
    title = f"each of at most {ask.num_workers} workers on {machine_line(machine)}:"
    return plan, choices_block(title, choices)


def heeded_config(ask: WorkerAsk, env: Mapping[str, str]) -> RunnerConfig:
    """A worker's runner as flags and variables set it, as far as sizes depend on it."""
    asked = RunnerConfig(model_path=ask.model_path, dtype=ask.dtype, max_model_len=ask.max_model_len)  # type: ignore[arg-type]
    return dataclasses.replace(asked, **_set_fields(env, "RUNNER", HEEDED))  # type: ignore[arg-type]


def heeded_scheduler(env: Mapping[str, str]) -> SchedulerConfig:
    """The same of its scheduler."""
    return SchedulerConfig(**_set_fields(env, "SCHEDULER", HEEDED_STEPS))  # type: ignore[arg-type]


def unset_alone(settings: Mapping[str, str], prefix: str, env: Mapping[str, str]) -> dict[str, str]:
    """``settings`` without those that the user's environment has for this worker."""
    return {name: value for name, value in settings.items() if f"{prefix}{name}" not in env}


def _set_fields(env: Mapping[str, str], group: str, fields: Mapping[str, type]) -> dict[str, int | float | str]:
    found: dict[str, int | float | str] = {}
    for field, kind in fields.items():
        for prefix in WORKER_PREFIXES:
            name = f"{prefix}{group}__{field.upper()}"
            if field in found or not env.get(name):
                continue
            try:
                found[field] = kind(env[name])
            except ValueError:
                raise BadRequest(f"{name}={env[name]!r} is not a number", param=name) from None
    return found
