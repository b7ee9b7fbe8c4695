"""Combinations with layers that have a state that are not there: refused by name when a model is loaded."""

from __future__ import annotations

from stratos.common.errors import InvalidCheckpoint
from stratos.engine.checkpoint.model_config import DecoderConfig
from stratos.engine.settings import RunnerConfig, SchedulerConfig

LEAST_SLOTS = 4
"""A sequence has two, reads a snapshot at its beginning, and may write one."""


def check_states(
    model: DecoderConfig, config: RunnerConfig, scheduler: SchedulerConfig | None, *, is_gpu: bool, has_kernels: bool
) -> None:
    """Raise ``InvalidCheckpoint`` where a model has layers with a state and something cannot be had beside them.

    Args:
        model: its configuration.
        config: how it is to run.
        scheduler: bounds of its steps; the default ones where there are none.
        is_gpu: whether it runs on a GPU.
        has_kernels: whether norms and activation are computed by the C++ kernels.
    """
    if model.delta is None:
        return
    scheduler = scheduler or SchedulerConfig()
    baseline, switches = scheduler.baseline, scheduler.switches
    refused = {
        "a GPU": is_gpu,
        "pure torch: they need the C++ kernels (python -m stratos.engine.native.build)": not (is_gpu or has_kernels),
        "quantised weights": model.quantisation is not None or config.quantization != "auto",
        "float16": config.dtype == "float16",
        "host_pool_bytes": config.host_pool_bytes > 0,
        "attention_window": config.streaming.is_on,
        "overlap": bool(switches.overlap),
        "baselines without a paged KV cache": not baseline.is_paged,
        f"fewer than {LEAST_SLOTS} state_slots": 0 < config.state_slots < LEAST_SLOTS,
    }
    for name, is_there in refused.items():
        if is_there:
            raise InvalidCheckpoint(f"layers with a state ({model.architecture}) are not served with {name}")
