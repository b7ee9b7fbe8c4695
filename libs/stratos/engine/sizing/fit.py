"""A configuration fitted to a model folder and to the memory there is: choices of ``plan``, written into settings."""

from __future__ import annotations

from dataclasses import replace

from stratos.engine.settings import RunnerConfig, SchedulerConfig
from stratos.engine.sizing.case import CPU_RUNTIME_BYTES, Room, SizingCase
from stratos.engine.sizing.machine import Machine
from stratos.engine.sizing.need import read_need
from stratos.engine.sizing.plan import EnginePlan, plan_engine


def cpu_room(machine: Machine, num_sharers: int = 1, taken_bytes: int = 0) -> Room:
    """Memory of a CPU engine.

    Args:
        machine: as it is now.
        num_sharers: engines that start at the same time.
        taken_bytes: what the engine's process has of its run-time already.
    """
    return Room(
        is_gpu=False,
        total_bytes=machine.total_bytes,
        free_bytes=machine.available_bytes and machine.available_bytes + min(taken_bytes, CPU_RUNTIME_BYTES),
        limited_by=machine.limited_by,
        num_sharers=num_sharers,
    )


def plan_of(config: RunnerConfig, scheduler: SchedulerConfig, room: Room, transport_bytes: int = 0) -> EnginePlan:
    """The plan for a model folder.

    Args:
        config: of the model.
        scheduler: of the steps.
        room: memory of the device.
        transport_bytes: staging memory of KV transports, as far as it lies in ``room``.

    Raises:
        InvalidCheckpoint: the folder cannot be read, or the model does not fit.
    """
    need = read_need(config.model_folder(), config.quantization, keeps_codes=not room.is_gpu)
    return plan_engine(
        SizingCase(need=need, room=room, config=config, scheduler=scheduler, transport_bytes=transport_bytes)
    )


def fitted(config: RunnerConfig, plan: EnginePlan) -> RunnerConfig:
    """``config`` with the plan's choices."""
    sizes = {"dtype": plan.dtype, "kv_pool_bytes": plan.kv_pool_bytes, "max_model_len": plan.max_model_len}
    return replace(config, **sizes)  # type: ignore[arg-type]  # the plan's type is one of the setting's
