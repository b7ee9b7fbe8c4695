"""What the workers of one platform take of this machine, decided once before the first of them starts.

Workers that start at the same time would each see all of the memory as free; so the platform plans for all that may
run, and hands every worker the same type, pool and context.  A worker's variable that the user set stays as it is.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from stratos.cli.local.options import UpOptions
from stratos.common.errors import BadRequest
from stratos.engine.settings import RunnerConfig, SchedulerConfig
from stratos.engine.sizing.device import device_choices, kernels_choice
from stratos.engine.sizing.fit import cpu_room, plan_of, work_of
from stratos.engine.sizing.machine import Machine
from stratos.engine.sizing.report import choices_block, machine_line

WORKER_PREFIXES = ("STRATOS_DECODE_WORKER_", "STRATOS_PREFILL_WORKER_")
HEEDED = {
    "kv_pool_bytes": int,
    "max_model_len": int,
    "host_pool_bytes": int,
    "block_size": int,
    "cpu_memory_share": float,
    "native_isa": str,
}
"""Fields of a worker's runner that sizes depend on, where its environment sets them."""


def plan_workers(options: UpOptions, machine: Machine, env: Mapping[str, str]) -> tuple[UpOptions, str]:
    """The options with type, pool and context of every worker, and the block of text that explains them.

    Raises:
        BadRequest: a worker's variable is not a number.
        InvalidCheckpoint: the model does not fit; the text has the numbers.
    """
    config = dataclasses.replace(
        RunnerConfig(model_path=options.model_path, dtype=options.dtype, max_model_len=options.max_model_len),  # type: ignore[arg-type]
        **_set_fields(env),
    )
    num_workers = options.prefill + options.decode_limit
    scheduler = SchedulerConfig()
    plan = plan_of(config, cpu_room(machine, num_workers), work_of(config, scheduler, device="cpu"))
    choices = (*plan.choices, *device_choices("cpu", scheduler), kernels_choice(config, machine.cpu_flags))
    title = f"each of at most {num_workers} workers on {machine_line(machine)}:"
    fitted = dataclasses.replace(
        options, dtype=plan.dtype, kv_pool_bytes=plan.kv_pool_bytes, max_model_len=plan.max_model_len
    )
    return fitted, choices_block(title, choices)


def unset_alone(settings: Mapping[str, str], prefix: str, env: Mapping[str, str]) -> dict[str, str]:
    """``settings`` without those that the user's environment has for this worker."""
    return {name: value for name, value in settings.items() if f"{prefix}{name}" not in env}


def _set_fields(env: Mapping[str, str]) -> dict[str, int | float | str]:
    found: dict[str, int | float | str] = {}
    for field, kind in HEEDED.items():
        for prefix in WORKER_PREFIXES:
            name = f"{prefix}RUNNER__{field.upper()}"
            if field in found or name not in env:
                continue
            try:
                found[field] = kind(env[name])
            except ValueError:
                raise BadRequest(f"{name}={env[name]!r} is not a number", param=name) from None
    return found
