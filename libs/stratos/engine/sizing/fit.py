"""Fits a configuration to a model folder and to the memory there is: what ``plan`` decides, written into settings."""

from __future__ import annotations

from dataclasses import replace

from stratos.engine.settings import RunnerConfig, SchedulerConfig
from stratos.engine.sizing.machine import Machine
from stratos.engine.sizing.need import read_need
from stratos.engine.sizing.plan import CPU_RUNTIME_BYTES, EnginePlan, Room, SizingWishes, SizingWork, plan_engine


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


def work_of(
    config: RunnerConfig, scheduler: SchedulerConfig, *, device: str, staging_bytes: int = 0, ring_bytes: int = 0
) -> SizingWork:
    """What an engine of these settings does at once.

    Args:
        config: of the model.
        scheduler: of the steps.
        device: "cpu" or "cuda".
        staging_bytes: of KV transports in host memory, which a GPU's pool does not share.
        ring_bytes: of KV transports in the GPU's memory.
    """
    is_gpu = device == "cuda"
    return SizingWork(
        num_seqs=scheduler.max_num_seqs,
        num_batched_tokens=scheduler.for_device(device).token_budget,
        kv_watermark=scheduler.kv_watermark,
        graph_rows=config.max_graph_batch if is_gpu and config.kernels.cuda_graphs else 0,
        num_graph_sets=2 if config.kernels.captures_adapters else 1,
        staging_bytes=ring_bytes if is_gpu else staging_bytes + config.host_pool_bytes,
    )


def plan_of(config: RunnerConfig, room: Room, work: SizingWork) -> EnginePlan:
    """The plan for a model folder.

    Raises:
        InvalidCheckpoint: the folder cannot be read, or the model does not fit.
    """
    need = read_need(config.model_folder())
    is_streaming = config.streaming.attention_window > 0
    wishes = SizingWishes(
        dtype=config.dtype,
        kv_dtype=config.kv_dtype,
        kv_pool_bytes=config.kv_pool_bytes,
        max_model_len=0 if is_streaming else config.max_model_len,
        block_size=config.block_size,
        memory_share=config.gpu_memory_utilization if room.is_gpu else config.cpu_memory_share,
        bounds_context=not is_streaming and not need.has_window,
    )
    return plan_engine(need, room, wishes, work)


def fitted(config: RunnerConfig, plan: EnginePlan) -> RunnerConfig:
    """``config`` with the plan's choices."""
    sizes = {"dtype": plan.dtype, "kv_pool_bytes": plan.kv_pool_bytes, "max_model_len": plan.max_model_len}
    return replace(config, **sizes)  # type: ignore[arg-type]  # the plan's type is one of the setting's
