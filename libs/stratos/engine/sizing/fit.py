"""A configuration fitted to a model folder and to the memory there is: choices of ``plan``, written into settings."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from stratos.common.errors import InvalidCheckpoint
from stratos.core.files.model_files import read_json
from stratos.engine.checkpoint.model_config import parse_decoder_config
from stratos.engine.settings import RunnerConfig, SchedulerConfig
from stratos.engine.sizing.case import CPU_RUNTIME_BYTES, EXPECTED_TOKENS, Room, SizingCase
from stratos.engine.sizing.device import keeps_codes
from stratos.engine.sizing.machine import Machine
from stratos.engine.sizing.need import ModelNeed, read_need
from stratos.engine.sizing.plan import EnginePlan, plan_engine

SELF_SCHEME: Literal["int4"] = "int4"
"""What the method "self" quantises the model's own weights to."""
SMALL_SCHEMES = ("int4", "int4+head", "mxfp4", "nf4")
"""Schemes at load of which that is no smaller copy."""


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
    draft = draft_need(config, scheduler, is_gpu=room.is_gpu, keeps_codes=is_kept)
    return plan_engine(replace(case, draft=draft))


def draft_need(
    config: RunnerConfig, scheduler: SchedulerConfig, *, is_gpu: bool = False, keeps_codes: bool
) -> ModelNeed | None:
    """Sizes of the draft model, which runs where its model does; ``None`` where there is none.

    Raises:
        InvalidCheckpoint: its folder cannot be read, or the model has no smaller copy of itself.
    """
    speculation = scheduler.speculation
    if speculation.method == "self":
        _check_self(config, is_gpu=is_gpu)
        return read_need(config.model_folder(), SELF_SCHEME, keeps_codes=keeps_codes)
    if speculation.method != "draft" or speculation.model_path is None:
        return None
    return read_need(speculation.model_path, keeps_codes=keeps_codes)


def _check_self(config: RunnerConfig, *, is_gpu: bool) -> None:
    """Raise ``InvalidCheckpoint`` where weights in int4 cannot draft for the model."""
    if is_gpu:
        raise InvalidCheckpoint("the method self drafts with int4 weights, which run on CPUs alone")
    if config.quantization in SMALL_SCHEMES:
        raise InvalidCheckpoint(
            f"the method self drafts with int4 weights, and the model's are {config.quantization}: a draft is smaller"
        )
    model = parse_decoder_config(read_json(config.model_folder() / "config.json"))
    if model.quantisation is not None or model.has_coded_experts:
        stored = "coded experts" if model.quantisation is None else model.quantisation.label
        raise InvalidCheckpoint(f"the method self quantises float weights, and the checkpoint stores {stored}")


def draft_config(config: RunnerConfig, scheduler: SchedulerConfig) -> RunnerConfig | None:
    """Settings of the draft model's runner beside a model with ``config``; ``None`` where there is none.

    Raises:
        InvalidCheckpoint: as ``draft_need``.
    """
    need = draft_need(config, scheduler, keeps_codes=False)  # KV alone is sized, which no scheme changes
    if need is None:
        return None
    is_self = scheduler.speculation.method == "self"
    dtype = config.dtype if is_self or config.dtype == "float32" else "auto"
    token_bytes = need.token_bytes("float32" if dtype == "auto" else dtype)
    return RunnerConfig(
        model_path=config.model_path if is_self else scheduler.speculation.model_path,
        model_digest=config.model_digest if is_self else "",
        quantization=SELF_SCHEME if is_self else "auto",
        dtype=dtype,
        block_size=config.block_size,
        kv_pool_bytes=scheduler.max_num_seqs * EXPECTED_TOKENS * token_bytes,
        max_model_len=config.max_model_len if is_self else 0,
        num_threads=config.num_threads,
        native_isa=config.native_isa,
        max_resident_adapters=0,
        kernels=config.kernels,
    )


def fitted(config: RunnerConfig, plan: EnginePlan) -> RunnerConfig:
    """``config`` with the plan's choices."""
    sizes = {
        "dtype": plan.dtype,
        "kv_pool_bytes": plan.kv_pool_bytes,
        "host_pool_bytes": plan.host_pool_bytes,
        "max_model_len": plan.max_model_len,
        "state_slots": plan.state_slots or config.state_slots,
    }
    return replace(config, **sizes)  # type: ignore[arg-type]  # the plan's type is one of the setting's
