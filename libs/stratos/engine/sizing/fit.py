"""A configuration fitted to a model folder and to the memory there is: choices of ``plan``, written into settings."""

from __future__ import annotations

from dataclasses import replace

from stratos.engine.settings import RunnerConfig, SchedulerConfig
from stratos.engine.sizing.case import CPU_RUNTIME_BYTES, EXPECTED_TOKENS, Room, SizingCase
from stratos.engine.sizing.device import keeps_codes
from stratos.engine.sizing.machine import Machine
from stratos.engine.sizing.need import ModelNeed, read_need
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
    is_kept = keeps_codes(config, is_gpu=room.is_gpu)
    need = read_need(config.model_folder(), config.quantization, keeps_codes=is_kept)
    case = SizingCase(need=need, room=room, config=config, scheduler=scheduler, transport_bytes=transport_bytes)
    return plan_engine(replace(case, draft=draft_need(scheduler, keeps_codes=is_kept)))


def draft_need(scheduler: SchedulerConfig, *, keeps_codes: bool) -> ModelNeed | None:
    """Sizes of the draft model, which runs where its model does; ``None`` where there is none.

    Raises:
        InvalidCheckpoint: its folder cannot be read.
    """
    speculation = scheduler.speculation
    if speculation.method != "draft" or speculation.model_path is None:
        return None
    return read_need(speculation.model_path, keeps_codes=keeps_codes)


def draft_config(config: RunnerConfig, scheduler: SchedulerConfig) -> RunnerConfig | None:
    """Settings of the draft model's runner beside a model with ``config``; ``None`` where there is none."""
    need = draft_need(scheduler, keeps_codes=False)  # KV alone is sized, which no scheme changes
    if need is None:
        return None
    pool_bytes = scheduler.max_num_seqs * EXPECTED_TOKENS * need.token_bytes("float32")
    return RunnerConfig(
        model_path=scheduler.speculation.model_path,
        dtype="float32" if config.dtype == "float32" else "auto",
        block_size=config.block_size,
        kv_pool_bytes=pool_bytes,
        num_threads=config.num_threads,
        native_isa=config.native_isa,
        max_resident_adapters=0,
        kernels=config.kernels,
    )


def fitted(config: RunnerConfig, plan: EnginePlan) -> RunnerConfig:
    """``config`` with the plan's choices."""
    sizes = {"dtype": plan.dtype, "kv_pool_bytes": plan.kv_pool_bytes, "max_model_len": plan.max_model_len}
    return replace(config, **sizes)  # type: ignore[arg-type]  # the plan's type is one of the setting's
